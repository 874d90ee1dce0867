"""The Delegate tool of a parent: its model hands over a piece of work and waits for the report.

Agent answers at once and reports later; Delegate is for what the parent cannot go on without. The wait is a synchronous
fork's: it can be moved to the background at any time, by `background` or after the ``auto_background_s`` of the session
or the factory, whichever is shorter. The call is then answered with where the run is, and its end comes as a
notification; nothing is lost or restarted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.agents.background import Background
from nexofork.agents.definition import FORK_AGENT
from nexofork.agents.gate import Gatekeeper, refuse_closed_gate
from nexofork.agents.patience import moved_after
from nexofork.agents.schema import read_call, read_reply, read_use
from nexofork.agents.settings import AgentSettings
from nexofork.agents.turn import refuse_other_turn, with_reply
from nexofork.core.query_source import refuse_if_fork
from nexofork.errors import BadAgentCall, BusError, ForkRefused
from nexofork.run.params import DelegateMode, ForkParams

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.agents.background import Running
    from nexofork.agents.tool import SnapshotSource
    from nexofork.core.reply import ToolUse
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.run.result import ForkResult, ForkStatus

__all__ = ["DELEGATE_TOOL", "DELEGATE_TOOL_SCHEMA", "DelegationTool", "delegate_tool"]

log = logging.getLogger(__name__)

DELEGATE_TOOL = "Delegate"
DELEGATE_TOOL_SCHEMA = (
    b'{"name":"Delegate","description":"Hand over a piece of work that you need the result of before you go on, and '
    b"wait for it. It is done by a fork of you that knows all of this conversation, so give it a directive and no "
    b"explanations. Calls in one reply run side by side. The answer is the report. If it takes long, the answer may be "
    b'that the work goes on in the background; a <task-notification> then brings the report.",'
    b'"input_schema":{"type":"object","properties":{'
    b'"prompt":{"type":"string","description":"What the fork shall do."},'
    b'"description":{"type":"string","description":"The task in three to five words."},'
    b'"timeout_s":{"type":"number","description":"Give it up after so many seconds."}},'
    b'"required":["prompt","description"]}}'
)
"""The tool's definition; put it into the parent's ``tools`` as it is."""


def delegate_tool() -> dict[str, Any]:
    """Return the definition as the SDK takes it."""
    schema: dict[str, Any] = json.loads(DELEGATE_TOOL_SCHEMA)
    return schema


class Waited(Protocol):
    """A run whose synchronous wait is over, as its factory's handle shows it."""

    @property
    def run_id(self) -> str:
        """The run's id."""

    @property
    def status(self) -> ForkStatus:
        """Where the run is; still running where the wait was moved to the background."""

    async def result(self) -> ForkResult:
        """Wait for the end."""

    def abort(self, note: str = "") -> Any:
        """End it."""


class SyncForks(Protocol):
    """Whatever starts runs and lets go of waits for them: in this process, or on a fleet."""

    async def fork(self, params: ForkParams) -> Waited:
        """Start one; with `DelegateMode.SYNC` return when it is over or was moved to the background."""

    def background(self, run_id: str | None = None) -> int:
        """Move one synchronous wait, or all, to the background."""


