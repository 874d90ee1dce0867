"""Capture a repository as it is now, without touching it.

Everything is written to a repository of our own that borrows the parent's objects, with a copy of its index: the
parent's ``.git`` stays as it is, byte for byte. What was not committed becomes one commit on top of HEAD, so that what
the child does later is told apart from it.

An index may leave out whole folders (a sparse index), and tell git not to look at files (``--assume-unchanged``,
``--skip-worktree``). Taken as it is, the first would count as removed and the others as they were once committed, so
the copy is made to say all that the parent's files are. Only the repository's own settings say how files are read, so
the result does not depend on who captures it. What the user ignores everywhere is left out too: it must not leave the
host.

Tree objects are built here and not by ``git write-tree``. Git marks objects that it finds as just used, by their time,
which would touch the parent's repository; without that repository git would write every tree anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
import zlib
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused
from nexofork.wire.ref_names import is_ref_name
from nexofork.workspace.bundle import Bundle, encode_bundle
from nexofork.workspace.changes import index_entries, list_files, some, write_changes
from nexofork.workspace.git import Git, GitFailed, GitTooLarge, git_in, make_repository
from nexofork.workspace.settings import default_ignore_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from nexofork.workspace.changes import Listing
    from nexofork.workspace.kinds import GitWorkspace

__all__ = [
    "MAX_BUNDLE_BYTES",
    "MAX_FILE_BYTES",
    "Captured",
    "ParentSettings",
    "Repository",
    "Trees",
    "build_trees",
    "capture_git",
    "copy_index",
    "expand_index",
    "locate",
    "look_at_all",
    "parent_settings",
    "store_tree",
]

MAX_FILE_BYTES = 64 << 20
"""The longest file that travels without having been committed."""
MAX_BUNDLE_BYTES = 240 << 20
"""The longest bundle; a blob may have 256 MB."""
BASE_REF = "refs/nexofork/base"
STATE_REF = "refs/nexofork/state"
SNAPSHOT_MESSAGE = "Uncommitted work of the parent at the fork"
_ASKED = 9
"""How many lines git prints of a repository; more where a path has several."""
_LINE_BREAK = "The repository at {!r}, or its .git, has a line break in its path; rename the folder."
_UNFINISHED = {
    "MERGE_HEAD": "merge",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
}
_SPARSE_MARK = b"sdir"
"""The extension by which an index says that some of its entries are folders."""
_FOLDER = b"040000"
_AS_SPARSE = ("-c", "core.sparseCheckout=true", "-c", "core.sparseCheckoutCone=true", "-c", "index.sparse=true")
_SHARED = ("autocrlf", "eol", "filemode", "safecrlf", "precomposeunicode")
_YES = ("true", "yes", "on", "1")
Trees = dict[str, bytes]
"""Object name to content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """Where a repository is, and what it stands at."""

    top: Path
    folder: str
    """Where the given folder is below the top."""
    git_dir: Path
    common_dir: Path
    shallow: tuple[str, ...]
    head: str
    head_tree: str
    branch: str

    @property
    def objects(self) -> Path:
        """The folder of its objects."""
        return self.common_dir / "objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A repository as it was at one moment; usable while its context is open."""

    repository: Repository
    commit: str
    """HEAD, or a commit on top of it with what was not committed."""
    notes: tuple[str, ...]
    """What could not be captured, in words for the child."""
    git: Git

    async def base_bundle(self, commit: str | None = None) -> bytes:
        """Return HEAD, or another commit, with its history.

        Raises:
            ForkRefused: It is too large to travel, or some of it is not here.
        """
        commit = commit or self.repository.head
        pack = await self._pack(f"{commit}\n", "--delta-base-offset", "--window=0")
        return encode_bundle(Bundle(pack=pack, refs={BASE_REF: commit}))

    async def thin_bundle(self, base: str) -> bytes | None:
        """Return what the commit needs beyond a base; None where it is the base.

        Raises:
            ForkRefused: It is too large to travel.
            GitFailed: The base is not here any more.
        """
        if self.commit == base:
            return None
        pack = await self._pack(f"{self.commit}\n^{base}\n", "--thin", "--delta-base-offset")
        return encode_bundle(Bundle(pack=pack, refs={STATE_REF: self.commit}, needs=(base,)))

    async def _pack(self, revisions: str, *options: str) -> bytes:
        try:
            return await self.git.run(
                *("pack-objects", "--revs", "--stdout", "-q", *options),
                stdin=revisions.encode(),
                limit_bytes=MAX_BUNDLE_BYTES,
            )
        except GitTooLarge as exc:
            raise ForkRefused(
                f"The repository {self.repository.top} takes more than {MAX_BUNDLE_BYTES >> 20} MB to send; "
                "fork from a shallow clone of it, or give the children a shared folder (PathWorkspace)."
            ) from exc


