"""Walk a tree and find names or lines; a program of its own, so that a bad pattern can be killed.

Run as ``python -I scan.py ORDER`` with a JSON object. Prints what it finds as ripgrep would, and ends as it does: 0
with and 1 without a find, 2 if the order is wrong. Imports nothing of the project, so that it starts quickly.

Every file counts, hidden and ignored ones too, except what is called ``.git``. Links are not followed on the way. A
glob without a slash is for names in any folder; with one it starts at the root.
"""

from __future__ import annotations

import heapq
import json
import os
import re
import stat
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["TYPES", "glob_regex"]

_HEAD_BYTES = 64 * 1024
_WHOLE_BYTES = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_SKIPPED = {"/proc", "/sys", "/dev"}

TYPES = {
    "c": "*.{c,h}",
    "cpp": "*.{cpp,cc,cxx,C,hpp,hh,hxx,h,H,inl}",
    "css": "*.{css,scss}",
    "go": "*.go",
    "html": "*.{htm,html}",
    "java": "*.java",
    "js": "*.{js,jsx,mjs,cjs,vue}",
    "json": "*.json",
    "md": "*.{md,markdown,mdx,mkd}",
    "py": "*.{py,pyi}",
    "ruby": "*.{rb,gemspec}",
    "rust": "*.rs",
    "sh": "*.{sh,bash,zsh,ksh}",
    "sql": "*.{sql,psql}",
    "toml": "*.toml",
    "ts": "*.{ts,tsx,cts,mts}",
    "txt": "*.txt",
    "yaml": "*.{yaml,yml}",
}
"""File types by ripgrep's names, for hosts that do not have it."""


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Return what matches the paths, relative to the root, that a glob is for.

    Raises:
        ValueError: The glob is not well formed.
    """
    anchored = "/" in pattern.rstrip("/")
    source = "" if anchored else "(?:.*/)?"
    rest = pattern.lstrip("/") if anchored else pattern
    depth, at = 0, 0
    while at < len(rest):
        start = at == 0 or rest[at - 1] == "/"
        if start and rest.startswith("**/", at):
            source, at = source + "(?:.*/)?", at + 3
        elif start and rest[at:] == "**":
            source, at = source + ".*", at + 2
        elif rest[at] == "[":
            part, at = _character_class(rest, at)
            source += part
        elif rest[at] == "\\" and at + 1 < len(rest):
            source, at = source + re.escape(rest[at + 1]), at + 2
        else:
            part, depth = _one(rest[at], depth)
            source, at = source + part, at + 1
    if depth:
        raise ValueError("a brace is not closed")
    try:
        return re.compile(source, re.DOTALL)
    except re.error as exc:
        raise ValueError(str(exc)) from exc


def _one(char: str, depth: int) -> tuple[str, int]:
    if char == "{":
        return "(?:", depth + 1
    if char == "}" and depth:
        return ")", depth - 1
    if char == "," and depth:
        return "|", depth
    return {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)), depth


def _character_class(pattern: str, at: int) -> tuple[str, int]:
    negated = pattern[at + 1 : at + 2] in ("!", "^") and pattern[at + 1 : at + 2] != ""
    first = at + 1 + negated
    end = pattern.find("]", first + 1)
    if end < 0:
        raise ValueError("a bracket is not closed")
    inside = re.sub(r"(.)-(.)|.", _escaped_range, pattern[first:end], flags=re.DOTALL)
    return f"(?!/)[{'^' if negated else ''}{inside}]", end + 1


def _escaped_range(found: re.Match[str]) -> str:
    return "-".join(map(re.escape, found.groups())) if found[1] else re.escape(found[0])


def _walk(root: str, depth: int | None = None) -> Iterator[os.DirEntry[str]]:
    """Yield what is up to so deep in a folder, names in order; a folder that cannot be read is said and passed over."""
    try:
        with os.scandir(root) as found:
            entries = sorted(found, key=lambda entry: os.fsencode(entry.name))
    except OSError as exc:
        _complain(root, exc)
        return
    for entry in entries:
        if entry.name == ".git" or entry.path in _SKIPPED:
            continue
        if entry.is_dir(follow_symlinks=False):
            if depth is None or depth > 0:
                yield from _walk(entry.path, None if depth is None else depth - 1)
        else:
            yield entry


def _complain(path: str, problem: OSError | str) -> None:
    said = problem if isinstance(problem, str) else problem.strerror
    sys.stderr.buffer.write(os.fsencode(path) + f": {said}\n".encode())


def _relative(path: str, root: str) -> str:
    return path[len(root.rstrip("/")) + 1 :]


def _glob(order: dict[str, Any]) -> bool:
    """Print the newest of the paths that match, and how many there are on the error stream."""
    root, pattern = order["root"], order["pattern"]
    wanted, found = glob_regex(pattern), 0
    depth = pattern.count("/") - 1 if pattern.startswith("/") and "**" not in pattern and "{" not in pattern else None
    newest: list[tuple[int, str]] = []
    for entry in _walk(root, depth):
        if not wanted.fullmatch(_relative(entry.path, root)) or not entry.is_file():
            continue
        found += 1
        try:
            changed = entry.stat(follow_symlinks=False).st_mtime_ns
        except OSError:
            continue
        push = heapq.heappush if len(newest) < order["limit"] else heapq.heappushpop
        push(newest, (changed, entry.path))
    for _, path in sorted(newest, key=lambda item: (-item[0], item[1])):
        sys.stdout.buffer.write(os.fsencode(path.replace("\n", "\\n")) + b"\n")
    if found > len(newest):
        _complain(root, f"{len(newest)} of {found} shown")
    return found > 0


def _files(order: dict[str, Any]) -> Iterator[str]:
    root = order["root"]
    if not os.path.isdir(root):
        yield root
        return
    globs = [glob_regex(order["glob"])] if order.get("glob") else []
    globs += [glob_regex(TYPES[order["type"]])] if order.get("type") else []
    for entry in _walk(root):
        name = _relative(entry.path, root)
        if entry.is_file(follow_symlinks=False) and all(glob.fullmatch(name) for glob in globs):
            yield entry.path


class _Grep:
    """Prints what a pattern finds in files."""

    def __init__(self, order: dict[str, Any]) -> None:
        flags = re.IGNORECASE if order["ignore_case"] else 0
        self._multiline = bool(order["multiline"])
        if self._multiline:
            flags |= re.DOTALL | re.MULTILINE
        elif "\n" in order["pattern"] or r"\n" in order["pattern"]:
            raise ValueError("a line feed is not allowed in the pattern without `multiline`")
        self._pattern = re.compile(order["pattern"], flags)
        self._mode = order["output_mode"]
        self._numbers = order["line_numbers"]
        self._before, self._after = order["before"], order["after"]
        self._groups = 0

    def search(self, path: str) -> bool:
        """Whether anything was found."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return False
            head = file.read(_HEAD_BYTES)
            if b"\0" in head:
                return False
            file.seek(len(_BOM) if head.startswith(_BOM) else 0)
            if not self._multiline:
                return self._print(path, ((line, self._matches(line)) for line in file))
            if os.fstat(descriptor).st_size > _WHOLE_BYTES:
                _complain(path, "too large for `multiline`")
                return False
            return self._print(path, self._spans(file.read()))

    def _matches(self, line: bytes) -> bool:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")
        return self._pattern.search(text) is not None

    def _spans(self, data: bytes) -> list[tuple[bytes, bool]]:
        text = data.decode("utf-8", "surrogateescape")
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        found: set[int] = set()
        number, at = 0, 0
        for match in self._pattern.finditer(text):
            number, at = number + text.count("\n", at, match.start()), match.start()
            last = number + text.count("\n", at, max(at, match.end() - 1))
            found.update(range(number, last + 1))
        return [(line.encode("utf-8", "surrogateescape") + b"\n", index in found) for index, line in enumerate(lines)]

    def _print(self, path: str, lines: Iterable[tuple[bytes, bool]]) -> bool:
        out, name = sys.stdout.buffer, os.fsencode(path)
        if self._mode == "files_with_matches":
            found = any(matched for _, matched in lines)
            if found:
                out.write(name + b"\n")
            return found
        if self._mode == "count":
            count = sum(matched for _, matched in lines)
            if count:
                out.write(name + f":{count}\n".encode())
            return count > 0
        return self._content(name, lines)

    def _content(self, name: bytes, lines: Iterable[tuple[bytes, bool]]) -> bool:
        waiting: deque[tuple[int, bytes]] = deque(maxlen=self._before)
        shown, open_until, found = 0, 0, False
        for number, (line, matched) in enumerate(lines, start=1):
            if matched:
                found = True
                first = waiting[0][0] if waiting else number
                if ((self._before or self._after) and first != shown + 1) or not shown:
                    self._separate()
                for earlier in waiting:
                    self._line(name, *earlier, b"-")
                waiting.clear()
                self._line(name, number, line, b":")
                shown, open_until = number, number + self._after
            elif number <= open_until:
                self._line(name, number, line, b"-")
                shown = number
            else:
                waiting.append((number, line))
        return found

    def _separate(self) -> None:
        if self._groups and (self._before or self._after):
            sys.stdout.buffer.write(b"--\n")
        self._groups += 1

    def _line(self, name: bytes, number: int, line: bytes, mark: bytes) -> None:
        numbered = str(number).encode() + mark if self._numbers else b""
        sys.stdout.buffer.write(name + mark + numbered + line.removesuffix(b"\n") + b"\n")


def _grep(order: dict[str, Any]) -> bool:
    if order.get("type") and order["type"] not in TYPES:
        raise ValueError(f"there is no file type {order['type']!r}; known are {', '.join(sorted(TYPES))}")
    grep, found = _Grep(order), False
    for path in _files(order):
        try:
            found = grep.search(path) or found
        except OSError as exc:
            _complain(path, exc)
        except MemoryError:
            _complain(path, "it has a line that is too long")
    return found


def main() -> int:
    """Do what the order says and return the exit code."""
    sys.setrecursionlimit(10_000)
    order = json.loads(sys.argv[1])
    _SKIPPED.update(order.get("skipped", ()))
    try:
        found = (_glob if order["mode"] == "glob" else _grep)(order)
    except (ValueError, re.error, RecursionError, OverflowError) as exc:
        sys.stderr.write(f"error: {exc}\n")
        return 2
    return 0 if found else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
