"""Run git with no configuration but ours, and make repositories by hand.

What a repository, a user or a host has set must not change what is captured, and must never run code: no hooks, no
filters, no helpers, no prompts. Each command runs in a process group of its own, with a time limit, and is ended when
its caller is cancelled.

A few files are a repository, and no program has to run to write them. Objects of others are borrowed (alternates), so
nothing is copied and nothing that is borrowed is written to.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.errors import ForkRefused, NexoforkError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Git", "GitFailed", "GitTooLarge", "alternates", "git_in", "make_repository", "take_pack"]

_CHUNK_BYTES = 1 << 18
_SAFE = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false"),
    *("-c", "commit.gpgSign=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "safe.directory=*"),
    *("-c", "core.attributesFile=/dev/null", "-c", "core.excludesFile=/dev/null", "-c", "core.quotePath=false"),
    *("-c", "protocol.allow=never", "-c", "submodule.recurse=false", "-c", "checkout.workers=0"),
    *(
        "-c",
        "checkout.thresholdForParallelism=200",
        "-c",
        "core.sparseCheckout=false",
        "-c",
        "core.bigFileThreshold=64m",
    ),
)
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_AUTHOR_NAME": "nexofork",
    "GIT_AUTHOR_EMAIL": "nexofork@localhost",
    "GIT_COMMITTER_NAME": "nexofork",
    "GIT_COMMITTER_EMAIL": "nexofork@localhost",
}
_PLAIN = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = {bare}\n\tlogallrefupdates = {logged}\n"
# Paths are what can do harm; what old commits say about their authors cannot.
_HISTORICAL = ",".join(
    f"{problem}=ignore"
    for problem in (
        *("badDate", "badDateOverflow", "badEmail", "badName", "badTimezone", "missingAuthor", "missingCommitter"),
        *("missingEmail", "missingNameBeforeEmail", "missingSpaceBeforeDate", "missingSpaceBeforeEmail"),
        *("multipleAuthors", "zeroPaddedDate", "zeroPaddedFilemode"),
    )
)


class GitFailed(NexoforkError):
    """A git command did not do what it was asked to."""

    def __init__(self, command: str, said: str, *, code: int = -1) -> None:
        self.command = command
        self.said = said
        """What git said, or why it was ended."""
        self.code = code
        """What it ended with; below zero where it was ended."""
        self.full = "No space left" in said
        full = " The disk is full." if self.full else ""
        super().__init__(f"git {command} failed: {said or f'it ended with {code}'}.{full}")


class GitTooLarge(GitFailed):
    """It gave more than anybody may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Git:
    """Git on one repository."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Beyond the constant one: which repository, index and files."""
    cwd: str | Path = "/"
    settings: tuple[str, ...] = ()
    """Further ``-c`` options."""
    time_s: float = 300.0
    """The longest that a command may take."""
    users: bool = False
    """Whether it is git as its user has configured it; for reading those settings alone."""

    async def run(
        self, *arguments: str | bytes, stdin: bytes = b"", limit_bytes: int = 1 << 30, also: tuple[int, ...] = ()
    ) -> bytes:
        """Run a command and return what it prints.

        Args:
            *arguments: The command.
            stdin: What it reads.
            limit_bytes: The most it may print.
            also: Exit codes that are no failure besides 0.

        Raises:
            GitFailed: It failed, took too long, or printed more than it may.
            ForkRefused: There is no git.
        """
        program = shutil.which("git")
        if program is None:
            raise ForkRefused("There is no git on this host; install it, or fork without a git workspace.")
        name = os.fsdecode(arguments[0])
        process = await asyncio.create_subprocess_exec(
            *(program, *(() if self.users else _SAFE), *self.settings, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.cwd,
            env=None if self.users else {**_ENVIRONMENT, **self.environment},
            start_new_session=True,
            limit=_CHUNK_BYTES,
        )
        try:
            async with asyncio.timeout(self.time_s):
                printed, said = await _talk(process, stdin, limit_bytes)
        except TimeoutError:
            raise GitFailed(name, f"it took longer than {self.time_s:g} s") from None
        except _TooMuch:
            raise GitTooLarge(name, f"it gave more than {limit_bytes} bytes") from None
        finally:
            await _ended(process)
        assert process.returncode is not None, "it was waited for"
        if process.returncode not in (0, *also):
            raise GitFailed(name, _sentence(said), code=process.returncode)
        return printed


class _TooMuch(Exception):
    pass


async def _talk(process: asyncio.subprocess.Process, stdin: bytes, limit: int) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    printed, said = bytearray(), bytearray()
    surplus = False

    async def feed(to: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            view = memoryview(stdin)
            for start in range(0, len(view), _CHUNK_BYTES):
                to.write(view[start : start + _CHUNK_BYTES])
                await to.drain()
        to.close()
        with suppress(ConnectionError):
            await to.wait_closed()

    async def read(stream: asyncio.StreamReader, into: bytearray, most: int) -> None:
        nonlocal surplus
        while chunk := await stream.read(_CHUNK_BYTES):
            into += chunk
            if len(into) > most:
                surplus = surplus or into is printed
                _kill(process)
                return

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(feed(process.stdin))
        tasks.create_task(read(process.stdout, printed, limit))
        tasks.create_task(read(process.stderr, said, 1 << 20))
    if surplus:
        raise _TooMuch
    await process.wait()
    return bytes(printed), bytes(said)


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        _kill(process)
        await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _sentence(said: bytes) -> str:
    lines = [line for line in said.decode("utf-8", "backslashreplace").splitlines() if not line.startswith("hint:")]
    return "; ".join(line.removeprefix("fatal: ").removeprefix("error: ") for line in lines[:5]).rstrip(".")[:1000]


def make_repository(
    folder: Path,
    *,
    head: str,
    borrow: Sequence[Path] = (),
    shallow: Sequence[str] = (),
    bare: bool = True,
    config: str = "",
) -> None:
    """Write a repository without objects of its own.

    Args:
        folder: Where; it must not be there yet.
        head: What HEAD says: a commit, or ``ref: …``.
        borrow: Folders of objects it reads from.
        shallow: Commits whose parents are not to be had.
        bare: Whether it has no files.
        config: Further lines of its configuration.
    """
    for part in ("objects/info", "objects/pack", "refs/heads", "info"):
        (folder / part).mkdir(parents=True)
    plain = _PLAIN.format(bare=str(bare).lower(), logged=str(not bare).lower())
    (folder / "config").write_text(plain + config)
    (folder / "HEAD").write_text(f"{head}\n")
    if borrow:
        (folder / "objects/info/alternates").write_bytes(alternates(borrow))
    if shallow:
        (folder / "shallow").write_text("".join(f"{commit}\n" for commit in shallow))


def alternates(borrow: Sequence[Path]) -> bytes:
    """Return what a repository's ``objects/info/alternates`` says where it reads from other folders of objects."""
    return b"".join(os.fsencode(path) + b"\n" for path in borrow)


def git_in(folder: Path, *, files: Path | None = None, index: Path | None = None) -> Git:
    """Return git on a repository, wherever its files and its index are."""
    environment = {"GIT_DIR": os.fspath(folder)}
    if files is not None:
        environment["GIT_WORK_TREE"] = os.fspath(files)
    if index is not None:
        environment["GIT_INDEX_FILE"] = os.fspath(index)
    return Git(environment=environment, cwd=files or folder)


async def take_pack(git: Git, pack: bytes) -> None:
    """Store a pack that somebody sent; every object is checked, and everything it leads to must be there.

    Raises:
        GitFailed: It is damaged, leads nowhere, or holds something that no repository may, such as a path with ``..``.
    """
    await git.run("index-pack", "--stdin", "--fix-thin", f"--strict={_HISTORICAL}", stdin=pack)
