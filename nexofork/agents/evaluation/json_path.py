"""Find a value in JSON by a path such as ``files[0].name``."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["NotThere", "find", "parse_answer", "parse_path"]

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)


class NotThere(Exception):
    """The path leads nowhere; the text says from where on."""


def parse_path(path: str) -> tuple[str | int, ...]:
    """Read a path; names are keys, numbers in brackets are places in a list, and ``$`` is the whole value.

    >>> parse_path("files[0].name")
    ('files', 0, 'name')

    Raises:
        ValueError: It is none.
    """
    rest = path.removeprefix("$")
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None or (found[1] and at > 0 and rest[at] != "."):
            raise ValueError(f"{path!r} is no path; write it as files[0].name")
        steps.append(found[1] if found[2] is None else int(found[2]))
        at = found.end()
    if not path:
        raise ValueError("the path is empty; $ is the whole value")
    return tuple(steps)


def find(value: Any, path: str) -> Any:
    """Return what is at a path.

    Raises:
        NotThere: Nothing is.
    """
    for number, step in enumerate(steps := parse_path(path)):
        known = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
        if step not in known:
            raise NotThere(f"there is no {_said(steps[: number + 1])}")
        value = value[step]
    return value


def parse_answer(text: str) -> Any:
    """Return the JSON that an answer is, or that is in its first fence.

    Raises:
        ValueError: There is none.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        fenced = _FENCED.search(text)
        if fenced is None:
            raise
    try:
        return json.loads(fenced[1])
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _said(steps: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