async def locate(root: str | os.PathLike[str]) -> Repository:
    """Find the repository that a folder is in.

    Raises:
        ForkRefused: There is none that could be captured; says why and what to do.
    """
    given = os.fspath(root)
    if not await asyncio.to_thread(os.path.isdir, given):
        raise ForkRefused(f"The workspace {given!r} is not a folder on this host; name one of the repository's.")
    if "\n" in await asyncio.to_thread(os.path.realpath, given):
        raise ForkRefused(_LINE_BREAK.format(given))
    asked = (
        *("--is-bare-repository", "--is-shallow-repository", "--show-object-format", "--absolute-git-dir"),
        *("--git-common-dir", "--show-toplevel", "--show-prefix", "HEAD^{commit}", "HEAD^{tree}"),
    )
    try:
        # The last of them fail where there is no work tree or no commit; what came before is printed all the same.
        printed = await Git(cwd=given).run("rev-parse", *asked, also=(128,))
    except GitFailed as exc:
        raise ForkRefused(f"The workspace {given!r} cannot be used: {exc.said}.") from exc
    return await asyncio.to_thread(_repository, given, os.fsdecode(printed).split("\n")[:-1])


def _repository(given: str, lines: Sequence[str]) -> Repository:
    if not lines:
        raise ForkRefused(f"The workspace {given!r} is not in a git repository; name a folder that is.")
    if lines[0] == "true":
        raise ForkRefused(f"The repository at {given!r} is bare and has no files; name a checkout of it.")
    if lines[2] != "sha1":
        raise ForkRefused(f"The repository at {given!r} names its objects by {lines[2]}; only sha1 ones can travel.")
    if len(lines) < 7:
        raise ForkRefused(f"{given!r} is inside a repository's .git, where there are no files; name its checkout.")
    if len(lines) < _ASKED:
        raise ForkRefused(f"The repository at {given!r} has no commit yet; make one, so that work can come back to it.")
    if len(lines) > _ASKED:
        raise ForkRefused(_LINE_BREAK.format(given))
    git_dir, common_dir = Path(lines[3]), Path(given, lines[4]).resolve()
    shallow = (common_dir / "shallow").read_text().split() if lines[1] == "true" else []
    return Repository(
        top=Path(lines[5]),
        folder=lines[6].rstrip("/"),
        git_dir=git_dir,
        common_dir=common_dir,
        shallow=tuple(shallow),
        head=lines[7],
        head_tree=lines[8],
        branch=_branch((git_dir / "HEAD").read_text(errors="surrogateescape").strip()),
    )


def _branch(symbolic: str) -> str:
    """Return the branch that HEAD is on; one whose name cannot travel counts as none."""
    name = symbolic.removeprefix("ref: refs/heads/")
    known = name != symbolic and name.isprintable() and is_ref_name(f"refs/heads/{name}")
    return name if known else ""


