"""One child's checkout on a daemon: set it up, keep what it is, and take it back.

Three folders: ``work`` is the child's, its repository in ``work/.git`` included; ``keep.git`` is the daemon's own
repository, from which git is run and which the child only borrows objects from; ``index`` is what the daemon knows of
the files. So nothing the child writes is ever taken as git's configuration.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nexofork.wire.ref_names import is_ref_name
from nexofork.wire.workspace import TreeState
from nexofork.workspace.bundle import Bundle, decode_bundle, encode_bundle
from nexofork.workspace.capture import MAX_BUNDLE_BYTES
from nexofork.workspace.changes import list_files, opened_as_it_is, some, write_most
from nexofork.workspace.git import Git, GitFailed, alternates, git_in, make_repository, take_pack
from nexofork.workspace.untrusted_repo import ChildRefs, own_objects, read_refs, remove_traps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nexofork.wire.workspace import GitSpec

__all__ = ["RESULT_REF", "Worktree"]

RESULT_REF = "refs/nexofork/result"
_CONFIG = (
    "[user]\n\tname = nexofork\n\temail = nexofork@localhost\n[commit]\n\tgpgsign = false\n"
    "[core]\n\tcommitGraph = false\n[repack]\n\tupdateServerInfo = false\n"
    "[gc]\n\tauto = 0\n\twriteCommitGraph = false\n[maintenance]\n\tauto = false\n[advice]\n\tdetachedHead = false\n"
)
_MAX_INDEX_BYTES = 256 << 20
_LIST_S = 30.0
_WRITE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the files and references were when they were looked at last."""

    state: TreeState
    index_bytes: bytes
    """The child's index as a file, by which a change is noticed without running git."""


