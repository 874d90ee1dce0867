"""The pages under docs are current, hang together, and say of every command whether it is run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from docs import reference
from nexofork import CacheSafeParams
from nexofork.wire import contents, ledger, messages, parent_tools, permissions, request, workspace
from nexofork.wire.needs import KNOWN_NEEDS
from tests.support.conversation import request as conversation
from tests.support.guides import DOCS, GUIDES, NOT_RUN, blocks

PAGES = sorted(page.name for page in DOCS.glob("*.md") if not page.name.endswith(".template.md"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_UNSEEN = {"WireModel", "Message", "_Report", "_Stamp", "BookedCalls"}
"""Models that are no table: bases, and the envelope of the ledger that the prose describes."""


def test_the_protocol_page_is_what_the_models_say() -> None:
    """`python -m docs.reference` would change nothing."""
    assert reference.PAGE.read_text() == reference.render(reference.TEMPLATE.read_text())


def test_every_wire_model_has_a_table() -> None:
    """What travels is described."""
    modules = (contents, ledger, messages, parent_tools, permissions, request, workspace)
    models = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__.startswith("nexofork.wire")
    }
    shown = set(re.findall(r"<!-- fields (\w+) -->", reference.TEMPLATE.read_text()))

    assert models - _UNSEEN - shown == set()


def test_every_need_is_in_the_protocol() -> None:
    """A parent in another language has to know what it may not leave out."""
    known = reference.PAGE.read_text().partition("Known needs are")[2].partition(". ")[0]

    assert set(re.findall(r"`(\w+)`", known)) == set(KNOWN_NEEDS)


def test_a_field_without_a_docstring_is_an_error() -> None:
    """The page cannot explain what the code does not."""

    class Bare(BaseModel):
        unexplained: int = 0

    with pytest.raises(reference.Undocumented, match=r"Bare\.unexplained"):
        reference.table(Bare)


@pytest.mark.parametrize("page", [*PAGES, "../README.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Every link to a page or a heading of ours has its target."""
    path = (DOCS / page).resolve()
    for link in _LINK.findall(path.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in {_anchor(found) for found in _HEADING.findall(target.read_text())}, f"{page}: {link}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_says_of_every_command_whether_it_is_run(guide: str) -> None:
    """A block is `sh`, which the tests run or which says why not, or `python`, which they run; nothing else."""
    for block in blocks(guide):
        assert block.language in ("sh", "python"), block.text
        assert "# not run" not in block.text or block.text.startswith(NOT_RUN), block.text


def test_the_example_of_permissions_can_be_pasted() -> None:
    """It makes a fork of whatever snapshot it is given."""
    (example,) = [block.text for block in blocks("permissions.md") if block.language == "python"]
    names: dict[str, Any] = {}
    exec(example, names)

    params = names["tidying"](CacheSafeParams.from_parent_request(json.dumps(conversation()).encode()))

    assert params.permissions.mode == "bubble"
    assert params.on_permission is names["decide"]


def test_the_guides_have_no_path_of_one_machine() -> None:
    """They speak of the reader's hosts."""
    home = str(Path.home())
    for page in PAGES:
        assert home + "/" not in (DOCS / page).read_text(), page


def test_every_row_of_the_security_table_names_a_test_that_exists() -> None:
    """What a key or a compromised part can do is shown by a test, under the name that it has."""
    page = (DOCS / "security.md").read_text()
    table = page.partition("## Who can do what")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", page)

    assert [row for row in rows if not re.search(r"tests/[\w/]+\.py", row)] == []
    assert [one for one in named if f"def {one[1]}(" not in (DOCS.parent / one[0]).read_text()] == []


def test_every_row_of_the_guarantees_names_a_test_that_exists() -> None:
    """A promise without a test that tries to break it is none."""
    rows = [
        line
        for line in (DOCS / "guarantees.md").read_text().splitlines()
        if re.match(r"\| (?!promise|failure|not pro)", line)
    ]
    named = [re.findall(r"`([\w/]+\.py)::(\w+)`", row) for row in rows]
    fleet = DOCS.parent / "tests/acceptance/fleet"
    files = {
        path: DOCS.parent / path if path.startswith("tests/") else fleet / path for row in named for path, _ in row
    }

    assert [row for row, tests in zip(rows, named, strict=True) if not tests and not row.endswith("chaos |")] == []
    assert [(path, test) for row in named for path, test in row if f"def {test}(" not in files[path].read_text()] == []
