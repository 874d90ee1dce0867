"""Run the tools a model asks for: on this host, in a plug-in, by an MCP server, or at the parent.

A tool that fails, is denied or does not exist is an answer the model can act on, never an end of the fork. The first
route that takes a call runs it. The schema the model sees is the parent's and never changes, so a call may be for a
tool that no route has: the answer then names those there are.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.core.prompt import ToolAnswer
from nexofork.core.query_source import QuerySource, is_named, may_start_agents
from nexofork.policy.filters import added_environment, gated_inside
from nexofork.policy.gate import Gate, Passage
from nexofork.telemetry.spans import tool_denied
from nexofork.telemetry.work import tool_span
from nexofork.tools.arguments import Unable
from nexofork.tools.threads import in_thread
from nexofork.tools.tool_names import AGENT_TOOL, refuse_undeclared
from nexofork.wire.parent_tools import ParentTools

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from nexofork.core.replacement import ContentReplacementState
    from nexofork.core.reply import ToolUse
    from nexofork.policy.filters import ToolFilter

__all__ = [
    "AGENT_TOOL",
    "FunctionTools",
    "GatedTools",
    "NamedTools",
    "NoTools",
    "ParentContext",
    "Route",
    "RoutedTools",
    "ToolCall",
    "ToolDispatcher",
    "ToolOutcome",
    "ToolRunner",
    "judged",
    "tool_calls",
]

log = logging.getLogger(__name__)

_SHORT = 256
"""Characters of an argument that are judged at once."""
_JUDGED_S = 30.0
_DEEPEST = 100
"""Levels of lists and objects in arguments and results; what reads and writes them later goes by recursion."""
_OWN_NAMES: Mapping[str, str] = MappingProxyType({})

_REFUSE_AGENT = (
    "You are a fork and cannot start agents. Do this part of the directive yourself with the other tools, "
    "or name it under Issues in your report."
)
_REFUSE_NESTED = (
    "You were started by an agent that was itself started by one, so you cannot start agents. Do this part yourself "
    "with the other tools, or say in your answer what is left."
)
_SHOWN = 60


def _allow(name: str, arguments: dict[str, Any]) -> str | None:
    """Deny nothing."""
    return None


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing: what a fork's context does with a change to the parent's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentContext:
    """Who forks."""

    agent_id: str = "main"
    query_source: str = QuerySource.SDK
    file_state: dict[str, str] = field(default_factory=dict)
    """Path to SHA-256 of what the agent last saw of a file. A fork has a copy, which is cleared at its end."""
    set_app_state: Callable[..., None] = _nothing
    """Changes the parent's own state; does nothing when called through a fork's context."""

    def for_child(self, agent_id: str | None, query_source: str) -> ParentContext:
        """Return a fork's context: its own copy of the file state, and no way to change the parent."""
        return ParentContext(
            agent_id=agent_id or self.agent_id, query_source=query_source, file_state=dict(self.file_state)
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
    deny: Callable[[str, dict[str, Any]], str | None] = _allow
    """Asks the fork's filter once more, about what the call turned out to mean: a path without links, an inner call."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a command must be run with, beside its usual environment: the filter let it run on that condition."""
    turn: int = 0
    """The turn of the fork that it is part of."""
    undeclared: str | None = None
    """What the model is told instead, where its request does not declare the tool."""


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
        gates_inside: Sequence[str] = (),
    ) -> None:
        self._functions = dict(functions)
        self._parallel = frozenset(parallel)
        self._read_only = frozenset(read_only)
        self._gates_inside = frozenset(gates_inside)

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

    def gates_inside(self, name: str) -> bool:
        """Whether the tool was named as one that passes its inner calls through the filter again."""
        return name in self._gates_inside

    def offered(self) -> ParentTools:
        """Say what a parent with these tools runs for its children on other hosts."""
        return ParentTools(
            names=sorted(self._functions),
            parallel=sorted(self._parallel),
            read_only=sorted(self._read_only),
            gates_inside=sorted(self._gates_inside),
        )


