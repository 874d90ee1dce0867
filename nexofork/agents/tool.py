"""The Agent tool of a parent: its model's calls become forks or named agents.

Every call is answered at once with a ``tool_result``: that an agent was started and as which run, or why not, in words
the model can act on. What the agent reports comes later as a notification. All forks of one reply are siblings: they
begin with the same snapshot, the same reply and the same placeholders, and share one cache entry.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.agents.background import Background
from nexofork.agents.context import AgentContext
from nexofork.agents.definition import FORK_AGENT
from nexofork.agents.gate import Gatekeeper, nobody_answers, refuse_closed_gate
from nexofork.agents.named_request import NamedRequests
from nexofork.agents.nested import NestedAgents
from nexofork.agents.registry import AgentRegistry
from nexofork.agents.schema import AgentCall, read_call, read_reply, read_use
from nexofork.agents.settings import AgentSettings
from nexofork.agents.turn import refuse_other_turn, with_reply
from nexofork.core.query_source import is_named, may_start_agents, named_source, refuse_if_fork
from nexofork.core.reply import ToolUse
from nexofork.errors import BadAgentCall, BusError, ForkRefused
from nexofork.policy.filters import AllOfFilter, OnlyToolsFilter, build_filter, read_filter
from nexofork.run.params import DelegateMode, ForkParams
from nexofork.tools.tool_names import AGENT_TOOL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.agents.background import Running
    from nexofork.agents.definition import AgentDefinition
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.tools.dispatch import ToolCall

__all__ = ["AgentTool", "Forks", "SnapshotSource"]

log = logging.getLogger(__name__)

_NOTE = "It runs in the background; a task-notification with this run_id as task-id tells its end."
_ONLY_READS = " It may only read: nobody is there to answer what it asks."


class Forks(Protocol):
    """Whatever starts runs: in this process, or on a fleet."""

    async def fork(self, params: ForkParams) -> Running:
        """Start one."""


class SnapshotSource(Protocol):
    """Where the parent's newest request is to be had: a `Capture` or a `CacheSafeSlot`."""

    def snapshot(self) -> CacheSafeParams:
        """Return it, or raise `NothingCaptured`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """A call that can be followed."""

    call: AgentCall
    kind: str
    params: ForkParams


class AgentTool(Background):
    """Answers a parent's Agent calls; an async context that follows what it started."""

    def __init__(
        self,
        forks: Forks,
        source: SnapshotSource,
        *,
        agents: AgentRegistry | None = None,
        settings: AgentSettings | None = None,
        context: AgentContext | None = None,
        equip: Callable[[ForkParams], ForkParams] = lambda params: params,
    ) -> None:
        """Make the tool of one session.

        Args:
            forks: Starts the runs.
            source: Has the parent's newest request.
            agents: The named agents; the built-in ones unless said. What is added to it later does not count.
            settings: The session's; the environment's unless said.
            context: What named agents may be told about the project.
            equip: Gives every run what the tool does not know: its provider and tools in process, budgets, who forks
                (`parent_ctx`), names of tools, and who answers what it asks (`on_permission`): without that or a
                `permission_mode` in the settings it may only read. It must not depend on the call, or siblings would
                differ.
        """
        self._settings = settings or AgentSettings().from_env()
        super().__init__(auto_background_s=self._settings.auto_background_s)
        self._forks = forks
        self._source = source
        self._gate = Gatekeeper(self._settings)
        self._agents = (agents or AgentRegistry()).copy()
        self._named = NamedRequests(context or AgentContext(), self._settings)
        self._equip = equip
        self._launched: dict[str, dict[str, Any]] = {}
        self.listing = self._agents.listing()
        """The named agents for the parent's model to choose from; the same text for the whole session."""

    async def handle(self, tool_use: object) -> dict[str, Any]:
        """Follow one call and return the ``tool_result`` that answers it.

        Args:
            tool_use: The block of the reply, as the SDK has it, as a mapping or as ours.

        Raises:
            NothingCaptured: The parent's request is not known.
            BadReply: The reply that the snapshot was answered with has no such call.
            ForkRefused: It is no call of Agent, or the tool's context is not entered.
        """
        use, snapshot = read_use(tool_use), self._source.snapshot()
        if not self._agent_calls([use], snapshot):
            raise ForkRefused(f"{use.name!r} is not the {AGENT_TOOL} tool; run it like the parent's other tools.")
        refuse_other_turn(snapshot, [use])
        (answer,) = await self._handle([use], snapshot)
        return answer

    async def handle_all(self, reply: object = None) -> list[dict[str, Any]]:
        """Follow all Agent calls of a reply side by side, and return the blocks that answer them, in their order.

        Calls of other tools are left to the parent.

        Args:
            reply: The reply as the SDK has it, in the API's form or as ours; None takes the snapshot's own.

        Raises:
            NothingCaptured: The parent's request is not known.
            BadReply: The reply is none, or is not the one that the snapshot was answered with.
            ForkRefused: The tool's context is not entered.
        """
        snapshot = self._source.snapshot()
        said = snapshot.reply if reply is None else read_reply(reply)
        uses = self._agent_calls(said.tool_uses if said else (), snapshot)
        return await self._handle(uses, with_reply(snapshot, said))

    async def _handle(self, uses: Sequence[ToolUse], snapshot: CacheSafeParams) -> list[dict[str, Any]]:
        self.opened()
        answers: dict[str, dict[str, Any]] = {}
        orders: list[_Order] = []
        for use in uses:
            if use.id in self._launched:  # asked again: the agent is running already
                answers[use.id] = self._launched[use.id]
                continue
            try:
                orders.append(self._order(use, snapshot))
            except ForkRefused as exc:
                answers[use.id] = _refusal(use.id, exc)
        for order, answer in await self._start_all(orders, self._siblings(orders, snapshot)):
            answers[order.call.id] = answer
        return [answers[use.id] for use in uses]

    def _order(self, use: ToolUse, snapshot: CacheSafeParams) -> _Order:
        call = read_call(use)
        fork = ForkParams(cache_safe=snapshot, prompt_messages=call.prompt, fork_label=call.label)
        equipped = self._equip(replace(fork, max_turns=FORK_AGENT.max_turns))
        equipped = replace(equipped, mode=DelegateMode.FORK_AND_FORGET)
        source = equipped.parent_ctx.query_source
        refuse_if_fork(source, snapshot)
        self._refuse_agent_without_agent(source)
        definition = FORK_AGENT if call.subagent_type is None else self._definition(call.subagent_type)
        if definition.forks:
            params = self._fork(call, definition, equipped)
        else:
            params = self._run_of(definition, equipped, nested=is_named(source))
        return _Order(call=call, kind=definition.name, params=params)

    def _refuse_agent_without_agent(self, source: str) -> None:
        """Refuse a named agent that was not given Agent, and whatever one that was has started."""
        if not is_named(source):
            return
        if not (may_start_agents(source) and self._agents.get(source.rpartition(":")[2]).starts_agents):
            raise BadAgentCall("this agent may not start agents", fix="Do the work with the other tools.")

    def _definition(self, kind: str) -> AgentDefinition:
        if kind.casefold() == FORK_AGENT.name:
            raise BadAgentCall("a fork has no type", fix="Leave subagent_type out to fork.")
        return self._agents.get(kind)

    def _fork(self, call: AgentCall, definition: AgentDefinition, equipped: ForkParams) -> ForkParams:
        refuse_closed_gate(self._settings, known=tuple(one.name for one in self._agents))
        reply = equipped.cache_safe.reply
        claimed = reply is not None and any(use.id == call.id for use in reply.tool_uses)
        params = replace(equipped, tool_use_id=call.id if claimed else None)
        return self._gate.permit(params, definition)

    def _run_of(self, definition: AgentDefinition, equipped: ForkParams, *, nested: bool) -> ForkParams:
        """Return a named agent's run: its own request, its own tools, and none of what the parent has seen."""
        request = self._named.get(definition, equipped.cache_safe, equipped.tool_names, agents=not nested)
        filters = [OnlyToolsFilter(request.tools), equipped.tool_filter]
        if definition.tool_filter is not None:
            filters.append(build_filter([read_filter(definition.tool_filter)]))
        params = replace(
            equipped,
            cache_safe=request.snapshot,
            boilerplate=False,
            query_source=named_source(definition.name, nested=nested),
            max_turns=definition.max_turns,
            tool_filter=AllOfFilter(filters),
            tool_names=request.tool_names,
            parent_ctx=replace(equipped.parent_ctx, file_state={}),
        )
        if AGENT_TOOL in request.tools:
            params = replace(params, tool_dispatcher=NestedAgents(params.tool_dispatcher, self._start_nested))
        return self._gate.permit(params, definition)

    async def _start_nested(self, call: ToolCall) -> Running:
        """Start an agent for a named agent's own call; its parent is still the session's for tools and parameters."""
        asked = read_call(ToolUse(id=call.id, name=call.name, input=call.input))
        if asked.subagent_type is None:
            raise BadAgentCall(
                "only the main agent forks",
                fix=f"Name a subagent_type: {', '.join(one.name for one in self._agents)}.",
            )
        snapshot = self._source.snapshot()
        equipped = self._equip(ForkParams(cache_safe=snapshot, prompt_messages=asked.prompt, fork_label=asked.label))
        params = self._run_of(self._definition(asked.subagent_type), equipped, nested=True)
        return await self._forks.fork(replace(params, mode=DelegateMode.FORK_AND_FORGET))

    def _siblings(self, orders: Sequence[_Order], snapshot: CacheSafeParams) -> Counter[str]:
        """Return how many runs of each kind are started together; forks of a reply may be asked for one by one."""
        counts = Counter(order.kind for order in orders)
        uses = snapshot.reply.tool_uses if snapshot.reply else ()
        asked = sum(not use.input.get("subagent_type") for use in self._agent_calls(uses, snapshot))
        counts[FORK_AGENT.name] = max(counts[FORK_AGENT.name], asked)
        return counts

    async def _start_all(self, orders: Sequence[_Order], siblings: Counter[str]) -> list[tuple[_Order, dict[str, Any]]]:
        # The first of a kind goes alone, so that all others find the snapshot shipped.
        firsts = {order.kind: order for order in reversed(orders)}
        answers = [(order, await self._start(order, siblings[order.kind])) for order in firsts.values()]
        async with asyncio.TaskGroup() as tasks:
            rest = [
                (order, tasks.create_task(self._start(order, siblings[order.kind])))
                for order in orders
                if order is not firsts[order.kind]
            ]
        return answers + [(order, task.result()) for order, task in rest]

    async def _start(self, order: _Order, siblings: int) -> dict[str, Any]:
        call = order.call
        try:
            handle = await self._forks.fork(replace(order.params, siblings=siblings))
        except (ForkRefused, BusError) as exc:
            log.warning("an Agent call was not followed: %s", exc)
            return _refusal(call.id, exc)
        self.follow(handle)
        said = {
            "status": "async_launched",
            "run_id": handle.run_id,
            "agent": order.kind,
            "description": call.label,
            "note": _NOTE + (_ONLY_READS if order.params.on_permission is nobody_answers else ""),
        }
        answer = _result(call.id, json.dumps(said, ensure_ascii=False, separators=(",", ":")))
        self._launched[call.id] = answer
        return answer

    def _agent_calls(self, uses: Sequence[ToolUse], snapshot: CacheSafeParams) -> list[ToolUse]:
        names = self._equip(ForkParams(cache_safe=snapshot, prompt_messages=AGENT_TOOL)).tool_names
        return [use for use in uses if names.get(use.name, use.name) == AGENT_TOOL]


def _refusal(call_id: str, error: Exception) -> dict[str, Any]:
    return _result(call_id, str(error)) | {"is_error": True}


def _result(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": text}
