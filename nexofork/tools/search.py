"""The ``Glob`` and ``Grep`` tools: find files by name and lines by pattern.

Both run as programs that can be killed: a pattern may take for ever, a tree may be endless. ``Grep`` uses ripgrep where
the host has it, else `scan`, which prints the same. Every file is looked at, hidden and ignored ones too, except what
is called ``.git``; links are not followed on the way. The program
opens the root by its canonical path: a folder above it that becomes a link after the filter's word is followed, which
only a sandbox holds. In one, our own program is given as text and the interpreter is mounted beside the run's files.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.tools.arguments import Arguments, Unable
from nexofork.tools.dispatch import ToolOutcome, judged
from nexofork.tools.file_read import refuse_pictures
from nexofork.tools.named_file import KERNEL_FOLDERS, explained, find_path, folder_of, opened
from nexofork.tools.process import Limits, Output, run_command
from nexofork.tools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from nexofork.sandbox.mounts import View
    from nexofork.sandbox.run_sandbox import Enclosure
    from nexofork.tools.dispatch import ToolCall
    from nexofork.tools.process import Ended

__all__ = ["SearchTools"]

_SCAN = Path(__file__).with_name("scan.py")
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PLAIN = ("-I", "-W", "ignore")
_NAMES = 1_000
_LINES = 1_000
_ANSWER_BYTES = 150_000
_LINE_BYTES = 1_000
_ERROR_BYTES = 4_000
_MODES = ("files_with_matches", "content", "count")
_MAGIC = frozenset("*?[{\\")


def _find_ripgrep() -> str | None:
    return shutil.which("rg", path=_PATH)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTools:
    """The tools that look for files and for what is in them."""

    cwd: Path | None = None
    """Where relative paths start; None is where the daemon runs."""
    sandbox: Enclosure | None = None
    """What may be searched; None is all that the daemon's user may."""
    view: View | None = None
    """How to read paths without a sandbox; None is as they stand."""
    ripgrep: str | None = field(default_factory=_find_ripgrep)
    """The program to search with; None is our own."""
    limits: Limits = field(default_factory=lambda: Limits(time_s=30.0, memory_bytes=1024**3))

    async def glob(self, call: ToolCall) -> ToolOutcome:
        """``{"pattern": …, "path": …}``: the files whose path matches, the newest first."""
        arguments = Arguments("Glob", call.input)
        given, pattern = _split(arguments.optional_text("path") or "", arguments.argument("pattern"))
        root = await self._root(call, given)
        if not root.is_folder:
            raise Unable(f"{root.path} is not a directory; give one as `path`.")
        order = {"mode": "glob", "root": root.path, "pattern": pattern, "limit": _NAMES}
        output, errors = _Lines(_NAMES), Output(_ERROR_BYTES)
        ended = await self._run(self._scan(order), root.path, output, errors)
        if ended.code == 2:
            raise Unable(f"Glob cannot use this pattern: {_first(errors)}")
        if not output.lines:
            return ToolOutcome(content=f"No file in {root.path} matches.")
        return ToolOutcome(content="\n".join([*output.lines, *_notes(errors), *output.notes("paths")]))

    async def grep(self, call: ToolCall) -> ToolOutcome:
        """``{"pattern": …, "path": …, "glob": …, "type": …, "output_mode": …, "-i": …, "-n": …, "-A": …, …}``."""
        arguments = Arguments("Grep", call.input)
        order = _grep_order(arguments)
        limit = arguments.count("head_limit", default=_LINES) or _LINES
        root = await self._root(call, arguments.optional_text("path") or "")
        order["root"] = root.path
        output, errors = _Lines(limit), Output(_ERROR_BYTES)
        # To ripgrep a glob outweighs a type; both are meant to hold.
        ripgrep = None if order["glob"] and order["type"] else self.ripgrep
        argv = self._scan(order) if ripgrep is None else _ripgrep(ripgrep, order)
        ended = await self._run(argv, root.path if root.is_folder else os.path.dirname(root.path), output, errors)
        if ended.code not in (0, 1) and not ended.enough and not output.lines:
            raise Unable(f"Grep could not search: {errors.text().strip() or f'it ended with {ended.code}'}")
        if not output.lines:
            return ToolOutcome(content=f"Nothing in {root.path} matches.")
        return ToolOutcome(content="\n".join([*output.lines, *_notes(errors), *output.notes("lines")]))

    async def _root(self, call: ToolCall, given: str) -> _Root:
        root = await in_thread(lambda _: self._found(given or "."), limit_s=self.limits.time_s)
        if denial := await judged(call.deny, call.name, {**call.input, "path": root.path}):
            raise Unable(f"{call.name} was not run: {denial}")
        return root

    def _found(self, given: str) -> _Root:
        path = find_path(given, cwd=self.cwd, sandbox=self.sandbox, view=self.view)
        try:
            is_folder = stat.S_ISDIR(os.stat(path.real, follow_symlinks=False).st_mode)
            if not is_folder:
                with folder_of(path) as folder, opened(path, folder) as descriptor:
                    refuse_pictures(path, os.pread(descriptor, 64 * 1024, 0))
        except OSError as exc:
            raise explained(path, exc) from exc
        return _Root(path.shown, is_folder)

    def _scan(self, order: dict[str, Any]) -> Sequence[str]:
        if self.sandbox is None:
            return (sys.executable, *_PLAIN, str(_SCAN), json.dumps(order))
        interpreter = os.path.realpath(sys.executable)
        return (interpreter, *_PLAIN, "-c", _source(), json.dumps({**order, "skipped": self._interpreter()}))

    def _interpreter(self) -> list[str]:
        """Where the interpreter is, if that is not to be seen in the sandbox anyway."""
        folder = os.path.realpath(sys.base_prefix)
        return [] if self.sandbox is None or self.sandbox.sees(folder) else [folder]

    async def _run(self, argv: Sequence[str], cwd: str, output: _Lines, errors: Output) -> Ended:
        try:
            ended = await run_command(
                argv,
                output=output,
                errors=errors,
                cwd=cwd,
                limits=self.limits,
                sandbox=self.sandbox,
                readable=self._interpreter() if argv[0] != self.ripgrep else (),
            )
        except (OSError, ValueError) as exc:
            raise Unable(f"The search could not be started: {exc}") from exc
        output.end()
        if ended.killed is not None:
            raise Unable(f"The search was ended: {ended.killed}. Narrow `path` or the pattern.")
        return ended


