"""Follow a run on another host through its log.

The live feed is quick and may lose messages while we are disconnected; the log has everything. So the feed is applied
in sequence order, each report once, and after every reconnect the log fills what was missed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from nexofork.bus.jetstream import EXPECTED_LAST, retry
from nexofork.bus.pickup import queue_depth
from nexofork.bus.presence import PresenceBoard
from nexofork.bus.reading import last_direct
from nexofork.bus.run_log import RunLog, posted_abort
from nexofork.client.answers import Permitting, check_open, put_answer, reply_of
from nexofork.client.child_messages import post_letter, written
from nexofork.core.reply import Reply
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage, BadReply, BusError, ForkIsOver, ForkRefused
from nexofork.run.abort import Abort, AbortReason
from nexofork.run.cache_check import CacheCheck
from nexofork.run.events import (
    CacheBreakDetected,
    ConversationCompacted,
    FanOutDecided,
    ForkAsked,
    ForkClaimed,
    ForkEnded,
    ForkPermitted,
    MessagesDelivered,
    MessagesUndelivered,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nexofork.run.result import ForkResult, ForkStatus
from nexofork.wire import messages as wire
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import delta, inbox, live_reports, reports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.connection import Bus, Msg, Subscription
    from nexofork.client.handle import ForkRecord
    from nexofork.client.parent_tools import ParentToolServer
    from nexofork.policy.permissions import PermissionAnswer
    from nexofork.run.audit import Audit
    from nexofork.run.events import ForkEvent

__all__ = ["RemoteRun"]

log = logging.getLogger(__name__)

_RETRY_S = 0.5
_LOOK_S = 2.0
_QUIET_S = 30.0
_LATEST = 1e11
"""A later time than any clock can have said."""


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
        permitting: Permitting | None = None,
    ) -> None:
        self.log = RunLog(bus, record.run_id, pool=pool)
        self.record = record
        self.claimed = asyncio.Event()
        """Set once a daemon took the run, or it ended without one."""
        self.tool_server: ParentToolServer | None = None
        """Runs the tool calls that its daemon asks for; None leaves them to somebody else."""
        self.audit: Audit | None = None
        """Looks at what changed here, where the run's filter limits that."""
        self._bus = bus
        self._blobs = blobs
        self._pool = pool
        self._parent_id = parent_id
        self._on_asked = on_asked
        self._permitting = permitting or Permitting(bus, pool=pool, by=parent_id)
        self._news = asyncio.Event()
        self._arrived: list[tuple[int, int, Msg]] = []
        """Sequence, the one it was appended behind, and the message."""
        self._names: dict[str, str] = {}
        self._posted: dict[str, str] = {}
        """By id: what was said to the child from here and it has not read yet."""
        self._decision: dict[str, Any] | None = None
        self._at = 0.0
        """When the entry that is applied was written, by its writer's clock."""
        self._seen = 0
        self._stale = False
        self._owner = ""
        """The daemon that has the run."""
        self._aborting = False
        """Whether it was aborted after a daemon had taken it."""
        self._overdue = False
        """Whether to look at what neither the feed nor the log tells."""
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
        self._overdue = not known
        removers = [self._bus.on_reconnect(self._reread), self._bus.on_shut_out(self._shut_out)]
        missed = not known
        try:
            while self.record.result is None:
                if missed or self._stale:
                    missed = not await self._catch_up()
                arrived, self._arrived = sorted(self._arrived, key=itemgetter(0)), []
                for seq, behind, live in arrived:
                    await self._apply_live(seq, behind, live)
                if not missed:
                    # Only now: further down the log a question may stand answered.
                    self._permitting.begin()
                    if self._overdue or self._aborting:
                        await self._look_around()
                if not self._arrived and not self._stale:
                    await self._wait(missed)
        finally:
            for remove in removers:
                remove()
            self._permitting.close()
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
            if self.tool_server is not None:
                self.tool_server.stop()
            self._overdue = True
            self._reread()  # no daemon may be there to report what the log says already

    async def message(self, text: str) -> None:
        """Put a message to the child into its inbox.

        Raises:
            ForkIsOver: The run ended without reading it.
            BusError: NATS was not reached.
        """
        letter = written(text)
        self._posted[letter.id] = text  # at once: the end may come while it is on its way
        try:
            await post_letter(self._bus, self.record.run_id, letter, pool=self._pool)
        except (BusError, ForkRefused) as exc:
            if not (isinstance(exc, ForkIsOver) and exc.stored):
                self._posted.pop(letter.id, None)
            raise

    async def answer(self, ask_id: str, answer: PermissionAnswer) -> None:
        """Put an answer into the run's inbox; the first one stands.

        Raises:
            ForkRefused: The question was never asked, or is decided.
            BusError: NATS was not reached.
        """
        run_id = self.record.run_id
        asked = check_open(run_id, ask_id, await retry(self._bus, self.log.entries))
        if asked.what != "permission":
            raise ForkRefused(
                f"Ask {ask_id} of run {run_id} is not about a permission; its parent's client answers it."
            )
        await put_answer(self._bus, run_id, ask_id, reply_of(answer, by=self._parent_id), pool=self._pool)

    async def waiting(self) -> int:
        """Return about how many requests wait for a daemon."""
        return await queue_depth(self._bus, pool=self._pool)

    def _shut_out(self, problem: BusError) -> None:
        """End what is known of the run here: nothing more of it can be learnt, and nobody should wait for ever."""
        if self.record.result is not None:
            return
        self.claimed.set()
        run_id = self.record.run_id
        result = ForkResult(
            run_id=run_id,
            label=self.record.label,
            directive="",
            model="",
            status=ForkStatus.FAILED,
            end="shut_out",
            error=f"{problem} The run may go on; with a key that is let in, `nexofork wait {run_id}` has its result.",
        )
        self.record.add(ForkEnded(result=result))
        self._news.set()

    def _reread(self) -> None:
        self._stale = True
        self._news.set()

    async def _wait(self, missed: bool) -> None:
        if self.record.result is not None:
            return
        # A read that failed is tried again soon. What daemons do comes by the feed; another process's abort does not,
        # so the log is looked at now and then, more often while no daemon may be there to report the end.
        look_s = _QUIET_S if self.claimed.is_set() and not self._aborting else _LOOK_S
        try:
            async with asyncio.timeout(_RETRY_S if missed else look_s):
                await self._news.wait()
        except TimeoutError:
            self._stale = self._overdue = True
            return
        self._news.clear()

    async def _look_around(self) -> None:
        """Find out what neither the feed nor the log tells of a run that is not over."""
        run_id, pool = self.record.run_id, self._pool
        self._overdue = False
        try:
            if not self.claimed.is_set():
                posted = await last_direct(self._bus, inbox_stream(pool), inbox(run_id, "abort", pool))
                if posted is not None and not any(
                    isinstance(entry.message, wire.Claimed) for entry in await self.log.entries()
                ):
                    # The log was full. Daemons look there before they claim, so none begins the run any more.
                    self.claimed.set()
                    self._end(await self._never_started(posted_abort(posted)))
            elif self._aborting:
                daemons = await PresenceBoard(self._bus).daemons(pool)
                self.record.unattended = not any(not one.draining or one.daemon.name == self._owner for one in daemons)
        except BusError as exc:
            log.info("run %s: its surroundings could not be read yet: %s", run_id, exc)

    def _live(self, message: Msg) -> None:
        headers = message.headers
        if headers.get("Nats-Subject") != reports(self.record.run_id, self._pool):
            return  # not what the server republishes for this run
        try:
            seq = int(headers.get("Nats-Sequence", ""))
            behind = int(headers.get(EXPECTED_LAST, seq))
        except ValueError:
            return
        self._arrived.append((seq, behind, message))
        self._news.set()

    def _text(self, message: Msg) -> None:
        try:
            text = json.loads(message.data)["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
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
        settled = _settled(entry.message for entry in entries)
        for entry in entries:
            if entry.seq > self._seen:
                self._seen = entry.seq
                await self._apply(entry.message, entry.raw.headers, settled=settled)
        return True

    async def _apply_live(self, seq: int, behind: int, live: Msg) -> None:
        """Apply a report that came live, unless something before it was missed.

        The feed may be back before we learn that it was away; the sequence the report was appended behind tells.
        """
        if seq <= self._seen:
            return
        if behind > self._seen:
            self._stale = not await self._catch_up()
            return
        try:
            message = wire.decode_report(live.data)
        except BadMessage as exc:
            log.warning("run %s: entry %d was ignored: %s", self.record.run_id, seq, exc)
            return
        self._seen = seq
        await self._apply(message, live.headers)

    async def _apply(
        self, message: object, headers: Mapping[str, str], *, settled: Collection[tuple[int, str] | None] = ()
    ) -> None:
        """Apply an entry.

        Args:
            message: What it says.
            headers: What it came with: the trace it is part of.
            settled: The calls that are known to have an answer, by turn and id, and None once the run is over: a
                question whose answer nobody waits for is not run.
        """
        if self.record.result is not None:
            return
        self._at = getattr(message, "at", 0.0)
        run_id = self.record.run_id
        match message:
            case wire.Claimed():
                self.claimed.set()
                by = message.daemon
                self._owner = by.name
                self._add(ForkClaimed(run_id=run_id, epoch=message.epoch, daemon=by.name, host=by.host))
                self._decided(message)
            case wire.CallStarted():
                self._decided(message)
            case wire.Turn():
                if (check := _cache_check(message)) is not None and check.broken:
                    self._add(CacheBreakDetected(run_id=run_id, check=check))
                self._add(await self._turn(message))
            case wire.ToolStarted():
                self._names[message.call_id] = message.name
                self._add(ToolStarted(run_id=run_id, call_id=message.call_id, name=message.name))
            case wire.ToolFinished():
                name = self._names.get(message.call_id, "")
                self._add(ToolFinished(run_id=run_id, call_id=message.call_id, name=name, is_error=message.is_error))
                if self.tool_server is not None:
                    self.tool_server.settled(message.turn, message.call_id)
            case wire.Delivered():
                for letter_id in message.ids:
                    self._posted.pop(letter_id, None)
                self._add(MessagesDelivered(run_id=run_id, turn=message.turn, ids=tuple(message.ids)))
            case wire.Compacted():
                turns, left_out = message.turn, message.left_out
                self._add(ConversationCompacted(run_id=run_id, turns=turns, left_out=left_out))
            case wire.Asked():
                await self._asked(message, headers, settled)
            case wire.Permitted():
                self._permitting.decided(message.ask_id)
                self._add(_permitted(run_id, message))
            case wire.AbortEvent() if not self.claimed.is_set():
                # Nobody can claim a run behind its abort, so it is over before anybody says so.
                self.claimed.set()
                self._end(await self._never_started(message))
            case wire.AbortEvent():
                self._aborting = True
            case wire.Final():
                self.claimed.set()
                if self.tool_server is not None:
                    self.tool_server.stop()
                result = await self._result(message)
                self._end(await self.audit.added(result) if self.audit else result)

    def _add(self, event: ForkEvent) -> None:
        """Show what an entry says as of when it was written; it may be read long after that."""
        self.record.add(replace(event, at=self._at) if 0 < self._at < _LATEST else event)

    async def _asked(
        self, asked: wire.Asked, headers: Mapping[str, str], settled: Collection[tuple[int, str] | None]
    ) -> None:
        question = await self._question(asked)
        self._add(question)
        if asked.what == "permission":
            self._permitting.asked(question)
        elif asked.what == "blob":
            await self._on_asked(self, asked)
        elif self.tool_server is not None and None not in settled and (asked.turn, asked.call_id) not in settled:
            self.tool_server.asked(asked, headers)

    async def _question(self, asked: wire.Asked) -> ForkAsked:
        arguments = None
        if asked.what != "blob":
            try:
                arguments = json.loads(await self._blobs.resolve(asked.payload))
            except (BusError, ValueError, RecursionError) as exc:
                log.warning("run %s: what %s is about is not to be had: %s", self.record.run_id, asked.ask_id, exc)
        return ForkAsked(
            run_id=self.record.run_id,
            ask_id=asked.ask_id,
            what=asked.what,
            turn=asked.turn,
            call_id=asked.call_id,
            name=asked.name,
            arguments=arguments if isinstance(arguments, dict) else None,
            deadline_s=asked.deadline_s,
            rules=tuple(asked.rules),
        )

    def _end(self, result: ForkResult) -> None:
        """Show the end, with what was said from here and came too late for the daemon's last look."""
        # Those the daemon found are in its report, by their words; what is said twice and once too late counts once.
        known = Counter(result.undelivered)
        late = Counter(self._posted.values()) - known
        if late:
            result = replace(result, undelivered=(*result.undelivered, *late.elements()))
        if result.undelivered:
            self._add(MessagesUndelivered(run_id=self.record.run_id, texts=result.undelivered))
        self._add(ForkEnded(result=result))

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
            self._add(FanOutDecided(run_id=self.record.run_id, decision=call.decision))

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
                if final.status not in {status for status in ForkStatus if status.over} - {ForkStatus.COMPLETED}
                else ForkStatus(final.status),
                end="result_lost",
                error=f"The run ended as {final.status}, but its result is not to be had: {exc}",
            )


def _permitted(run_id: str, permitted: wire.Permitted) -> ForkPermitted:
    return ForkPermitted(
        run_id=run_id,
        ask_id=permitted.ask_id,
        call_id=permitted.call_id,
        name=permitted.name,
        allowed=permitted.allowed,
        how=permitted.how,
        note=permitted.note,
        rules=tuple(permitted.rules),
        by=permitted.by,
    )


def _settled(messages: Iterable[object]) -> set[tuple[int, str] | None]:
    """Return the calls that have an answer, and None where the run is over."""
    found: set[tuple[int, str] | None] = set()
    for message in messages:
        if isinstance(message, wire.ToolFinished):
            found.add((message.turn, message.call_id))
        elif isinstance(message, (wire.Final, wire.AbortEvent)):
            found.add(None)
    return found


def _cache_check(turn: wire.Turn) -> CacheCheck | None:
    """Return what a turn says of the cache; what cannot be read is the log's trouble, not the watcher's."""
    try:
        return None if turn.cache is None else CacheCheck.from_wire(turn.cache, Usage.from_wire(turn.usage))
    except (TypeError, ValueError):
        return None
