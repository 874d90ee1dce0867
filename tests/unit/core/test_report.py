from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.report import Report, parse_report
from tests.strategies import examples

GOOD = """Scope: fix the cut
Result: found the bracket
and moved it
Key files: src/a.py, `src/b.py`
Files changed: src/a.py (abc123)
Issues: none"""


def test_well_formed_report_is_read_in_full() -> None:
    """The five fields as they were asked for."""
    assert parse_report(GOOD) == Report(
        raw=GOOD,
        scope="fix the cut",
        result="found the bracket\nand moved it",
        key_files=("src/a.py", "src/b.py"),
        files_changed=("src/a.py (abc123)",),
        issues=(),
    )
    assert parse_report(GOOD).well_formed


@pytest.mark.parametrize(
    "heading",
    ["Scope:", "**Scope:**", "**Scope**:", "## Scope:", "- Scope:", "SCOPE :", "> *Scope*:", "__Scope__:", "  scope:"],
)
def test_heading_may_be_dressed_up(heading: str) -> None:
    """Models like Markdown; the field is found all the same."""
    report = parse_report(f"{heading} the cut\nResult: done")

    assert (report.scope, report.result) == ("the cut", "done")


@pytest.mark.parametrize("name", ["__init__.py", "*.py", "_private/x.py", "**/test_*.py"])
def test_file_names_keep_their_underscores_and_stars(name: str) -> None:
    """What follows a heading is the model's word, not its mark-up."""
    report = parse_report(f"Scope: x\nKey files: {name}\n**Files changed:** {name}\nResult:{name}")

    assert report.key_files == (name,)
    assert report.files_changed == (name,)
    assert report.result == name


def test_lists_over_several_lines() -> None:
    """Bullets of any kind and numbers; a comma inside a bullet is part of it, in prose it separates."""
    report = parse_report(
        "Scope: x\nResult: y\nKey files:\n- a.py\n* `b.py`\n• c.py, the third\n1. d.py\n2) e.py\nf.py, g.py\n\n"
        "Issues:\n- slow, and loud\nsecond, still one"
    )

    assert report.key_files == ("a.py", "b.py", "c.py, the third", "d.py", "e.py", "f.py", "g.py")
    assert report.issues == ("slow, and loud", "second, still one")


@pytest.mark.parametrize("nothing", ["none", "None.", "N/A", "nothing", "-", "", "`none`"])
def test_nothing_is_no_item(nothing: str) -> None:
    """A field that says there is nothing is empty."""
    report = parse_report(f"Scope: x\nResult: y\nFiles changed: {nothing}\nIssues: {nothing}")

    assert (report.files_changed, report.issues) == ((), ())


def test_missing_fields_are_empty() -> None:
    """What is not there is not made up."""
    report = parse_report("Result: done")

    assert report == Report(raw="Result: done", result="done")
    assert not report.well_formed


def test_text_without_headings_is_the_result() -> None:
    """A child that ignored the format is still heard."""
    report = parse_report("\nI did it.\n")

    assert (report.result, report.raw) == ("I did it.", "\nI did it.\n")
    assert not report.well_formed


def test_chatter_before_the_report_is_kept_raw_only() -> None:
    """What stands before the first heading belongs to no field, and the report is not well-formed."""
    report = parse_report("Sure!\nScope: x\nResult: y")

    assert (report.scope, report.result, report.well_formed) == ("x", "y", False)
    assert report.raw.startswith("Sure!")


def test_heading_word_in_the_middle_of_a_line_is_no_heading() -> None:
    """Only a line that begins with it is one."""
    assert parse_report("Scope: the result: a number\nResult: 7").scope == "the result: a number"


def test_field_given_twice_is_joined() -> None:
    """Nothing the child said is lost."""
    assert parse_report("Scope: a\nResult: one\nIssues: i\nResult: two").result == "one\ntwo"


def test_report_as_json_has_the_fields() -> None:
    """What is printed for programs is what was read."""
    assert parse_report(GOOD).to_json() == {
        "scope": "fix the cut",
        "result": "found the bracket\nand moved it",
        "key_files": ["src/a.py", "src/b.py"],
        "files_changed": ["src/a.py (abc123)"],
        "issues": [],
    }


def test_empty_report() -> None:
    """Nothing said, nothing read, no exception."""
    assert parse_report("") == Report(raw="")


PIECES = st.sampled_from(
    ["Scope", "result", "KEY FILES", ":", "\n", "- ", "**", "#", ",", "`", "none", "\u2028", "\x1c", "x"]
)


@examples(120)
@given(text=st.text() | st.lists(PIECES, max_size=20).map("".join))
def test_any_text_is_read_and_kept_raw(text: str) -> None:
    """No text makes the parser fail, and the text as it came is always there."""
    report = parse_report(text)

    assert report.raw == text
    assert all(item.strip() for item in (*report.key_files, *report.files_changed, *report.issues))


def test_long_line_of_markup_is_read_in_no_time() -> None:
    """No text makes the parser slow: the pattern does not backtrack over and over."""
    parse_report("*" * 200_000 + "\n" + "scope" + "*_ " * 100_000 + "\n" + "- " * 100_000)
