"""After a run, what changed is held against what its filter lets change."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from nexofork import AllowAllFilter, ForkResult, ForkStatus
from nexofork.policy.filters import AllOfFilter, AutoMemFilter, ProfileFilter, ReadOnlyFilter
from nexofork.policy.paths import remove_tree
from nexofork.run.audit import Change, begin_audit, changes, list_tree, violations
from tests.support.hands import deep_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with some files, and a memory folder in it."""
    (tmp_path / "memory").mkdir()
    for name in ("kept", "changed", "removed", "memory/note"):
        (tmp_path / name).write_text("before")
    return tmp_path


def result() -> ForkResult:
    """A run that completed."""
    return ForkResult(run_id="r", label="l", directive="d", model="m", status=ForkStatus.COMPLETED, end="end_turn")


def test_the_audit_finds_what_the_filter_did_not_allow(place: Path) -> None:
    """Added, changed and removed files outside the memory folder; inside it everything goes but what git reads."""
    memory = place / "memory"
    before = list_tree([place])
    (place / "changed").write_text("after")
    (place / "removed").unlink()
    (place / "added").symlink_to("kept")
    (memory / "note").write_text("after")
    (memory / ".git").mkdir()
    (memory / ".git/config").write_text("[core] pager = evil")
    after = list_tree([place])

    outside = [
        Change(path=str(place / "added"), what="added"),
        Change(path=str(place / "changed"), what="changed"),
        Change(path=str(memory / ".git/config"), what="added"),
        Change(path=str(place / "removed"), what="removed"),
    ]
    assert violations(before, after, AutoMemFilter(memory)) == outside
    assert violations(before, after, AllOfFilter([AutoMemFilter(memory), ReadOnlyFilter()])) == changes(before, after)
    assert len(changes(before, after)) == 5
    assert violations(before, after, AllowAllFilter()) == []
    assert violations(before, list_tree([place]), AutoMemFilter(memory, elsewhere=True)) == changes(before, after)


def test_a_change_that_hides_is_found(place: Path) -> None:
    """Same size and the old time put back; or a write so soon after the listing that no time tells."""
    listed = (place / "kept").stat()
    before = list_tree([place])
    (place / "kept").write_text("AFTER!")
    os.utime(place / "kept", ns=(listed.st_atime_ns, listed.st_mtime_ns))
    after = list_tree([place])
    assert changes(before, after) == [Change(path=str(place / "kept"), what="changed")]

    same = list_tree([place])
    same.files = dict(before.files)  # as a clock that ticks too slowly would have it
    assert changes(before, same) == [Change(path=str(place / "kept"), what="changed")]


def test_files_that_are_not_new_are_not_opened(place: Path) -> None:
    """A tree that rests costs a look at each entry and no reading."""
    for name in ("kept", "changed", "removed", "memory/note"):
        os.utime(place / name, (1_000_000, 1_000_000))

    assert list_tree([place]).racy == {}


def test_too_many_files_are_said_to_be(place: Path) -> None:
    """What was not listed is not taken for new or removed."""
    before = list_tree([place], max_files=2)
    after = list_tree([place])

    assert not before.complete
    assert changes(before, after) == []
    assert changes(after, before) == []


@pytest.mark.parametrize("profile", ["explore", "none"])
async def test_a_violation_is_in_the_result_and_in_the_log(
    place: Path, profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Path and kind, a warning, and the same after a trip over the wire."""
    audit = await begin_audit("r", ProfileFilter(profile), [place])
    assert audit is not None
    (place / "changed").write_text("after")
    with caplog.at_level(logging.WARNING):
        found = await audit.added(result())

    assert found.audit == ({"path": str(place / "changed"), "what": "changed"},)
    assert ForkResult.from_wire(found.to_wire()) == found
    assert found.to_json()["audit"] == list(found.audit)
    assert f"fork.tool_filter: during fork r these changed although its filter does not let them: changed {place}" in (
        caplog.text
    )


async def test_nothing_is_looked_at_where_nothing_is_limited(place: Path) -> None:
    """A filter that lets files be written anywhere has nothing to be held against."""
    assert await begin_audit("r", AllowAllFilter(), [place]) is None
    assert await begin_audit("r", ProfileFilter("edit"), [place]) is None
    assert await begin_audit("r", ReadOnlyFilter(), []) is None


async def test_a_place_that_is_gone_does_no_harm(place: Path) -> None:
    """The run keeps its result; what was there counts as removed."""
    audit = await begin_audit("r", ReadOnlyFilter(), [place / "missing", place / "memory"])
    assert audit is not None
    (place / "memory/note").unlink()
    (place / "memory").rmdir()

    found = await audit.added(result())
    assert found.ok
    assert [change["what"] for change in found.audit] == ["removed"]


async def test_a_deep_tree_is_listed_like_any_other(tmp_path: Path) -> None:
    """A child that nests folders can neither hide a change at their end nor stop the audit."""
    audit = await begin_audit("r", ReadOnlyFilter(), [tmp_path])
    assert audit is not None
    deep_folder(tmp_path / "top", depth=1_500)

    try:
        found = await audit.added(result())
    finally:
        remove_tree(tmp_path / "top")  # pytest cannot

    assert [change["path"].count("/d") for change in found.audit] == [1_500]


@pytest.mark.parametrize(("depth", "name"), [(1_500, "d"), (1_100, "n" * 200)])
def test_a_deep_tree_is_removed(tmp_path: Path, depth: int, name: str) -> None:
    """With long names as well, where no path reaches the end."""
    deep_folder(tmp_path / "top", depth=depth, name=name)

    remove_tree(tmp_path / "top")

    assert list(tmp_path.iterdir()) == []
