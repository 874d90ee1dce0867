"""Give each run its workspace, keep it on the log as it goes, and send back what came of it.

A checkpoint behind every turn that may have changed something means that whoever takes the run over has the files the
model counts on. What the child is told of its workspace is part of its prompt, so the words are on the log as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.core.boilerplate import worktree_notice
from nexofork.errors import BusError, ForkRefused
from nexofork.run.abort import AbortReason
from nexofork.run.mailbox import Letter
from nexofork.sandbox.mounts import plain_path
from nexofork.sandbox.run_folder import SharedFolders
from nexofork.tools.place import Checkout
from nexofork.wire.messages import Checkpoint, Payload, WorkspaceReady
from nexofork.wire.workspace import GitSpec, PathSpec, WorkspaceWork
from nexofork.workspace.bundle import BadBundle, decode_bundle
from nexofork.workspace.fetch import work_of
from nexofork.workspace.git import GitFailed, git_in, make_repository, take_pack
from nexofork.workspace.worktree import Worktree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from nexofork.run.result import ForkResult
    from nexofork.sandbox.sandbox import Sandbox
    from nexofork.wire.messages import BlobRef
    from nexofork.wire.workspace import TreeState
    from nexofork_daemon.run_environment import RunNeeds
    from nexofork_daemon.run_state import RunState
    from nexofork_daemon.state_folder import StateFolder

__all__ = ["NoWorkspace", "RunWorkspace", "Unfit", "Workspaces"]

log = logging.getLogger(__name__)

_COLLECT_EVERY_S = 60.0
_GROWS = 3
"""How much larger a checkout is than the bundles it comes from, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfit:
    """Why a run cannot work on this host."""

    reason: str
    lasting: bool = False
    """Whether the run waits for a daemon that suits it; else it is refused when there is none."""


