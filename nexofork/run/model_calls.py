"""Make a fork's model calls: wait for the prefix, set the money aside, announce the call, send it, book it.

Every attempt is announced in the journal before it is sent and booked in the ledger when it is over, however it ends;
one that was cancelled before any of it was sent is not booked. The first call waits for a sibling that writes the same
prefix, where that is worth the wait.

The most that a call can cost is known before it is sent. The answer is as long as the request allows. The prompt's
tokens are known from the last bill, for what that covered: the parent's, later the fork's own. What was added since
counts by its bytes, two to a token, which is the densest text we plan for; an image counts by its bytes too, once,
until a bill says better. What is known to be cached is read; the rest is written, at the price of the TTL in force.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexofork.core.markers import TTL_S
from nexofork.core.usage import Usage
from nexofork.economics.outlook import is_billed
from nexofork.economics.prices import model_facts
from nexofork.errors import ProviderError
from nexofork.providers.provider import (
    CallRepeated,
    CallRetried,
    MessageFinished,
    MessageStarted,
    ModelRequest,
    TextDelta,
)
from nexofork.run.budget import cost_of
from nexofork.run.cache_check import CacheCheck, check_first_call
from nexofork.run.call_records import CallFacts
from nexofork.run.events import (
    CacheBreakDetected,
    CallBegan,
    CallFailedOnce,
    FanOutDecided,
    TextStreamed,
    WaitedForLeader,
)
from nexofork.run.prefix_gate import plan_fan_out, prefix_key, ttl_of, warm_tokens
from nexofork.run.result import CallRecord
from nexofork.run.turns import OutgoingCall
from nexofork.telemetry import metrics
from nexofork.telemetry.spans import cache_break_detected
from nexofork.telemetry.work import ChatTrace, chat_span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.core.prompt import ChildPrompt, ForkBase
    from nexofork.core.reply import Reply
    from nexofork.economics.fan_out import Decision
    from nexofork.providers.provider import Provider
    from nexofork.run.budget import Purse, Reservation
    from nexofork.run.call_records import Ledger
    from nexofork.run.events import ForkEvent
    from nexofork.run.params import ForkParams
    from nexofork.run.prefix_gate import Lead, Warmth
    from nexofork.run.turns import Journal
    from nexofork.wire.ledger import Outcome
    from nexofork.wire.messages import Amount

__all__ = ["BYTES_PER_TOKEN", "CallQuotes", "ModelCalls", "Progress"]

BYTES_PER_TOKEN = 2
_SPARSE = 8
"""Bytes per token of the loosest text, for what must not be counted too high."""
_EXPIRING_S = 10.0
"""An entry that lives no longer than this may be gone before the call gets there."""


@dataclass(slots=True)
class Progress:
    """What the run has to show, whenever it ends."""

    calls: list[CallRecord] = field(default_factory=list)
    final_text: str = ""
    tool_uses: int = 0
    cache: CacheCheck | None = None
    decision: dict[str, Any] | None = None
    """How the fan-out this fork is part of was started."""
    open: CallRecord | None = None
    """The call whose response began and has not ended: it is billed whatever becomes of it."""

    def cut_off(self) -> None:
        """Count the open call as one that never came to its end."""
        if self.open is not None:
            self.calls.append(self.open)
            self.open = None


@dataclass(slots=True)
class _Attempt:
    """One sending of one call."""

    turn: int
    number: int
    reservation: Reservation
    sent_at: float = 0.0
    """0 until it was announced."""
    sent: bool = False
    """Whether any of its body may have gone out: else it was not billed."""
    over: bool = False
    summary: bool = False
    """Whether it summarises the conversation before the turn, and is no turn itself."""


class ModelCalls:
    """Makes one fork's calls."""

    def __init__(
        self,
        params: ForkParams,
        *,
        run_id: str,
        llm: Provider,
        base: ForkBase,
        prompt: ChildPrompt,
        warmth: Warmth,
        journal: Journal,
        ledger: Ledger,
        purse: Purse,
        emit: Callable[[ForkEvent], None],
        progress: Progress,
    ) -> None:
        self._params = params
        self._run_id = run_id
        self._llm = llm
        self._base = base
        self._prompt = prompt
        self._warmth = warmth
        self._journal = journal
        self._ledger = ledger
        self._purse = purse
        self._emit = emit
        self._progress = progress
        self._prefix = prefix_key(params, base)
        self._decision: Decision | None = None
        self._attempts: Counter[int] = Counter()
        self.quotes = CallQuotes(params, base)

    async def make(self, turn: int) -> tuple[Reply, int]:
        """Make one call and return its reply, recorded, and how often it was tried again.

        Raises:
            OverBudget: It would pass the budget; it was not sent.
            ProviderError: It failed and trying again did not help or would not.
        """
        lead: Lead | None = None
        attempt: _Attempt | None = None
        try:
            if turn == 1:
                lead = await self._enter()
                if lead.role == "leader" and self._decision is not None and self._decision.plan == "prewarm":
                    await self._prewarm(lead)
            request = self._request(turn)
            asked = turn == 1 and self._diagnosed_against() is not None
            # Only now: behind a leader the call costs less, and nothing is set aside while it waits.
            attempt = await self._reserve(turn, request)
            try:
                return await self._stream(request, attempt, lead)
            except ProviderError as exc:
                if not (asked and self._diagnostics_refused(exc)):
                    raise
            request = self._request(turn)
            attempt = await self._reserve(turn, request)
            return await self._stream(request, attempt, lead)
        finally:
            if attempt is not None:
                self._close(attempt, "unconfirmed")
            if lead is not None:
                lead.gave_up()

    async def summarise(self, turn: int, prompt: ChildPrompt) -> tuple[Reply, int]:
        """Make a call that stands before a turn and is none: paid for and booked, and not part of the conversation.

        Returns:
            The reply, and which attempt of the turn's calls it was.

        Raises:
            OverBudget: It would pass the budget; it was not sent.
            ProviderError: It failed and trying again did not help or would not.
        """
        snapshot = self._params.cache_safe
        request = ModelRequest(body=prompt.body(), headers=snapshot.headers, query=snapshot.query)
        attempt = await self._reserve(turn, request, summary=True)
        reply, retries = await self._stream(request, attempt, None)
        return reply, retries + 1

    @property
    def _ttl(self) -> str:
        return self._prompt.ttl or ttl_of(self._params.cache_safe)

    def _request(self, turn: int) -> ModelRequest:
        snapshot = self._params.cache_safe
        body = self._prompt.body(previous_message_id=self._diagnosed_against() if turn == 1 else None)
        return ModelRequest(body=body, headers=snapshot.headers, query=snapshot.query)

    def _diagnosed_against(self) -> str | None:
        """Return the parent's message id, where the API can say what changed since."""
        reply = self._params.cache_safe.reply
        return reply.message_id if reply is not None and self._llm.diagnostics else None

    def _diagnostics_refused(self, error: ProviderError) -> bool:
        """Whether the server does not know the field; it is then never sent there again."""
        if error.status != 400 or "diagnostics" not in str(error):
            return False
        self._llm.diagnostics = False
        return True

    async def _enter(self) -> Lead:
        """Wait until the first call may go."""
        warmth = self._warmth
        self._decision = decision = plan_fan_out(
            self._params,
            self._base,
            times=warmth.times,
            is_warm=warmth.is_warm(self._prefix),
            wait_s=warmth.wait_s,
            now=time.time(),
        )
        self._progress.decision = decision.to_json()
        self._emit(FanOutDecided(run_id=self._run_id, decision=self._progress.decision))
        self._prompt.ttl = decision.ttl
        self._prompt.writes_tail = decision.writes_tail
        lead = await warmth.enter(self._prefix, decision)
        self._progress.decision["role"] = lead.role
        if lead.waited_s > 0:
            self._progress.decision["waited_s"] = round(lead.waited_s, 3)
            self._emit(WaitedForLeader(run_id=self._run_id, waited_s=lead.waited_s))
        return lead

    async def _prewarm(self, lead: Lead) -> None:
        """Write the prefix with a call that asks for no answer; where that fails, the leader's own call writes it."""
        snapshot = self._params.cache_safe
        request = ModelRequest(body=self._base.prewarm_body(), headers=snapshot.headers, query=snapshot.query)
        try:
            reply, retries = await self._stream(request, await self._reserve(0, request), lead)
        except ProviderError as exc:
            self._progress.cut_off()  # what began was billed, and is not the next call's
            self._progress.decision = {**(self._progress.decision or {}), "prewarm_failed": str(exc)}
            return
        self._progress.calls.append(
            CallRecord(
                turn=0,
                message_id=reply.message_id or "",
                usage=reply.usage,
                stop_reason=reply.stop_reason,
                retries=retries,
            )
        )

    async def _reserve(self, turn: int, request: ModelRequest, *, summary: bool = False) -> _Attempt:
        """Set aside what the next attempt of a turn may cost."""

        def quote() -> Amount:
            is_warm = self._warmth.is_warm(self._prefix)
            return self.quotes.quote(turn, size_bytes=len(request.body), calls=self._progress.calls, is_warm=is_warm)

        reservation = await self._purse.reserve(quote)
        self._attempts[turn] += 1
        return _Attempt(turn=turn, number=self._attempts[turn], reservation=reservation, summary=summary)

    async def _announce(self, attempt: _Attempt) -> None:
        """Put the attempt on the log before anything is sent."""
        decision = self._progress.decision if attempt.turn <= 1 and attempt.number == 1 else None
        call = OutgoingCall(
            turn=attempt.turn,
            attempt=attempt.number,
            model=self._params.model,
            prefix=self._prefix,
            decision=decision,
            budget=attempt.reservation.record,
        )
        await self._journal.call_started(call)
        attempt.sent_at = time.time()

    def _close(self, attempt: _Attempt, outcome: Outcome, reply: Reply | None = None, error: str = "") -> None:
        """Book the attempt and settle what was set aside for it; one that was cancelled unsent is not booked."""
        if attempt.over:
            return
        attempt.over = True
        if not attempt.sent and outcome == "unconfirmed":
            attempt.reservation.settle(Usage())
            return
        known = self._progress.open
        usage = reply.usage if reply else known.usage if known else None
        message_id = (reply.message_id or "") if reply else known.message_id if known else ""
        self._ledger.book(
            CallFacts(
                at=attempt.sent_at,
                turn=attempt.turn,
                attempt=attempt.number,
                model=self._params.model,
                outcome=outcome,
                usage=usage,
                message_id=message_id,
                error=error,
                prefix=self._prefix,
                warm_tokens=self._decision.warm_tokens if self._decision else 0,
                ttl=self._ttl,
            )
        )
        if usage is not None:
            metrics.call_billed(self._params.model, usage)
        unknown = outcome == "unconfirmed" or (outcome == "confirmed" and not (usage and usage.prompt_tokens))
        attempt.reservation.settle(usage or Usage(), at_least_reserved=unknown)

    async def _stream(self, request: ModelRequest, attempt: _Attempt, lead: Lead | None) -> tuple[Reply, int]:
        model = self._params.model
        with chat_span(model, run_id=self._run_id, turn=attempt.turn, summary=attempt.summary) as traced:
            return await self._streamed(request, attempt, lead, traced)

    async def _streamed(
        self, request: ModelRequest, attempt: _Attempt, lead: Lead | None, traced: ChatTrace
    ) -> tuple[Reply, int]:
        def sends() -> None:
            attempt.sent = True  # the attempt of that moment: repeating takes a new one

        try:
            await self._announce(attempt)
            async with aclosing(self._llm.stream(replace(request, on_send=sends))) as events:
                async for event in events:
                    match event:
                        case MessageStarted():
                            traced.began(event.model, event.message_id)
                            self._began(event, attempt, lead)
                        case TextDelta() if attempt.summary:
                            pass  # it is said to nobody but the child itself
                        case TextDelta():
                            self._emit(TextStreamed(run_id=self._run_id, text=event.text))
                        case CallRetried():
                            traced.retried(event.error, event.delay_s)
                            self._failed_once(attempt, event)
                            if lead is not None:
                                lead.pauses(event.delay_s)
                        case CallRepeated():
                            # Announced after the pause: a daemon that loses the run during it never sends the attempt.
                            attempt = await self._reserve(attempt.turn, request, summary=attempt.summary)
                            await self._announce(attempt)
                        case MessageFinished():
                            traced.finished(event.reply, attempts=attempt.number)
                            await self._finished(event.reply, attempt)
                            return event.reply, attempt.number - 1
        except ProviderError as exc:
            self._close(attempt, self._outcome(attempt, exc), error=str(exc))
            raise
        finally:
            self._close(attempt, "unconfirmed")
        raise AssertionError("a provider's stream ends with MessageFinished or raises")

    def _outcome(self, attempt: _Attempt, error: ProviderError) -> Outcome:
        """Say whether a failed attempt may have been billed: not unsent, nor where the answer was an error."""
        if not attempt.sent:
            return "failed"
        return "unconfirmed" if self._progress.open is not None or error.status in (None, 200) else "failed"

    def _failed_once(self, attempt: _Attempt, retried: CallRetried) -> None:
        """Close an attempt that failed and will be repeated."""
        self._close(attempt, self._outcome(attempt, retried.error), error=str(retried.error))
        self._progress.cut_off()
        self._emit(
            CallFailedOnce(run_id=self._run_id, turn=attempt.turn, error=str(retried.error), delay_s=retried.delay_s)
        )

    async def _finished(self, reply: Reply, attempt: _Attempt) -> None:
        self._close(attempt, "confirmed", reply)
        if self._progress.open is not None:
            # Until it is on the log it does not count as a turn, but it is billed in full.
            self._progress.open = replace(self._progress.open, usage=reply.usage)
        if attempt.summary:
            self._progress.calls.append(
                CallRecord(
                    turn=attempt.turn,
                    message_id=reply.message_id or "",
                    usage=reply.usage,
                    stop_reason=reply.stop_reason,
                    retries=0,
                    summary=True,
                )
            )
        elif attempt.turn:
            cache = self._progress.cache if attempt.turn == 1 else None
            await self._journal.turn_finished(attempt.turn, reply, retries=attempt.number - 1, cache=cache)
        self._progress.open = None

    def _began(self, started: MessageStarted, attempt: _Attempt, lead: Lead | None) -> None:
        self._emit(
            CallBegan(run_id=self._run_id, turn=attempt.turn, message_id=started.message_id, usage=started.usage)
        )
        self._progress.open = CallRecord(
            turn=attempt.turn,
            message_id=started.message_id,
            usage=started.usage,
            stop_reason=None,
            retries=0,
            complete=False,
        )
        metrics.call_began(self._params.model, time.time() - attempt.sent_at)
        if lead is None:
            return
        usage = started.usage
        cached = usage.cache_read_tokens + usage.cache_write_tokens
        if self._prompt.writes_tail:
            lead.began(TTL_S[self._ttl], cached=2 * cached > usage.prompt_tokens)
        uncached = usage.prompt_tokens - usage.cache_read_tokens
        self._warmth.times.saw(self._params.model, uncached, time.time() - attempt.sent_at, prewarm=attempt.turn == 0)
        if attempt.turn == 0:
            return
        check = check_first_call(
            self._params,
            plan=self._prompt.plan,
            started=started,
            decision=self._progress.decision or {},
            sent_at=attempt.sent_at,
        )
        self._progress.cache = check
        metrics.first_call_read(self._params.model, check.hit_ratio)
        if check.cause is not None:
            self._emit(CacheBreakDetected(run_id=self._run_id, check=check))
            cache_break_detected(
                run_id=self._run_id,
                label=self._params.fork_label,
                cache_read=check.read,
                cache_creation=check.written,
                hit_ratio=check.hit_ratio,
                cause=check.cause,
                detail=check.detail,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """What is remembered of a call until the next one."""

    at: float
    size_bytes: int


class CallQuotes:
    """Quotes one fork's calls."""

    def __init__(self, params: ForkParams, base: ForkBase, *, now: Callable[[], float] = time.time) -> None:
        self._params = params
        self._base = base
        self._now = now
        self._cost = cost_of(params.model)
        self._sent: dict[int, _Sent] = {}

    def recorded(self, turn: int, at: float) -> None:
        """Take note of a call that an earlier daemon made: of it, only the parent's bytes are sure to be covered."""
        self._sent[turn] = _Sent(at=at, size_bytes=len(self._params.cache_safe.body))

    def quote(self, turn: int, *, size_bytes: int, calls: Sequence[CallRecord], is_warm: bool) -> Amount:
        """Return the most a call may cost.

        Args:
            turn: Which; 0 for a pre-warm, which gets no answer.
            size_bytes: The length of the request.
            calls: The fork's calls so far.
            is_warm: Whether all that it shares with its siblings is known to be cached.
        """
        now = self._now()
        last = calls[-1] if calls else None
        prompt = self._prompt_tokens(size_bytes, last)
        warm = self._known_warm(last, now)
        if last is None and is_warm and self._is_cacheable():
            own = size_bytes - len(self._params.cache_safe.body) - self._base.tail_bytes
            warm = max(warm, prompt - _dense(own))
        warm = min(warm, prompt)
        self._sent[turn] = _Sent(at=now, size_bytes=size_bytes)
        hour = ttl_of(self._params.cache_safe) == "1h"
        return self._cost(
            Usage(
                cache_read_tokens=warm,
                cache_write_5m_tokens=0 if hour else prompt - warm,
                cache_write_1h_tokens=prompt - warm if hour else 0,
                output_tokens=self._answer_tokens() if turn else 0,
            )
        )

    def _prompt_tokens(self, size_bytes: int, last: CallRecord | None) -> int:
        if last is None:
            billed, covered = self._parents_bill()
            return billed + _dense(size_bytes - covered)
        sent = self._sent.get(last.turn)
        covered = sent.size_bytes if sent else len(self._params.cache_safe.body)
        added = _dense(size_bytes - covered)
        return last.usage.prompt_tokens + (max(added, last.usage.output_tokens) if last.complete else added)

    def _parents_bill(self) -> tuple[int, int]:
        """Return how many tokens the parent was billed for, and for how many bytes."""
        snapshot = self._params.cache_safe
        billed = snapshot.reply.usage.prompt_tokens if snapshot.reply and is_billed(snapshot) else 0
        if not billed or set(self._params.overrides.request) - {"max_tokens"}:
            return 0, 0
        return billed, len(snapshot.body)

    def _is_cacheable(self) -> bool:
        """Whether the prefix is sure to be as long as the provider wants it: a shorter one is silently not kept."""
        facts = model_facts(self._params.model)
        billed, _ = self._parents_bill()
        return facts is None or (billed or len(self._params.cache_safe.body) // _SPARSE) >= facts.minimum_tokens

    def _known_warm(self, last: CallRecord | None, now: float) -> int:
        snapshot = self._params.cache_safe
        if last is None:
            return 0 if self._params.overrides.request else warm_tokens(snapshot, now=now)
        sent = self._sent.get(last.turn)
        if sent is None or now - sent.at > TTL_S[ttl_of(snapshot)] - _EXPIRING_S:
            return 0
        return last.usage.cache_read_tokens + last.usage.cache_write_tokens

    def _answer_tokens(self) -> int:
        asked = self._params.overrides.request.get("max_tokens", self._params.cache_safe.field("max_tokens"))
        return min(asked, _MOST_ANSWERED) if isinstance(asked, int) and asked > 0 else 0


_MOST_ANSWERED = 10**9
"""No model answers more, whatever it is asked for."""


def _dense(size_bytes: int) -> int:
    return -(-max(size_bytes, 0) // BYTES_PER_TOKEN)
