"""Write down what a run does: reports on its log, and text for viewers while it streams.

Every append is a compare-and-set after our own last one, so the log has one writer. A refusal means that the parent
aborted, or that another daemon has the run. Either way the run's token is thrown and the writer waits to be cancelled,
so nothing is done that the log does not know of.

Streamed text is lossy on purpose: the log has the turns. Viewers are looked for only when a reply has taken a moment,
because short replies are on the log by then.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, NoReturn, Self

from nexofork.bus.failures import NoAnswer, NoResponders, PayloadTooLarge, RunAborted
from nexofork.errors import BusError
from nexofork.run.abort import AbortReason
from nexofork.run.events import TextStreamed
from nexofork.run.mailbox import Letter
from nexofork.run.result import ForkStatus
from nexofork.wire.messages import CallStarted, Compacted, Delivered, Final, ToolFinished, ToolStarted, Turn
from nexofork.wire.subjects import DEFAULT_POOL, delta

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from types import TracebackType

    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.connection import Bus
    from nexofork.bus.run_log import RunLog
    from nexofork.core.prompt import ToolAnswer
    from nexofork.core.reply import Reply
    from nexofork.run.abort import AbortToken
    from nexofork.run.cache_check import CacheCheck
    from nexofork.run.events import ForkEvent
    from nexofork.run.turns import Compaction, OutgoingCall
    from nexofork.tools.dispatch import ToolCall
    from nexofork.wire.messages import AbortEvent, Report

__all__ = ["RunWriter", "SideEffectsOnly", "TextFeed"]

_LINGER_S = 5.0
_FIRST_LOOK_S = 0.3
_LOOK_AGAIN_S = 1.0
_GATHER_S = 0.05


class RunWriter:
    """The journal of one epoch of one run."""

    def __init__(
        self, log: RunLog, blobs: BlobStore, token: AbortToken, *, epoch: int, seq: int, lease_s: float
    ) -> None:
        self._log = log
        self._lease_s = lease_s
        self._blobs = blobs
        self._token = token
        self._lock = asyncio.Lock()
        self.notes: tuple[str, ...] = ()
        """What the child is told behind the request's own notes: the same for whoever goes on from here."""
        self.announced = False
        """Whether the claim said that the first call goes out at once."""
        self.epoch = epoch
        self.seq = seq
        """Sequence of the newest entry this writer knows of."""
        self._abort: AbortEvent | None = None
        """What refused an append. Its writer may have been cancelled before it could tell."""
        self.turn = 0
        """The newest turn this writer recorded, or went on from."""
        self.confirmed_at = time.monotonic()
        """When the server was asked for what it confirmed last: an append or a renewal. Until a lease later the run is
        surely ours."""
        self.confirm: Callable[[], Awaitable[None]] = _until_cancelled
        """Returns once the server has confirmed again that the run is ours."""

    async def call_started(self, call: OutgoingCall) -> None:
        """Announce a model call before it is sent, and make sure that the run is still ours."""
        if self.announced:
            self.announced = False
        else:
            await self._announce(call)
        # The process may have been stopped since: a call of a run that another daemon has would be paid for nothing.
        while time.monotonic() - self.confirmed_at > self._lease_s:
            await self.confirm()

    async def _announce(self, call: OutgoingCall) -> None:
        await self.write(
            CallStarted(
                epoch=self.epoch,
                at=time.time(),
                turn=call.turn,
                attempt=call.attempt,
                model=call.model,
                prefix=call.prefix,
                decision=dict(call.decision) if call.decision else None,
                budget=call.budget,
            )
        )

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Record a reply before anything is done about it."""
        self.turn = turn
        await self.write(
            Turn(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                content=await self._blobs.pack(reply.content),
                stop_reason=reply.stop_reason,
                message_id=reply.message_id or "",
                usage=reply.usage.to_compact_wire(),
                retries=retries,
                truncated_tool=reply.truncated_tool_use.name if reply.truncated_tool_use else None,
                cache=cache.to_wire() if cache else None,
                notes=list(self.notes) if turn == 1 else [],
            )
        )

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """Announce a tool before it runs."""
        await self.write(
            ToolStarted(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                call_id=call.id,
                name=call.name,
                read_only=read_only,
                bubbled=bubbled,
            )
        )

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Record the block that goes to the model."""
        await self.write(
            ToolFinished(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                call_id=call.id,
                block=await self._blobs.pack(answer.to_wire()),
                is_error=answer.is_error,
            )
        )

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Record messages before the model sees them."""
        await self.write(
            Delivered(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                ids=[letter.id for letter in letters],
                texts=[letter.text for letter in letters if letter.text],
            )
        )

    async def compacted(self, turn: int, compaction: Compaction) -> None:
        """Record a summary before it takes the place of the turns."""
        await self.write(
            Compacted(
                epoch=self.epoch,
                at=time.time(),
                turn=turn,
                note=await self._blobs.pack(compaction.note.encode("utf-8", "backslashreplace")),
                left_out=compaction.left_out,
                attempt=compaction.attempt,
                message_id=compaction.message_id,
                usage=compaction.usage.to_compact_wire(),
                stop_reason=compaction.stop_reason,
            )
        )

    async def write(self, report: Report) -> None:
        """Append a report; where that is refused, throw the token and wait to be cancelled."""
        try:
            await self.append(report)
        except RunAborted as exc:
            self._token.abort(AbortReason.PARENT, exc.event.note)
            await _until_cancelled()
        except PayloadTooLarge:
            raise  # no daemon can write it
        except BusError as exc:
            self._token.abort(AbortReason.LEASE_LOST, str(exc))
            await _until_cancelled()

    async def append(self, report: Report) -> None:
        """Append a report behind the newest entry.

        Raises:
            RunAborted: The parent aborted first; `seq` then stands at the abort. No other end is written after it.
            BusError: The run is lost, or NATS was not reached in time.
        """
        async with self._lock:
            if self._abort is not None and isinstance(report, Final) and report.status != ForkStatus.ABORTED:
                raise RunAborted(self._abort, self.seq)
            await _to_its_end(self._append(report))

    async def _append(self, report: Report) -> None:
        asked_at = time.monotonic()
        try:
            self.seq = await self._log.append(report, after=self.seq)
        except RunAborted as exc:
            self.seq, self._abort = exc.seq, exc.event
            raise
        self.confirmed_at = max(self.confirmed_at, asked_at)


class SideEffectsOnly:
    """The journal of a run without transcript: what changes something is announced, nothing else is kept."""

    def __init__(self, journal: RunWriter) -> None:
        self._journal = journal

    async def call_started(self, call: OutgoingCall) -> None:
        """Announce it: what is paid for is part of the life cycle."""
        await self._journal.call_started(call)

    async def turn_finished(self, turn: int, reply: Reply, *, retries: int, cache: CacheCheck | None) -> None:
        """Keep nothing."""

    async def tool_started(self, turn: int, call: ToolCall, *, read_only: bool, bubbled: bool = False) -> None:
        """Announce what changes something."""
        if not read_only:
            await self._journal.tool_started(turn, call, read_only=False, bubbled=bubbled)

    async def tool_finished(self, turn: int, call: ToolCall, answer: ToolAnswer) -> None:
        """Keep nothing."""

    async def delivered(self, turn: int, letters: Sequence[Letter]) -> None:
        """Say which they were and not what they said: their sender wants to know."""
        await self._journal.delivered(turn, [Letter(id=letter.id, text="") for letter in letters])

    async def compacted(self, turn: int, compaction: Compaction) -> None:
        """Keep nothing."""


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Run something to its end even where the caller is cancelled: what it has sent may be stored all the same."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.wait([task], timeout=_LINGER_S)
        if not task.cancel() and not task.cancelled():
            task.exception()  # its reader is gone
        raise


async def _until_cancelled() -> NoReturn:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


class TextFeed:
    """Publishes text deltas of one run; an async context around its one task."""

    def __init__(self, bus: Bus, run_id: str, *, pool: str = DEFAULT_POOL) -> None:
        self._bus = bus
        self._subject = delta(run_id, pool)
        self._pending: list[str] = []
        self._some = asyncio.Event()
        self._quiet_until = 0.0
        self._watched = False
        self._tasks = asyncio.TaskGroup()
        self._task: asyncio.Task[None] | None = None

    def show(self, event: ForkEvent) -> None:
        """Take an event; what is not text is not shown here."""
        if isinstance(event, TextStreamed) and time.monotonic() >= self._quiet_until:
            self._pending.append(event.text)
            self._some.set()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._task = self._tasks.create_task(self._publish())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
        await self._tasks.__aexit__(exc_type, exc, traceback)

    async def _publish(self) -> None:
        while True:
            await self._some.wait()
            if not self._watched:
                await asyncio.sleep(_FIRST_LOOK_S)
                await self._say("")  # nobody pays for text that nobody watches
            text, self._pending = "".join(self._pending), []
            self._some.clear()
            if self._watched:
                await self._say(text)

    async def _say(self, text: str) -> None:
        data = json.dumps({"v": 1, "text": text}, ensure_ascii=False).encode("utf-8", "backslashreplace")
        try:
            # Sent as a request: without a subscriber the server says so at once, and we stop for a while.
            await self._bus.request(self._subject, data, timeout_s=_GATHER_S)
        except NoResponders:
            self._watched = False
            self._quiet_until = time.monotonic() + _LOOK_AGAIN_S
        except NoAnswer:
            self._watched = True  # somebody looks, and need not answer
        except BusError:
            return