class DelegationTool(Background):
    """Answers a parent's Delegate calls with reports; an async context that follows what went to the background."""

    def __init__(
        self,
        forks: SyncForks,
        source: SnapshotSource,
        *,
        settings: AgentSettings | None = None,
        timeout_s: float = 1800.0,
        equip: Callable[[ForkParams], ForkParams] = lambda params: params,
    ) -> None:
        """Make the tool of one session.

        Args:
            forks: Starts the runs.
            source: Has the parent's newest request.
            settings: The session's; the environment's unless said.
            timeout_s: The longest a run may take, whatever the model asks for.
            equip: Gives every run what the tool does not know, as for `AgentTool`; who answers what it asks, too.

        Raises:
            ForkRefused: The time is none.
        """
        if not (timeout_s > 0 and math.isfinite(timeout_s)):
            raise ForkRefused(f"timeout_s is {timeout_s}; give seconds above 0.")
        self._settings = settings or AgentSettings().from_env()
        super().__init__(auto_background_s=self._settings.auto_background_s)
        self._forks = forks
        self._source = source
        self._gate = Gatekeeper(self._settings)
        self._timeout_s = timeout_s
        self._equip = equip

    async def handle(self, tool_use: object) -> dict[str, Any]:
        """Do what one call asks for and return the ``tool_result`` that answers it, once there is one.

        Cancelling this aborts the run.

        Args:
            tool_use: The block of the reply, as the SDK has it, as a mapping or as ours.

        Raises:
            NothingCaptured: The parent's request is not known.
            BadReply: The reply that the snapshot was answered with has no such call.
            ForkRefused: It is no call of Delegate, or the tool's context is not entered.
        """
        use, snapshot = read_use(tool_use), self._source.snapshot()
        if not self._calls([use], snapshot):
            raise ForkRefused(f"{use.name!r} is not the {DELEGATE_TOOL} tool; run it like the parent's other tools.")
        refuse_other_turn(snapshot, [use])
        self.opened()
        uses = snapshot.reply.tool_uses if snapshot.reply else ()
        return await self._answer(use, snapshot, siblings=max(len(self._calls(uses, snapshot)), 1))

    async def handle_all(self, reply: object = None) -> list[dict[str, Any]]:
        """Do what all Delegate calls of a reply ask for, side by side, and return their answers in their order.

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
        uses = self._calls(said.tool_uses if said else (), snapshot)
        snapshot = with_reply(snapshot, said)
        self.opened()
        async with asyncio.TaskGroup() as tasks:
            answering = [tasks.create_task(self._answer(use, snapshot, siblings=len(uses))) for use in uses]
        return [task.result() for task in answering]

    def background(self, run_id: str | None = None) -> int:
        """Move one wait, or all of them, to the background; the runs do not notice.

        Returns:
            How many waits were moved.
        """
        return self._forks.background(run_id) + super().background(run_id)

    async def _answer(self, use: ToolUse, snapshot: CacheSafeParams, *, siblings: int) -> dict[str, Any]:
        try:
            params = replace(self._order(use, snapshot), siblings=siblings)
            with moved_after(self._settings.auto_background_s, params, self._forks.background) as moving:
                handle = await self._forks.fork(moving)
        except (ForkRefused, BusError) as exc:
            log.warning("a Delegate call was not followed: %s", exc)
            return _result(use.id, str(exc), is_error=True)
        if not handle.status.over:
            self.follow(handle)
            return _result(use.id, _moved(handle))
        return _reported(use.id, await handle.result())

    def _order(self, use: ToolUse, snapshot: CacheSafeParams) -> ForkParams:
        call = read_call(use)
        if call.subagent_type is not None:
            raise BadAgentCall(f"{DELEGATE_TOOL} has no types", fix="Leave subagent_type out, or use Agent.")
        fork = ForkParams(cache_safe=snapshot, prompt_messages=call.prompt, fork_label=call.label)
        equipped = self._equip(replace(fork, max_turns=FORK_AGENT.max_turns))
        refuse_if_fork(equipped.parent_ctx.query_source, snapshot)
        refuse_closed_gate(self._settings, known=())
        claimed = snapshot.reply is not None and any(one.id == use.id for one in snapshot.reply.tool_uses)
        params = replace(
            equipped,
            mode=DelegateMode.SYNC,
            timeout=min(self._asked_s(use), equipped.timeout or math.inf),
            tool_use_id=use.id if claimed else None,
        )
        return self._gate.permit(params, FORK_AGENT)

    def _asked_s(self, use: ToolUse) -> float:
        """Return the time the model gives the work, within what the session allows."""
        asked = use.input.get("timeout_s")
        if asked is None:
            return self._timeout_s
        if isinstance(asked, bool) or not isinstance(asked, (int, float)) or not asked > 0:
            raise BadAgentCall(f"`timeout_s` is {json.dumps(asked)[:80]}", fix="Pass seconds above 0, or leave it out.")
        return min(float(asked), self._timeout_s)

    def _calls(self, uses: Sequence[ToolUse], snapshot: CacheSafeParams) -> list[ToolUse]:
        names = self._equip(ForkParams(cache_safe=snapshot, prompt_messages=DELEGATE_TOOL)).tool_names
        return [use for use in uses if names.get(use.name, use.name) == DELEGATE_TOOL]


def _moved(handle: Running) -> str:
    said = {
        "status": "async_launched",
        "run_id": handle.run_id,
        "note": "It takes long and goes on in the background; a task-notification with this run_id as task-id tells "
        "its end.",
    }
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _reported(call_id: str, result: ForkResult) -> dict[str, Any]:
    if result.ok:
        return _result(call_id, result.final_text or "It was done, and nothing was reported.")
    why = " ".join(filter(None, (f"The work ended as {result.status}.", result.error)))
    if result.final_text:
        why += f"\nThe last it said:\n{result.final_text}"
    return _result(call_id, why, is_error=True)


def _result(call_id: str, text: str, *, is_error: bool = False) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    return block | {"is_error": True} if is_error else block
