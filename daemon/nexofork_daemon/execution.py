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
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.bus.failures import MissingBlob, RunAborted
from nexofork.bus.reading import first_few, first_of, last_direct, last_of, last_of_many, stored_at
from nexofork.bus.run_log import RunLog
from nexofork.errors import BadMessage, BusError, ForkRefused, NewerMessage, NexoforkError, RunLost, WorkspaceMismatch
from nexofork.run.abort import Abort, AbortReason, AbortToken
from nexofork.run.call_records import CallOwner
from nexofork.run.result import CallRecord, ForkResult, ForkStatus
from nexofork.telemetry import metrics
from nexofork.telemetry.spans import process_span
from nexofork.wire.messages import (
    AbortEvent,
    Claimed,
    Final,
    HandedOver,
    Requested,
    decode_event,
)
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import events, reports, run_filter
from nexofork_daemon.budgets import RunBudget
from nexofork_daemon.inbox import InboxMail
from nexofork_daemon.lease import Lease, read_event
from nexofork_daemon.logs import add_facts
from nexofork_daemon.run_setup import RunSetup, first_call
from nexofork_daemon.run_state import LeftCall, RunState, rebuild
from nexofork_daemon.run_writer import RunWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.bus.pickup import Delivery
    from nexofork.run.turns import RecordedTurn
    from nexofork_daemon.host import Host
    from nexofork_daemon.ledger import RunLedger

__all__ = ["Execution"]

log = logging.getLogger(__name__)

_ABORT_LEASES = 8
"""How many leases after an abort a run is ended by a daemon that does not have it."""
_LEAST_S = 0.1
"""What a run whose time is up gets, so that it ends as timed out."""