@asynccontextmanager
async def capture_git(workspace: GitWorkspace) -> AsyncIterator[Captured]:
    """Capture a repository; what was written on the way is removed when the context is left.

    Raises:
        ForkRefused: It cannot be captured; says why and what to do.
    """
    repository = await locate(workspace.root)
    scratch = Path(tempfile.mkdtemp(prefix="nexofork-capture-"))
    try:
        git = await _beside(repository, scratch / "git")
        try:
            settings = await parent_settings(repository.git_dir, repository.common_dir)
            yield await _captured(repository, git, settings, ignored=workspace.include_ignored)
        except GitFailed as exc:
            raise ForkRefused(f"The repository {repository.top} cannot be captured: {exc}") from exc
    finally:
        await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)


async def _captured(repository: Repository, git: Git, settings: ParentSettings, *, ignored: bool) -> Captured:
    if settings.partial:
        raise ForkRefused(
            f"The repository {repository.top} is a partial clone, and what it lacks cannot be sent; "
            "get it with `git fetch --refetch --no-filter`, or fork from a full clone."
        )
    git = replace(git, settings=settings.options)
    await expand_index(git, repository.objects)
    await look_at_all(git)
    listing = await list_files(git, ignored=ignored)
    _refuse(repository, listing)
    await write_changes(git, listing)
    root, trees = build_trees(await index_entries(git))
    # Only now may git see the parent's objects: it marks one that it would have written as just used, in its time.
    borrowing = replace(
        git, environment={**git.environment, "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fspath(repository.objects)}
    )
    commit = repository.head
    if root != repository.head_tree:
        await _store_missing(borrowing, trees)
        commit = await _commit(borrowing, root, repository.head)
    notes = tuple(_notes(repository, listing, settings))
    return Captured(repository=repository, commit=commit, notes=notes, git=borrowing)


async def _store_missing(git: Git, trees: Trees) -> None:
    asked = "".join(f"{oid}\n" for oid in trees).encode()
    printed = await git.run("cat-file", "--batch-check=%(objectname)", "--buffer", stdin=asked)
    missing = [line.split()[0].decode() for line in printed.splitlines() if line.endswith(b" missing")]
    objects = Path(git.environment["GIT_DIR"], "objects")

    def store() -> None:
        for oid in missing:
            store_tree(objects, oid, trees[oid])

    await asyncio.to_thread(store)


async def _commit(git: Git, tree: str, head: str) -> str:
    # The same files give the same commit, whoever captures them and when: children of one state share one bundle.
    at = (await git.run("show", "-s", "--format=%ct", head)).decode().strip()
    dates = {"GIT_AUTHOR_DATE": f"{at} +0000", "GIT_COMMITTER_DATE": f"{at} +0000"}
    dated = replace(git, environment={**git.environment, **dates})
    return (await dated.run("commit-tree", tree, "-p", head, "-m", SNAPSHOT_MESSAGE)).decode().strip()


async def _beside(repository: Repository, folder: Path) -> Git:
    """Make a repository that has a copy of the parent's index, and works on its files."""

    def write() -> None:
        make_repository(folder, head=repository.head, shallow=repository.shallow)
        copy_index(repository.git_dir, folder)
        for name in ("exclude", "attributes"):
            if (known := repository.common_dir / "info" / name).is_file():
                shutil.copyfile(known, folder / "info" / name)
        # Last, so that it counts: what a filter would make of a file is not what the parent sees.
        with (folder / "info/attributes").open("ab") as attributes:
            attributes.write(b"\n* -filter\n")

    await asyncio.to_thread(write)
    return git_in(folder, files=repository.top, index=folder / "index")


def _refuse(repository: Repository, listing: Listing) -> None:
    if listing.unmerged:
        raise ForkRefused(
            f"The repository {repository.top} is in the middle of a merge with conflicts ({some(listing.unmerged)}); "
            "resolve or abort it first."
        )
    for path, size in listing.sizes.items():
        if size > MAX_FILE_BYTES:
            raise ForkRefused(
                f"The uncommitted file {os.fsdecode(path)!r} has {size >> 20} MB and at most {MAX_FILE_BYTES >> 20} "
                "travel; ignore it, remove it, or give the children a shared folder (PathWorkspace)."
            )


def _notes(repository: Repository, listing: Listing, settings: ParentSettings) -> list[str]:
    notes = []
    if listing.submodules:
        notes.append(f"Submodules are empty here: {some(listing.submodules)}.")
    if listing.embedded:
        notes.append(f"Repositories inside the repository were left out: {some(listing.embedded)}.")
    if listing.sparse:
        notes.append("The parent's checkout is sparse; here all files are checked out.")
    if settings.crlf:
        notes.append("Lines end as they were committed here (LF); in the parent's checkout git makes that CRLF.")
    if repository.shallow:
        notes.append("The history is cut off, as in the parent's own clone.")
    if unfinished := next((what for name, what in _UNFINISHED.items() if (repository.git_dir / name).exists()), None):
        notes.append(f"The parent is in the middle of a {unfinished}; here its changes are simply there.")
    if _has_lfs(repository, listing.attributes):
        notes.append("Files kept by Git LFS are pointers here, not their contents.")
    return notes


def _has_lfs(repository: Repository, attributes: Sequence[bytes]) -> bool:
    for path in attributes:
        try:
            if b"filter=lfs" in Path(repository.top, os.fsdecode(path)).read_bytes():
                return True
        except OSError:
            continue
    return False


def copy_index(source: Path, target: Path) -> None:
    """Copy the index of a repository, and what it refers to."""
    if (source / "index").exists():
        # With its time: by that git tells which files may have changed since.
        shutil.copy2(source / "index", target / "index")
    for shared in source.glob("sharedindex.*"):
        shutil.copy2(shared, target)
    if (patterns := source / "info/sparse-checkout").is_file():
        shutil.copyfile(patterns, target / "info/sparse-checkout")


async def expand_index(git: Git, objects: Path) -> None:
    """Replace the folders of a sparse index by the files in them.

    Their trees are packed first, into the repository of the copy: with the parent's own objects in sight git would
    mark those as just used.

    Raises:
        GitFailed: A folder's tree is not there.
        ForkRefused: This git cannot do it.
    """
    if not await asyncio.to_thread(_is_sparse, git):
        return
    printed = await replace(git, settings=_AS_SPARSE).run("ls-files", "-z", "--stage", "--sparse")
    folders = [line.split(b" ")[1] for line in printed.split(b"\0") if line.startswith(_FOLDER)]
    if folders:
        borrowing = {**git.environment, "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.fspath(objects)}
        trees = await replace(git, environment=borrowing).run(
            *("pack-objects", "--revs", "--stdout", "-q", "--filter=blob:none"), stdin=b"\n".join(folders) + b"\n"
        )
        await git.run("index-pack", "--stdin", stdin=trees)
    await git.run("update-index", "--force-write-index")
    if await asyncio.to_thread(_is_sparse, git):
        raise ForkRefused(
            "The repository's index is sparse; run `git sparse-checkout reapply --no-sparse-index` first."
        )


def _is_sparse(git: Git) -> bool:
    index = git.environment["GIT_INDEX_FILE"]
    if not os.path.exists(index):
        return False
    with open(index, "rb") as file:
        return _SPARSE_MARK in file.read()


async def look_at_all(git: Git) -> None:
    """Have git look at every file that is there, whatever the index was told.

    Raises:
        GitFailed: Git cannot read it.
    """
    printed = await git.run("ls-files", "-z", "-v", "--cached")
    lines = [(line[:1], line[2:]) for line in printed.split(b"\0") if line]
    await _forget(git, "--no-assume-unchanged", [path for tag, path in lines if tag.islower()])
    skipped = [path for tag, path in lines if tag.upper() == b"S"]
    await _forget(git, "--no-skip-worktree", await asyncio.to_thread(_there, git, skipped))


def _there(git: Git, paths: Sequence[bytes]) -> list[bytes]:
    root = os.fsencode(git.cwd)
    return [path for path in paths if os.path.lexists(os.path.join(root, path))]


async def _forget(git: Git, what: str, paths: Sequence[bytes]) -> None:
    if paths:
        await git.run("update-index", what, "-z", "--stdin", stdin=b"".join(path + b"\0" for path in paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentSettings:
    """What a parent's git has been told."""

    options: tuple[str, ...]
    """For the git that captures."""
    crlf: bool
    """Whether files have other ends of lines in the parent's checkout than in its commits."""
    partial: bool
    """Whether it is a partial clone, which lacks some of its own objects."""


async def parent_settings(git_dir: Path, common_dir: Path) -> ParentSettings:
    """Read the settings of a repository and of whoever uses it; nothing that they name is run.

    Raises:
        GitFailed: They cannot be read.
    """
    users = Git(users=True, settings=(f"--git-dir={os.fspath(git_dir)}",))
    ignoring = os.fsdecode(await users.run("config", "-z", "--type=path", "--get", "core.excludesFile", also=(1,)))
    lines = _values(await users.run("config", "-z", "--get-regexp", r"^core\.(autocrlf|eol)$", also=(1,)))
    file = os.fspath(common_dir / "config")
    own = _values(await Git().run("config", "--file", file, "--no-includes", "--list", "-z", also=(1, 128)))
    shared = {f"core.{name}": own[f"core.{name}"] for name in _SHARED if f"core.{name}" in own}
    # An empty one was printed too: its user ignores nothing.
    chosen = {**shared, "core.excludesFile": ignoring.rstrip("\0") if ignoring else os.fspath(default_ignore_file())}
    return ParentSettings(
        options=tuple(word for name, value in chosen.items() for word in ("-c", f"{name}={value}")),
        crlf=lines.get("core.autocrlf", "").lower() in _YES or lines.get("core.eol") == "crlf",
        partial=any(name == "extensions.partialclone" or name.endswith(".promisor") for name in own),
    )


def _values(printed: bytes) -> dict[str, str]:
    """Return the last value of every setting; one without a value is on."""
    lines = (line.partition("\n") for line in os.fsdecode(printed).split("\0") if line)
    return {name: value if separator else "true" for name, separator, value in lines}


def build_trees(entries: Iterable[tuple[bytes, bytes, bytes]]) -> tuple[str, Trees]:
    """Return the name of the root tree, and all trees.

    Args:
        entries: Mode, object name in hex, and path of every file, in the index's order, which is that of trees too.
    """
    trees: Trees = {}
    open_: list[tuple[bytes, list[bytes]]] = [(b"", [])]
    """The folders from the root to where we are: name, and what they hold so far."""

    def close() -> str:
        name, lines = open_.pop()
        data = b"".join(lines)
        oid = hashlib.sha1(b"tree %d\0" % len(data) + data, usedforsecurity=False)
        trees[oid.hexdigest()] = data
        if open_:
            open_[-1][1].append(b"40000 " + name + b"\0" + oid.digest())
        return oid.hexdigest()

    for mode, hexed, path in entries:
        *folders, name = path.split(b"/")
        shared = 0
        while shared < min(len(folders), len(open_) - 1) and open_[shared + 1][0] == folders[shared]:
            shared += 1
        while len(open_) - 1 > shared:
            close()
        open_ += [(folder, []) for folder in folders[shared:]]
        open_[-1][1].append(mode + b" " + name + b"\0" + bytes.fromhex(hexed.decode()))
    while len(open_) > 1:
        close()
    return close(), trees


def store_tree(objects: Path, oid: str, data: bytes) -> None:
    """Write a tree into a folder of objects that nobody else uses."""
    folder = objects / oid[:2]
    folder.mkdir(exist_ok=True)
    (folder / oid[2:]).write_bytes(zlib.compress(b"tree %d\0" % len(data) + data, 1))
