"""Hold on to running forks, wherever they run: one by its handle, several in the order of their results, or a group.

A handle is the parent's claim on a child. Dropping it unused means that the result is not wanted, so the child is
aborted and causes no further cost; `detach` says otherwise.

Leaving a loop over results early changes nothing for the handles whose results did not come: no task was started for
them. A wait in the foreground can be given up without giving up the forks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from nexofork.errors import ForkIsOver, ForkRefused
from nexofork.policy.permissions import PermissionAnswer
from nexofork.policy.rules import parse_rule
from nexofork.run.events import ForkAsked, ForkEnded, ForkPermitted, ForkStarted, TextStreamed
from nexofork.run.result import ForkResult, ForkStatus

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from nexofork.run.events import ForkEvent
    from nexofork.workspace.fetch import Fetched

__all__ = ["Foreground", "ForkControl", "ForkHandle", "ForkRecord", "HandleGroups", "as_completed"]

log = logging.getLogger(__name__)

_LIFE_CYCLE = (ForkStarted, ForkAsked, ForkPermitted, ForkEnded)
"""What is kept of a run without transcript: how it goes, and what somebody has to answer."""


class ForkRecord:
    """What is known of a run; shared by whatever follows it and the handle that shows it."""

    def __init__(
        self,
        *,
        run_id: str,
        label: str,
        skip_transcript: bool = False,
        observer: Callable[[ForkEvent], object] | None = None,
    ) -> None:
        self.run_id = run_id
        self.label = label
        self.result: ForkResult | None = None
        self.unattended = False
        """Whether the run is aborted, a daemon had it, and no daemon is there to end it."""
        self.events: list[ForkEvent] = []
        self._skip_transcript = skip_transcript
        self._observer = observer
        self._more = asyncio.Event()
        self._at_end: list[Callable[[ForkResult], None]] = []

    def add(self, event: ForkEvent) -> None:
        """Keep an event and show it; text deltas are for those who watch, and are not kept."""
        kept = not isinstance(event, TextStreamed)
        if self._skip_transcript and not isinstance(event, _LIFE_CYCLE):
            kept = False
        if kept:
            self.events.append(event)
        if isinstance(event, ForkEnded):
            self.result = event.result
        if kept:
            self._wake()
        if isinstance(event, ForkEnded):
            for callback in self._at_end:
                callback(event.result)
            self._at_end.clear()
        self._show(event)

    def when_over(self, callback: Callable[[ForkResult], None]) -> Callable[[], None]:
        """Call back once with the result, at once where there is one; returns what takes that back."""
        if self.result is not None:
            callback(self.result)
        else:
            self._at_end.append(callback)

        def forget() -> None:
            if callback in self._at_end:
                self._at_end.remove(callback)

        return forget

    async def until(self, seen: int) -> None:
        """Return once there are more than `seen` events or the run is over."""
        while len(self.events) <= seen and self.result is None:
            await self._more.wait()

    def _show(self, event: ForkEvent) -> None:
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:
            # An observer only watches: what it raises is its own trouble, not the fork's.
            log.exception("an observer of fork %s raised", self.run_id)

    def _wake(self) -> None:
        # Everybody waiting now is woken; who comes later waits for the next event.
        self._more.set()
        self._more = asyncio.Event()


class ForkControl(Protocol):
    """What a handle can do about its run."""

    def abort(self, note: str) -> Awaitable[None]:
        """End the run; the abort is under way when this returns, and in force when it was awaited."""

    def message(self, text: str) -> Awaitable[None]:
        """Say something to the child; it reads it between two turns."""

    async def answer(self, ask_id: str, answer: PermissionAnswer) -> None:
        """Answer what the run asked permission for; raises `ForkRefused` where that is not open."""

    def background(self) -> int:
        """Let go of a synchronous wait for it."""

    def detached(self) -> None:
        """Nobody waits for it any more, and nobody's leaving ends it."""

    async def fetch(self, result: ForkResult, root: str | os.PathLike[str] | None) -> Fetched:
        """Take the work of a finished run into a repository."""

    def dropped(self) -> None:
        """The handle is gone and nobody asked for the result; called in the loop's own thread."""


