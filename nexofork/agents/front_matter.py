"""Read a Markdown file that begins with a few keys between two lines of ``---``.

A small part of YAML, read by hand: every value keeps its line, so that whoever mistyped it is told where. Text, numbers
and lists are all there is; what looks like more of YAML is refused rather than misread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from nexofork.errors import BadAgentDefinition

__all__ = ["Entry", "FrontMatter", "read_front_matter"]

_FENCE = "---"
_QUOTES = ('"', "'")
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<text>.*?)(?P=quote)(?:\s+#.*)?""")
_LIST = re.compile(r"\[(?P<items>.*?)\](?:\s+#.*)?")
_COMMENT = re.compile(r"(?<!\s)\s++#")
_FOREIGN = ("{", "&", "!", "%", "@", "`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key's value."""

    value: str | tuple[str, ...]
    """Text without its quotes; a tuple where it was written as a list."""
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontMatter:
    """A file's keys, and the text behind them."""

    entries: dict[str, Entry]
    body: str


def read_front_matter(text: str, *, where: str) -> FrontMatter:
    """Read a file's text.

    Args:
        text: What the file holds.
        where: The file, for messages.

    Raises:
        BadAgentDefinition: The keys cannot be read; it names the line.
    """
    lines = text.removeprefix("\ufeff").split("\n")
    if lines[0].rstrip() != _FENCE:
        raise BadAgentDefinition(
            "the file does not begin with front matter",
            fix="Begin with a line of ---, then keys such as `description: …`, then another line of ---.",
            where=where,
            line=1,
        )
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise BadAgentDefinition(
            "the front matter has no end", fix="Close it with a line of ---.", where=where, line=len(lines)
        )
    return FrontMatter(entries=_Keys(lines[1:end], where).read(), body="\n".join(lines[end + 1 :]).strip())


class _Keys:
    """The lines between the fences."""

    def __init__(self, lines: list[str], where: str) -> None:
        self._lines = [line.rstrip() for line in lines]
        self._where = where
        self._at = 0

    def read(self) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        while self._at < len(self._lines):
            line = self._lines[self._at]
            number = self._at + 2  # counted from 1, behind the first fence
            self._at += 1
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key, colon, rest = line.partition(":")
            if not colon or key != key.strip() or not key or (rest and not rest[0].isspace()):
                raise self._bad(f"{line.strip()[:60]!r} is no `key: value`", "Write one key per line.", number)
            if key in entries:
                said = f"stands here and in line {entries[key].line}"
                raise self._bad(said, "Keep one of the two.", number, key)
            entries[key] = Entry(value=self._value(rest.strip(), number, key), line=number)
        return entries

    def _value(self, text: str, number: int, key: str) -> str | tuple[str, ...]:
        if text in (">", "|", ">-", "|-"):
            return ("\n" if text[0] == "|" else " ").join(self._indented())
        if not text or text.startswith("#"):
            return self._items(key) or ""  # an empty list has to be written as one
        if text.startswith("["):
            return self._listed(text, number, key)
        if text.startswith(_FOREIGN):
            raise self._bad(f"{text[:60]!r} is more than a text", "Put it in quotes.", number, key)
        return self._scalar(text, number, key)

    def _scalar(self, text: str, number: int, key: str) -> str:
        """Return a text without its quotes, or without the comment behind it."""
        if quoted := _QUOTED.fullmatch(text):
            return quoted["text"]
        if text[:1] in _QUOTES:
            raise self._bad(f"{text[:60]!r} has only one of its quotes", "Close it, or leave both out.", number, key)
        return _COMMENT.split(text)[0]

    def _listed(self, text: str, number: int, key: str) -> tuple[str, ...]:
        found = _LIST.fullmatch(text)
        items = [item.strip() for item in found["items"].split(",")] if found else []
        if found is None or any(_COMMENT.search(item) and item[0] not in _QUOTES for item in items):
            raise self._bad("has a list without its ]", "Write it on one line: [one, two].", number, key)
        return tuple(self._scalar(item, number, key) if item else "" for item in items) if items != [""] else ()

    def _indented(self) -> list[str]:
        taken = []
        while self._at < len(self._lines) and (not self._lines[self._at] or self._lines[self._at][0].isspace()):
            taken.append(self._lines[self._at].strip())
            self._at += 1
        return taken

    def _items(self, key: str) -> tuple[str, ...]:
        items = []
        while self._at < len(self._lines) and self._lines[self._at].lstrip().startswith("- "):
            text = self._lines[self._at].lstrip()[2:].strip()
            self._at += 1
            items.append("" if text.startswith("#") else self._scalar(text, self._at + 1, key))
        return tuple(items)

    def _bad(self, problem: str, fix: str, line: int, key: str | None = None) -> BadAgentDefinition:
        return BadAgentDefinition(problem, fix=fix, where=self._where, line=line, key=key)
