"""Go on when a child's conversation no longer fits the model: its own turns are summarised, the shared prefix stays.

Only the provider knows what fits, so nothing is compacted before it has refused, and what remains is far below what
it refused: a history is not rewritten turn after turn. The shared prefix, the boilerplate, the directive and the tool
list stay byte for byte, so every cached entry of the siblings' is still read and the guards against forks of forks
still hold. The summary is written by one call over as many of the turns as fit, and is on the log before it is used.

Nothing is cut in silence: what stands in place of the turns says how many they were and what it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.errors import NexoforkError, ProviderError
from nexofork.providers.failures import ContextOverflow
from nexofork.run.events import ConversationCompacted
from nexofork.run.turns import Compaction, compacted_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexofork.core.prompt import ChildPrompt
    from nexofork.core.reply import Reply
    from nexofork.run.events import ForkEvent
    from nexofork.run.mailbox import Letter
    from nexofork.run.model_calls import ModelCalls
    from nexofork.run.turns import Journal

__all__ = ["COMPACTED_TAG", "INSTRUCTION", "Compactor", "NotCompacted"]

COMPACTED_TAG = "compacted-turns"

INSTRUCTION = """<compaction>
This conversation has grown too long to go on. Before you continue, write down everything you will need, because your \
own turns since the directive will be taken away and only this text will be left of them. What came before the \
directive stays.
Answer with text only and call no tool. In at most 1,500 words say:
- what of the directive is done, with the results and figures you will report
- every file you read or changed that still matters, with its path and what you learnt or did there
- commands that worked, and what failed and why
- every message your parent sent you in between, word for word
- what is left to do, the next step first
</compaction>"""

_LEFT_OUT = "This result did not fit the conversation and is left out."
_IDLE_LIMIT = 2
"""How many compactions in a row may each stand for a single new turn; one more would only go round in circles."""


class NotCompacted(NexoforkError):
    """The conversation does not fit, and could not be made to."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            f"The conversation no longer fits the model's context window, and {why}. "
            "Narrow the directive, ask for shorter tool results, or fork from an earlier turn."
        )


class Compactor:
    """Shortens one child's conversation."""

    def __init__(
        self,
        run_id: str,
        *,
        prompt: ChildPrompt,
        calls: ModelCalls,
        journal: Journal,
        emit: Callable[[ForkEvent], None],
    ) -> None:
        self._run_id = run_id
        self._prompt = prompt
        self._calls = calls
        self._journal = journal
        self._emit = emit
        self._idle = 0

    async def compact(self, turn: int, unseen: Sequence[Letter]) -> None:
        """Replace the child's turns by a summary, once it is on the log.

        Args:
            turn: The last one.
            unseen: Messages of the parent's that no answered request carried; they are kept as they are.

        Raises:
            NotCompacted: There is nothing to leave out, it did not help before, or no summary could be had.
            OverBudget: The summary would cost more than is left.
        """
        held = self._prompt.held_turns
        if not held:
            raise NotCompacted("there is nothing of the child's own to leave out")
        if held == 1 and self._idle >= _IDLE_LIMIT:
            raise NotCompacted(f"after {_IDLE_LIMIT} compactions a single turn filled it again each time")
        reply, attempt, read = await self._summary(turn + 1, held)
        compaction = Compaction(
            note=_note(reply.text, turns=turn, left_out=held - read),
            left_out=held - read,
            attempt=attempt,
            message_id=reply.message_id or "",
            usage=reply.usage,
            stop_reason=reply.stop_reason,
        )
        await self._journal.compacted(turn, compaction)
        self.apply(turn, compaction, unseen)

    def apply(self, turn: int, compaction: Compaction, unseen: Sequence[Letter]) -> None:
        """Use a summary that is on the log."""
        self._idle = self._idle + 1 if self._prompt.held_turns == 1 else 0
        self._prompt.compact(compacted_texts(compaction.note, unseen))
        self._emit(ConversationCompacted(run_id=self._run_id, turns=turn, left_out=compaction.left_out))

    async def _summary(self, turn: int, held: int) -> tuple[Reply, int, int]:
        """Return a summary, which attempt of the turn's call it was, and how many turns it could read."""
        for prompt, read in self._questions(held):
            try:
                reply, attempt = await self._calls.summarise(turn, prompt)
            except ContextOverflow:
                continue
            except ProviderError as exc:
                raise NotCompacted(f"the call to summarise it failed: {exc}") from exc
            if not reply.text.strip():
                raise NotCompacted(f"the model gave no summary of it ({reply.stop_reason})")
            return reply, attempt, read
        raise NotCompacted("it leaves no room to summarise it")

    def _questions(self, held: int) -> Iterator[tuple[ChildPrompt, int]]:
        """Yield requests for a summary: of all turns without the newest results, then of fewer and fewer turns."""
        whole = self._prompt.asking(INSTRUCTION, turns=held, left_out=_LEFT_OUT)
        if whole is not None:
            yield whole, held
        shown = held - 1
        while shown > 0:
            part = self._prompt.asking(INSTRUCTION, turns=shown)
            if part is not None:
                yield part, shown
            shown //= 2


def _note(summary: str, *, turns: int, left_out: int) -> str:
    missing = (
        f"The last {left_out} of them did not fit when it was written, so it does not know what they did"
        if left_out
        else "The results of the last tool calls did not fit and are not part of it: ask for less at a time"
    )
    return (
        f"<{COMPACTED_TAG}>\n"
        f"Your own turns 1 to {turns} no longer fit the conversation. This is your summary of them. {missing}. "
        "Look at the state of things before you repeat anything that changes them, and go on with the directive.\n\n"
        f"{summary.strip()}\n"
        f"</{COMPACTED_TAG}>"
    )
