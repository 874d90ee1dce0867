"""Run the tools a model asks for, whatever runs them.

A tool that fails, is denied or does not exist is an answer the model can act on, never an end of the fork.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.core.prompt import ToolAnswer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from nexofork.core.replacement import ContentReplacementState
    from nexofork.core.reply import ToolUse
    from nexofork.engine.filters import ToolFilter
    from nexofork.engine.params import ParentContext

__all__ = [
    "AGENT_TOOL",
    "FunctionTools",
    "NoTools",
    "ToolCall",
    "ToolDispatcher",
    "ToolOutcome",
    "ToolRunner",
    "tool_calls",
]

log = logging.getLogger(__name__)

AGENT_TOOL = "Agent"
"""The tool by which a parent forks: it stays in the child's tool list for its bytes, and is refused when called."""

_REFUSE_AGENT = (
    "You are a fork and cannot start agents. Do this part of the directive yourself with the other tools, "
    "or name it under Issues in your report."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call a model made, and for whom."""

    run_id: str
    id: str
    name: str
    input: dict[str, Any]
    context: ParentContext
    """The fork's own context: a copy in which changes to the parent's state do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What came of a call."""

    content: str | list[dict[str, Any]]
    """Text, or content blocks as the API takes them in a ``tool_result``."""
    is_error: bool = False


class ToolDispatcher(Protocol):
    """Whatever can run tools by name."""

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run one call. Cancelled when the fork is aborted: stop what was started, then let the cancellation pass."""

    def parallel(self, call: ToolCall) -> bool:
        """Whether the call may run beside its neighbours in the same turn."""

    def read_only(self, call: ToolCall) -> bool:
        """Whether the call changes nothing, so that it may be repeated after a crash."""


class NoTools:
    """A dispatcher without tools."""

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Answer that there is no such tool."""
        return ToolOutcome(content=f"There is no tool {call.name!r} here; go on without it.", is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """Nothing runs, so anything may."""
        return True

    def read_only(self, call: ToolCall) -> bool:
        """Nothing runs, so nothing is changed."""
        return True


class FunctionTools:
    """Tools from plain async functions that take the input object and return text or an outcome."""

    def __init__(
        self,
        functions: Mapping[str, Callable[[dict[str, Any]], Awaitable[str | ToolOutcome]]],
        *,
        parallel: Sequence[str] = (),
        read_only: Sequence[str] = (),
    ) -> None:
        self._functions = dict(functions)
        self._parallel = frozenset(parallel)
        self._read_only = frozenset(read_only)

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run the function of that name."""
        function = self._functions.get(call.name)
        if function is None:
            known = ", ".join(sorted(self._functions)) or "none"
            return ToolOutcome(content=f"There is no tool {call.name!r} here. Tools: {known}.", is_error=True)
        outcome = await function(call.input)
        return ToolOutcome(content=outcome) if isinstance(outcome, str) else outcome

    def parallel(self, call: ToolCall) -> bool:
        """Whether the tool was named as one that may run beside others."""
        return call.name in self._parallel

    def read_only(self, call: ToolCall) -> bool:
        """Whether the tool was named as one that changes nothing."""
        return call.name in self._read_only


class ToolWatch(Protocol):
    """Hears of every call before it runs and after it answered."""

    async def started(self, call: ToolCall, *, read_only: bool) -> None:
        """The call is about to run."""

    async def finished(self, call: ToolCall, answer: ToolAnswer) -> None:
        """The call was answered, by the tool or in its stead."""


class ToolRunner:
    """Runs the calls of one turn for one fork, in order, neighbours that allow it side by side."""

    def __init__(
        self,
        dispatcher: ToolDispatcher,
        *,
        tool_filter: ToolFilter,
        replacements: ContentReplacementState,
        watch: ToolWatch,
    ) -> None:
        self._dispatcher = dispatcher
        self._filter = tool_filter
        self._replacements = replacements
        self._watch = watch

    async def run(self, calls: Sequence[ToolCall], recorded: Mapping[str, ToolAnswer]) -> list[ToolAnswer]:
        """Return one answer per call, in the order of the calls; what is recorded already is not run again."""
        answers = dict(recorded)
        for group in self._groups([call for call in calls if call.id not in answers]):
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._one(call)) for call in group]
            answers.update((task.result().call_id, task.result()) for task in running)
        return [answers[call.id] for call in calls]

    def _groups(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        groups: list[list[ToolCall]] = []
        open_group = False
        for call in calls:
            beside = self._dispatcher.parallel(call)
            if beside and open_group:
                groups[-1].append(call)
            else:
                groups.append([call])
            open_group = beside
        return groups

    async def _one(self, call: ToolCall) -> ToolAnswer:
        outcome = self._refusal(call)
        if outcome is None:
            await self._watch.started(call, read_only=self._dispatcher.read_only(call))
            outcome = await self._dispatched(call)
        answer = self._answer(call, outcome)
        await self._watch.finished(call, answer)
        return answer

    def _refusal(self, call: ToolCall) -> ToolOutcome | None:
        if call.name == AGENT_TOOL:
            return ToolOutcome(content=_REFUSE_AGENT, is_error=True)
        denial = self._denial(call)
        if denial is None:
            return None
        log.debug("fork.tool_filter", extra={"run_id": call.run_id, "tool": call.name, "reason": denial})
        return ToolOutcome(content=f"{call.name} was not run: {denial}", is_error=True)

    def _denial(self, call: ToolCall) -> str | None:
        try:
            return self._filter.deny(call.name, call.input)
        except Exception as exc:
            # Without a verdict nothing runs.
            log.warning("the filter raised on %s", call.name, exc_info=exc, extra={"run_id": call.run_id})
            return f"the filter failed: {type(exc).__name__}: {exc}"

    async def _dispatched(self, call: ToolCall) -> ToolOutcome:
        try:
            outcome: object = await self._dispatcher.dispatch(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call from outside: the tool gave up on its own, a failure like any other.
            return ToolOutcome(content=f"{call.name} failed: it was cancelled from within.", is_error=True)
        except Exception as exc:
            # A tool may raise anything; the model gets to read it.
            log.warning("tool %s raised", call.name, exc_info=exc, extra={"run_id": call.run_id})
            return ToolOutcome(content=f"{call.name} failed: {type(exc).__name__}: {exc}", is_error=True)
        if isinstance(outcome, ToolOutcome):
            return outcome
        said = f"{call.name} failed: it returned {type(outcome).__name__}, which is no result."
        return ToolOutcome(content=said, is_error=True)

    def _answer(self, call: ToolCall, outcome: ToolOutcome) -> ToolAnswer:
        content = outcome.content
        if isinstance(content, str):
            content = self._replacements.apply(call.id, content)
        else:
            content = [self._shortened(f"{call.id}#{index}", block) for index, block in enumerate(content)]
        return ToolAnswer(call_id=call.id, content=content, is_error=outcome.is_error)

    def _shortened(self, key: str, block: dict[str, Any]) -> dict[str, Any]:
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            return block
        return {**block, "text": self._replacements.apply(key, block["text"])}


def tool_calls(uses: Sequence[ToolUse], *, run_id: str, context: ParentContext) -> list[ToolCall]:
    """Return the calls of a reply as they go to a dispatcher."""
    return [ToolCall(run_id=run_id, id=use.id, name=use.name, input=use.input, context=context) for use in uses]
