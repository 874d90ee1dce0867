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


class NoTools:
    """A dispatcher without tools."""

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Answer that there is no such tool."""
        return ToolOutcome(content=f"There is no tool {call.name!r} here; go on without it.", is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """Nothing runs, so anything may."""
        return True


class FunctionTools:
    """Tools from plain async functions that take the input object and return text or an outcome."""

    def __init__(
        self,
        functions: Mapping[str, Callable[[dict[str, Any]], Awaitable[str | ToolOutcome]]],
        *,
        parallel: Sequence[str] = (),
    ) -> None:
        self._functions = dict(functions)
        self._parallel = frozenset(parallel)

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


class ToolRunner:
    """Runs the calls of one turn for one fork, in order, neighbours that allow it side by side."""

    def __init__(
        self,
        dispatcher: ToolDispatcher,
        *,
        tool_filter: ToolFilter,
        replacements: ContentReplacementState,
        on_start: Callable[[ToolCall], None],
        on_finish: Callable[[ToolCall, ToolOutcome], None],
    ) -> None:
        self._dispatcher = dispatcher
        self._filter = tool_filter
        self._replacements = replacements
        self._on_start = on_start
        self._on_finish = on_finish

    async def run(self, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """Return one answer per call, in the order of the calls."""
        outcomes: list[ToolOutcome] = []
        for group in self._groups(calls):
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._one(call)) for call in group]
            outcomes += [task.result() for task in running]
        return [self._answer(call, outcome) for call, outcome in zip(calls, outcomes, strict=True)]

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

    async def _one(self, call: ToolCall) -> ToolOutcome:
        self._on_start(call)
        outcome = await self._outcome(call)
        self._on_finish(call, outcome)
        return outcome

    async def _outcome(self, call: ToolCall) -> ToolOutcome:
        if call.name == AGENT_TOOL:
            return ToolOutcome(content=_REFUSE_AGENT, is_error=True)
        denial = self._filter.deny(call.name, call.input)
        if denial is not None:
            log.debug("fork.tool_filter", extra={"run_id": call.run_id, "tool": call.name, "reason": denial})
            return ToolOutcome(content=f"{call.name} was not run: {denial}", is_error=True)
        try:
            return await self._dispatcher.dispatch(call)
        except Exception as exc:
            log.warning("tool %s raised", call.name, exc_info=exc, extra={"run_id": call.run_id})
            return ToolOutcome(content=f"{call.name} failed: {type(exc).__name__}: {exc}", is_error=True)

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
