"""Follow a run on another host through its log.

The live feed is quick and may lose messages while we are disconnected; the log has everything. So the feed is applied
in sequence order, each report once, and after every reconnect the log fills what was missed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nexofork.bus.jetstream import EXPECTED_LAST, store
from nexofork.bus.pickup import queue_depth
from nexofork.bus.run_log import RunLog
from nexofork.core.reply import Reply
from nexofork.core.usage import Usage
from nexofork.engine.abort import Abort, AbortReason
from nexofork.engine.cache_check import CacheCheck
from nexofork.engine.events import (
    CacheBreakDetected,
    FanOutDecided,
    ForkAsked,
    ForkClaimed,
    ForkEnded,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nexofork.engine.result import ForkResult, ForkStatus
from nexofork.errors import BadMessage, BadReply, BusError
from nexofork.wire import messages as wire
from nexofork.wire.subjects import delta, inbox, live_reports, reports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.connection import Bus, Msg, Subscription
    from nexofork.client.handle import ForkRecord

__all__ = ["RemoteRun"]

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_LOOK_S = 2.0


class RemoteRun:
    """One run of this parent's, or one it attached to."""

    def __init__(
        self,
        bus: Bus,
        blobs: BlobStore,
        record: ForkRecord,
        *,
        pool: str,
        parent_id: str,
        on_asked: Callable[[RemoteRun, wire.Asked], Awaitable[None]],
    ) -> None:
        self.log = RunLog(bus, record.run_id, pool=pool)
        self.record = record
        self.claimed = asyncio.Event()
        """Set once a daemon took the run, or it ended without one."""
        self._bus = bus
        self._blobs = blobs
        self._pool = pool
        self._parent_id = parent_id
        self._on_asked = on_asked
        self._news = asyncio.Event()
        self._arrived: list[tuple[int, int, bytes]] = []
        self._names: dict[str, str] = {}
        self._decision: dict[str, Any] | None = None
        self._seen = 0
        self._stale = False
        self._subscriptions: list[Subscription] = []

    async def listen(self, *, deltas: bool = False) -> None:
        """Subscribe to the live feed; from here on nothing is missed while we are connected.

        Args:
            deltas: Whether somebody looks at the text as it comes.
        """
        run_id = self.record.run_id
        self._subscriptions = [await self._bus.subscribe(live_reports(run_id, self._pool), self._live)]
        if deltas:
            self._subscriptions.append(await self._bus.subscribe(delta(run_id, self._pool), self._text))

    async def follow(self, *, after: int = 0, known: bool = False) -> None:
        """Apply what happens until the run is over.

        Args:
            after: Sequence behind which to start.
            known: Whether the log up to here holds nothing that was not applied, so that it need not be read first.
        """
        self._seen = after
        remove = self._bus.on_reconnect(self._reread)
        missed = not known
        try:
            while self.record.result is None:
                if missed or self._stale:
                    missed = not await self._catch_up()
                arrived, self._arrived = sorted(self._arrived), []
                for seq, behind, data in arrived:
                    await self._apply_live(seq, behind, data)
                if not self._arrived and not self._stale:
                    await self._wait(missed)
        finally:
            remove()
            await self.close()

    async def over(self) -> None:
        """Return when the run has ended."""
        while self.record.result is None:
            await self.record.until(len(self.record.events))

    async def close(self) -> None:
        """Stop listening."""
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.unsubscribe()

    async def abort(self, note: str) -> None:
        """Put an abort on the log; a no-op once the run is over.

        Raises:
            BusError: NATS was not reached.
        """
        if self.record.result is None:
            await self.log.abort(wire.AbortEvent(at=time.time(), note=note, by=self._parent_id))
            if not self.claimed.is_set():
                self._reread()  # no daemon may be there to report what the log says already

    async def message(self, text: str) -> None:
        """Put a message to the child into its inbox.

        Raises:
            BusError: NATS was not reached.
        """
        letter = wire.Answer(kind="message", at=time.time(), text=text)
        await store(self._bus, inbox(self.record.run_id, letter.id, self._pool), wire.encode(letter))

    async def waiting(self) -> int:
        """Return about how many requests wait for a daemon."""
        return await queue_depth(self._bus, pool=self._pool)

    def _reread(self) -> None:
        self._stale = True
        self._news.set()

    async def _wait(self, missed: bool) -> None:
        if self.record.result is not None:
            return
        # A read that failed is tried again soon. What daemons do comes by the feed; another process's abort of a run
        # that no daemon has does not, so until one has it the log is looked at now and then.
        unclaimed_s = None if self.claimed.is_set() else _LOOK_S
        try:
            async with asyncio.timeout(_RETRY_S if missed else unclaimed_s):
                await self._news.wait()
        except TimeoutError:
            self._stale = True
            return
        self._news.clear()

    def _live(self, message: Msg) -> None:
        headers = message.headers
        if headers.get("Nats-Subject") != reports(self.record.run_id, self._pool):
            return  # not what the server republishes for this run
        try:
            seq = int(headers.get("Nats-Sequence", ""))
            behind = int(headers.get(EXPECTED_LAST, seq))
        except ValueError:
            return
        self._arrived.append((seq, behind, message.data))
        self._news.set()

    def _text(self, message: Msg) -> None:
        try:
            text = json.loads(message.data)["text"]
        except (ValueError, KeyError, TypeError):
            return
        self.record.add(TextStreamed(run_id=self.record.run_id, text=str(text)))

    async def _catch_up(self) -> bool:
        """Apply what the log has; False if it could not be read now."""
        self._stale = False
        try:
            entries = await self.log.entries(start_seq=self._seen + 1)
        except BusError as exc:
            log.info("run %s: its log could not be read yet: %s", self.record.run_id, exc)
            return False
        for entry in entries:
            if entry.seq > self._seen:
                self._seen = entry.seq
                await self._apply(entry.message)
        return True

    async def _apply_live(self, seq: int, behind: int, data: bytes) -> None:
        """Apply a report that came live, unless something before it was missed.

        The feed may be back before we learn that it was away; the sequence the report was appended behind tells.
        """
        if seq <= self._seen:
            return
        if behind > self._seen:
            self._stale = not await self._catch_up()
            return
        try:
            message = wire.decode_report(data)
        except BadMessage as exc:
            log.warning("run %s: entry %d was ignored: %s", self.record.run_id, seq, exc)
            return
        self._seen = seq
        await self._apply(message)

    async def _apply(self, message: object) -> None:
        if self.record.result is not None:
            return
        run_id = self.record.run_id
        match message:
            case wire.Claimed():
                self.claimed.set()
                self.record.add(
                    ForkClaimed(
                        run_id=run_id,
                        epoch=message.epoch,
                        daemon=message.daemon.name,
                        host=message.daemon.host,
                    )
                )
                self._decided(message)
            case wire.CallStarted():
                self._decided(message)
            case wire.Turn():
                if (check := _cache_check(message)) is not None and check.broken:
                    self.record.add(CacheBreakDetected(run_id=run_id, check=check))
                self.record.add(await self._turn(message))
            case wire.ToolStarted():
                self._names[message.call_id] = message.name
                self.record.add(ToolStarted(run_id=run_id, call_id=message.call_id, name=message.name))
            case wire.ToolFinished():
                name = self._names.get(message.call_id, "")
                self.record.add(
                    ToolFinished(run_id=run_id, call_id=message.call_id, name=name, is_error=message.is_error)
                )
            case wire.Asked():
                self.record.add(ForkAsked(run_id=run_id, ask_id=message.ask_id, what=message.what))
                await self._on_asked(self, message)
            case wire.AbortEvent() if not self.claimed.is_set():
                # Nobody can claim a run behind its abort, so it is over before anybody says so.
                self.claimed.set()
                self.record.add(ForkEnded(result=await self._never_started(message)))
            case wire.Final():
                self.claimed.set()
                self.record.add(ForkEnded(result=await self._result(message)))

    async def _turn(self, turn: wire.Turn) -> TurnFinished:
        text, names = "", tuple[str, ...]()
        try:
            reply = Reply.from_response(await self._blobs.resolve(turn.content))
            text, names = reply.text, tuple(use.name for use in reply.tool_uses)
        except (BusError, BadReply) as exc:
            log.warning("run %s: the text of turn %d is not to be had: %s", self.record.run_id, turn.turn, exc)
        return TurnFinished(
            run_id=self.record.run_id,
            turn=turn.turn,
            text=text,
            stop_reason=turn.stop_reason,
            tool_names=names,
            usage=Usage.from_wire(turn.usage),
        )

    async def _never_started(self, abort: wire.AbortEvent) -> ForkResult:
        directive = ""
        try:
            messages = [entry.message for entry in await self.log.entries()]
            directive = next(message.directive for message in messages if isinstance(message, wire.Requested))
        except (BusError, StopIteration) as exc:
            log.warning("run %s: its request is not to be had: %r", self.record.run_id, exc)
        return ForkResult(
            run_id=self.record.run_id,
            label=self.record.label,
            directive=directive,
            model="",
            status=ForkStatus.ABORTED,
            end=AbortReason.PARENT.value,
            error=abort.note or None,
            abort=Abort(reason=AbortReason.PARENT, note=abort.note),
        )

    def _decided(self, report: object) -> None:
        call = wire.announced_call(report)
        if call is not None and call.decision is not None:
            self._decision = call.decision
            self.record.add(FanOutDecided(run_id=self.record.run_id, decision=call.decision))

    async def _result(self, final: wire.Final) -> ForkResult:
        try:
            result = ForkResult.from_wire(await self._blobs.resolve(final.result))
            # It stands on the log once, with the call it was made for.
            return result if result.decision else replace(result, decision=self._decision)
        except (BusError, BadMessage) as exc:
            return ForkResult(
                run_id=self.record.run_id,
                label=self.record.label,
                directive="",
                model="",
                # Whoever counts on a completed run counts on its result.
                status=ForkStatus.FAILED
                if final.status not in set(ForkStatus) - {ForkStatus.COMPLETED}
                else ForkStatus(final.status),
                end="result_lost",
                error=f"The run ended as {final.status}, but its result is not to be had: {exc}",
            )


def _cache_check(turn: wire.Turn) -> CacheCheck | None:
    """Return what a turn says of the cache; what cannot be read is the log's trouble, not the watcher's."""
    try:
        return None if turn.cache is None else CacheCheck.from_wire(turn.cache, Usage.from_wire(turn.usage))
    except (TypeError, ValueError):
        return None
