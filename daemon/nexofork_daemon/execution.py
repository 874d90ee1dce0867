"""One run on this daemon: claim it, run it, keep its lease, report its end.

The log is the lease. The request stays unacknowledged while the run lives and is renewed well within the lease, which
keeps the server from handing it to somebody else; but what decides who owns the run is the highest epoch on the log.
An abort that arrives live is a hint; the log confirms it. A daemon that was paused finds out at its next append, and
stops.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nexofork.bus.failures import CorruptBlob, MissingBlob, RunAborted
from nexofork.bus.reading import first_of, last_direct, last_of
from nexofork.bus.run_log import RunLog
from nexofork.engine.abort import Abort, AbortReason, AbortToken
from nexofork.engine.params import prepare
from nexofork.engine.result import ForkResult, ForkStatus
from nexofork.engine.run import ForkRun
from nexofork.errors import BadMessage, BusError, ForkRefused, NexoforkError, RunLost, WorkspaceMismatch
from nexofork.wire.messages import (
    AbortEvent,
    Answer,
    Asked,
    Claimed,
    Final,
    HandedOver,
    Payload,
    Requested,
    decode_event,
)
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import events, inbox, reports, run_filter
from nexofork_daemon.deltas import DeltaFeed
from nexofork_daemon.inboxes import Inboxes, InboxMail
from nexofork_daemon.journal import LogJournal, Rebuilt, SideEffectsOnly, rebuild
from nexofork_daemon.request import SnapshotShelf, fork_params

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.connection import Bus
    from nexofork.bus.pickup import Delivery
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.engine.dispatch import ToolDispatcher
    from nexofork.engine.warmth import LocalWarmth
    from nexofork.providers.provider import Provider
    from nexofork.wire.messages import Daemon
    from nexofork_daemon.settings import DaemonSettings

__all__ = ["Execution", "Host"]

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What a daemon gives each of its runs."""

    settings: DaemonSettings
    identity: Daemon
    bus: Bus
    blobs: BlobStore
    provider: Provider
    tools: ToolDispatcher
    warmth: LocalWarmth
    shelf: SnapshotShelf
    inboxes: Inboxes


