"""Read a file of evaluations (TOML): cases with prompts and expectations. Everything wrong with it is said at once."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.agents.evaluation.expecting import Expectation
from nexofork.agents.evaluation.json_path import parse_path
from nexofork.core.boilerplate import check_directive
from nexofork.errors import BadDirective, BadEvaluation, ForkRefused
from nexofork.policy.filters import read_filter
from nexofork.run.result import ForkStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["Case", "Suite", "read_suite"]

_MOST_RUNS = 1000
_SETTINGS = ("runs", "min_passed", "timeout_s", "max_turns", "filter", "boilerplate")
_HEAD = ("name", "request", "reply", "headers", "case", *_SETTINGS)
_STATUSES = tuple(status.value for status in ForkStatus if status.over)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing that is tried."""

    name: str
    prompts: tuple[str, ...]
    """The directive; what follows is said to the same child when it has ended."""
    expect: Expectation
    runs: int = 1
    min_passed: int = 1
    """How many of the runs have to pass."""
    timeout_s: float = 600.0
    """For each prompt."""
    max_turns: int = 50
    filters: tuple[str, ...] = ("readonly",)
    boilerplate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A file of cases that share a conversation."""

    name: str
    cases: tuple[Case, ...]
    request: str | None = None
    """Where the parent's request is, as the file says; relative to the file."""
    reply: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


def read_suite(path: Path) -> Suite:
    """Read a file.

    Raises:
        BadEvaluation: It cannot be read, is no TOML, or something in it cannot be meant; all of it is named.
    """
    try:
        data = tomllib.loads(path.read_bytes().decode())
    except OSError as exc:
        raise BadEvaluation(str(path), (f"it cannot be read ({exc.strerror})",)) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise BadEvaluation(str(path), (f"it is no TOML ({exc})",)) from exc
    reading = _Reading()
    suite = reading.suite(data, name=path.stem)
    if reading.problems:
        raise BadEvaluation(str(path), tuple(reading.problems))
    return suite