class NoWorkspace:
    """A run that works wherever the daemon, or a shared folder, is."""

    def __init__(self, cwd: Path | None = None, *, opened: int | None = None) -> None:
        self.cwd = cwd
        self.opened = opened
        """A descriptor of `cwd`, where the request named it."""
        self.checkout: Checkout | None = None
        """What comes back to the parent."""
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

    def __init__(
        self, needs: RunNeeds, spec: GitSpec, worktree: Worktree, state: StateFolder, *, mounted: bool
    ) -> None:
        super().__init__(worktree.cwd)
        self.checkout = Checkout(root=worktree.root, known_as=_known_as(spec), mounted=mounted)
        self.writable = (worktree.root,)
        self.protected = worktree.protected
        self._needs = needs
        self._spec = spec
        self._worktree = worktree
        self._state = state
        last = needs.state.checkpoints[-1] if needs.state.checkpoints else None
        self._kept: TreeState | None = last.state if last else None
        self._lacking = last.problem if last else ""
        """What of the child's work was not kept when it came here."""

    def translated(self, paths: Mapping[str, str]) -> dict[str, str]:
        """Return what the parent has seen of files, by the paths they have in the checkout."""
        return {path: digest for given, digest in paths.items() for path in self._paths(given)}

    def _paths(self, path: str) -> list[str]:
        assert self.checkout is not None
        here = self.checkout.known_as if self.checkout.mounted else (str(self._worktree.root),)
        for root in (self._spec.root, self._spec.real_root):
            if root and path.startswith(root + "/"):
                return [one + path[len(root) :] for one in here]
        return [path]

    async def announce(self) -> None:
        """Decide what the child is told, and put it on the log before the model sees it.

        Raises:
            BusError: The run is lost, or NATS was not reached.
        """
        recorded, history = self._needs.state.workspace, self._needs.state.history
        mounted, epoch = self.checkout is not None and self.checkout.mounted, self._needs.journal.epoch
        root = _known_as(self._spec)[0] if mounted else str(self._worktree.root)
        notice = recorded.notice if recorded and history else self._notice(root, mounted=mounted)
        self.notes = (notice,)
        if recorded and history and history[-1].reply.stop_reason == "tool_use":
            words = f"Your work goes on on another host, at the same path. {self._lacking}" if self._lacking else ""
            if recorded.root != root:
                words = (
                    f"Your work goes on in another place: what was in {recorded.root} is in {root} now. "
                    f"Read every path under {recorded.root} as the same path under {root}. {self._lacking}"
                )
            self.letter = Letter(id=f"workspace-{epoch}", text=words.rstrip()) if words else None
        ready = WorkspaceReady(epoch=epoch, at=time.time(), root=root, notice=notice, mounted=mounted)
        if not recorded or (recorded.root, recorded.notice, recorded.mounted) != (root, notice, mounted):
            await self._needs.journal.append(ready)

    def _notice(self, root: str, *, mounted: bool) -> str:
        spec, folder = self._spec, self._worktree.cwd.relative_to(self._worktree.root)
        words = [worktree_notice(root if mounted else spec.root, None if mounted else root)]
        if folder != Path():
            words.append(f"Commands start in {root}/{folder}.")
        if spec.commit != spec.head and spec.work is None:
            words.append("What was not committed there is the newest commit here, so `git show` shows it.")
        return " ".join([*words, *spec.notes])

    async def worked(self, turn: int) -> None:
        """Put what the checkout has become on the log.

        Raises:
            OutOfRoom: It has grown too large.
            GitFailed: It cannot be read.
            BusError: It could not be stored.
        """
        await self._state.check_use(self._worktree.root.parent)
        if not self._needs.request.skip_transcript:
            await self._needs.journal.write(await self._checkpoint(turn))

    async def _checkpoint(self, turn: int) -> Checkpoint:
        state = await self._worktree.look()
        bundle: BlobRef | None = None
        if state != self._kept and (self._kept or not self._is_start(state)):
            bundle = await self._needs.blobs.put(await self._worktree.bundle(state, self._kept))
        self._kept = state
        epoch = self._needs.journal.epoch
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
        work, bundle = await work_of(self._worktree, self._spec, state, run_id=self._needs.run_id)
        sent = await self._needs.blobs.put(bundle) if bundle else None
        return work.model_copy(update={"bundle": sent, "problem": problem})

    async def _salvaged(self, exc: Exception) -> WorkspaceWork:
        """Return what can still be had of work that cannot be read as it is."""
        try:
            states = [*await self._worktree.salvage(), *([self._kept] if self._kept else [])]
            for state in states:
                with suppress(GitFailed):
                    return await self._sent(state, f"Only what was committed or kept before could be had: {exc}")
        except (GitFailed, BusError, OSError) as again:
            log.debug("run %s: nothing of its work could be had: %s", self._needs.run_id, again)
        return self._lost(exc)

    def _lost(self, exc: Exception) -> WorkspaceWork:
        log.warning("run %s: its work could not be kept: %s", self._needs.run_id, exc)
        spec = self._spec
        head = self._kept.head if self._kept else spec.commit
        return WorkspaceWork(root=spec.root, base=spec.head, start=spec.commit, head=head, problem=str(exc))

    async def _hand_over(self) -> None:
        journal = self._needs.journal
        turn = max(journal.turn, len(self._needs.state.history))
        if self._needs.request.skip_transcript or not turn:
            return
        try:
            await journal.append(await self._checkpoint(turn))
        except (GitFailed, BusError, OSError) as exc:
            # The one before it counts then; the next daemon tells the child what was interrupted.
            log.warning("run %s: its last checkpoint could not be kept: %s", self._needs.run_id, exc)