class Execution:
    """One delivery of one run's request."""

    def __init__(self, delivery: Delivery, host: Host) -> None:
        self._delivery = delivery
        self._host = host
        self._log = RunLog(host.bus, delivery.run_id, pool=host.settings.pool)
        self.token = AbortToken()
        """Throwing it ends the run; the cause decides how."""
        self._hint = asyncio.Event()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._delivery.run_id

    @property
    def seq(self) -> int:
        """The request's place in the stream."""
        return self._delivery.seq

    def redelivered(self, delivery: Delivery) -> None:
        """Take over a newer delivery of the request this execution already runs."""
        self._delivery = delivery

    async def run(self) -> None:
        """Deal with the delivery; nothing it holds or does raises."""
        try:
            await self._deal()
        except BusError as exc:
            log.warning("run %s: %s", self.run_id, exc)

    async def _deal(self) -> None:
        try:
            request = decode_event(self._delivery.data)
        except BadMessage as exc:
            await self._refuse_poison(exc)
            return
        if isinstance(request, AbortEvent):
            # It is on the log, which whoever runs or claims the run reads.
            await self._delivery.ack()
        else:
            await self._claim_and_run(request)

    async def _refuse_poison(self, problem: BadMessage) -> None:
        """Report input that nobody can run, once, and take it out of circulation."""
        log.warning("run %s: %s", self.run_id, problem)
        if not await self._is_noise():
            tip = await self._log.tip()
            try:
                await self._log.append(await self._refusal(None, problem, epoch=1), after=tip.seq if tip else 0)
            except (RunAborted, RunLost) as exc:
                log.info("run %s: %s", self.run_id, exc)
        await self._delivery.terminate(problem.problem)

    async def _is_noise(self) -> bool:
        """Whether the log has a request that can be run, or an end; all of it is read only if nothing less will do."""
        bus, pool = self._host.bus, self._host.settings.pool
        first = await first_of(bus, log_stream(pool), run_filter(self.run_id, pool))
        if first is None or isinstance(_event(first.data), Requested):
            return True
        if await last_of(bus, log_stream(pool), reports(self.run_id, pool)) is None:
            return False
        return any(isinstance(entry.message, (Requested, Final)) for entry in await self._log.entries())

    async def _claim_and_run(self, request: Requested) -> None:
        if self._foreign_workspace(request):
            # Another daemon shares the parent's cache; this one would pay full price.
            await self._delivery.release(delay_s=1.0)
            return
        subscription = await self._host.bus.subscribe(events(self.run_id, self._host.settings.pool), self._hinted)
        deaf = self._host.inboxes.listen(self.run_id, self._posted)
        try:
            # The server takes subscription and claim in the order they are sent, so no abort falls between them.
            state = await self._state()
            if state.final is not None or state.request not in (None, self._delivery.seq):
                # Over, or asked for twice: the other request's delivery is the lease.
                await self._delivery.ack()
                return
            journal = await self._claimed(request, state)
            if journal is not None:
                await self._owned(request, state, journal)
        finally:
            deaf()
            await subscription.unsubscribe()

    def _posted(self, name: str) -> None:
        if name == "abort":
            self._hint.set()

    def _foreign_workspace(self, request: Requested) -> bool:
        ours = self._host.provider.workspace_id
        return bool(ours and request.workspace_id and ours != request.workspace_id and not request.allow_cache_break)

    def _hinted(self, _: object) -> None:
        self._hint.set()

    async def _state(self) -> Rebuilt:
        """Read what was done on this run before; for a fresh one that is a question with an empty answer."""
        pool = self._host.settings.pool
        if self._delivery.attempt == 1 and not await last_direct(
            self._host.bus, log_stream(pool), reports(self.run_id, pool)
        ):
            return Rebuilt(tip=self._delivery.seq)
        return await rebuild(await self._log.entries(), self._host.blobs)

    async def _claimed(self, request: Requested, state: Rebuilt) -> LogJournal | None:
        """Claim the run, or deal with the reason not to."""
        epoch = state.epoch + 1
        journal = LogJournal(self._log, self._host.blobs, self.token, epoch=epoch, seq=state.tip)
        if state.losses >= self._host.settings.epoch_limit:
            lost = ForkRefused(f"{state.losses} daemons were lost while running it; it was not tried again.")
            await self._finish(request, journal, await self._failed(request, lost, ForkStatus.FAILED))
            return None
        if state.problem is not None:
            await self._finish(request, journal, await self._failed(request, state.problem, ForkStatus.FAILED))
            return None
        claim = Claimed(
            epoch=epoch,
            at=time.time(),
            daemon=self._host.identity,
            workspace_id=self._host.provider.workspace_id,
            request=self._delivery.seq,
        )
        try:
            if state.abort is not None:
                raise RunAborted(state.abort, state.tip)
            await journal.append(claim)
        except RunAborted as exc:
            self.token.abort(AbortReason.PARENT, exc.event.note)
            await self._finish(request, journal, self._aborted(request))
            return None
        return journal

    async def _owned(self, request: Requested, state: Rebuilt, journal: LogJournal) -> None:
        """Run the claimed run beside the tasks that keep it ours."""
        if request.skip_transcript and state.side_effects:
            problem = ForkRefused("A run without transcript lost its daemon after a tool had changed something.")
            await self._finish(request, journal, await self._failed(request, problem, ForkStatus.FAILED))
            return
        failure: BusError | None = None
        async with asyncio.TaskGroup() as tasks:
            keepers = [
                tasks.create_task(self._renew(journal)),
                tasks.create_task(self._confirm_hints(journal)),
            ]
            if request.on_parent_gone == "abort" and request.parent.heartbeat_s and request.parent.id:
                keepers.append(tasks.create_task(self._watch_parent(request)))
            try:
                await self._finish(request, journal, await self._result(request, state, journal))
            except BusError as exc:
                failure = exc  # raised inside, the group would wrap it
            finally:
                for keeper in keepers:
                    keeper.cancel()
        if failure is not None:
            raise failure

    async def _result(self, request: Requested, state: Rebuilt, journal: LogJournal) -> ForkResult:
        try:
            snapshot = await self._snapshot(request, journal)
            feed = DeltaFeed(self._host.bus, self.run_id, pool=self._host.settings.pool)
            params = fork_params(
                request,
                snapshot,
                llm=self._host.provider,
                tools=self._host.tools,
                token=self.token,
                on_message=feed.show,
            )
            base, prompt = prepare(params)
        except WorkspaceMismatch as exc:
            # Learnt from another run's response after this one was claimed; nothing was sent yet.
            self.token.abort(AbortReason.SHUTDOWN, str(exc))
            return self._aborted(request)
        except NexoforkError as exc:
            status = ForkStatus.REFUSED if isinstance(exc, ForkRefused) else ForkStatus.FAILED
            return await self._failed(request, exc, status)
        except Exception as exc:
            # What a request holds may raise anything; the next daemon would fare no better.
            log.exception("run %s cannot be begun", self.run_id)
            return await self._failed(request, exc, ForkStatus.REFUSED)
        mail = InboxMail(
            self._host.bus,
            self.run_id,
            pool=self._host.settings.pool,
            delivered=state.letters,
            waiting=await self._host.inboxes.may_hold(self.run_id, self.seq),
        )
        run = ForkRun(
            params,
            run_id=self.run_id,
            base=base,
            prompt=prompt,
            token=self.token.child(),
            warmth=self._host.warmth,
            emit=feed.show,
            journal=SideEffectsOnly(journal) if request.skip_transcript else journal,
            mailbox=mail,
            history=state.history,
        )
        deaf = self._host.inboxes.listen(self.run_id, mail.hint)
        try:
            async with feed:
                return await run.run()
        finally:
            deaf()

    async def _snapshot(self, request: Requested, journal: LogJournal) -> CacheSafeParams:
        async def resolve(payload: Payload) -> bytes:
            try:
                return await self._host.blobs.resolve(payload)
            except (MissingBlob, CorruptBlob) as exc:
                return await self._ask_for_blob(payload, journal, exc)

        return await self._host.shelf.get(request, resolve)

    async def _ask_for_blob(self, payload: Payload, journal: LogJournal, problem: BusError) -> bytes:
        """Ask the parent for a content that is gone, and take what it puts into the inbox."""
        settings = self._host.settings
        ask_id = uuid.uuid4().hex
        subject = inbox(self.run_id, ask_id, settings.pool)
        answered = asyncio.Event()
        deaf = self._host.inboxes.listen(self.run_id, lambda name: answered.set() if name == ask_id else None)
        try:
            await journal.append(
                Asked(
                    epoch=journal.epoch,
                    at=time.time(),
                    ask_id=ask_id,
                    payload=payload,
                    deadline_s=settings.ask_s,
                )
            )
            async with asyncio.timeout(settings.ask_s):
                stored = None
                while stored is None:
                    # The live message is a hint that may come before the stream has it.
                    await answered.wait()
                    stored = await last_of(self._host.bus, inbox_stream(settings.pool), subject)
        except TimeoutError:
            raise problem from None
        finally:
            deaf()
        try:
            answer = Answer.model_validate_json(stored.data)
            found = Payload.model_validate(answer.data.get("payload"))
        except ValueError:
            raise problem from None
        return await self._host.blobs.resolve(found)

    async def _finish(self, request: Requested, journal: LogJournal, result: ForkResult) -> None:
        """Report how it ended, unless it did not end here."""
        reason = result.abort.reason if result.abort else None
        if reason is AbortReason.LEASE_LOST:
            log.info("run %s: let go, %s", self.run_id, result.error)
            return
        if reason is AbortReason.SHUTDOWN:
            await self._hand_over(journal, result.error or "")
            return
        result = replace(result, attempts=journal.epoch, daemon=self._host.identity.name)
        try:
            await journal.append(await self._final(result, journal.epoch))
        except RunAborted as exc:
            # The abort came first on the log, so that is how the run ended, whatever was reached meanwhile.
            self.token.abort(AbortReason.PARENT, exc.event.note)
            cause = Abort(reason=AbortReason.PARENT, note=exc.event.note)
            ended = replace(result, status=ForkStatus.ABORTED, end="parent", abort=cause, error=cause.note or None)
            await journal.append(await self._final(ended, journal.epoch))
        await self._delivery.ack()

    async def _hand_over(self, journal: LogJournal, reason: str) -> None:
        await journal.append(HandedOver(epoch=journal.epoch, at=time.time(), reason=reason))
        await self._delivery.release()

    async def _final(self, result: ForkResult, epoch: int) -> Final:
        payload = await self._host.blobs.pack(result.to_wire())
        return Final(epoch=epoch, at=time.time(), status=result.status.value, result=payload)

    async def _refusal(self, request: Requested | None, problem: NexoforkError, *, epoch: int) -> Final:
        return await self._final(await self._failed(request, problem, ForkStatus.REFUSED), epoch)

    async def _failed(self, request: Requested | None, problem: Exception, status: ForkStatus) -> ForkResult:
        known = isinstance(problem, NexoforkError)
        return ForkResult(
            run_id=self.run_id,
            label=request.label if request else "",
            directive=request.directive if request else "",
            model="",
            status=status,
            end=type(problem).__name__,
            error=str(problem) if known else f"Unexpected {type(problem).__name__}: {problem}",
            daemon=self._host.identity.name,
        )

    def _aborted(self, request: Requested) -> ForkResult:
        cause = self.token.cause
        assert cause is not None
        return ForkResult(
            run_id=self.run_id,
            label=request.label,
            directive=request.directive,
            model="",
            status=ForkStatus.ABORTED,
            end=cause.reason.value,
            error=cause.note or None,
            abort=cause,
        )

    async def _renew(self, journal: LogJournal) -> None:
        """Keep the request from being handed out again; after a gap, ask the log whether the run is still ours."""
        lease_s = self._host.settings.lease_s
        renewed_at = time.monotonic()
        wake = asyncio.Event()
        remove = self._host.bus.on_reconnect(wake.set)
        try:
            while True:
                try:
                    async with asyncio.timeout(lease_s / 3):
                        await wake.wait()
                except TimeoutError:
                    pass
                wake.clear()
                gap = time.monotonic() - renewed_at
                if await self._delivery.renew():
                    renewed_at = time.monotonic()
                if gap > lease_s:
                    self._hint.set()
                    continue
                try:
                    await self._look_at_events()
                except BusError as exc:
                    log.info("run %s: could not look at its events yet: %s", self.run_id, exc)
        finally:
            remove()

    async def _confirm_hints(self, journal: LogJournal) -> None:
        """Look at the log whenever something suggests that it has news."""
        remove = self._host.bus.on_reconnect(self._hint.set)
        # The claim has just seen the log; an abort that the log had no room for may be in the inbox already.
        look: Callable[[LogJournal], Awaitable[None]] = self._look_into_inbox_once
        try:
            while True:
                try:
                    await look(journal)
                except BusError as exc:
                    log.info("run %s: could not look at its log yet: %s", self.run_id, exc)
                    await asyncio.sleep(_LOOK_AGAIN_S)
                    self._hint.set()
                await self._hint.wait()
                self._hint.clear()
                look = self._look
        finally:
            remove()

    async def _look_into_inbox_once(self, journal: LogJournal) -> None:
        if await self._host.inboxes.may_hold(self.run_id, self.seq):
            await self._look_into_inbox(journal)

    async def _look_at_events(self) -> None:
        """Take the parent's last word, wherever it stands.

        An abort that was published without the compare-and-set may stand in front of a report of ours.
        """
        pool = self._host.settings.pool
        stored = await last_of(self._host.bus, log_stream(pool), events(self.run_id, pool))
        event = _event(stored.data) if stored else None
        if isinstance(event, AbortEvent):
            self.token.abort(AbortReason.PARENT, event.note)

    async def _look(self, journal: LogJournal) -> None:
        await self._look_at_events()
        for entry in await self._log.entries(start_seq=journal.seq + 1):
            match entry.message:
                case Claimed() as claimed if claimed.epoch > journal.epoch:
                    self.token.abort(AbortReason.LEASE_LOST, f"{claimed.daemon.name} took it as epoch {claimed.epoch}")
                case _:
                    pass
        await self._look_into_inbox(journal)

    async def _look_into_inbox(self, _: LogJournal) -> None:
        if (posted := await self._log.inbox_abort()) is not None:
            self.token.abort(AbortReason.PARENT, posted.note)

    async def _watch_parent(self, request: Requested) -> None:
        """End the run when its parent has not been heard of for three heartbeats."""
        assert request.parent.heartbeat_s is not None
        heard = asyncio.Event()
        deaf = self._host.inboxes.listen(request.parent.id, lambda _: heard.set())
        # After an outage the parent may be back a moment later than we are.
        remove = self._host.bus.on_reconnect(heard.set)
        try:
            while True:
                heard.clear()
                try:
                    async with asyncio.timeout(3 * request.parent.heartbeat_s):
                        await heard.wait()
                except TimeoutError:
                    if self._host.bus.connected:
                        self.token.abort(AbortReason.PARENT, "its parent is gone")
                        return
        finally:
            remove()
            deaf()


def _event(data: bytes) -> Requested | AbortEvent | None:
    try:
        return decode_event(data)
    except BadMessage:
        return None