@dataclass(frozen=True, slots=True)
class _Root:
    """Where a search starts."""

    path: str
    is_folder: bool


@cache
def _source() -> str:
    return _SCAN.read_text()


class _Lines:
    """Keeps the first lines, each up to a length, and wants no more when there are enough."""

    def __init__(self, limit: int) -> None:
        self.lines: list[str] = []
        self._limit = limit
        self._line = bytearray()
        self._room = _ANSWER_BYTES
        self._cut = False
        self._full = False

    def add(self, chunk: bytes) -> bool:
        """Take a piece of the output."""
        *whole, rest = chunk.split(b"\n")
        for part in whole:
            self._extend(part)
            if not self._close():
                return False
        self._extend(rest)
        return True

    def end(self) -> None:
        """Take what the output ended with."""
        if self._line:
            self._close()

    def notes(self, what: str) -> list[str]:
        """What is not shown."""
        notes = [f"[lines of more than {_LINE_BYTES} bytes were cut]"] if self._cut else []
        if self._full:
            notes.append(f"[only the first {len(self.lines)} {what} are shown; narrow the search to see others]")
        return notes

    def _extend(self, part: bytes) -> None:
        room = _LINE_BYTES - len(self._line)
        self._line += part[: max(room, 0)]
        self._cut = self._cut or len(part) > room

    def _close(self) -> bool:
        if self._full or len(self.lines) >= self._limit or self._room <= 0:
            self._full = True
            return False
        # ripgrep ends its own lines like those of a file with CRLF.
        self.lines.append(self._line.removesuffix(b"\r").decode("utf-8", "replace"))
        self._room -= len(self._line) + 1
        self._line.clear()
        return True


def _grep_order(arguments: Arguments) -> dict[str, Any]:
    around = arguments.count("-C", "context", default=0)
    return {
        "mode": "grep",
        "pattern": arguments.argument("pattern"),
        "glob": arguments.optional_text("glob"),
        "type": arguments.optional_text("type"),
        "output_mode": arguments.choice("output_mode", _MODES),
        "ignore_case": arguments.flag("-i"),
        "line_numbers": arguments.flag("-n", default=True),
        "before": min(arguments.count("-B", default=around), _LINES),
        "after": min(arguments.count("-A", default=around), _LINES),
        "multiline": arguments.flag("multiline"),
    }


def _ripgrep(program: str, order: dict[str, Any]) -> list[str]:
    argv = [program, "--no-config", "--hidden", "--no-ignore", "--color=never", "--no-heading", "--with-filename"]
    argv += ["--no-mmap", "--crlf", "--sort=path"]
    # Values stand alone: behind `=`, ripgrep 13 takes off further equals signs.
    argv += [f"--glob={order['glob']}"] if order["glob"] else []
    # The last glob that matches decides.
    argv += ["--glob=!.git", *(f"--glob=!{path}" for path in KERNEL_FOLDERS if order["root"] == "/")]
    argv += [f"--type={order['type']}"] if order["type"] else []
    argv += ["--ignore-case"] if order["ignore_case"] else []
    argv += ["--multiline", "--multiline-dotall"] if order["multiline"] else []
    match order["output_mode"]:
        case "files_with_matches":
            argv.append("--files-with-matches")
        case "count":
            argv.append("--count")
        case _:
            argv.append("--line-number" if order["line_numbers"] else "--no-line-number")
            argv += [f"--before-context={order['before']}", f"--after-context={order['after']}"]
    return [*argv, "--regexp", order["pattern"], "--", order["root"]]


def _split(path: str, pattern: str) -> tuple[str, str]:
    """Move the folders that a pattern names without a wildcard to the path; the rest starts there.

    Raises:
        Unable: The pattern goes back up behind a wildcard.
    """
    *folders, name = pattern.split("/")
    plain = next((at for at, part in enumerate(folders) if _MAGIC & set(part)), len(folders))
    if ".." in (*folders[plain:], name):
        raise Unable("Glob cannot go up with `..` behind a wildcard; give the folder as `path`.")
    if not folders:
        return path, pattern
    start = "/".join(folders[:plain]) or ("/" if plain else "")
    return os.path.join(path, start), "/" + "/".join([*folders[plain:], name])


def _first(errors: Output) -> str:
    return errors.text().strip().partition("\n")[0].removeprefix("error: ")


def _notes(errors: Output) -> list[str]:
    """What could not be searched, or was found beyond the limit."""
    return [f"[{line}]" for line in errors.text().splitlines()[:5]]
