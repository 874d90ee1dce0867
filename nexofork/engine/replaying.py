"""Bring a child's prompt to where its recorded turns left it.

One rule says what stands behind a reply, for the daemon that has just got it, for the one that takes the run over and
for whoever wakes the run days later: only so do all of them send the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.core.boilerplate import reminder
from nexofork.core.prompt import ToolAnswer
from nexofork.engine.journal import INTERRUPTED
from nexofork.engine.mailbox import as_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nexofork.core.prompt import ChildPrompt
    from nexofork.engine.journal import RecordedTurn
    from nexofork.engine.mailbox import Letter
    from nexofork.engine.params import ForkParams

__all__ = ["CUT_BY_WINDOW", "behind_results", "compacted_texts", "interrupted_answers", "replay"]

CUT_BY_WINDOW = "model_context_window_exceeded"


def behind_results(params: ForkParams, letters: Iterable[Letter]) -> list[str]:
    """Return what is said behind the tool results of a turn."""
    note = params.overrides.critical_system_reminder
    return [*([reminder(note)] if note else []), *map(as_text, letters)]


def compacted_texts(note: str, unseen: Iterable[Letter]) -> list[str]:
    """Return what stands behind the directive after a compaction: the note, and the messages nobody has read yet."""
    return [note, *map(as_text, unseen)]


def interrupted_answers(turn: RecordedTurn) -> dict[str, ToolAnswer]:
    """Return what the model is told about the calls that were cut off."""
    return {
        call_id: ToolAnswer(call_id=call_id, content=INTERRUPTED, is_error=True) for call_id in sorted(turn.interrupted)
    }


def replay(prompt: ChildPrompt, params: ForkParams, turns: Sequence[RecordedTurn]) -> None:
    """Add turns whose calls are all answered to a prompt that stands at its beginning."""
    for turn in turns:
        reply = turn.reply
        answers = {**interrupted_answers(turn), **turn.answers}
        if reply.stop_reason == "pause_turn":
            prompt.extend(reply)
        elif reply.stop_reason == "tool_use":
            answered = [answers[use.id] for use in reply.tool_uses]
            prompt.extend(reply, answered, behind_results(params, turn.letters))
        elif reply.stop_reason != CUT_BY_WINDOW:  # what was cut off there is in no later request
            prompt.extend(reply, (), map(as_text, turn.letters))
        for compaction in turn.compactions:
            prompt.compact(compacted_texts(compaction.note, turn.letters))
