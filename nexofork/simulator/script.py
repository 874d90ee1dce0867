"""Decide what the model says to a request.

Three sources, in this order: an ``@sim`` line in the conversation, the rules of the running simulator, a default
report. ``@sim`` is stateless: the turn is the number of assistant messages after the line, so any number of
conversations, forks of each other or not, follow their own scripts at once.
Invariant: the same conversation gets the same turn, however often it is sent; only counted faults wear off.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nexofork.simulator.errors import invalid
from nexofork.simulator.faults import Fault, ScriptError, count, parse_fault
from nexofork.simulator.prompt import content_blocks
from nexofork.simulator.turns import Turn, parse_turns, refuse_half_pairs

__all__ = ["Rule", "Script", "parse_rules"]

DIRECTIVE = re.compile(r"^[ \t]*@sim[ \t]+", re.MULTILINE)
RULE_FIELDS = frozenset({"match", "model", "turns", "fault", "times"})
ECHOED_WORDS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A script that holds for some requests."""

    match: str | None = None
    """A part of the last user text; None is any."""
    model: str | None = None
    """A model id or the beginning of one; None is any."""
    turns: tuple[Turn, ...] = ()
    fault: Fault | None = None
    times: int | None = None
    """How many requests the rule may answer, or how often its fault happens; None is no limit."""


class Script:
    """The rules in force, and how often they were used."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)
        self._used: Counter[int] = Counter()
        self._faulted: Counter[str] = Counter()

    def decide(self, request: dict[str, Any], body_digest: str) -> Turn:
        """The turn for this request, with the fault that applies to it this time.

        A pre-warm says nothing, so it uses up no rule's turns; delays, holds and faults hold for it all the same.

        Raises:
            ApiError: an ``@sim`` line that is no script.
        """
        fault = self._rule_fault(request)
        turn = self._turn(request)
        if fault is None and turn.fault is not None and self._take_fault(turn.fault, body_digest):
            fault = turn.fault
        return replace(turn, fault=fault)

    def _turn(self, request: dict[str, Any]) -> Turn:
        directive = _find_directive(request["messages"])
        if directive is not None:
            turns, index = directive
            return turns[index] if index < len(turns) else _report(request["messages"])
        for number, rule in enumerate(self._rules):
            said = _matching(rule, request) if rule.turns else None
            free = rule.fault is not None or request.get("max_tokens") == 0
            if said is None or not (free or self._take_rule(number, rule.times)):
                continue
            index = _assistant_messages_after(request["messages"], said)
            return rule.turns[index] if index < len(rule.turns) else _report(request["messages"])
        return _report(request["messages"])

    def _rule_fault(self, request: dict[str, Any]) -> Fault | None:
        for number, rule in enumerate(self._rules):
            if rule.fault is None or _matching(rule, request) is None:
                continue
            limit = rule.times if rule.times is not None else rule.fault.times
            if self._take_rule(number, limit):
                return rule.fault
        return None

    def _take_rule(self, number: int, limit: int | None) -> bool:
        if limit is not None and self._used[number] >= limit:
            return False
        self._used[number] += 1
        return True

    def _take_fault(self, fault: Fault, body_digest: str) -> bool:
        # A retry sends the same bytes, another conversation does not: count per body.
        if fault.times is not None and self._faulted[body_digest] >= fault.times:
            return False
        self._faulted[body_digest] += 1
        return True


def parse_rules(value: Any) -> list[Rule]:
    """Read rules: one object, a list of them, or `{"rules": […]}`.

    Raises:
        ScriptError: naming the field that is wrong.
    """
    refuse_half_pairs(value)
    if isinstance(value, Mapping) and set(value) == {"rules"}:
        value = value["rules"]
    return [_rule(item) for item in ([value] if isinstance(value, Mapping) else value)]


def _rule(value: Any) -> Rule:
    if not isinstance(value, Mapping):
        raise ScriptError(f"rule: expected an object, not {value!r}")
    if unknown := sorted(set(value) - RULE_FIELDS):
        raise ScriptError(f"rule: unknown fields {', '.join(unknown)}; known are {', '.join(sorted(RULE_FIELDS))}")
    return Rule(
        match=value.get("match"),
        model=value.get("model"),
        turns=parse_turns(value["turns"]) if "turns" in value else (),
        fault=parse_fault(value.get("fault")),
        times=count(value, "times"),
    )


def _find_directive(messages: Sequence[dict[str, Any]]) -> tuple[tuple[Turn, ...], int] | None:
    """The last ``@sim`` script of the conversation and the turn it is at."""
    for index in range(len(messages) - 1, -1, -1):
        for text in reversed(list(_user_texts(messages[index]))):
            found = DIRECTIVE.search(text) if "@sim" in text else None
            if found is not None:
                return _read_directive(text[found.end() :]), _assistant_messages_after(messages, index)
    return None


def _read_directive(text: str) -> tuple[Turn, ...]:
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
        return parse_turns(value)
    except (ValueError, RecursionError) as exc:
        raise invalid(f"@sim: {exc}") from exc


def _matching(rule: Rule, request: dict[str, Any]) -> int | None:
    """Index of the last user message with text, when the rule holds for it."""
    if rule.model is not None and not request["model"].startswith(rule.model):
        return None
    for index in range(len(request["messages"]) - 1, -1, -1):
        texts = list(_user_texts(request["messages"][index]))
        if texts:
            return index if rule.match is None or any(rule.match in text for text in texts) else None
    return None


def _user_texts(message: dict[str, Any]) -> Iterator[str]:
    if message["role"] != "user":
        return
    for block in content_blocks(message["content"]):
        if isinstance(block, str):
            yield block
        elif block["type"] == "text":
            yield block["text"]


def _assistant_messages_after(messages: Sequence[dict[str, Any]], index: int) -> int:
    return sum(message["role"] == "assistant" for message in messages[index + 1 :])


def _report(messages: Sequence[dict[str, Any]]) -> Turn:
    """What the model says when nobody told it: a report in the shape a fork's report has."""
    texts = [text for message in messages for text in _user_texts(message)]
    lines = [line for line in (texts[-1] if texts else "").splitlines() if not DIRECTIVE.match(line)]
    scope = " ".join(" ".join(lines).split()[:ECHOED_WORDS]) or "as asked"
    text = f"Scope: {scope}\nResult: Done.\nKey files: none\nFiles changed: none\nIssues: none"
    return Turn(blocks=({"type": "text", "text": text},))