class GatedTools:
    """Another dispatcher's tools, behind the filter of the call they are called from: what a REPL calls inside."""

    def __init__(self, dispatcher: ToolDispatcher, outer: ToolCall) -> None:
        self._dispatcher = dispatcher
        self._outer = outer

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run the call if the filter lets it."""
        if (reason := await judged(self._outer.deny, call.name, call.input)) is not None:
            return _not_run(call, reason)
        inner = replace(call, deny=self._outer.deny, environment=self._outer.environment)
        return await self._dispatcher.dispatch(inner)

    def parallel(self, call: ToolCall) -> bool:
        """As the other dispatcher says."""
        return self._dispatcher.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the other dispatcher says."""
        return self._dispatcher.read_only(call)


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
        gate: Gate | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._gate = gate or Gate(tools=dispatcher)
        self._filter = tool_filter
        self._replacements = replacements
        self._watch = watch

    async def run(
        self, calls: Sequence[ToolCall], recorded: Mapping[str, ToolAnswer], *, turn: int = 0
    ) -> list[ToolAnswer]:
        """Return one answer per call, in the order of the calls; what is recorded already is not run again."""
        answers = dict(recorded)
        for answer in recorded.values():
            self._remember(answer)
        for group in self._groups([call for call in calls if call.id not in answers]):
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._one(call, turn)) for call in group]
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

    async def _one(self, call: ToolCall, turn: int) -> ToolAnswer:
        outcome = await self._refusal(call) or await self._permitted(call, turn)
        answer = self._answer(call, outcome)
        await self._watch.finished(call, answer)
        return answer

    async def _permitted(self, call: ToolCall, turn: int) -> ToolOutcome:
        """Run the call if its permissions let it; it is announced only then."""
        passage = await self._gate.permit(call, turn)
        if passage.denial is not None:
            tool_denied(run_id=call.run_id, tool=call.name, reason=passage.denial)
            return _not_run(call, passage.denial)
        await self._watch.started(call, read_only=self._dispatcher.read_only(call))
        return await self._dispatched(self._admitted(call, passage))

    async def _refusal(self, call: ToolCall) -> ToolOutcome | None:
        source = call.context.query_source
        if call.name == AGENT_TOOL and not may_start_agents(source):
            return ToolOutcome(content=_REFUSE_NESTED if is_named(source) else _REFUSE_AGENT, is_error=True)
        if call.undeclared is not None:
            tool_denied(run_id=call.run_id, tool=call.name, reason=call.undeclared)
            return ToolOutcome(content=call.undeclared, is_error=True)
        if nests_deeper(call.input, _DEEPEST):
            return _not_run(call, f"its arguments nest more than {_DEEPEST} levels deep. Pass them flat.")
        denial = await judged(partial(self._denial, call), call.name, call.input)
        return None if denial is None else _not_run(call, denial)

    def _denial(self, call: ToolCall, name: str, arguments: dict[str, Any]) -> str | None:
        denial = self._verdict(call, name, arguments)
        if denial is not None:
            tool_denied(run_id=call.run_id, tool=name, reason=denial)
        return denial

    def _verdict(self, call: ToolCall, name: str, arguments: dict[str, Any]) -> str | None:
        try:
            reason = self._filter.deny(name, arguments)
        except Exception as exc:
            # Without a verdict nothing runs.
            log.warning("the filter raised on %s", name, exc_info=exc, extra={"run_id": call.run_id})
            return f"the filter failed: {type(exc).__name__}: {exc}"
        if reason is None and name in gated_inside(self._filter) and not self._gates_inside(name):
            return "what it calls inside would not pass this fork's filter here. Call the tools directly."
        return reason

    def _gates_inside(self, name: str) -> bool:
        """Whether the dispatcher says that the tool asks ``ToolCall.deny`` about its inner calls; most say nothing."""
        says = getattr(self._dispatcher, "gates_inside", None)
        return says is not None and bool(says(name))

    def _admitted(self, call: ToolCall, passage: Passage) -> ToolCall:
        """Return a call that may run, with what that was conditional on."""
        environment = {**passage.environment, **added_environment(self._filter)}
        return replace(call, deny=partial(self._inner_denial, call, passage), environment=environment)

    def _inner_denial(self, call: ToolCall, passage: Passage, name: str, arguments: dict[str, Any]) -> str | None:
        denial = self._denial(call, name, arguments)
        if denial is None and (denial := self._gate.inside(call, passage, name, arguments)) is not None:
            tool_denied(run_id=call.run_id, tool=name, reason=denial)
        return denial

    async def _dispatched(self, call: ToolCall) -> ToolOutcome:
        with tool_span(call.name, call.id, run_id=call.run_id, arguments=call.input) as traced:
            outcome = await self._outcome(call)
            traced.answered(outcome.content, is_error=outcome.is_error)
            return outcome

    async def _outcome(self, call: ToolCall) -> ToolOutcome:
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
        if isinstance(outcome, ToolOutcome) and nests_deeper(outcome.content, _DEEPEST):
            said = f"{call.name} failed: its result nests more than {_DEEPEST} levels deep."
            return ToolOutcome(content=said, is_error=True)
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

    def _remember(self, answer: ToolAnswer) -> None:
        """Count what another daemon sent, so that the budget for results is spent once per run and not per daemon."""
        content = json.loads(answer.recorded)["content"] if answer.recorded else answer.content
        if isinstance(content, str):
            self._replacements.sent(answer.call_id, content)
            return
        for index, block in enumerate(content):
            if block.get("type") == "text" and isinstance(block.get("text"), str):
                self._replacements.sent(f"{answer.call_id}#{index}", block["text"])

    def _shortened(self, key: str, block: dict[str, Any]) -> dict[str, Any]:
        if block.get("type") != "text" or not isinstance(block.get("text"), str):
            return block
        return {**block, "text": self._replacements.apply(key, block["text"])}