class Worktree:
    """One child's checkout."""

    def __init__(self, folder: Path, spec: GitSpec) -> None:
        self._folder = folder
        self._spec = spec
        self.root = folder / "work"
        self._git_dir = self.root / ".git"
        self._keep = folder / "keep.git"
        self._index = folder / "index"
        self._base: Path | None = None
        self._seen: _Seen | None = None
        self._borrows = False
        """Whether git sees the child's objects."""
        self._half_written = False
        """Whether a look has changed the index and did not come to its end."""
        self.problem = ""
        """What the last look had to leave out, in words."""
        self.start: TreeState | None = None
        """What a child that begins finds; None until it is set up."""

    @property
    def git(self) -> Git:
        """Git on the daemon's own repository, which sees the child's objects too."""
        return self._own_git()

    def _own_git(self, *, files: Path | None = None, index: Path | None = None) -> Git:
        git = git_in(self._keep, files=files, index=index)
        if not self._borrows:
            return git
        # Not by a file: the child's git would read that too, and may not see its own checkout at this path.
        quoted = os.fspath(self._git_dir / "objects").replace("\\", "\\\\").replace('"', '\\"')
        return replace(git, environment={**git.environment, "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{quoted}"'})

    @property
    def protected(self) -> tuple[Path, ...]:
        """What the child may read and not change: what names programs or objects to git, and what it borrows."""
        assert self._base is not None, "it is set up"
        given = (self._git_dir / name for name in ("config", "hooks", "objects/info"))
        return (*given, self._base, self._keep / "objects")

    @property
    def cwd(self) -> Path:
        """Where the child works: the parent's folder, or the root where that is none or leads out of the checkout."""
        folder = self.root / self._spec.folder
        real = folder.resolve()
        return folder if real.is_dir() and real.is_relative_to(self.root.resolve()) else self.root

    async def set_up(self, base: Path, bundles: Sequence[bytes], state: TreeState | None) -> None:
        """Check the files out.

        Args:
            base: The folder of the base's objects.
            bundles: What the child's state needs beyond it, in the order it was made.
            state: Where an earlier daemon left it; None for a child that begins.

        Raises:
            GitFailed: A bundle is damaged or hostile, or there is no room.
            BadBundle: One is no bundle.
        """
        spec = self._spec
        self._base = base
        await asyncio.to_thread(make_repository, self._keep, head=spec.commit, borrow=[base], shallow=spec.shallow)
        await asyncio.to_thread(self._without_filters, self._keep)
        for data in bundles:
            await take_pack(self.git, decode_bundle(data).pack)
        refs = {f"refs/heads/{spec.branch}": spec.commit} if spec.branch else {}
        head_tree = (await self.git.run("rev-parse", "--verify", f"{spec.commit}^{{tree}}")).decode().strip()
        fresh = TreeState(head=spec.commit, branch=spec.branch, refs=refs, index=head_tree, tree=head_tree)
        self.start, start = fresh, state or fresh
        await asyncio.to_thread(self._make_child, base, start)
        child = git_in(self._git_dir, files=self.root)
        await child.run("read-tree", "--reset", "-u", start.tree)
        await asyncio.to_thread(shutil.copy2, self._git_dir / "index", self._index)
        if start.index != start.tree:
            await child.run("read-tree", start.index)
            await child.run("update-index", "-q", "--refresh", also=(1,))
        self._seen = _Seen(state=start, index_bytes=await asyncio.to_thread(self._child_index))

    def _without_filters(self, repository: Path) -> None:
        (repository / "info/attributes").write_text("* -filter\n")

    def _make_child(self, base: Path, state: TreeState) -> None:
        head = f"ref: refs/heads/{state.branch}" if state.branch else state.head
        make_repository(
            self._git_dir,
            head=head,
            borrow=self._lent(base),
            shallow=self._spec.shallow,
            bare=False,
            config=_CONFIG,
        )
        refs = {**state.refs, **({f"refs/heads/{state.branch}": state.head} if state.branch else {})}
        # As lines of one file: no name, whoever chose it, is ever a path.
        lines = [f"{oid} {name}\n" for name, oid in sorted(refs.items()) if is_ref_name(name)]
        (self._git_dir / "packed-refs").write_bytes("".join(lines).encode())
        (self._git_dir / "hooks").mkdir()

    def _lent(self, base: Path) -> list[Path]:
        return [base, self._keep / "objects"]

    def _borrow(self) -> bool:
        """Let git see the child's objects if they are its own; return whether they are."""
        assert self._base is not None, "it is set up"
        self._borrows = own_objects(self._git_dir, alternates(self._lent(self._base)))
        return self._borrows

    async def look(self) -> TreeState:
        """Return what the checkout is now; git is not asked for what has not changed.

        Raises:
            GitFailed: The files cannot be read, or there is no room.
        """
        assert self._seen is not None, "it is set up"
        last = self._seen
        own = await asyncio.to_thread(self._borrow)
        refs = await self._refs(own=own)
        staged = await asyncio.to_thread(self._child_index) if own else last.index_bytes
        tree, index = await self._files_tree() or last.state.tree, last.state.index
        if staged != last.index_bytes:
            index = await self._staged_tree(staged) or tree
        head = refs.head if refs.head and await self._has_commit(refs.head, last.state) else last.state.head
        state = TreeState(
            head=head,
            branch=refs.branch,
            refs=await self._known(refs.refs, last.state),
            index=index,
            tree=tree,
        )
        self._seen, self._half_written = _Seen(state=state, index_bytes=staged), False
        return state

    async def _refs(self, *, own: bool) -> ChildRefs:
        assert self._seen is not None, "it is set up"
        found = await asyncio.to_thread(read_refs, self._git_dir) if own else None
        last = self._seen.state
        return found or ChildRefs(head=None, branch=last.branch, refs=last.refs)

    async def _files_tree(self) -> str | None:
        """Return the tree of the files; None where they are what they were."""
        await asyncio.to_thread(remove_traps, self.root)
        # A git that was ended in the middle of an earlier look has left it; nobody else uses the index.
        await asyncio.to_thread(self._index.with_name("index.lock").unlink, missing_ok=True)
        files = self._own_git(files=self.root, index=self._index)
        listing = await list_files(replace(files, time_s=_LIST_S), ignored=self._spec.ignored)
        if listing.removed:
            unwanted = await self._unwanted(files)
            listing.removed = [path for path in listing.removed if path not in unwanted]
        left_out: list[bytes] = []
        written = self._half_written or not listing.clean
        if written:
            self._half_written = True
            left_out = await write_most(replace(files, time_s=_WRITE_S), listing)
        self.problem = _problem(left_out, listing.embedded)
        return (await files.run("write-tree")).decode().strip() if written else None

    async def _unwanted(self, files: Git) -> set[bytes]:
        """Return what the child has told git to leave out of its files, as in a sparse checkout: it is not removed."""
        copy = self._folder / "staged"
        await asyncio.to_thread(lambda: copy.write_bytes(self._child_index()))
        looking = replace(files, environment={**files.environment, "GIT_INDEX_FILE": os.fspath(copy)}, time_s=_LIST_S)
        try:
            printed = await looking.run("ls-files", "-z", "-v", "--cached")
        except GitFailed:
            return set()
        return {line[2:] for line in printed.split(b"\0") if line[:1].upper() == b"S"}

    async def salvage(self) -> list[TreeState]:
        """Return what can be had without reading the files, the best first: what was committed since, what was seen.

        Raises:
            GitFailed: The child's repository cannot be read.
        """
        assert self._seen is not None, "it is set up"
        last = self._seen.state
        refs = await self._refs(own=await asyncio.to_thread(self._borrow))
        if refs.head in (None, last.head) or not await self._has_commit(refs.head, last):
            return [last]
        tree = (await self.git.run("rev-parse", "--verify", f"{refs.head}^{{tree}}")).decode().strip()
        return [TreeState(head=refs.head, branch=refs.branch, index=tree, tree=tree), last]

    async def _has_commit(self, oid: str, known: TreeState) -> bool:
        if oid == known.head:
            return True
        printed = await self.git.run("cat-file", "-t", oid, also=(1, 128))
        return printed.strip() == b"commit"

    async def _known(self, refs: dict[str, str], last: TreeState) -> dict[str, str]:
        """Leave out references to objects that are not there: the rest of the child's work must not be lost for one."""
        new = sorted({oid for oid in refs.values() if oid not in last.refs.values() and oid != last.head})
        if not new:
            return dict(refs)
        asked = "".join(f"{oid}\n" for oid in new).encode()
        missing = {
            line.split()[0].decode()
            for line in (await self.git.run("cat-file", "--batch-check", stdin=asked)).splitlines()
            if line.endswith(b" missing")
        }
        return {name: oid for name, oid in refs.items() if oid not in missing}

    async def _staged_tree(self, index: bytes) -> str | None:
        """Return the tree of the child's index; None where it has none, as in the middle of a merge."""
        copy = self._folder / "staged"
        await asyncio.to_thread(copy.write_bytes, index)
        try:
            return (await self._own_git(index=copy).run("write-tree")).decode().strip()
        except GitFailed:
            return None

    def _child_index(self) -> bytes:
        try:
            with open(self._git_dir / "index", "rb", opener=opened_as_it_is) as file:
                regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                return file.read(_MAX_INDEX_BYTES) if regular else b""
        except OSError:
            return b""

    async def bundle(self, state: TreeState, behind: TreeState | None) -> bytes:
        """Return what a state needs beyond an earlier one, or beyond where the child began.

        Raises:
            GitFailed: It is too large, or objects of the child's are not there.
        """
        wanted = {state.tree, state.index, state.head, *state.refs.values()}
        had = {behind.tree, behind.index, behind.head, *behind.refs.values()} if behind else set()
        pack = await self.pack(wanted - had, had | {self._spec.commit})
        refs = {"refs/nexofork/tree": state.tree, "refs/nexofork/index": state.index, "refs/nexofork/head": state.head}
        return encode_bundle(Bundle(pack=pack, refs=refs, needs=(self._spec.commit,)))

    async def pack(self, wanted: set[str], had: set[str]) -> bytes:
        """Return a thin pack of what some objects lead to and others do not.

        Raises:
            GitFailed: It is too large, or some of it is not there.
        """
        revisions = [*sorted(wanted), *(f"^{oid}" for oid in sorted(had))]
        return await self.git.run(
            *("pack-objects", "--revs", "--thin", "--stdout", "-q", "--delta-base-offset"),
            stdin="".join(f"{line}\n" for line in revisions).encode(),
            limit_bytes=MAX_BUNDLE_BYTES,
        )


def _problem(left_out: Sequence[bytes], embedded: Sequence[bytes]) -> str:
    words = []
    if left_out:
        words.append(f"Files that cannot be read are not as the child left them: {some(left_out)}.")
    if embedded:
        words.append(f"Repositories inside the checkout were left out: {some(embedded)}.")
    return " ".join(words)
