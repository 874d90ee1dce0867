"""Sidecars that only say something: a summary for who comes back, a likely next message, an answer in passing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.agents.sidecars.launch import Sidecar
from nexofork.agents.sidecars.words import NOTHING, away_prompt, btw_prompt, suggest_prompt
from nexofork.core.boilerplate import check_directive
from nexofork.core.query_source import QuerySource
from nexofork.policy.filters import OnlyToolsFilter, ReadOnlyFilter

if TYPE_CHECKING:
    from nexofork.agents.sidecars.launch import SidecarHost
    from nexofork.run.result import ForkResult

__all__ = ["Said", "away", "btw", "said_nothing", "suggest"]

_LOOKING_TURNS = 12
_SPEAKING_TURNS = 3
"""One that calls a tool all the same is told that it has none, and may answer then."""
_LONGEST_SUGGESTION = 200
_QUOTES = "\"'`“”„«»"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a sidecar said, and the run that said it."""

    text: str
    """Empty where it had nothing to say, or did not complete."""
    result: ForkResult

    @property
    def ok(self) -> bool:
        """Whether it completed, also where it had nothing to say."""
        return self.result.ok


async def away(host: SidecarHost, *, since: str = "", timeout_s: float = 120.0) -> Said:
    """Say what happened while the user was away; it may look things up and change nothing.

    Args:
        host: Starts it.
        since: How long or since when, in words.
        timeout_s: When it is given up.

    Raises:
        EmptySlot: The session has not made a request yet.
        ForkRefused: The run cannot be started as it is.
        BusError: NATS was not reached.
    """
    result = await host.run(
        Sidecar(
            label="away_digest",
            query_source=QuerySource.AWAY_DIGEST,
            prompt=(away_prompt(since),),
            tool_filter=ReadOnlyFilter(),
            max_turns=_LOOKING_TURNS,
            timeout_s=timeout_s,
        )
    )
    return Said(text=_text(result), result=result)


async def suggest(host: SidecarHost, *, timeout_s: float = 30.0) -> Said:
    """Guess the user's next message: one line, without tools; empty where nothing is likely enough.

    Raises:
        EmptySlot: The session has not made a request yet.
        ForkRefused: The run cannot be started as it is.
        BusError: NATS was not reached.
    """
    result = await host.run(_speaking("prompt_suggestion", QuerySource.SPECULATION, suggest_prompt(), timeout_s))
    return Said(text=_one_line(_text(result)), result=result)


async def btw(host: SidecarHost, question: str, *, timeout_s: float = 120.0) -> Said:
    """Answer a question in passing, from the conversation and without tools; the conversation does not notice.

    Raises:
        BadDirective: There is no question.
        EmptySlot: The session has not made a request yet.
        ForkRefused: The run cannot be started as it is.
        BusError: NATS was not reached.
    """
    check_directive(question)
    result = await host.run(_speaking("btw", QuerySource.SIDE_QUESTION, btw_prompt(question), timeout_s))
    return Said(text=result.final_text.strip() if result.ok else "", result=result)


def said_nothing(text: str) -> bool:
    """Whether the answer is the word for nothing, however it is dressed up.

    >>> said_nothing("**Nothing.**")
    True
    """
    return text.strip(" \t\n.*_!" + _QUOTES).casefold() == NOTHING.casefold()


def _speaking(label: str, source: str, prompt: str, timeout_s: float) -> Sidecar:
    # The schema must stay, or the cache is lost; so calls are denied when they are made.
    return Sidecar(
        label=label,
        query_source=source,
        prompt=(prompt,),
        tool_filter=OnlyToolsFilter(()),
        max_turns=_SPEAKING_TURNS,
        timeout_s=timeout_s,
        looks=False,
    )


def _text(result: ForkResult) -> str:
    text = result.final_text.strip() if result.ok else ""
    return "" if said_nothing(text) else text


def _one_line(text: str) -> str:
    """Return the first line without quotation marks around it; one that is far too long is no suggestion."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if len(line) > 1 and line[0] in _QUOTES and line[-1] in _QUOTES:
        line = line[1:-1].strip()
    return line if len(line) <= _LONGEST_SUGGESTION else ""