class _Reading:
    """Reads what it can and remembers what it cannot."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def suite(self, data: Mapping[str, Any], *, name: str) -> Suite:
        """Read the whole file."""
        self._known("the file", data, _HEAD)
        tables = data.get("case", [])
        if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
            self.problems.append("there are no cases; write each as a [[case]] table")
            tables = []
        shared = {key: data[key] for key in _SETTINGS if key in data}
        cases = [self._case(f"case {number}", shared | one) for number, one in enumerate(tables, start=1)]
        for case in cases:
            if sum(other.name == case.name for other in cases) > 1:
                self._wrong("the file", f"several cases are named {case.name!r}")
        headers = data.get("headers", {})
        if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
            self._wrong("the file", "`headers` is no table of strings")
            headers = {}
        return Suite(
            name=self._text("the file", data, "name") or name,
            cases=tuple(cases),
            request=self._text("the file", data, "request"),
            reply=self._text("the file", data, "reply"),
            headers=tuple((key.lower(), value) for key, value in headers.items()),
        )

    def _case(self, where: str, table: Mapping[str, Any]) -> Case:
        name = self._text(where, table, "name") or where
        where = f"case {name!r}" if name != where else where
        self._known(where, table, ("name", "prompt", "prompts", "expect", *_SETTINGS))
        runs = int(self._number(where, table, "runs", 1, least=1, most=_MOST_RUNS, whole=True))
        expect = table.get("expect", {})
        if not isinstance(expect, dict):
            self._wrong(where, "`expect` is no table")
            expect = {}
        return Case(
            name=name,
            prompts=self._prompts(where, table),
            expect=self._expectation(where, expect),
            runs=runs,
            min_passed=int(self._number(where, table, "min_passed", runs, least=1, most=runs, whole=True)),
            timeout_s=self._number(where, table, "timeout_s", 600.0, least=1e-3),
            max_turns=int(self._number(where, table, "max_turns", 50, least=1, whole=True)),
            filters=self._each(where, table, "filter", _check_filter) if "filter" in table else ("readonly",),
            boilerplate=self._flag(where, table, "boilerplate", True),
        )

    def _prompts(self, where: str, table: Mapping[str, Any]) -> tuple[str, ...]:
        if ("prompt" in table) is ("prompts" in table):
            self._wrong(where, "give `prompt`, or `prompts` for several that follow each other")
            return ()
        found = self._each(where, table, "prompt" if "prompt" in table else "prompts", _check_prompt)
        if not found and not self.problems:
            self._wrong(where, "`prompts` is empty")
        return found

    def _expectation(self, where: str, table: Mapping[str, Any]) -> Expectation:
        where = f"{where}, expect"
        numbers = ("max_cost_usd", "max_tokens", "min_hit_ratio")
        lists = ("contains", "lacks", "regex", "tools", "without_tools")
        self._known(where, table, ("status", "json", *lists, *numbers))
        status = self._text(where, table, "status") or "completed"
        if status not in _STATUSES:
            self._wrong(where, f"there is no status {status!r} (there are: {', '.join(_STATUSES)})")
            status = "completed"
        paths = table.get("json", {})
        if not isinstance(paths, dict):
            self._wrong(where, "`json` is no table of paths and values")
            paths = {}
        for path in paths:
            self._checked(where, "json", path, _check_path)
        most = {"min_hit_ratio": 1.0}
        limits: dict[str, Any] = {
            key: self._number(where, table, key, 0, least=0, most=most.get(key, math.inf), whole=key == "max_tokens")
            for key in numbers
            if key in table
        }
        texts: dict[str, Any] = {
            key: self._each(where, table, key, _check_regex if key == "regex" else None) for key in lists
        }
        return Expectation(status=ForkStatus(status), json=paths, **texts, **limits)

    def _each(
        self, where: str, table: Mapping[str, Any], key: str, check: Callable[[str], object] | None = None
    ) -> tuple[str, ...]:
        """Read one text, or a list of them."""
        value = table.get(key, [])
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._wrong(where, f"`{key}` is neither a text nor a list of texts")
            return ()
        if check is not None:
            for text in texts:
                self._checked(where, key, text, check)
        return tuple(texts)

    def _text(self, where: str, table: Mapping[str, Any], key: str) -> str | None:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            self._wrong(where, f"`{key}` is {value!r}, and not a text")
            return None
        return value

    def _flag(self, where: str, table: Mapping[str, Any], key: str, unless_said: bool) -> bool:
        value = table.get(key, unless_said)
        if not isinstance(value, bool):
            self._wrong(where, f"`{key}` is {value!r}, and neither true nor false")
        return bool(value)

    def _number(
        self,
        where: str,
        table: Mapping[str, Any],
        key: str,
        unless_said: float,
        *,
        least: float,
        most: float = math.inf,
        whole: bool = False,
    ) -> float:
        value = table.get(key, unless_said)
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not (least <= value <= most):
            bounds = f"from {least:g}" + (f" to {most:g}" if math.isfinite(most) else " on")
            self._wrong(where, f"`{key}` is {value!r}; give a {'whole ' if whole else ''}number {bounds}")
            return unless_said
        return value

    def _checked(self, where: str, key: str, text: str, check: Callable[[str], object]) -> None:
        try:
            check(text)
        except BadDirective as exc:
            self._wrong(where, f"`{key}` {exc.problem}")
        except (ForkRefused, ValueError, re.error) as exc:
            self._wrong(where, f"`{key}`: {str(exc).rstrip('.')}")

    def _known(self, where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                self._wrong(where, f"`{key}` is not known (known are: {', '.join(keys)})")

    def _wrong(self, where: str, problem: str) -> None:
        said = f"{where}: {problem}"
        if said not in self.problems:
            self.problems.append(said)


def _check_prompt(text: str) -> None:
    check_directive(text)


def _check_filter(text: str) -> None:
    read_filter(text)


def _check_path(text: str) -> None:
    parse_path(text)


def _check_regex(text: str) -> None:
    re.compile(text)
