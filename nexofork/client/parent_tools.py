"""Run at the parent what its children on other hosts ask it to run.

A daemon is another trust domain. What it asks for is run only if the parent said that it has such a tool and the filter
that the parent itself gave the fork lets it; the built-in file tools work in that filter's memory folder alone. A
question is run once: within this process by its id, and among all who follow the run by a write-once subject that the
first of them takes. It is given up when its deadline passes, when the daemon no longer waits, and when the run ends.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from nexofork.bus.reading import store_once
from nexofork.core.replacement import ContentReplacementState
from nexofork.errors import BadMessage, BusError, ForkRefused
from nexofork.policy.filters import build_filter, gated_inside, memory_folders, travelling
from nexofork.telemetry.spans import continued
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import NamedTools, NoTools, RoutedTools, ToolCall, ToolOutcome, ToolRunner
from nexofork.tools.parent_tools import FILE_TOOLS, decode_arguments, encode_outcome, named_path
from nexofork.tools.threads import in_thread
from nexofork.wire.messages import Answer, ParentTools, encode
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.connection import Bus
    from nexofork.core.prompt import ToolAnswer
    from nexofork.run.params import ForkParams
    from nexofork.tools.dispatch import ParentContext, ToolDispatcher
    from nexofork.wire.messages import Asked, Requested

__all__ = ["MemoryFiles", "ParentToolServer", "offered"]

log = logging.getLogger(__name__)

_RESOLVE_S = 10.0


def offered(params: ForkParams, *, files: bool) -> ParentTools | None:
    """Return what a parent runs for a fork on another host; None where that is nothing.

    Args:
        params: The fork.
        files: Whether the parent stays to serve its memory folder.
    """
    dispatcher = params.tool_dispatcher
    tools: ParentTools | None = None
    if not isinstance(dispatcher, NoTools):
        says = getattr(dispatcher, "offered", None)
        tools = says() if says is not None else ParentTools(gates_inside=_gating(params))
    files = files and bool(memory_folders(travelling(params.tool_filter)))
    if tools is None and not files:
        return None
    tools = tools or ParentTools(names=[])
    return tools.model_copy(update={"files": files, "deadline_s": params.tool_deadline})


def _gating(params: ForkParams) -> list[str]:
    gates = getattr(params.tool_dispatcher, "gates_inside", None)
    return sorted(name for name in gated_inside(params.tool_filter) if gates is not None and gates(name))


class MemoryFiles:
    """The built-in file tools in some folders, and nowhere else."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(os.path.realpath(folder) for folder in folders)
        self._tools = BuiltinTools()

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call whose path lies in a folder, by the file system's word: before it is opened, and as it is."""
        path = named_path(call.name, call.input, cwd="")
        if path is None or not os.path.isabs(path):
            return ToolOutcome(content=f"{call.name} was not run: give an absolute path.", is_error=True)
        found = await in_thread(lambda _: os.path.realpath(path), limit_s=_RESOLVE_S)
        if not self._holds(found):
            return ToolOutcome(content=f"{call.name} was not run: {self._only}", is_error=True)

        def deny(name: str, arguments: dict[str, Any]) -> str | None:
            opened = arguments.get("file_path" if name.startswith("File") else "path")
            if not isinstance(opened, str) or not self._holds(opened):
                return self._only
            return call.deny(name, arguments)

        return await self._tools.dispatch(replace(call, deny=deny))

    def parallel(self, call: ToolCall) -> bool:
        """As the tools say."""
        return self._tools.parallel(call)

    def read_only(self, call: ToolCall) -> bool:
        """As the tools say."""
        return self._tools.read_only(call)

    def _holds(self, path: str) -> bool:
        return any(path == folder or path.startswith(folder + "/") for folder in self._folders)

    @property
    def _only(self) -> str:
        return f"the parent of this fork serves files under {', '.join(self._folders)} only."


class _NoWatch:
    """Hears of a call and does nothing: what is known of it is on the run's log."""

    async def started(self, call: ToolCall, *, read_only: bool) -> None:
        """Do nothing."""

    async def finished(self, call: ToolCall, answer: ToolAnswer) -> None:
        """Do nothing."""


@dataclass(slots=True, kw_only=True)
class _Serving:
    """A question that is being dealt with."""

    call: tuple[int, str]
    task: asyncio.Task[Any] | None = None
    limit: asyncio.Timeout | None = None


