"""Run the cases of a suite as synchronous forks, as often as they say, and judge every run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.agents.evaluation.expecting import Outcome, disappointments
from nexofork.core.query_source import QuerySource
from nexofork.errors import BusError, ForkRefused
from nexofork.policy.filters import AllOfFilter, AllowAllFilter, build_filter, read_filter
from nexofork.run.events import ToolStarted
from nexofork.run.params import DelegateMode, ForkParams, prepare

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nexofork.agents.evaluation.suite import Case, Suite
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.run.events import ForkEvent
    from nexofork.run.result import ForkResult

__all__ = ["CaseResult", "CaseRun", "EvalForks", "EvalRun", "evaluate"]


class EvalRun(Protocol):
    """A run as its factory's handle shows it."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    async def result(self) -> ForkResult:
        """Wait for the end."""

    def events(self) -> AsyncIterator[ForkEvent]:
        """Yield everything that happened."""


class EvalForks(Protocol):
    """Whatever starts runs: in this process, or on a fleet."""

    async def fork(self, params: ForkParams) -> EvalRun:
        """Start one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """One run of a case, over all its prompts."""

    outcome: Outcome
    failures: tuple[str, ...]
    """What did not come true."""
    results: tuple[ForkResult, ...]

    @property
    def passed(self) -> bool:
        """Whether everything did."""
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        outcome = self.outcome
        return {
            "passed": self.passed,
            "failures": list(self.failures),
            "status": outcome.status.value,
            "text": outcome.text,
            "tools": list(outcome.tools),
            "tokens": outcome.tokens,
            "cost_usd": outcome.cost_usd,
            "hit_ratio": outcome.hit_ratio,
            "error": outcome.error,
            "duration_ms": self.duration_ms,
            "run_ids": [result.run_id for result in self.results],
        }

    @property
    def duration_ms(self) -> int:
        """How long it took."""
        return sum(result.duration_ms for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What came of a case."""

    case: Case
    runs: tuple[CaseRun, ...]

    @property
    def passed_runs(self) -> int:
        """How many runs passed."""
        return sum(run.passed for run in self.runs)

    @property
    def passed(self) -> bool:
        """Whether enough runs did."""
        return self.passed_runs >= self.case.min_passed

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return {
            "case": self.case.name,
            "passed": self.passed,
            "passed_runs": self.passed_runs,
            "min_passed": self.case.min_passed,
            "runs": [run.to_json() for run in self.runs],
        }


async def evaluate(
    suite: Suite,
    forks: EvalForks,
    snapshot: CacheSafeParams,
    *,
    follow_up: Callable[[Any, str], Awaitable[EvalRun]] | None = None,
    equip: Callable[[ForkParams], ForkParams] = lambda params: params,
    parallel: int = 4,
    on_run: Callable[[Case, CaseRun], object] | None = None,
) -> list[CaseResult]:
    """Run every case and return what came of them, in their order.

    Args:
        suite: The cases.
        forks: Starts the runs.
        snapshot: The conversation that all are forked from.
        follow_up: Continues a run that has ended, for cases with several prompts: the factory's ``wake``.
        equip: Gives every run its provider and tools in process, budgets, names of tools.
        parallel: How many runs go on at once.
        on_run: Sees every run as it ends.

    Raises:
        ForkRefused: A case cannot be run as it is; then none was.
        BusError: NATS was not reached; what was running is aborted.
    """
    if parallel < 1:
        raise ForkRefused(f"parallel is {parallel}; let at least one run go on.")
    orders = [(case, _order(case, snapshot, equip)) for case in suite.cases]
    for case, params in orders:
        if len(case.prompts) > 1 and follow_up is None:
            raise ForkRefused(f"The case {case.name!r} has several prompts; pass `follow_up` to continue a run.")
        prepare(params)
    slots = asyncio.Semaphore(parallel)

    async def once(case: Case, params: ForkParams) -> CaseRun:
        async with slots:
            run = await _run(case, params, forks, follow_up)
        if on_run is not None:
            on_run(case, run)
        return run

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [[tasks.create_task(once(*order)) for _ in range(order[0].runs)] for order in orders]
    except BaseExceptionGroup as group:
        error = _first(group)
        if isinstance(error, (ForkRefused, BusError)):
            raise error from None
        raise
    return [
        CaseResult(case=case, runs=tuple(task.result() for task in each))
        for case, each in zip(suite.cases, running, strict=True)
    ]


def _order(case: Case, snapshot: CacheSafeParams, equip: Callable[[ForkParams], ForkParams]) -> ForkParams:
    params = equip(ForkParams(cache_safe=snapshot, prompt_messages=case.prompts[0]))
    own = build_filter([read_filter(text) for text in case.filters])
    given = params.tool_filter
    return replace(
        params,
        cache_safe=snapshot,
        prompt_messages=case.prompts[0],
        fork_label=case.name,
        query_source=QuerySource.EVAL,
        mode=DelegateMode.SYNC,
        tool_filter=own if type(given) is AllowAllFilter else AllOfFilter([own, given]),
        max_turns=case.max_turns,
        timeout=case.timeout_s,
        boilerplate=case.boilerplate,
        skip_transcript=False,
    )


async def _run(
    case: Case,
    params: ForkParams,
    forks: EvalForks,
    follow_up: Callable[[Any, str], Awaitable[EvalRun]] | None,
) -> CaseRun:
    handle = await forks.fork(params)
    results = [await handle.result()]
    tools = await _tools_of(handle)
    for prompt in case.prompts[1:]:
        if not results[-1].ok:
            break
        assert follow_up is not None, "checked before anything was run"
        handle = await follow_up(handle, prompt)
        results.append(await handle.result())
        tools += await _tools_of(handle)
    outcome = _outcome(results, tools)
    failures = tuple(disappointments(case.expect, outcome))
    return CaseRun(outcome=outcome, failures=failures, results=tuple(results))


async def _tools_of(handle: EvalRun) -> list[str]:
    return [event.name async for event in handle.events() if isinstance(event, ToolStarted)]


def _outcome(results: list[ForkResult], tools: list[str]) -> Outcome:
    usages = [result.usage for result in results]
    costs = [result.cost_usd for result in results]
    known = [cost for cost in costs if cost is not None]
    first = next((call.usage for call in results[0].calls if call.turn == 1), None)
    return Outcome(
        status=results[-1].status,
        text=results[-1].final_text,
        tools=tuple(tools),
        tokens=sum(usage.prompt_tokens + usage.output_tokens for usage in usages),
        cost_usd=sum(known) if len(known) == len(costs) else None,
        hit_ratio=first.hit_ratio if first else 0.0,
        error=results[-1].error,
    )


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error of a group: the one for which the others were ended."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