async def judged(deny: Callable[[str, dict[str, Any]], str | None], name: str, arguments: dict[str, Any]) -> str | None:
    """Return why a call is denied, or None. What is long is judged in a thread, or other forks would wait for it."""
    if all(len(value) <= _SHORT for value in arguments.values() if isinstance(value, str)):
        return deny(name, arguments)
    try:
        return await in_thread(lambda _: deny(name, arguments), limit_s=_JUDGED_S)
    except Unable:
        return f"it could not be judged in {_JUDGED_S:g} s. Shorten it."


def nests_deeper(value: object, most: int) -> bool:
    """Whether a JSON value holds lists or objects in more than so many levels."""
    level: list[object] = [value]
    for _ in range(most + 1):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _not_run(call: ToolCall, reason: str) -> ToolOutcome:
    return ToolOutcome(content=f"{call.name} was not run: {reason}", is_error=True)


def tool_calls(
    uses: Sequence[ToolUse],
    *,
    run_id: str,
    context: ParentContext,
    declared: Sequence[str],
    names: Mapping[str, str] = _OWN_NAMES,
    turn: int = 0,
) -> list[ToolCall]:
    """Return the calls of a reply as they go to a dispatcher, under the names that tools have here.

    A call of a tool that the request does not declare says so: a model can name any tool, and the host may have it.
    """
    return [
        ToolCall(
            run_id=run_id,
            id=use.id,
            name=names.get(use.name, use.name),
            input=use.input,
            context=context,
            turn=turn,
            undeclared=refuse_undeclared(use.name, declared),
        )
        for use in uses
    ]


class Route(ToolDispatcher, Protocol):
    """A dispatcher that knows which calls are for it."""

    def names(self) -> Sequence[str]:
        """Return the tools it is known to have."""

    def takes(self, call: ToolCall) -> bool:
        """Whether it runs this call."""

    def gates_inside(self, name: str) -> bool | None:
        """Whether a tool of its own asks ``ToolCall.deny`` about what it calls inside; None if it is not its own."""

    def bubbles(self, call: ToolCall) -> bool:
        """Whether the parent runs the call, so that asking for it twice runs it once."""


class NamedTools:
    """A dispatcher's tools of some names, as a route."""

    def __init__(self, dispatcher: ToolDispatcher, names: Iterable[str]) -> None:
        self._dispatcher = dispatcher
        self._names = tuple(names)

    def names(self) -> Sequence[str]:
        """Return the names it was given."""
        return self._names

    def takes(self, call: ToolCall) -> bool:
        """Whether the tool is one of them."""
        return call.name in self._names

    def gates_inside(self, name: str) -> bool | None:
        """As the dispatcher says; one that says nothing does not."""
        if name not in self._names:
            return None
        says = getattr(self._dispatcher, "gates_inside", None)
        return says is not None and bool(says(name))

    def bubbles(self, call: ToolCall) -> bool:
        """It runs here."""
        return False

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run the call."""
        return await self._dispatcher.dispatch(call)

    def parallel(self, call: ToolCall) -> bool:
        """As the dispatcher says."""
        return self._dispatcher.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the dispatcher says."""
        return self._dispatcher.read_only(call)


class RoutedTools:
    """The tools of one run, each where it is to be had."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = tuple(routes)

    def names(self) -> list[str]:
        """Return every tool that is known to be had, once, in the order of the routes."""
        return list(dict.fromkeys(name for route in self._routes for name in route.names()))

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call where its tool is."""
        route = self._route(call)
        return self._unknown(call) if route is None else await route.dispatch(call)

    def parallel(self, call: ToolCall) -> bool:
        """As the route says; what nobody has is answered beside anything."""
        route = self._route(call)
        return route is None or route.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the route says; what nobody has changes nothing."""
        route = self._route(call)
        return route is None or route.read_only(call)

    def gates_inside(self, name: str) -> bool:
        """Whether whoever has the tool passes what it calls inside through the filter again."""
        said = (route.gates_inside(name) for route in self._routes)
        return next((gates for gates in said if gates is not None), False)

    def bubbles(self, call: ToolCall) -> bool:
        """Whether the parent runs the call."""
        route = self._route(call)
        return route is not None and route.bubbles(call)

    def _route(self, call: ToolCall) -> Route | None:
        return next((route for route in self._routes if route.takes(call)), None)

    def _unknown(self, call: ToolCall) -> ToolOutcome:
        known = self.names()
        more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        tools = f"Tools: {', '.join(known[:_SHOWN])}{more}." if known else "There are no tools."
        said = f"There is no tool {call.name!r} for this fork, here or at its parent. {tools}"
        return ToolOutcome(content=said, is_error=True)
