"""Ask a run's parents whether a tool call may run: the question goes on the log, the answer comes into the inbox.

Whoever takes the run over asks under the same id, with what is left of the deadline, and finds an answer that came
while nobody had the run. An inbox subject takes one message for ever: the first answer stands, also one that cannot be
read, which denies.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nexofork.engine.permissions import PermissionAnswer
from nexofork.wire.messages import Answer, Asked, Permitted
from nexofork.wire.permissions import PermissionReply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.bus.reading import Stored
    from nexofork.engine.permissions import Decision, PermissionAsk
    from nexofork_daemon.asking import Asking
    from nexofork_daemon.host import Host
    from nexofork_daemon.journal import LogJournal

__all__ = ["LogDesk", "read_answer"]


class LogDesk:
    """An `Asker` for the engine; the questions of one run."""

    def __init__(self, host: Host, *, asking: Asking, journal: LogJournal, asked_at: Mapping[str, float]) -> None:
        self._host = host
        self._asking = asking
        self._journal = journal
        self._asked_at = asked_at

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Put the question on the log and wait; an answer that is there already is taken without asking again."""
        left_s, stored = ask.deadline_s, None
        if (asked_at := self._asked_at.get(ask.ask_id)) is not None:
            left_s -= max(0.0, self._host.clock.now() - asked_at)
            # Nobody has told the model anything yet, so an answer counts however late it came.
            stored = await self._asking.found(ask.ask_id)
        if stored is None and left_s > 0:
            await self._journal.write(await self._asked(ask, left_s))
            stored = await self._asking.until_answered(ask.ask_id, left_s)
        return None if stored is None else read_answer(stored)

    async def decided(self, ask: PermissionAsk, decision: Decision) -> None:
        """Write down what it came to, before anything is done about it."""
        await self._journal.write(
            Permitted(
                epoch=self._journal.epoch,
                at=time.time(),
                ask_id=ask.ask_id,
                turn=ask.turn,
                call_id=ask.call_id,
                name=ask.name,
                allowed=decision.allowed,
                how=decision.how,
                note=decision.note,
                rules=list(decision.rules),
                by=decision.by,
            )
        )

    async def _asked(self, ask: PermissionAsk, left_s: float) -> Asked:
        arguments = json.dumps(ask.arguments, ensure_ascii=False, separators=(",", ":"))
        return Asked(
            epoch=self._journal.epoch,
            at=time.time(),
            ask_id=ask.ask_id,
            what="permission",
            payload=await self._host.blobs.pack(arguments.encode("utf-8", "backslashreplace")),
            deadline_s=left_s,
            turn=ask.turn,
            call_id=ask.call_id,
            name=ask.name,
            rules=list(ask.rules),
        )


def read_answer(stored: Stored) -> PermissionAnswer:
    """Read what stands in an inbox; what cannot be read denies, because no other answer can come any more."""
    try:
        answer = Answer.model_validate_json(stored.data)
        reply = PermissionReply.model_validate(answer.data)
    except (ValidationError, RecursionError):
        return PermissionAnswer(allow=False, note="the answer that came cannot be read")
    if answer.kind != "answer":
        return PermissionAnswer(allow=False, note="the answer that came cannot be read")
    return PermissionAnswer(
        allow=reply.allow, note=answer.text, remember=reply.remember or bool(reply.rule), rule=reply.rule, by=reply.by
    )
