"""Ask a run's parent: for content that is gone, for a tool that runs at the parent, for permission.

The question goes on the log, and the answer comes into the inbox. An inbox subject takes one message for ever, so the
first answer stands, and an unreadable one denies. A daemon that takes the run over asks under the same id, with what is
left of the deadline, and finds an answer that came in between.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from typing import TYPE_CHECKING, NoReturn

from pydantic import ValidationError

from nexofork.bus.failures import RunAborted
from nexofork.bus.reading import Stored, last_of
from nexofork.errors import BusError
from nexofork.policy.permissions import PermissionAnswer
from nexofork.run.abort import AbortReason
from nexofork.tools.parent_tools import encode_arguments
from nexofork.wire.messages import Answer, Asked, Payload, Permitted
from nexofork.wire.permissions import PermissionReply, ask_id_of
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.policy.permissions import Decision, PermissionAsk
    from nexofork.run.abort import AbortToken
    from nexofork.tools.dispatch import ToolCall
    from nexofork_daemon.host import Host
    from nexofork_daemon.run_writer import RunWriter

__all__ = ["LogAsker", "ParentQuestions", "ask_id_of", "read_answer"]

log = logging.getLogger(__name__)

_LOOKS = 20
_LOOK_AGAIN_S = 0.05
_UNREACHED_S = 0.5


class ParentQuestions:
    """The questions of one run."""

    def __init__(self, run_id: str, *, journal: RunWriter, host: Host) -> None:
        self._run_id = run_id
        self._journal = journal
        self._host = host

    async def content(self, payload: Payload, *, problem: BusError) -> bytes:
        """Ask for a content that is gone, and take what the parent puts into the inbox.

        Raises:
            RunAborted: The parent answered with an abort.
            BusError: The problem itself, where no usable answer came in time.
        """
        asked = Asked(
            epoch=self._journal.epoch,
            at=time.time(),
            ask_id=uuid.uuid4().hex,
            payload=payload,
            deadline_s=self._host.settings.ask_s,
        )
        answer = await self.ask(asked)
        if answer is None:
            raise problem
        try:
            found = Payload.model_validate(answer.data.get("payload"))
        except ValueError:
            raise problem from None
        return await self._host.blobs.resolve(found)

    async def ask(self, asked: Asked) -> Answer | None:
        """Put a question on the log and wait for its answer; None where no readable one came within its deadline.

        An answer that is there already is taken without asking again.

        Raises:
            RunAborted: The parent aborted instead.
            BusError: The run is lost, or NATS was not reached.
        """
        stored = await self.stored(asked.ask_id) if self._journal.epoch > 1 else None
        if stored is None:
            await self._journal.append(asked)
            stored = await self.until_answered(asked.ask_id, asked.deadline_s)
        try:
            return Answer.model_validate_json(stored.data) if stored else None
        except ValueError:
            return None

    async def tool(self, call: ToolCall, *, name: str, deadline_s: float, token: AbortToken) -> bytes | None:
        """Have the parent run a tool; None where it gave no usable answer in time.

        A run that was aborted or lost meanwhile throws the token and waits to be cancelled: no answer is its answer.
        """
        try:
            asked = Asked(
                epoch=self._journal.epoch,
                at=time.time(),
                ask_id=ask_id_of("tool", call.turn, call.id),
                what="tool",
                payload=await self._host.blobs.pack(encode_arguments(call)),
                deadline_s=deadline_s,
                turn=call.turn,
                call_id=call.id,
                name=name,
            )
            answer = await self.ask(asked)
        except RunAborted as exc:
            token.abort(AbortReason.PARENT, exc.event.note)
            return await _until_cancelled()
        except BusError as exc:
            token.abort(AbortReason.LEASE_LOST, str(exc))
            return await _until_cancelled()
        try:
            found = Payload.model_validate(answer.data.get("payload")) if answer else None
            return await self._host.blobs.resolve(found) if found else None
        except ValueError:
            return b""  # an answer, and none that can be read
        except BusError as exc:
            log.warning("run %s: the answer to %s is not to be had: %s", self._run_id, asked.ask_id, exc)
            return b""

    async def stored(self, ask_id: str) -> Stored | None:
        """Return what the inbox holds for a question.

        Raises:
            BusError: NATS was not reached.
        """
        pool = self._host.settings.pool
        return await last_of(self._host.bus, inbox_stream(pool), inbox(self._run_id, ask_id, pool))

    async def until_answered(self, ask_id: str, deadline_s: float) -> Stored | None:
        """Return what comes into the inbox for a question, or None where nothing did within the deadline.

        While NATS is away the question stays open: what came meanwhile is found when it is back.
        """
        answered = asyncio.Event()
        unsubscribe = self._host.inboxes.listen(self._run_id, lambda name: answered.set() if name == ask_id else None)
        forget = self._host.bus.on_reconnect(answered.set)
        try:
            async with asyncio.timeout(deadline_s):
                # An answer may have been quicker than we.
                stored = await self.found(ask_id)
                while stored is None:
                    await answered.wait()
                    answered.clear()
                    # The live message is a hint that may come before the stream has it.
                    stored = await self.found(ask_id, looks=_LOOKS)
                return stored
        except TimeoutError:
            return None
        finally:
            forget()
            unsubscribe()

    async def found(self, ask_id: str, *, looks: int = 1) -> Stored | None:
        """Look into the inbox so often; a look that NATS did not answer does not count."""
        while True:
            try:
                stored = await self.stored(ask_id)
            except BusError as exc:
                log.info("run %s: its inbox could not be read yet: %s", self._run_id, exc)
                await asyncio.sleep(_UNREACHED_S)
                continue
            looks -= 1
            if stored is not None or looks <= 0:
                return stored
            await asyncio.sleep(_LOOK_AGAIN_S)


async def _until_cancelled() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


class LogAsker:
    """An `Asker` for the engine; the questions of one run."""

    def __init__(
        self, host: Host, *, questions: ParentQuestions, journal: RunWriter, asked_at: Mapping[str, float]
    ) -> None:
        self._host = host
        self._questions = questions
        self._journal = journal
        self._asked_at = asked_at

    async def answer(self, ask: PermissionAsk) -> PermissionAnswer | None:
        """Put the question on the log and wait; an answer that is there already is taken without asking again."""
        left_s, stored = ask.deadline_s, None
        if (asked_at := self._asked_at.get(ask.ask_id)) is not None:
            left_s -= max(0.0, self._host.clock.now() - asked_at)
            # The model has not been told anything yet, so a late answer counts too.
            stored = await self._questions.found(ask.ask_id)
        if stored is None and left_s > 0:
            await self._journal.write(await self._asked(ask, left_s))
            stored = await self._questions.until_answered(ask.ask_id, left_s)
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
