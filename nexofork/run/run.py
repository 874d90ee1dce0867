"""Run one fork from its first request to its result.

The loop sends exact bytes, keeps every reply as wire bytes, runs the tools it asks for and goes on until the model
stops, a limit is reached or the fork is aborted. Whatever happens becomes a `ForkResult`; only a cancellation from
outside passes.

The race of abort and end is settled by the work task: a fork that finished its work before the abort reached it
completed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.economics.prices import cost_usd
from nexofork.errors import ForkRefused, NexoforkError, OverBudget, UnknownModelPrice
from nexofork.policy.gate import Gate
from nexofork.providers.failures import ContextOverflow
from nexofork.run.abort import AbortReason, AbortToken
from nexofork.run.budget import FreePurse
from nexofork.run.call_records import CallOwner, Ledger, MemoryLedger
from nexofork.run.compaction import Compactor, NotCompacted
from nexofork.run.events import (
    ForkEnded,
    ForkEvent,
    ForkStarted,
    MessagesDelivered,
    MessagesUndelivered,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nexofork.run.mailbox import Letter, Mailbox, NoMail, as_text
from nexofork.run.model_calls import ModelCalls, Progress
from nexofork.run.result import CallRecord, ForkResult, ForkStatus
from nexofork.run.turns import CUT_BY_WINDOW, Journal, NoJournal, RecordedTurn, behind_results, interrupted_answers
from nexofork.telemetry.spans import fork_ended, fork_span
from nexofork.tools.dispatch import ToolRunner, tool_calls
from nexofork.tools.tool_names import declared_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Span

    from nexofork.core.prompt import ChildPrompt, ForkBase, ToolAnswer
    from nexofork.core.reply import Reply
    from nexofork.run.budget import Purse
    from nexofork.run.params import ForkParams
    from nexofork.run.prefix_gate import Warmth
    from nexofork.tools.dispatch import ToolCall

__all__ = ["Bench", "ForkRun", "NoBench"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _End:
    status: ForkStatus
    end: str
    error: str | None = None
    budget: dict[str, Any] | None = None


_ENDS = {
    "end_turn": _End(ForkStatus.COMPLETED, "end_turn"),
    "stop_sequence": _End(ForkStatus.COMPLETED, "stop_sequence"),
    "refusal": _End(ForkStatus.REFUSED, "refusal", "The model refused; reword the directive."),
    "max_tokens": _End(
        ForkStatus.FAILED,
        "max_tokens",
        "The reply was cut off at the request's max_tokens; raise it in the parent's requests, forks inherit it.",
    ),
    CUT_BY_WINDOW: _End(
        ForkStatus.FAILED,
        "context_overflow",
        "The conversation no longer fits the model's context window; fork earlier, or ask for less.",
    ),
}


class ForkRun:
    """One fork in progress."""

    def __init__(
        self,
        params: ForkParams,
        *,
        run_id: str,
        base: ForkBase,
        prompt: ChildPrompt,
        token: AbortToken,
        warmth: Warmth,
        emit: Callable[[ForkEvent], None],
        journal: Journal | None = None,
        mailbox: Mailbox | None = None,
        ledger: Ledger | None = None,
        purse: Purse | None = None,
        bench: Bench | None = None,
        gate: Gate | None = None,
        history: Sequence[RecordedTurn] = (),
    ) -> None:
        if params.llm is None:
            raise ForkRefused("A fork in this process needs a provider: pass `llm`.")
        self._params = params
        self._run_id = run_id
        self._prompt = prompt
        self._token = token
        self._emit = emit
        self._progress = Progress()
        self._context = params.parent_ctx.for_child(params.overrides.agent_id, params.query_source)
        self._tools = ToolRunner(
            params.tool_dispatcher,
            tool_filter=params.tool_filter,
            replacements=params.cache_safe.replacements.clone(),
            watch=self,
            gate=gate or Gate(params.permissions, tools=params.tool_dispatcher),
        )
        self._declared = declared_tools(params.schema)
        self._journal: Journal = journal or NoJournal()
        self._calls = ModelCalls(
            params,
            run_id=run_id,
            llm=params.llm,
            base=base,
            prompt=prompt,
            warmth=warmth,
            journal=self._journal,
            ledger=ledger or MemoryLedger().of_run(CallOwner(run_id=run_id)),
            purse=purse or FreePurse(),
            emit=emit,
            progress=self._progress,
        )
        self._compactor = Compactor(run_id, prompt=prompt, calls=self._calls, journal=self._journal, emit=emit)
        self._mailbox: Mailbox = mailbox or NoMail()
        self._unseen: list[Letter] = []
        """Messages that were delivered behind the newest turn: no request that was answered has carried them."""
        self._bench: Bench = bench or NoBench()
        self._changed = False
        self._history = tuple(history)
        self._turn = 0

    async def run(self) -> ForkResult:
        """Run to the end and return the result; never raises for what the fork does or meets."""
        started = time.monotonic()
        params = self._params
        with fork_span(
            run_id=self._run_id,
            parent_agent=params.parent_ctx.agent_id,
            label=params.fork_label,
            query_source=params.query_source,
            mode=params.mode,
            skip_transcript=params.skip_transcript,
            cache_key_hash=params.cache_safe.cache_key_hash,
            directive=params.directive,
        ) as span:
            self._emit(
                ForkStarted(
                    run_id=self._run_id,
                    label=params.fork_label,
                    directive=self._params.directive,
                    cache_key_hash=params.cache_safe.cache_key_hash,
                )
            )
            try:
                end = await self._until_end()
            except asyncio.CancelledError:
                # The owner's task is going down; whoever holds the handle still has to learn how it ended.
                self._token.abort(AbortReason.SHUTDOWN, "its task was cancelled")
                self._finish(self._aborted(), started, span)
                raise
            finally:
                self._context.file_state.clear()
            return self._finish(end, started, span)

    def _finish(self, end: _End, started: float, span: Span) -> ForkResult:
        duration_s = time.monotonic() - started
        result = self._result(end, duration_ms=round(duration_s * 1000))
        fork_ended(
            span,
            status=result.status.value,
            end=result.end,
            turns=result.turns,
            usage=result.usage,
            cost_usd=result.cost_usd,
            duration_s=duration_s,
        )
        if result.undelivered:
            self._emit(MessagesUndelivered(run_id=self._run_id, texts=result.undelivered))
        self._emit(ForkEnded(result=result))
        return result

    async def _until_end(self) -> _End:
        """Race the work against the abort token and the deadline."""
        loop = asyncio.get_running_loop()
        deadline = None
        if self._params.timeout is not None:
            note = f"no end within {self._params.timeout:g} s"
            deadline = loop.call_later(self._params.timeout, self._token.abort, AbortReason.DEADLINE, note)
        try:
            async with asyncio.TaskGroup() as tasks:
                work = tasks.create_task(self._work())
                watch = tasks.create_task(self._cancel_on_abort(work))
                work.add_done_callback(lambda _: watch.cancel())
        finally:
            if deadline is not None:
                deadline.cancel()
        if work.cancelled():
            return self._aborted()
        end = work.result()
        # What is cancelled may fail instead: a connection that breaks over it is no reason of its own.
        failed_by_abort = end.status is ForkStatus.FAILED and self._token.cause is not None
        return self._aborted() if failed_by_abort else end

    async def _cancel_on_abort(self, work: asyncio.Task[_End]) -> None:
        await self._token.wait()
        work.cancel()

    def _aborted(self) -> _End:
        cause = self._token.cause
        if cause is None:
            return _End(ForkStatus.FAILED, "cancelled", "The model call was cancelled from within; fork again.")
        status = ForkStatus.TIMED_OUT if cause.reason is AbortReason.DEADLINE else ForkStatus.ABORTED
        return _End(status, cause.reason.value, cause.note or None)

    async def _work(self) -> _End:
        if self._token.cause is not None:
            return self._aborted()
        try:
            return await self._turns()
        except OverBudget as exc:
            return _End(ForkStatus.OVER_BUDGET, "over_budget", str(exc), budget=exc.to_json())
        except (ContextOverflow, NotCompacted) as exc:
            return _End(ForkStatus.FAILED, "context_overflow", str(exc))
        except NexoforkError as exc:
            return _End(ForkStatus.FAILED, type(exc).__name__, str(exc))
        except Exception as exc:
            # A defect of ours or of a plug-in must end this fork alone, and be seen.
            log.exception("fork %s failed", self._run_id)
            return _End(ForkStatus.FAILED, type(exc).__name__, f"Unexpected {type(exc).__name__}: {exc}")

    async def _turns(self) -> _End:
        for turn in range(1, self._params.max_turns + 1):
            if self._token.cause is not None:  # a tool may have swallowed the cancellation
                return self._aborted()
            self._turn = turn
            recorded = self._history[turn - 1] if turn <= len(self._history) else None
            if recorded is None:
                reply, retries = await self._called(turn)
                recorded = RecordedTurn(reply=reply, retries=retries)
            else:
                self._progress.cache = recorded.cache or self._progress.cache
                self._calls.quotes.recorded(turn, recorded.at)
            self._finished(recorded.reply, turn, recorded.retries)
            end = await self._after(recorded)
            if end is not None:
                return end
            for compaction in recorded.compactions:
                self._progress.calls.append(compaction.as_call(turn + 1))
                self._compactor.apply(turn, compaction, self._unseen)
        return _End(
            ForkStatus.MAX_TURNS,
            "max_turns",
            f"The fork was not done after {self._params.max_turns} turns; raise max_turns or narrow the directive.",
        )

    async def _called(self, turn: int) -> tuple[Reply, int]:
        """Make a turn's call; where the conversation does not fit any more, with a summary of it."""
        while True:
            try:
                return await self._calls.make(turn)
            except ContextOverflow:
                if turn == 1 or not self._params.compaction:
                    raise
            await self._compactor.compact(turn - 1, self._unseen)

    async def started(self, call: ToolCall, *, read_only: bool) -> None:
        """Announce a tool before it runs."""
        bubbles = getattr(self._params.tool_dispatcher, "bubbles", None)
        bubbled = bubbles is not None and bool(bubbles(call))
        await self._journal.tool_started(self._turn, call, read_only=read_only, bubbled=bubbled)
        # What the parent runs changes nothing where this run works.
        self._changed = self._changed or not (read_only or bubbled)
        self._emit(ToolStarted(run_id=self._run_id, call_id=call.id, name=call.name))

    async def finished(self, call: ToolCall, answer: ToolAnswer) -> None:
        """Write down what a tool answered."""
        await self._journal.tool_finished(self._turn, call, answer)
        self._emit(ToolFinished(run_id=self._run_id, call_id=call.id, name=call.name, is_error=answer.is_error))

    async def _after(self, recorded: RecordedTurn) -> _End | None:
        """Do what a reply asks for; return how the run ends, or None to go on."""
        reply = recorded.reply
        if reply.stop_reason == CUT_BY_WINDOW and self._turn < self._params.max_turns:
            if recorded.compactions:
                return None
            if self._params.compaction and self._prompt.held_turns:
                await self._compactor.compact(self._turn, self._unseen)
                return None
        if reply.truncated_tool_use is not None and reply.stop_reason != CUT_BY_WINDOW:
            name = reply.truncated_tool_use.name
            return _End(
                ForkStatus.FAILED,
                "truncated_tool_use",
                f"The reply was cut off inside a call of {name!r} ({reply.stop_reason}); it was not run. "
                "Raise max_tokens in the parent's requests, forks inherit it.",
            )
        if reply.stop_reason == "pause_turn":
            self._prompt.extend(reply)
            return None
        if reply.stop_reason == "tool_use":
            calls = tool_calls(
                reply.tool_uses,
                run_id=self._run_id,
                context=self._context,
                declared=self._declared,
                names=self._params.tool_names,
                turn=self._turn,
            )
            known = {**interrupted_answers(recorded), **recorded.answers}
            answers = await self._tools.run(calls, known, turn=self._turn)
            if self._changed:
                self._changed = False
                await self._bench.worked(self._turn)
            self._progress.tool_uses += len(calls)
            self._prompt.extend(reply, answers, behind_results(self._params, await self._mail(recorded)))
            return None
        if reply.stop_reason in ("end_turn", "stop_sequence") and (letters := await self._mail(recorded)):
            self._prompt.extend(reply, (), map(as_text, letters))
            return None
        unknown = _End(
            ForkStatus.FAILED,
            f"stop_reason:{reply.stop_reason}",
            f"The model stopped with {reply.stop_reason!r}, which is not known here; update nexofork.",
        )
        return _ENDS.get(reply.stop_reason or "", unknown)

    async def _mail(self, recorded: RecordedTurn) -> list[Letter]:
        """Return what the parent has to say behind this turn, written down before the model sees it.

        Behind the last turn there is nobody to read it: what has come is left where it is.
        """
        self._unseen = [*recorded.letters]
        if len(self._history) <= self._turn < self._params.max_turns and (new := await self._mailbox.take()):
            self._unseen += new  # first: taken, it must not be lost if the run ends here
            await self._journal.delivered(self._turn, new)
            self._emit(MessagesDelivered(run_id=self._run_id, turn=self._turn, ids=tuple(letter.id for letter in new)))
        return self._unseen

    def _finished(self, reply: Reply, turn: int, retries: int) -> None:
        progress = self._progress
        self._unseen = []
        progress.calls.append(
            CallRecord(
                turn=turn,
                message_id=reply.message_id or "",
                usage=reply.usage,
                stop_reason=reply.stop_reason,
                retries=retries,
            )
        )
        progress.final_text = reply.text if reply.text.strip() else progress.final_text
        self._emit(
            TurnFinished(
                run_id=self._run_id,
                turn=turn,
                text=reply.text,
                stop_reason=reply.stop_reason,
                tool_names=tuple(use.name for use in reply.tool_uses),
                usage=reply.usage,
            )
        )

    def _result(self, end: _End, *, duration_ms: int) -> ForkResult:
        progress, model = self._progress, self._params.model
        progress.cut_off()
        cost, note = None, ""
        try:
            cost = round(sum(cost_usd(call.usage, model) for call in progress.calls), 9)
        except UnknownModelPrice as exc:
            note = str(exc)
        aborted = end.status in (ForkStatus.ABORTED, ForkStatus.TIMED_OUT)
        return ForkResult(
            run_id=self._run_id,
            label=self._params.fork_label,
            directive=self._params.directive,
            model=model,
            status=end.status,
            end=end.end,
            final_text=progress.final_text,
            calls=tuple(progress.calls),
            cost_usd=cost,
            cost_note=note,
            cache=progress.cache,
            decision=progress.decision,
            tool_uses=progress.tool_uses,
            duration_ms=duration_ms,
            error=end.error,
            budget=end.budget,
            abort=self._token.cause if aborted else None,
            undelivered=tuple(letter.text for letter in (*self._unseen, *self._mailbox.left())),
        )


class Bench(Protocol):
    """Looks after what a run's tools change. What it raises ends the run."""

    async def worked(self, turn: int) -> None:
        """All calls of a turn are answered, and one of them may have changed something.

        The model has not seen the answers yet: what is kept now is what it will build on.
        """


class NoBench:
    """Keeps nothing."""

    async def worked(self, turn: int) -> None:
        """Do nothing."""