class Workspaces:
    """One daemon's workspaces."""

    def __init__(self, state: StateFolder, shared: SharedFolders | None = None) -> None:
        self._state = state
        self.shared = shared or SharedFolders()
        """What a request may name."""

    async def start(self) -> None:
        """Make the place for them, and remove what dead daemons left there."""
        await self._state.open()

    async def tend(self) -> None:
        """Remove now and then what daemons have left that died since; ends with its task."""
        while True:
            await asyncio.sleep(_COLLECT_EVERY_S)
            await asyncio.to_thread(self._state.collect)

    def unfit(self, run_id: str, spec: PathSpec | GitSpec | None, state: RunState, sandbox: Sandbox) -> Unfit | None:
        """Return why a run cannot work here, or None; looks at files."""
        match spec:
            case None:
                return None
            case PathSpec():
                try:
                    with self.shared.opened(spec.path):
                        return None
                except ForkRefused as exc:
                    return Unfit(reason=str(exc))
                except FileNotFoundError:
                    return Unfit(reason=f"its folder {spec.path!r} is not on this host", lasting=True)
                except (OSError, ValueError):
                    return None  # setting the run up meets it too, and ends the run with the reason
            case GitSpec():
                if _told_mounted(state) and not _mounts(spec, sandbox):
                    reason = f"its child sees its checkout at {spec.root!r}, where no sandbox can show it on this host"
                    return Unfit(reason=reason, lasting=True)
                reached = None if _mounts(spec, sandbox) else self._reached(run_id, spec, sandbox)
                return Unfit(reason=_in_the_way(reached, sandbox)) if reached else None

    def _reached(self, run_id: str, spec: GitSpec, sandbox: Sandbox) -> str | None:
        """Return the parent's root if commands here would find something else there than the checkout."""
        own = os.path.realpath(self._state.root / "runs" / run_id / "work")
        for root in filter(os.path.isabs, (spec.root, spec.real_root)):
            if sandbox.shows(plain_path(root) or root) and os.path.realpath(root) != own:
                return root
        return None

    @asynccontextmanager
    async def open(self, needs: RunNeeds, sandbox: Sandbox) -> AsyncIterator[NoWorkspace]:
        """Set up a run's workspace; at the end it is removed.

        Raises:
            ForkRefused: It cannot be had here, and nowhere else either.
            BusError: A bundle could not be fetched, or the run is lost.
        """
        spec = needs.request.workspace
        problem = await asyncio.to_thread(self.unfit, needs.run_id, spec, needs.state, sandbox)
        if problem is not None:
            raise ForkRefused(problem.reason)
        async with AsyncExitStack() as at_end:
            match spec:
                case None:
                    yield NoWorkspace()
                case PathSpec():
                    yield self._path(spec, at_end)
                case GitSpec():
                    mounted = _told_mounted(needs.state)
                    if mounted is None:
                        mounted = needs.mounts and _mounts(spec, sandbox)
                    yield await self._git(needs, spec, at_end, mounted=mounted)

    def _path(self, spec: PathSpec, at_end: AsyncExitStack) -> NoWorkspace:
        try:
            path, descriptor = at_end.enter_context(self.shared.opened(spec.path))
        except FileNotFoundError as exc:
            raise ForkRefused(f"The workspace {spec.path} has gone from this host since the run was claimed.") from exc
        return NoWorkspace(path, opened=descriptor)

    async def _git(self, needs: RunNeeds, spec: GitSpec, at_end: AsyncExitStack, *, mounted: bool) -> RunWorkspace:
        thin = spec.thin.size if spec.thin else 0
        self._state.check_room(_GROWS * (spec.bundle.size + thin))

        async def make(folder: Path) -> None:
            data = await needs.resolve(Payload(blob=spec.bundle))
            make_repository(folder, head=spec.base, shallow=spec.shallow)
            git = git_in(folder)
            await take_pack(git, decode_bundle(data).pack)
            await git.run("rev-parse", "--verify", "-q", f"{spec.base}^{{tree}}")

        try:
            base = await at_end.enter_async_context(self._state.base(_base_name(spec), make))
            folder = await at_end.enter_async_context(self._state.run_folder(needs.run_id))
            worktree = Worktree(folder, spec)
            kept = needs.state.checkpoints
            refs = [ref for ref in (spec.thin, spec.work, *(one.bundle for one in kept)) if ref is not None]
            bundles = [await needs.resolve(Payload(blob=ref)) for ref in refs]
            await worktree.set_up(base / "objects", bundles, kept[-1].state if kept else None)
        except (GitFailed, BadBundle, OSError) as exc:
            raise ForkRefused(f"The workspace cannot be set up: {exc}") from exc
        workspace = RunWorkspace(needs, spec, worktree, self._state, mounted=mounted)
        await workspace.announce()
        return workspace


def _known_as(spec: GitSpec) -> tuple[str, ...]:
    """Return the parent's paths of its repository that a file could have here."""
    return tuple(dict.fromkeys(filter(None, map(plain_path, (spec.root, spec.real_root)))))


def _mounts(spec: GitSpec, sandbox: Sandbox) -> bool:
    """Whether the checkout can be seen at all of the parent's paths."""
    usable = all(map(plain_path, filter(None, (spec.root, spec.real_root))))
    return usable and sandbox.mounts_at(_known_as(spec))


def _told_mounted(state: RunState) -> bool | None:
    """Return which of the two notices the child has; None while it has none."""
    return state.workspace.mounted if state.workspace and state.history else None


def _in_the_way(root: str, sandbox: Sandbox) -> str:
    if sandbox.name == "none":
        return (
            f"The parent's repository {root} is on this host too, and commands run here without a sandbox: one that "
            "names a file by its path would change the parent's file and not the checkout's. Start the daemon with "
            "--sandbox bwrap, run it on another host, or share the folder with --shared-dir and fork with a `path` "
            "workspace, which is worked in in place."
        )
    return (
        f"The parent's repository is at {root}, where a run finds files of this host's system and no checkout can be "
        "mounted. Fork from a clone of it in another folder, such as one below /home."
    )


def _base_name(spec: GitSpec) -> str:
    """Name a base by its commit; a history that is cut off is another base."""
    if not spec.shallow:
        return spec.base
    cut = hashlib.sha256(" ".join(sorted(spec.shallow)).encode()).hexdigest()
    return f"{spec.base}-{cut[:16]}"
