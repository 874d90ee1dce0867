"""Questions about tool calls, their answers, and who gets them answered in this process.

The first answer counts, whoever gives it: the parent's callback, or whoever holds the handle. Without one the deadline
decides.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nexofork.engine.events import ForkAsked, ForkPermitted
from nexofork.errors import ForkRefused
from nexofork.wire.permissions import LONGEST_NOTE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.engine.events import ForkEvent

    OnPermission = Callable[["PermissionAsk"], Awaitable["PermissionAnswer"]]

__all__ = ["Asker", "Decision", "LocalDesk", "NobodyToAsk", "PermissionAnswer", "PermissionAsk", "answer_of"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAsk:
    """May this fork make this call?"""

    run_id: str
    ask_id: str
    """What an answer has to name."""
    turn: int
    call_id: str
    name: str
    """The tool, by the name that rules use."""
    arguments: dict[str, Any]
    deadline_s: float
    """How long an answer is waited for from now on."""
    rules: tuple[str, ...] = ()
    """What an answer that is remembered would allow, or deny, from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAnswer:
    """What somebody says to that."""

    allow: bool
    note: str = ""
    """For the model, where it is denied; for the log in any case."""
    remember: bool = False
    """Whether the same goes for the like of it until the run is over."""
    rule: str = ""
    """What to remember, if not what the question suggests; it has to cover the call that was asked about."""
    by: str = ""
    """Who says so, for the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What it came to."""

    allowed: bool
    how: Literal["answer", "deadline"] = "answer"
    note: str = ""
    rules: tuple[str, ...] = ()
    """What is remembered of it."""
    by: str = ""


class Asker(Protocol):
    """Gets questions answered."""

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Return the first answer, or None where none came before the deadline."""

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Hear what it came to, before anything is done about it."""


class NobodyToAsk:
    """Answers nothing: the deadline has passed."""

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Return nothing."""
        return None

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Do nothing."""


@dataclass(slots=True, kw_only=True)
class LocalDesk:
    """Asks in this process."""

    emit: Callable[[ForkEvent], None]
    callback: OnPermission | None = None
    _open: dict[str, asyncio.Future[PermissionAnswer]] = field(default_factory=dict)
    _closed: set[str] = field(default_factory=set)

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Show the question, and wait for the callback or for whoever answers by its id."""
        given: asyncio.Future[PermissionAnswer] = asyncio.get_running_loop().create_future()
        self._open[ask.ask_id] = given
        self.emit(asked_event(ask))
        try:
            async with asyncio.timeout(ask.deadline_s), asyncio.TaskGroup() as tasks:
                calling = tasks.create_task(self._call(ask, given)) if self.callback else None
                answer = await given
                if calling is not None:
                    calling.cancel()
        except TimeoutError:
            return None
        finally:
            del self._open[ask.ask_id]
            self._closed.add(ask.ask_id)
        return answer

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Show what it came to."""
        self.emit(
            ForkPermitted(
                run_id=ask.run_id,
                ask_id=ask.ask_id,
                call_id=ask.call_id,
                name=ask.name,
                allowed=decision.allowed,
                how=decision.how,
                note=decision.note,
                rules=decision.rules,
                by=decision.by,
            )
        )

    def give(self, ask_id: str, answer: PermissionAnswer) -> None:
        """Answer a question.

        Raises:
            ForkRefused: It was decided before, or never asked.
        """
        given = self._open.get(ask_id)
        if given is None or given.done():
            was = given is not None or ask_id in self._closed
            raise ForkRefused(
                f"Ask {ask_id} was decided before; the first answer stands."
                if was
                else f"There is no open ask {ask_id!r}; open are: {', '.join(self._open) or 'none'}."
            )
        given.set_result(answer)

    async def _call(self, ask: PermissionAsk, given: asyncio.Future[PermissionAnswer]) -> None:
        assert self.callback is not None
        answer = await answer_of(self.callback, ask)
        if not given.done():
            given.set_result(answer)


async def answer_of(callback: OnPermission, ask: PermissionAsk) -> PermissionAnswer:
    """Return what a parent's callback answers; one that fails denies."""
    try:
        answer: object = await callback(ask)
    except Exception as exc:
        # It may raise anything; without an answer nothing runs.
        log.warning("on_permission raised on %s", ask.name, exc_info=exc, extra={"run_id": ask.run_id})
        return PermissionAnswer(allow=False, note=f"the parent could not decide: {type(exc).__name__}: {exc}")
    if isinstance(answer, PermissionAnswer) and isinstance(answer.allow, bool):
        return answer
    return PermissionAnswer(
        allow=False, note=f"the parent could not decide: on_permission gave {type(answer).__name__}, no answer"
    )


def asked_event(ask: PermissionAsk) -> ForkAsked:
    """Return the event that shows a question."""
    return ForkAsked(
        run_id=ask.run_id,
        ask_id=ask.ask_id,
        what="permission",
        turn=ask.turn,
        call_id=ask.call_id,
        name=ask.name,
        arguments=ask.arguments,
        deadline_s=ask.deadline_s,
        rules=ask.rules,
    )


def shortened(note: str) -> str:
    """Return a note as long as a model is shown it."""
    return note if len(note) <= LONGEST_NOTE else note[: LONGEST_NOTE - 1] + "…"
