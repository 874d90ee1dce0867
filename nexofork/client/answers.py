"""Answer what a run asks permission for: by a parent's callback, or by whoever knows the run and the question.

An inbox subject takes one message for ever, so the first answer stands and a wrong one cannot be taken back: an answer
is sent only for a question that is open on the run's log. When a question is decided by somebody else, the callback
that is still thinking about it is cancelled.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any

from nexofork.bus.reading import store_once
from nexofork.errors import BusError, ForkRefused
from nexofork.policy.permissions import PermissionAsk, answer_of
from nexofork.wire.messages import Answer, Asked, Final, Permitted, encode
from nexofork.wire.permissions import PermissionReply
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.run_log import Entry
    from nexofork.policy.permissions import PermissionAnswer
    from nexofork.run.events import ForkAsked

    OnPermission = Callable[[PermissionAsk], Awaitable[PermissionAnswer]]
    Start = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None] | None]

__all__ = ["Permitting", "check_open", "put_answer", "reply_of"]

log = logging.getLogger(__name__)


class Permitting:
    """The callback of one run's parent, and the questions it is at."""

    def __init__(
        self,
        bus: Bus,
        *,
        pool: str,
        by: str,
        callback: OnPermission | None = None,
        start: Start = lambda work: work.close(),
    ) -> None:
        """Make one.

        Args:
            bus: The connection.
            pool: Of the run.
            by: Who answers, for the log.
            callback: Answers; None leaves it to others.
            start: Runs something beside, if it still can; what it starts never raises.
        """
        self._bus = bus
        self._pool = pool
        self._by = by
        self._callback = callback
        self._start = start
        self._waiting: dict[str, ForkAsked] = {}
        self._begun: dict[str, asyncio.Task[None] | None] = {}

    def asked(self, asked: ForkAsked) -> None:
        """Hear of a question; a daemon that takes the run over asks it again."""
        if self._callback is not None and asked.ask_id not in self._begun:
            self._waiting[asked.ask_id] = asked

    def decided(self, ask_id: str) -> None:
        """Hear that a question is settled."""
        self._waiting.pop(ask_id, None)
        task = self._begun.setdefault(ask_id, None)
        if task is not None:
            task.cancel()

    def begin(self) -> None:
        """Put the open questions to the callback, all at once."""
        waiting, self._waiting = self._waiting, {}
        for ask_id, asked in waiting.items():
            if asked.arguments is not None:  # nobody can decide about what he cannot see
                self._begun[ask_id] = self._start(self._answer(asked))

    def close(self) -> None:
        """Give up what is not answered yet."""
        for task in self._begun.values():
            if task is not None:
                task.cancel()

    async def _answer(self, asked: ForkAsked) -> None:
        assert self._callback is not None
        ask = PermissionAsk(
            run_id=asked.run_id,
            ask_id=asked.ask_id,
            turn=asked.turn,
            call_id=asked.call_id,
            name=asked.name,
            arguments=dict(asked.arguments or {}),
            deadline_s=asked.deadline_s or 0.0,
            rules=asked.rules,
        )
        answer = await answer_of(self._callback, ask)
        try:
            message = reply_of(answer, by=self._by)
            await put_answer(self._bus, ask.run_id, ask.ask_id, message, pool=self._pool, limit_s=math.inf)
        except ForkRefused:
            return  # another answer was quicker
        except BusError as exc:
            log.warning("run %s: %s was not answered: %s", ask.run_id, ask.ask_id, exc)


def reply_of(answer: PermissionAnswer, *, by: str) -> Answer:
    """Return the message that answers a question about a permission.

    Args:
        answer: What was decided.
        by: Who decided, where the answer does not say.
    """
    reply = PermissionReply(allow=answer.allow, remember=answer.remember, rule=answer.rule, by=answer.by or by)
    data = {"allow": reply.allow, **reply.model_dump(exclude_defaults=True)}
    return Answer(kind="answer", at=time.time(), text=answer.note, data=data)


async def put_answer(
    bus: Bus, run_id: str, ask_id: str, message: Answer, *, pool: str, limit_s: float | None = None
) -> None:
    """Put an answer into a run's inbox.

    Args:
        bus: The connection.
        run_id: Which run.
        ask_id: Which question.
        message: The answer.
        pool: Of the run.
        limit_s: As `Tries` takes it.

    Raises:
        ForkRefused: There is another one already.
        BusError: NATS was not reached, or does not let us.
    """
    data = encode(message)
    found = await store_once(bus, inbox_stream(pool), inbox(run_id, ask_id, pool), data, limit_s=limit_s)
    if found is not None and found.data != data:
        raise ForkRefused(f"Ask {ask_id} of run {run_id} was answered before; the first answer stands.")


def check_open(run_id: str, ask_id: str, entries: Sequence[Entry]) -> Asked:
    """Return the question of this id.

    Raises:
        ForkRefused: It is not on the log, is decided, or the run waits for no answer any more.
    """
    if not entries:
        raise ForkRefused(f"There is no run {run_id!r}; it may have expired.")
    if any(isinstance(entry.message, Final) for entry in entries):
        raise ForkRefused(f"Run {run_id} is over; it asks for nothing any more.")
    found: dict[str, Asked] = {}
    for entry in entries:
        match entry.message:
            case Asked() as asked:
                found[asked.ask_id] = asked
            case Permitted() as permitted if permitted.ask_id == ask_id:
                how = "allowed" if permitted.allowed else "denied"
                why = "at its deadline" if permitted.how == "deadline" else f"by {permitted.by or 'an answer'}"
                raise ForkRefused(f"Ask {ask_id} of run {run_id} was {how} before, {why}; that stands.")
            case _:
                pass
    if ask_id not in found:
        known = ", ".join(found) or "nothing"
        raise ForkRefused(f"Run {run_id} has no open ask {ask_id!r}; it asked: {known}.")
    return found[ask_id]