@dataclass(slots=True, kw_only=True)
class ParentToolServer:
    """Runs one run's questions here."""

    run_id: str
    request: Requested
    dispatcher: ToolDispatcher
    context: ParentContext
    """The fork's own: what its file tools have seen here."""
    files: bool
    """Whether the memory folders are here."""
    bus: Bus
    blobs: BlobStore
    pool: str
    beside: Callable[[Coroutine[Any, Any, None]], asyncio.Task[Any]]
    """Starts work that ends with the parent."""
    _runner: ToolRunner = field(init=False)
    _seen: set[str] = field(default_factory=set)
    _open: dict[str, _Serving] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folders = memory_folders(self.request.filters)
        routes: list[NamedTools] = []
        if self.files and folders:
            routes.append(NamedTools(MemoryFiles(folders), FILE_TOOLS))
        self._runner = ToolRunner(
            _ParentsTools(self.dispatcher, RoutedTools(routes), self.request.parent_tools or ParentTools(names=[])),
            # Made anew from what the parent itself asked for, never from what a daemon says.
            tool_filter=build_filter(self.request.filters, elsewhere=() if self.files else folders),
            # What is too long is shortened once, by the fork's own budget.
            replacements=ContentReplacementState(max_chars=1 << 62),
            watch=_NoWatch(),
        )

    def asked(self, asked: Asked, headers: Mapping[str, str]) -> None:
        """Run a question, unless it was seen before; one that is still being run gets its time anew.

        Args:
            asked: The question.
            headers: What it came with: the tool goes on with the trace of the daemon that asks.
        """
        serving = self._open.get(asked.ask_id)
        if serving is not None and serving.limit is not None:
            with suppress(RuntimeError):  # it is just ending
                serving.limit.reschedule(asyncio.get_running_loop().time() + asked.deadline_s)
        if asked.ask_id in self._seen:
            return
        self._seen.add(asked.ask_id)
        serving = _Serving(call=(asked.turn, asked.call_id))
        try:
            serving.task = self.beside(self._serve(asked, serving, headers))
        except ForkRefused:
            return  # the parent is leaving
        self._open[asked.ask_id] = serving
        serving.task.add_done_callback(lambda _: self._open.pop(asked.ask_id, None))

    def settled(self, turn: int, call_id: str) -> None:
        """Give up a call that the daemon has an answer to: ours, or that it waited long enough."""
        for serving in self._open.values():
            if serving.call == (turn, call_id) and serving.task is not None:
                serving.task.cancel()

    def stop(self) -> None:
        """Give up everything: the run is over, or about to be."""
        for serving in self._open.values():
            if serving.task is not None:
                serving.task.cancel()

    async def _serve(self, asked: Asked, serving: _Serving, headers: Mapping[str, str]) -> None:
        try:
            async with asyncio.timeout(asked.deadline_s) as serving.limit:
                if await self._taken(asked.ask_id):
                    with continued(headers):
                        outcome = await self._outcome(asked)
                    await self._answer(asked.ask_id, outcome)
        except TimeoutError:
            log.warning("run %s: %s was given up: it had no end within its deadline", self.run_id, asked.name)
        except BusError:
            raise
        except Exception:
            # One question's defect must not take the parent's other runs with it; the child is told at the deadline.
            log.exception("run %s: %s could not be served", self.run_id, asked.name)

    async def _outcome(self, asked: Asked) -> ToolOutcome:
        try:
            arguments = decode_arguments(await self.blobs.resolve(asked.payload))
        except (BadMessage, BusError) as exc:
            return ToolOutcome(content=f"{asked.name} was not run: {exc}", is_error=True)
        call = ToolCall(
            run_id=self.run_id,
            id=asked.call_id,
            name=self.request.tool_names.get(asked.name, asked.name),
            input=arguments,
            context=self.context,
            turn=asked.turn,
        )
        (answer,) = await self._runner.run([call], {})
        return ToolOutcome(content=answer.content, is_error=answer.is_error)

    async def _taken(self, ask_id: str) -> bool:
        """Take the question, or learn that somebody else has it."""
        claim = Answer(kind="answer", at=time.time(), data={"taken": True})
        subject = inbox(self.run_id, f"taken-{ask_id}", self.pool)
        return await self._store(subject, claim)

    async def _answer(self, ask_id: str, outcome: ToolOutcome) -> None:
        payload = await self.blobs.pack(encode_outcome(outcome))
        answer = Answer(kind="answer", at=time.time(), data={"payload": payload.model_dump(exclude_none=True)})
        await self._store(inbox(self.run_id, ask_id, self.pool), answer)

    async def _store(self, subject: str, answer: Answer) -> bool:
        """Store what may be stored once; False if another was there. Tries as long as the question has time."""
        data = encode(answer)
        found = await store_once(self.bus, inbox_stream(self.pool), subject, data, limit_s=math.inf)
        return found is None or found.data == data


class _ParentsTools:
    """What the parent said that it has: the file tools of its memory folder, and its own dispatcher's tools."""

    def __init__(self, dispatcher: ToolDispatcher, files: RoutedTools, offered: ParentTools) -> None:
        self._dispatcher = dispatcher
        self._files = files
        self._offered = offered

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call of a tool that was offered."""
        if call.name in self._files.names():
            return await self._files.dispatch(call)
        if call.name in FILE_TOOLS or (self._offered.names is not None and call.name not in self._offered.names):
            said = f"There is no tool {call.name!r} at this fork's parent. Go on without it."
            return ToolOutcome(content=said, is_error=True)
        return await self._dispatcher.dispatch(call)

    def parallel(self, call: ToolCall) -> bool:
        """One call is run at a time by each runner."""
        return False

    def read_only(self, call: ToolCall) -> bool:
        """Nobody asks."""
        return False

    def gates_inside(self, name: str) -> bool:
        """As the parent's dispatcher says."""
        says = getattr(self._dispatcher, "gates_inside", None)
        return says is not None and bool(says(name))