class Execution:
    """One delivery of one run's request."""

    def __init__(self, delivery: Delivery, host: Host) -> None:
        self._delivery = delivery
        self._host = host
        self._log = RunLog(host.bus, delivery.run_id, pool=host.settings.pool)
        self.token = AbortToken()
        """Throwing it ends the run; the cause decides how."""
        self.left = False
        """Whether it was left to another daemon."""
        self._news = asyncio.Event()
        self._request: Requested | None = None
        self._epoch = 0
        """The one that this execution claimed; 0 before that."""
        self._budget = RunBudget(delivery.run_id)
        self._ledger: RunLedger | None = None
        self._mail: InboxMail | None = None

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
        delivery, pool = self._delivery, self._host.settings.pool
        try:
            with process_span(pool, self.run_id, delivery.headers, attempt=delivery.attempt):
                await self._deal()
        except BusError as exc:
            log.warning("run %s: %s", self.run_id, exc)
            if not _is_passing(exc):
                await self._break_off(exc)
        except Exception as exc:
            log.exception("run %s failed inside the daemon", self.run_id)
            await self._break_off(exc)

    async def _deal(self) -> None:
        try:
            request = decode_event(self._delivery.data)
        except BadMessage as exc:
            newer = exc.version if isinstance(exc, NewerMessage) else None
            attempt = self._delivery.attempt
            if newer is not None and await self._host.placement.is_read_by_others(newer, attempt=attempt):
                await self._leave(f"a later version reads it: {exc.problem}")
            else:
                await self._refuse_poison(exc)
            return
        if isinstance(request, AbortEvent):
            await self._see_to_abort(request)
        else:
            add_facts(parent=request.parent.id or request.parent.host or "")
            self._request = request
            await self._claim_and_run(request)

    async def _see_to_abort(self, abort: AbortEvent) -> None:
        """Make sure that an aborted run ends, although no daemon may have its request any more.

        The daemon that runs or claims it reads the abort on the log. If none has reported an end after a while, the
        request was acknowledged by a daemon that does not work on it, and this one reports the end.
        """
        bus, settings = self._host.bus, self._host.settings
        first = await first_few(bus, log_stream(settings.pool), events(self.run_id, settings.pool), 2)
        requests = [event for one in first[:1] if isinstance(event := read_event(one.data), Requested)]
        # Of several events the first one after the request is enough. A replica may not have it yet.
        is_first = bool(requests) and all(one.seq == self.seq for one in first[1:])
        entries = await self._log.entries() if is_first else []
        if not entries or any(isinstance(entry.message, Final) for entry in entries):
            await self._delivery.ack()
            return
        if self._host.clock.now() - self._delivery.stored_at < _ABORT_LEASES * settings.lease_s:
            self.left = True
            await self._delivery.release(delay_s=settings.lease_s)
            return
        log.warning("run %s: it was aborted and no daemon has ended it", self.run_id)
        self._request = requests[0]
        self.token.abort(AbortReason.PARENT, abort.note)
        epoch = max((getattr(entry.message, "epoch", 0) for entry in entries), default=0)
        journal = self._journal(epoch + 1, entries[-1].seq)
        await self._report(journal, self._aborted(requests[0]))
        await self._delivery.ack()

    async def _break_off(self, problem: Exception) -> None:
        """End a run that raised something unexpected here; the next daemon would fare no better.

        Nothing is written where the log says that the run has ended, that a later daemon has it, or that it was asked
        for before: the other request's delivery is the lease.
        """
        try:
            entries = await self._log.entries()
            messages = [entry.message for entry in entries]
            asked = next((entry.seq for entry in entries if isinstance(entry.message, Requested)), self.seq)
            epoch = max((getattr(one, "epoch", 0) for one in messages), default=0)
            if asked != self.seq or any(isinstance(one, Final) for one in messages):
                await self._delivery.ack()
                return
            if self._epoch and epoch > self._epoch:
                log.info("run %s: let go, epoch %d has it", self.run_id, epoch)
                return
            tip = entries[-1].seq if entries else 0
            journal = self._journal(self._epoch or epoch + 1, tip)
            abort = next((one for one in messages if isinstance(one, AbortEvent)), None)
            abort = abort or await self._log.inbox_abort()
            result = self._failed(self._request, problem, ForkStatus.FAILED)
            await self._report(journal, result if abort is None else _ended_by(abort, result))
            await self._delivery.ack()
            await self._budget.ended()
        except BusError as exc:
            log.warning("run %s: it is not off our hands yet: %s", self.run_id, exc)

    async def _refuse_poison(self, problem: BadMessage) -> None:
        """Report input that nobody can run, once, and take it out of circulation."""
        log.warning("run %s: %s", self.run_id, problem)
        # Read before looking for an end: one that another daemon writes meanwhile then refuses ours.
        tip = await self._log.tip()
        if not await self._is_noise() and not await self._is_ended():
            try:
                await self._log.append(await self._refusal(None, problem, epoch=1), after=tip.seq if tip else 0)
                metrics.run_ended(ForkStatus.REFUSED.value)
            except (RunAborted, RunLost) as exc:
                log.info("run %s: %s", self.run_id, exc)
        await self._delivery.terminate(problem.problem)

    async def _is_noise(self) -> bool:
        """Whether the log has a request that can be run, or an end; all of it is read only if nothing less will do."""
        bus, pool = self._host.bus, self._host.settings.pool
        first = await first_of(bus, log_stream(pool), run_filter(self.run_id, pool))
        if first is None or isinstance(read_event(first.data), Requested):
            return True
        if await last_of(bus, log_stream(pool), reports(self.run_id, pool)) is None:
            return False
        return any(isinstance(entry.message, (Requested, Final)) for entry in await self._log.entries())

    async def _claim_and_run(self, request: Requested) -> None:
        reason = await self._host.placement.reason(request, attempt=self._delivery.attempt)
        # What is over, or has to be ended, is anybody's.
        if reason is not None and not await self._is_ended():
            await self._leave(reason)
            return
        subscription = await self._host.bus.subscribe(events(self.run_id, self._host.settings.pool), self._hinted)
        unsubscribe = self._host.inboxes.listen(self.run_id, self._posted)
        try:
            # The server takes subscription and claim in the order they are sent, so no abort falls between them.
            state = await self._state()
            if state.final is not None or state.request not in (None, self._delivery.seq):
                # Over, or asked for twice: the other request's delivery is the lease.
                await self._delivery.ack()
                return
            unfit = None if state.abort else await self._host.placement.unfit(request, state, self._delivery)
            if unfit is not None:
                await self._leave(unfit)
                return
            self._budget = self._host.budgets.of_run(request, self.run_id, state)
            self._ledger = self._opened(request, state)
            self._mail = await self._mailbox(state)
            journal = await self._claimed(request, state)
            if journal is None:
                return
            if state.epoch:
                # Until our claim stood there, a daemon that was slow and not dead could still write.
                known, state = state.calls, replace(await self._state(), epoch=state.epoch)
                self._budget = self._host.budgets.of_run(request, self.run_id, state)
                self._ledger = self._opened(request, state, known=known)
                self._mail = await self._mailbox(state)
            await self._owned(request, state, journal)
        finally:
            unsubscribe()
            await subscription.unsubscribe()

    def _opened(self, request: Requested, state: RunState, known: tuple[LeftCall, ...] = ()) -> RunLedger:
        """Return where this epoch books its calls, behind those that earlier daemons may not have lived to book.

        Booking a call again is harmless: the entry that knows most counts.
        """
        account = CallOwner(
            run_id=self.run_id,
            epoch=state.epoch + 1,
            label=request.label,
            group=request.group,
            parent=request.parent.id or request.parent.host,
            host=self._host.identity.name,
            pool=self._host.settings.pool,
        )
        ledger = self._host.ledger.of_run(account)
        for call in state.calls[len(known) :]:
            ledger.book(call.facts, epoch=call.epoch, host=call.daemon)
        return ledger

    async def _mailbox(self, state: RunState) -> InboxMail:
        """Return the run's messages that no earlier daemon delivered."""
        return InboxMail(
            self._host.bus,
            self.run_id,
            pool=self._host.settings.pool,
            delivered=state.letters,
            waiting=await self._host.inboxes.may_hold(self.run_id, self._delivery.seq),
        )

    def _posted(self, name: str) -> None:
        if name == "abort":
            self._news.set()
        elif self._mail is not None:
            self._mail.hint(name)

    async def _leave(self, reason: str) -> None:
        self.left = True
        await self._host.placement.leave(self._delivery, reason)

    async def _is_ended(self) -> bool:
        """Whether the parent aborted the run, or a daemon reported its end."""
        tip = await self._log.tip()
        if tip is not None and tip.seq != self._delivery.seq:
            messages = [tip.message, *(entry.message for entry in await self._log.entries())]
            if any(isinstance(message, (AbortEvent, Final)) for message in messages):
                return True
        return await self._log.inbox_abort() is not None

    def _hinted(self, _: object) -> None:
        self._news.set()

    async def _state(self) -> RunState:
        """Read what was done on this run before; for a fresh one that is two questions with empty answers."""
        if self._delivery.attempt == 1 and await self._is_fresh():
            state = RunState(tip=self._delivery.seq)
        else:
            state = await rebuild(await self._log.entries(), self._host.blobs)
        if state.abort is None and await self._host.inboxes.may_hold(self.run_id, self._delivery.seq):
            state = replace(state, abort=await self._log.inbox_abort())
        return state

    async def _is_fresh(self) -> bool:
        """Whether no daemon wrote on the log, and its parent wrote nothing before this request: no abort, above all."""
        bus, pool, seq = self._host.bus, self._host.settings.pool, self._delivery.seq
        if await last_direct(bus, log_stream(pool), reports(self.run_id, pool)) is not None:
            return False
        return not await last_of_many(bus, log_stream(pool), [events(self.run_id, pool)], before_seq=seq)

    async def _claimed(self, request: Requested, state: RunState) -> RunWriter | None:
        """Claim the run, or deal with the reason not to."""
        if state.losses >= self._host.settings.epoch_limit:
            await self._give_up(request, state)
            return None
        epoch = state.epoch + 1
        journal = self._journal(epoch, state.tip)
        if state.problem is not None:
            await self._finish(journal, self._failed(request, state.problem, ForkStatus.FAILED))
            return None
        claim = Claimed(
            epoch=epoch,
            at=time.time(),
            daemon=self._host.identity,
            workspace_id=self._host.provider.workspace_id,
            request=self._delivery.seq,
            call=first_call(request, self._host) if epoch == 1 else None,
        )
        journal.announced = claim.call is not None
        try:
            if state.abort is not None:
                raise RunAborted(state.abort, state.tip)
            await journal.append(claim)
        except RunAborted as exc:
            self.token.abort(AbortReason.PARENT, exc.event.note)
            await self._finish(journal, self._aborted(request))
            return None
        self._epoch = epoch
        if epoch == 1:
            metrics.waited_in_queue(self._host.clock.now() - self._delivery.stored_at)
        return journal

    def _journal(self, epoch: int, seq: int) -> RunWriter:
        lease_s = self._host.settings.lease_s
        return RunWriter(self._log, self._host.blobs, self.token, epoch=epoch, seq=seq, lease_s=lease_s)

    async def _give_up(self, request: Requested, state: RunState) -> None:
        """End a run that keeps losing its daemons, with what it has reached and cost."""
        lost = ForkRefused(f"{state.losses} daemons were lost while running it; it was not tried again.")
        failed = self._failed(request, lost, ForkStatus.FAILED)
        calls = tuple(call for number, turn in enumerate(state.history, start=1) for call in _calls_of(number, turn))
        texts = [turn.reply.text for turn in state.history if turn.reply.text.strip()]
        result = replace(failed, end="epoch_limit", calls=calls, final_text=texts[-1] if texts else "")
        journal = self._journal(state.epoch, state.tip)
        await self._finish(journal, result)

    async def _owned(self, request: Requested, state: RunState, journal: RunWriter) -> None:
        """Run the claimed run beside the tasks that keep it ours."""
        if request.skip_transcript and state.side_effects:
            problem = ForkRefused("A run without transcript lost its daemon after a tool had changed something.")
            await self._finish(journal, self._failed(request, problem, ForkStatus.FAILED))
            return
        failure: BusError | None = None
        async with asyncio.TaskGroup() as tasks:
            lease = Lease(self._host, self._log, journal, self.token, delivery=lambda: self._delivery, news=self._news)
            journal.confirm = lease.confirm
            keeping = [tasks.create_task(lease.renew()), tasks.create_task(lease.watch_log())]
            if request.on_parent_gone == "abort" and request.parent.heartbeat_s and request.parent.id:
                keeping.append(tasks.create_task(lease.watch_parent(request.parent)))
            try:
                with self._host.leases.holding(self.run_id, lease), self._deadline(request, state):
                    await self._finish(journal, await self._result(request, state, journal))
            except BusError as exc:
                failure = exc  # raised inside, the group would wrap it
            finally:
                for task in keeping:
                    task.cancel()
        if failure is not None:
            raise failure

    @contextmanager
    def _deadline(self, request: Requested, state: RunState) -> Iterator[None]:
        """End the run when its time is up; the time that earlier daemons had counts."""
        if request.timeout_s is None:
            yield
            return
        passed_s = max(0.0, self._host.clock.now() - state.begun_at) if state.begun_at else 0.0
        left_s = max(request.timeout_s - passed_s, _LEAST_S)
        note = f"no end within {request.timeout_s:g} s"
        timer = asyncio.get_running_loop().call_later(left_s, self.token.abort, AbortReason.DEADLINE, note)
        try:
            yield
        finally:
            timer.cancel()

    async def _result(self, request: Requested, state: RunState, journal: RunWriter) -> ForkResult:
        setup = RunSetup(
            host=self._host,
            delivery=self._delivery,
            request=request,
            state=state,
            journal=journal,
            token=self.token,
            budget=self._budget,
            ledger=self._ledger,
            mail=self._mail,
        )
        result: ForkResult | None = None
        try:
            async with AsyncExitStack() as at_end:
                run, environment = await setup.set_up(at_end)
                result = _since_first_claim(await run.run(), state, self._host.clock.now())
                result = await environment.closed(result)
        except RunAborted as exc:
            self.token.abort(AbortReason.PARENT, exc.event.note)
            return result or self._aborted(request)
        except WorkspaceMismatch as exc:
            # Learnt from another run's response after this one was claimed; nothing was sent yet.
            self.token.abort(AbortReason.SHUTDOWN, str(exc))
            return result or self._aborted(request)
        except Exception as exc:
            if result is not None:
                # It has its result; only clearing up after it went wrong.
                log.exception("run %s: what was set up for it could not be taken down", self.run_id)
            elif _is_passing(exc):
                raise
            else:
                if not isinstance(exc, NexoforkError):
                    log.exception("run %s cannot be begun", self.run_id)
                status = ForkStatus.REFUSED if isinstance(exc, ForkRefused) else ForkStatus.FAILED
                return self._failed(request, exc, status)
        return result

    async def _finish(self, journal: RunWriter, result: ForkResult) -> None:
        """Report how it ended, unless it did not end here."""
        reason = result.abort.reason if result.abort else None
        if reason is AbortReason.LEASE_LOST:
            log.info("run %s: let go, %s", self.run_id, result.error)
            return
        await self._budget.flushed()
        if self._ledger is not None:
            await self._ledger.flush()  # so that the ledger knows every call of a run that is over
        if reason is AbortReason.SHUTDOWN:
            await self._hand_over(journal, result.error or "")
            return
        result = replace(
            result,
            attempts=journal.epoch,
            daemon=self._host.identity.name,
            sandbox=self._host.environments.sandbox.name,
            undelivered=(*result.undelivered, *await self._unread()),
        )
        result = await self._report(journal, result)
        ended_at = self._host.clock.now()
        await self._budget.ended()
        await self._delivery.ack()
        if result.abort is not None and result.abort.reason is AbortReason.PARENT:
            await self._measure_abort(ended_at)

    async def _report(self, journal: RunWriter, result: ForkResult) -> ForkResult:
        """Put the end on the log, and return it as it stands there."""
        try:
            await journal.append(await self._final(result, journal.epoch))
        except RunAborted as exc:
            # The abort came first on the log, so that is how the run ended, whatever was reached meanwhile.
            self.token.abort(AbortReason.PARENT, exc.event.note)
            result = _ended_by(exc.event, result)
            await journal.append(await self._final(result, journal.epoch))
        metrics.run_ended(result.status.value)
        return result

    async def _measure_abort(self, ended_at: float) -> None:
        """Measure from when the server stored the abort; one that came another way is not measured."""
        pool = self._host.settings.pool
        try:
            event = await last_direct(self._host.bus, log_stream(pool), events(self.run_id, pool))
        except BusError as exc:
            log.debug("run %s: its abort was not measured: %s", self.run_id, exc)
            return
        if event is not None and isinstance(read_event(event.data), AbortEvent) and (at := stored_at(event)):
            metrics.abort_took(ended_at - at)

    async def _unread(self) -> list[str]:
        """Return the messages that came too late: nobody looks for them after the final report."""
        try:
            return [letter.text for letter in await self._mail.take()] if self._mail is not None else []
        except BusError as exc:
            log.warning("run %s: its inbox could not be read at the end: %s", self.run_id, exc)
            return []

    async def _hand_over(self, journal: RunWriter, reason: str) -> None:
        await journal.append(HandedOver(epoch=journal.epoch, at=time.time(), reason=reason))
        await self._delivery.release()

    async def _final(self, result: ForkResult, epoch: int) -> Final:
        # How the fan-out started is on the log already, with the first call.
        payload = await self._host.blobs.pack(replace(result, decision=None).to_wire())
        return Final(epoch=epoch, at=time.time(), status=result.status.value, result=payload)

    async def _refusal(self, request: Requested | None, problem: NexoforkError, *, epoch: int) -> Final:
        return await self._final(self._failed(request, problem, ForkStatus.REFUSED), epoch)

    def _failed(self, request: Requested | None, problem: Exception, status: ForkStatus) -> ForkResult:
        while isinstance(problem, ExceptionGroup):
            problem = problem.exceptions[0]
        return ForkResult(
            run_id=self.run_id,
            label=request.label if request else "",
            directive=request.directive if request else "",
            model="",
            status=status,
            end=type(problem).__name__,
            error=_reason(problem, self._host.identity.name),
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


def _is_passing(problem: Exception) -> bool:
    """Whether a problem is not the run's: NATS was away, or another daemon has the run. It may be tried again."""
    if isinstance(problem, RunLost):
        return True
    return isinstance(problem, BusError) and problem.retryable and not isinstance(problem, MissingBlob)


def _reason(problem: Exception, daemon: str) -> str:
    """Say what went wrong. What an unknown exception says stays on this host: it may quote anything."""
    if isinstance(problem, NexoforkError):
        return str(problem)
    name = type(problem).__name__
    if isinstance(problem, OSError) and problem.strerror:
        where = "" if problem.filename is None else f": {problem.filename!r}"
        return f"{name} on daemon {daemon}: {problem.strerror}{where}."
    return f"Unexpected {name} on daemon {daemon}; its log has the details."


def _ended_by(abort: AbortEvent, result: ForkResult) -> ForkResult:
    cause = Abort(reason=AbortReason.PARENT, note=abort.note)
    return replace(result, status=ForkStatus.ABORTED, end="parent", abort=cause, error=cause.note or None)


def _since_first_claim(result: ForkResult, state: RunState, now: float) -> ForkResult:
    """Return the result with the time that earlier daemons took counted in; `now` is by the server's clock."""
    if not state.begun_at:
        return result
    return replace(result, duration_ms=max(result.duration_ms, round((now - state.begun_at) * 1000)))


def _calls_of(number: int, turn: RecordedTurn) -> list[CallRecord]:
    """Return the calls that a recorded turn and what stands behind it were billed for."""
    call = CallRecord(
        turn=number,
        message_id=turn.reply.message_id or "",
        usage=turn.reply.usage,
        stop_reason=turn.reply.stop_reason,
        retries=turn.retries,
    )
    return [call, *(compaction.as_call(number + 1) for compaction in turn.compactions)]