class ForkHandle:
    """One fork, seen from its parent."""

    def __init__(self, record: ForkRecord, control: ForkControl) -> None:
        self._record = record
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._claimed = False

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._record.run_id

    @property
    def label(self) -> str:
        """What the caller named the fork."""
        return self._record.label

    @property
    def status(self) -> ForkStatus:
        """Where the run is now."""
        if self._record.result is not None:
            return self._record.result.status
        return ForkStatus.ABORTING_NO_DAEMON if self._record.unattended else ForkStatus.RUNNING

    async def result(self) -> ForkResult:
        """Wait for the end and return the result, whatever the status; may be asked again.

        From the first call on the result counts as wanted: dropping the handle no longer aborts the fork.
        """
        self._claimed = True
        record = self._record
        while record.result is None:
            await record.until(len(record.events))
        return record.result

    async def events(self) -> AsyncIterator[ForkEvent]:
        """Yield everything that happened and happens, from the start to the end of the run."""
        record, seen = self._record, 0
        while True:
            await record.until(seen)
            while seen < len(record.events):
                event = record.events[seen]
                seen += 1
                yield event
                if isinstance(event, ForkEnded):
                    return

    def abort(self, note: str = "") -> Awaitable[None]:
        """End the fork; a no-op once it is over. The result then says who and why.

        The abort is under way at once; await it to know that it is in force.
        """
        return self._control.abort(note)

    def message(self, text: str) -> Awaitable[None]:
        """Say something to the running child; it reads it between two of its turns.

        A child that has stopped but not yet ended goes on with it. Await to know that the message is on its way.

        What the child never read is in the result's `undelivered`.

        Raises:
            ForkIsOver: The fork is over; where that is found out only on the way, awaiting raises it.
            ForkRefused: The text is empty.
        """
        if not text.strip():
            raise ForkRefused("The message is empty; say something.")
        if self._record.result is not None:
            raise ForkIsOver(self.run_id, status=self.status)
        return self._control.message(text)

    async def answer(self, ask_id: str, allow: bool, *, note: str = "", remember: bool = False, rule: str = "") -> None:
        """Answer what the fork asked permission for; a `ForkAsked` event names it. The first answer stands.

        Args:
            ask_id: Which question.
            allow: Whether the call may run.
            note: Shown to the model where it is denied.
            remember: Let the same go for the like of it until the run is over.
            rule: What to remember, if not what the question suggests.

        Raises:
            ForkRefused: The fork is over, the rule is none, or the question is not open: never asked, or decided.
            BusError: NATS was not reached.
        """
        if self._record.result is not None:
            raise ForkRefused(f"The fork is over ({self.status}); it asks for nothing any more.")
        if rule:
            parse_rule(rule)
        answer = PermissionAnswer(allow=allow, note=note, remember=remember or bool(rule), rule=rule)
        await self._control.answer(ask_id, answer)

    def when_over(self, callback: Callable[[ForkResult], None]) -> Callable[[], None]:
        """Call back once with the result, at once where there is one; returns what takes that back.

        Unlike `result`, this does not count as wanting it: dropping the handle still aborts the fork.
        """
        return self._record.when_over(callback)

    def background(self) -> bool:
        """Let go of a synchronous wait for this fork; it goes on and nothing is lost.

        Returns:
            Whether somebody was waiting.
        """
        return bool(self._control.background())

    async def fetch(self, root: str | os.PathLike[str] | None = None) -> Fetched:
        """Wait for the end, and take the child's commits into ``refs/forks/<run_id>`` of a repository.

        Nothing is merged; the answer says whether it would merge cleanly. Doing it twice is harmless.

        Args:
            root: The repository; the one that was forked from unless said.

        Raises:
            MissingBase: The repository lacks the commit the fork began with.
            ForkRefused: There is nothing to fetch, or what came back is not what it should be.
            BusError: It could not be fetched.
        """
        return await self._control.fetch(await self.result(), root)

    def detach(self) -> None:
        """Let the fork go on without anybody waiting for it."""
        self._claimed = True
        self._control.detached()

    def __del__(self) -> None:
        record = getattr(self, "_record", None)
        if record is None or self._claimed or record.result is not None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._control.dropped)


async def as_completed(handles: Iterable[ForkHandle]) -> AsyncIterator[ForkResult]:
    """Yield each fork's result as soon as it is over, whatever the status; forks here and on a fleet may be mixed.

    The handles are held until the loop is left. Leaving it early neither aborts nor detaches the others: dropping
    their handles unused aborts them, as always.
    """
    held = list(dict.fromkeys(handles))
    over: asyncio.Queue[ForkResult] = asyncio.Queue()
    forget = [handle.when_over(over.put_nowait) for handle in held]
    try:
        for _ in held:
            yield await over.get()
    finally:
        for stop in forget:
            stop()


class HandleGroups:
    """The handles of one parent by group, for as long as somebody holds them."""

    def __init__(self) -> None:
        self._groups: dict[str, WeakValueDictionary[int, ForkHandle]] = {}
        self._numbers = itertools.count()

    def add(self, group: str | None, handle: ForkHandle) -> ForkHandle:
        """Remember a handle, and return it."""
        if group is not None:
            if group not in self._groups:
                # Names are let go of too, or a parent that makes up one per fan-out would keep them all.
                self._groups = {name: handles for name, handles in self._groups.items() if handles}
            self._groups.setdefault(group, WeakValueDictionary())[next(self._numbers)] = handle
        return handle

    def of(self, group: str) -> list[ForkHandle]:
        """Return the group's handles that somebody holds, in the order the forks were started."""
        return [handle for _, handle in sorted(self._groups.get(group, {}).items())]


class Foreground:
    """The synchronous waits of one parent."""

    def __init__(self, *, auto_background_s: float | None = None) -> None:
        self._auto_background_s = auto_background_s
        self._waits: dict[str, asyncio.Event] = {}

    async def wait(self, handles: Sequence[ForkHandle]) -> None:
        """Return when each of the forks is over or was moved to the background; they notice neither.

        Cancelling the wait aborts those that still run, waits for their end, and the cancellation goes on.
        """
        try:
            async with asyncio.TaskGroup() as waits:
                for handle in handles:
                    waits.create_task(self._one(handle))
        except asyncio.CancelledError:
            for handle in handles:
                await handle.abort("the caller stopped waiting")
            for handle in handles:
                await handle.result()
            raise

    def background(self, run_id: str | None = None) -> int:
        """Move one wait, or all of them, to the background.

        Returns:
            How many waits were moved.
        """
        waits = [wait for key, wait in self._waits.items() if run_id in (None, key)]
        for wait in waits:
            wait.set()
        return len(waits)

    async def _one(self, handle: ForkHandle) -> None:
        moved = self._waits[handle.run_id] = asyncio.Event()
        try:
            async with asyncio.timeout(self._auto_background_s), asyncio.TaskGroup() as racers:
                over = racers.create_task(handle.result())
                asked = racers.create_task(moved.wait())
                over.add_done_callback(lambda _: asked.cancel())
                asked.add_done_callback(lambda _: over.cancel())
        except TimeoutError:
            return
        finally:
            del self._waits[handle.run_id]
