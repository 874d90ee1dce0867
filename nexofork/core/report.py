"""Read a child's report. Models bend formats, so reading is tolerant and the raw text is always kept."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "parse_report"]

_FIELDS = {
    "scope": "scope",
    "result": "result",
    "key files": "key_files",
    "files changed": "files_changed",
    "issues": "issues",
}
_HEADING = re.compile(
    r"^[\s>#*_-]*(scope|result|key files|files changed|issues)[\s*_]*:(?:[*_]+(?=\s|$))?\s*(.*)$", re.IGNORECASE
)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_NOTHING = frozenset({"", "none", "n/a", "na", "nothing", "-"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a child reported."""

    raw: str
    """The text as it came."""
    scope: str = ""
    result: str = ""
    key_files: tuple[str, ...] = ()
    files_changed: tuple[str, ...] = ()
    issues: tuple[str, ...] = ()

    @property
    def well_formed(self) -> bool:
        """Whether the report begins with its scope and says a result, as it was asked to."""
        return bool(self.scope and self.result) and self.raw.lstrip().lower().startswith("scope:")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "scope": self.scope,
            "result": self.result,
            "key_files": list(self.key_files),
            "files_changed": list(self.files_changed),
            "issues": list(self.issues),
        }


def parse_report(text: str) -> Report:
    """Read a report; never fails. A text without any heading is taken as the result."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        heading = _HEADING.match(line)
        if heading:
            current = sections.setdefault(_FIELDS[heading[1].lower()], [])
            line = heading[2]
        if current is not None:
            current.append(line)
    if not sections:
        return Report(raw=text, result=text.strip())
    return Report(
        raw=text,
        scope="\n".join(sections.get("scope", [])).strip(),
        result="\n".join(sections.get("result", [])).strip(),
        key_files=_listed(sections.get("key_files", [])),
        files_changed=_listed(sections.get("files_changed", [])),
        issues=_listed(sections.get("issues", []), by_comma=False),
    )


def _listed(lines: list[str], *, by_comma: bool = True) -> tuple[str, ...]:
    items: list[str] = []
    for line in lines:
        bulleted = _BULLET.match(line)
        text = _BULLET.sub("", line).strip()
        parts = [text] if bulleted or not by_comma else text.split(",")
        items += [part.strip().strip("`") for part in parts]
    return tuple(item for item in items if item.lower().rstrip(".") not in _NOTHING)
