"""Give each run its workspace, keep it on the log as it goes, and send back what came of it.

A checkpoint behind every turn that may have changed something means that whoever takes the run over has the files the
model counts on. What the child is told of its workspace is part of its prompt, so the words are on the log as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.core.boilerplate import worktree_notice
from nexofork.engine.abort import AbortReason
from nexofork.engine.mailbox import Letter
from nexofork.engine.workspace.bundles import BadBundle, decode_bundle
from nexofork.engine.workspace.git import GitFailed
from nexofork.engine.workspace.repository import git_in, make_repository, take_pack
from nexofork.engine.workspace.returning import work_of
from nexofork.engine.workspace.worktree import Worktree
from nexofork.errors import BusError, ForkRefused
from nexofork.wire.messages import Checkpoint, Payload, WorkspaceReady
from nexofork.wire.workspace import GitSpec, PathSpec, WorkspaceWork

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nexofork.engine.result import ForkResult
    from nexofork.wire.messages import BlobRef
    from nexofork.wire.workspace import TreeState
    from nexofork_daemon.state_folder import StateFolder
    from nexofork_daemon.workbench import RunOrder

__all__ = ["NoWorkspace", "RunWorkspace", "Workspaces", "has_folder"]

log = logging.getLogger(__name__)

_COLLECT_EVERY_S = 60.0
_GROWS = 3
"""How much larger a checkout is than the bundles it comes from, at least."""


def has_folder(order: PathSpec | GitSpec | None) -> bool:
    """Whether this host has what a run works in; a repository can be had everywhere."""
    return not isinstance(order, PathSpec) or Path(order.path).is_dir()


class NoWorkspace:
    """A run that works wherever the daemon, or a shared folder, is."""

    def __init__(self, cwd: Path | None = None) -> None:
        self.cwd = cwd
        self.writable: tuple[Path, ...] = ()
        """What tools may change beside `cwd`."""
        self.protected: tuple[Path, ...] = ()
        """What they may read, and not change."""
        self.notes: tuple[str, ...] = ()
        """What the child is told behind its directive."""
        self.letter: Letter | None = None
        """What it is told behind its last turn."""

    def translated(self, paths: Mapping[str, str]) -> dict[str, str]:
        """Return what the parent has seen of files, by the paths they have here."""
        return dict(paths)

    async def worked(self, turn: int) -> None:
        """Keep nothing."""

    async def closed(self, result: ForkResult) -> ForkResult:
        """Add nothing."""
        return result


class RunWorkspace(NoWorkspace):
    """One run's checkout of its parent's repository."""

    def __init__(self, order: RunOrder, spec: GitSpec, worktree: Worktree, state: StateFolder, folder: Path) -> None:
        super().__init__(worktree.cwd)
        self.writable = (worktree.root,)
        self.protected = worktree.protected
        self._order = order
        self._spec = spec
        self._worktree = worktree
        self._state = state
        self._folder = folder
        last = order.state.checkpoints[-1] if order.state.checkpoints else None
        self._kept: TreeState | None = last.state if last else None
        self._lacking = last.problem if last else ""
        """What of the child's work was not kept when it came here."""

    def translated(self, paths: Mapping[str, str]) -> dict[str, str]:
        """Return what the parent has seen of files, by the paths they have in the checkout."""
        return {self._path(path): digest for path, digest in paths.items()}

    def _path(self, path: str) -> str:
        for root in (self._spec.root, self._spec.real_root):
            if root and path.startswith(root + "/"):
                return f"{self._worktree.root}{path[len(root) :]}"
        return path

    async def announce(self) -> None:
        """Decide what the child is told, and put it on the log before the model sees it.

        Raises:
            BusError: The run is lost, or NATS was not reached.
        """
        recorded, root = self._order.state.workspace, str(self._worktree.root)
        history = self._order.state.history
        notice = recorded.notice if recorded and history else _notice(self._spec, root, str(self.cwd))
        self.notes = (notice,)
        if recorded and (recorded.root, recorded.notice) == (root, notice):
            return
        if recorded and history and history[-1].reply.stop_reason == "tool_use":
            moved = (
                f"Your work goes on in another place: what was in {recorded.root} is in {root} now. "
                f"Read every path under {recorded.root} as the same path under {root}. {self._lacking}"
            )
            self.letter = Letter(id=f"workspace-{self._order.journal.epoch}", text=moved.rstrip())
        epoch = self._order.journal.epoch
        await self._order.journal.append(WorkspaceReady(epoch=epoch, at=time.time(), root=root, notice=notice))

    async def worked(self, turn: int) -> None:
        """Put what the checkout has become on the log.

        Raises:
            OutOfRoom: It has grown too large.
            GitFailed: It cannot be read.
            BusError: It could not be stored.
        """
        await self._state.check_use(self._folder)
        if not self._order.request.skip_transcript:
            await self._order.journal.write(await self._checkpoint(turn))

    async def _checkpoint(self, turn: int) -> Checkpoint:
        state = await self._worktree.look()
        bundle: BlobRef | None = None
        if state != self._kept and (self._kept or not self._is_start(state)):
            bundle = await self._order.blobs.put(await self._worktree.bundle(state, self._kept))
        self._kept = state
        epoch = self._order.journal.epoch
        return Checkpoint(epoch=epoch, at=time.time(), turn=turn, state=state, bundle=bundle, problem=self._problem())

    def _problem(self) -> str:
        """Say what is missing from the work: here, and since it came here."""
        return " ".join(dict.fromkeys(filter(None, (self._lacking, self._worktree.problem))))

    def _is_start(self, state: TreeState) -> bool:
        return state == self._worktree.start

    async def closed(self, result: ForkResult) -> ForkResult:
        """Keep the checkout for the next daemon, or return the result with what was made in it."""
        reason = result.abort.reason if result.abort else None
        if reason is AbortReason.LEASE_LOST:
            return result
        if reason is AbortReason.SHUTDOWN:
            await self._hand_over()
            return result
        try:
            work = await self._work()
        except BusError as exc:
            work = self._lost(exc)
        except (GitFailed, OSError) as exc:
            work = await self._salvaged(exc)
        return replace(result, workspace=work)

    async def _work(self) -> WorkspaceWork:
        state = await self._worktree.look()
        return await self._sent(state, self._problem())

    async def _sent(self, state: TreeState, problem: str) -> WorkspaceWork:
        work, bundle = await work_of(self._worktree, self._spec, state, run_id=self._order.run_id)
        sent = await self._order.blobs.put(bundle) if bundle else None
        return work.model_copy(update={"bundle": sent, "problem": problem})

    async def _salvaged(self, exc: Exception) -> WorkspaceWork:
        """Return what can still be had of work that cannot be read as it is."""
        try:
            states = [*await self._worktree.salvage(), *([self._kept] if self._kept else [])]
            for state in states:
                with suppress(GitFailed):
                    return await self._sent(state, f"Only what was committed or kept before could be had: {exc}")
        except (GitFailed, BusError, OSError) as again:
            log.debug("run %s: nothing of its work could be had: %s", self._order.run_id, again)
        return self._lost(exc)

    def _lost(self, exc: Exception) -> WorkspaceWork:
        log.warning("run %s: its work could not be kept: %s", self._order.run_id, exc)
        spec = self._spec
        head = self._kept.head if self._kept else spec.commit
        return WorkspaceWork(root=spec.root, base=spec.head, start=spec.commit, head=head, problem=str(exc))

    async def _hand_over(self) -> None:
        journal = self._order.journal
        turn = max(journal.turn, len(self._order.state.history))
        if self._order.request.skip_transcript or not turn:
            return
        try:
            await journal.append(await self._checkpoint(turn))
        except (GitFailed, BusError, OSError) as exc:
            # The one before it counts then; the next daemon tells the child what was interrupted.
            log.warning("run %s: its last checkpoint could not be kept: %s", self._order.run_id, exc)


