"""What is expected of a run, and what of it did not come true.

Every expectation that fails is named with what was found instead, so that a report can be read without the run.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexofork.agents.evaluation.json_path import NotThere, find, parse_answer
from nexofork.run.result import ForkStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Expectation", "Outcome", "disappointments"]

_SHOWN = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of a case came to, over all its prompts."""

    status: ForkStatus
    """The last run's; the first that did not complete ends the case."""
    text: str
    """What it said last."""
    tools: tuple[str, ...] = ()
    """The tools that ran, in order; what was denied did not."""
    tokens: int = 0
    """Of all calls, prompts and answers."""
    cost_usd: float | None = 0.0
    """None where the model's price is not known."""
    hit_ratio: float = 0.0
    """The share of the first call's prompt that was read from the cache."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is expected of every run of a case; what is left out is not looked at."""

    status: ForkStatus = ForkStatus.COMPLETED
    contains: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()
    json: Mapping[str, Any] = field(default_factory=dict)
    """Path to value, in the JSON that the answer is."""
    tools: tuple[str, ...] = ()
    """Each of them ran."""
    without_tools: tuple[str, ...] = ()
    """None of them ran; ``*`` is any."""
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    min_hit_ratio: float | None = None


def disappointments(expected: Expectation, outcome: Outcome) -> list[str]:
    """Return what did not come true, each as a sentence."""
    if outcome.status is not expected.status:
        # What it said on the way to another end is beside the point.
        why = f": {outcome.error}" if outcome.error else ""
        return [f"It ended as {outcome.status}, not as {expected.status}{why}."]
    return [*_about_text(expected, outcome), *_about_tools(expected, outcome), *_about_bill(expected, outcome)]


def _about_text(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    said = _brief(outcome.text)
    for words in expected.contains:
        if words not in outcome.text:
            yield f"The answer does not contain {words!r}; it is {said}."
    for words in expected.lacks:
        if words in outcome.text:
            yield f"The answer contains {words!r}; it is {said}."
    for pattern in expected.regex:
        if re.search(pattern, outcome.text, re.MULTILINE) is None:
            yield f"The answer does not match {pattern!r}; it is {said}."
    if expected.json:
        yield from _about_json(expected.json, outcome.text)


def _about_json(expected: Mapping[str, Any], text: str) -> Iterator[str]:
    try:
        answer = parse_answer(text)
    except ValueError:
        yield f"The answer is no JSON; it is {_brief(text)}."
        return
    for path, value in expected.items():
        try:
            found = find(answer, path)
        except NotThere as exc:
            yield f"In the answer's JSON {exc}."
            continue
        # In Python True is 1; in JSON it is not.
        if found != value or isinstance(found, bool) is not isinstance(value, bool):
            yield f"In the answer's JSON {path} is {_brief(json.dumps(found))}, not {json.dumps(value, default=str)}."


def _about_tools(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    ran = ", ".join(dict.fromkeys(outcome.tools)) or "none"
    for name in expected.tools:
        if name not in outcome.tools:
            yield f"{name} did not run; these did: {ran}."
    for name in expected.without_tools:
        if name in outcome.tools or (name == "*" and outcome.tools):
            yield f"{'A tool' if name == '*' else name} ran; these did: {ran}."


def _about_bill(expected: Expectation, outcome: Outcome) -> Iterator[str]:
    if expected.max_cost_usd is not None:
        if outcome.cost_usd is None:
            yield "What it cost is not known: the model has no price here."
        elif outcome.cost_usd > expected.max_cost_usd:
            yield f"It cost ${outcome.cost_usd:.6g}, more than ${expected.max_cost_usd:g}."
    if expected.max_tokens is not None and outcome.tokens > expected.max_tokens:
        yield f"It took {outcome.tokens:,} tokens, more than {expected.max_tokens:,}."
    if expected.min_hit_ratio is not None and outcome.hit_ratio < expected.min_hit_ratio:
        yield f"Its first call read {outcome.hit_ratio:.2%} from the cache, less than {expected.min_hit_ratio:.2%}."


def _brief(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
