"""What docs/seed-coverage.md names is there: every module it points to, and every test."""

from __future__ import annotations

import ast
import re
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


def test_every_row_says_behaviour_code_and_test() -> None:
    """Four cells each, and nothing is left open."""
    assert ROWS
    assert [row for row in ROWS if len(row) != 4 or not all(row)] == []
    assert [row for row in ROWS for cell in row[2:] if not cell.startswith("`")] == []


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_behaviour_has_code_and_a_test(row: list[str]) -> None:
    """What was moved or renamed is moved and renamed here too."""
    code, test = row[2].strip("`"), row[3].strip("`| ")
    path, _, name = test.partition("::")
    functions = {
        node.name
        for node in ast.walk(ast.parse((ROOT / "tests" / path).read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert (ROOT / code).is_file()
    assert re.fullmatch(r"test_\w+", name)
    assert name in functions