class Workspaces:
    """One daemon's workspaces."""

    def __init__(self, state: StateFolder) -> None:
        self._state = state

    async def start(self) -> None:
        """Make the place for them, and remove what dead daemons left there."""
        await self._state.open()

    async def tend(self) -> None:
        """Remove now and then what daemons have left that died since; ends with its task."""
        while True:
            await asyncio.sleep(_COLLECT_EVERY_S)
            await asyncio.to_thread(self._state.collect)

    @asynccontextmanager
    async def open(self, order: RunOrder) -> AsyncIterator[NoWorkspace]:
        """Set up a run's workspace; at the end it is removed.

        Raises:
            ForkRefused: It cannot be had here, and nowhere else either.
            BusError: A bundle could not be fetched, or the run is lost.
        """
        spec = order.request.workspace
        match spec:
            case None:
                yield NoWorkspace()
            case PathSpec():
                yield NoWorkspace(_existing(Path(spec.path)))
            case GitSpec():
                async with AsyncExitStack() as at_end:
                    yield await self._git(order, spec, at_end)

    async def _git(self, order: RunOrder, spec: GitSpec, at_end: AsyncExitStack) -> RunWorkspace:
        thin = spec.thin.size if spec.thin else 0
        self._state.check_room(_GROWS * (spec.bundle.size + thin))

        async def make(folder: Path) -> None:
            data = await order.resolve(Payload(blob=spec.bundle))
            make_repository(folder, head=spec.base, shallow=spec.shallow)
            git = git_in(folder)
            await take_pack(git, decode_bundle(data).pack)
            await git.run("rev-parse", "--verify", "-q", f"{spec.base}^{{tree}}")

        try:
            base = await at_end.enter_async_context(self._state.base(_base_name(spec), make))
            folder = await at_end.enter_async_context(self._state.run_folder(order.run_id))
            worktree = Worktree(folder, spec)
            kept = order.state.checkpoints
            refs = [ref for ref in (spec.thin, spec.work, *(one.bundle for one in kept)) if ref is not None]
            bundles = [await order.resolve(Payload(blob=ref)) for ref in refs]
            await worktree.set_up(base / "objects", bundles, kept[-1].state if kept else None)
        except (GitFailed, BadBundle, OSError) as exc:
            raise ForkRefused(f"The workspace cannot be set up: {exc}") from exc
        workspace = RunWorkspace(order, spec, worktree, self._state, folder)
        await workspace.announce()
        return workspace


def _existing(path: Path) -> Path:
    if not path.is_dir():
        raise ForkRefused(f"The workspace {path} has gone from this host since the run was claimed.")
    return path


def _base_name(spec: GitSpec) -> str:
    """Name a base by its commit; a history that is cut off is another base."""
    if not spec.shallow:
        return spec.base
    cut = hashlib.sha256(" ".join(sorted(spec.shallow)).encode()).hexdigest()
    return f"{spec.base}-{cut[:16]}"


def _notice(spec: GitSpec, root: str, cwd: str) -> str:
    words = [worktree_notice(spec.root, root)]
    if cwd != root:
        words.append(f"Commands start in {cwd}.")
    if spec.commit != spec.head and spec.work is None:
        words.append("What was not committed there is the newest commit here, so `git show` shows it.")
    return " ".join([*words, *spec.notes])
