"""What docs/seed-coverage.md names is there: every module it points to, and every test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = (ROOT / "docs" / "seed-coverage.md").read_text()
ROWS: list[list[str]] = []
NAMES: list[str] = []
"""By row: the text it is about, and the behaviour."""
_text = ""
for _line in TABLE.splitlines():
    if _line.startswith("## "):
        _text = _line.removeprefix("## ")
    elif _line.startswith("| ") and not _line.startswith("| part "):
        ROWS.append([cell.strip() for cell in _line.strip("|").split(" | ")])
        NAMES.append(f"{_text}: {ROWS[-1][1]}")

_TEST = re.compile(r"([\w/]+\.py)::(test_\w+)")


def test_every_row_says_behaviour_code_and_test() -> None:
    """Four cells each, and nothing is left open."""
    assert ROWS
    assert [row for row in ROWS if len(row) != 4 or not all(row)] == []
    assert [row for row in ROWS for cell in row[2:] if not cell.startswith("`")] == []


def test_no_row_is_there_twice() -> None:
    """Each text names a behaviour once."""
    assert sorted(name for name in set(NAMES) if NAMES.count(name) > 1) == []


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_behaviour_has_code_and_tests(row: list[str]) -> None:
    """What was moved or renamed is moved and renamed here too; a row may name several tests."""
    tests = [_TEST.fullmatch(name.strip("`")) for name in row[3].strip("| ").split(", ")]

    assert (ROOT / row[2].strip("`")).is_file()
    assert None not in tests
    assert [test[0] for test in tests if test and test[2] not in _functions(test[1])] == []


@cache
def _functions(path: str) -> frozenset[str]:
    """The names of a test file's functions."""
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
