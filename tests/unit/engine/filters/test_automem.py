from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexofork.errors import ForkRefused
from nexofork.policy.filters import AutoMemFilter
from nexofork.policy.paths import open_beneath


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A memory folder with a note in it, beside a file that must not be touched."""
    folder = tmp_path / "memory"
    (folder / "deep").mkdir(parents=True)
    (folder / "repo" / ".git").mkdir(parents=True)
    (folder / "note.md").write_text("note")
    (tmp_path / "outside.md").write_text("outside")
    (tmp_path / "other").mkdir()
    return folder


def denial(memory: Path, path: object, name: str = "FileWrite", **more: Any) -> str | None:
    """Why a write to a path is denied."""
    return AutoMemFilter(memory).deny(name, {"file_path": path, "content": "x", **more})


@pytest.mark.parametrize("name", ["FileWrite", "FileEdit"])
@pytest.mark.parametrize("inside", ["note.md", "new.md", "deep/new.md", "deep/../note.md", "./note.md", "..md", "-o"])
def test_files_in_the_folder_may_be_written(memory: Path, inside: str, name: str) -> None:
    """Existing ones and new ones, however the path is written."""
    assert denial(memory, f"{memory}/{inside}", name) is None


@pytest.mark.parametrize(
    "outside",
    [
        "{tmp}/outside.md",
        "{tmp}/memory/../outside.md",
        "{tmp}/memory/deep/../../outside.md",
        "{tmp}/memory/../new.md",
        "{tmp}/memory",
        "{tmp}/memory/",
        "{tmp}/memory/deep",
        "{tmp}/memory/.",
        "{tmp}/memory/deep/..",
        "{tmp}/memory/missing/new.md",
        "{tmp}/memory/note.md/new.md",
        "{tmp}/memory-two/new.md",
        "{tmp}/MEMORY/note.md",
        "/proc/self/root{tmp}/outside.md",
        "/proc/self/cwd/outside.md",
        "/proc/self/fd/1",
        "/dev/null",
        "{tmp}/memory/.git",
        "{tmp}/memory/.GIT",
        "{tmp}/memory/repo/.git/config",
        "{tmp}/memory/.gitconfig",
        "memory/note.md",
        "~/note.md",
        "",
        "{tmp}/memory/a\0b",
        "{tmp}/memory/" + "a" * 5000,
        None,
        7,
        ["{tmp}/memory/note.md"],
    ],
)
def test_everything_else_may_not(memory: Path, outside: object) -> None:
    """The reason names the folder that may be written to, or the argument that is wrong."""
    path = outside.format(tmp=memory.parent) if isinstance(outside, str) else outside
    reason = denial(memory, path)

    assert reason is not None
    assert str(memory) in reason


def test_nested_arguments_are_denied_and_further_ones_ignored(memory: Path) -> None:
    """What a tool does not read cannot help a call; what hides the path cannot either."""
    judge = AutoMemFilter(memory)

    assert judge.deny("FileWrite", {"input": {"file_path": str(memory / "note.md")}}) is not None
    assert judge.deny("FileWrite", {"path": str(memory / "note.md")}) is not None
    assert denial(memory, str(memory / "note.md"), whatever={"a": 1}) is None


def test_links_are_followed_before_judging(memory: Path) -> None:
    """A link out of the folder, a folder that is one, one that leads nowhere, and one that leads back in."""
    outside = memory.parent / "outside.md"
    (memory / "out.md").symlink_to(outside)
    (memory / "folder").symlink_to(memory.parent / "other")
    (memory / "dangling.md").symlink_to(memory.parent / "not-yet.md")
    (memory / "loop.md").symlink_to(memory / "loop.md")
    (memory.parent / "back").symlink_to(memory)

    for name in ("out.md", "folder/new.md", "dangling.md", "loop.md", "folder/../outside.md"):
        assert denial(memory, f"{memory}/{name}") is not None, name
    assert denial(memory, str(memory.parent / "back" / "new.md")) is None
    assert AutoMemFilter(memory).checked({"file_path": f"{memory.parent}/back/new.md"}) == memory / "new.md"
    assert denial(memory, f"/proc/self/root{memory}/note.md") is None


def test_a_file_with_other_names_may_not_be_written(memory: Path) -> None:
    """Through a hard link a write would change a file that lies elsewhere."""
    os.link(memory.parent / "outside.md", memory / "hard.md")

    assert "hard links" in (denial(memory, str(memory / "hard.md")) or "")


def test_only_regular_files_are_written(memory: Path) -> None:
    """A pipe would hold the tool up for ever."""
    os.mkfifo(memory / "pipe")

    assert "no regular file" in (denial(memory, str(memory / "pipe")) or "")


def test_the_folder_may_itself_be_named_by_a_link(memory: Path) -> None:
    """It is resolved once, when the filter is made; where the link leads later does not matter."""
    link = memory.parent / "link"
    link.symlink_to(memory)
    judge = AutoMemFilter(link)
    link.unlink()
    link.symlink_to(memory.parent / "other")

    assert judge.memory_dir == memory
    assert judge.deny("FileWrite", {"file_path": str(memory / "new.md")}) is None
    assert judge.deny("FileWrite", {"file_path": str(link / "new.md")}) is not None


@pytest.mark.parametrize("missing", ["/no/such/folder", "", "\0", "/dev/null"])
def test_a_folder_that_is_not_there_is_refused_at_once(missing: str, tmp_path: Path) -> None:
    """Nothing is created, and no filter is made that would deny everything later."""
    with pytest.raises(ForkRefused, match="is not a folder on this host"):
        AutoMemFilter(missing or tmp_path / "missing")


def test_other_tools(memory: Path) -> None:
    """Reading is free, commands may read, and what is not known is denied."""
    judge = AutoMemFilter(memory)

    assert all(judge.deny(name, {}) is None for name in ("FileRead", "Glob", "Grep", "REPL"))
    assert judge.deny("Bash", {"command": "git status"}) is None
    assert judge.deny("Bash", {"command": f"echo x > {memory}/note.md"}) is not None
    assert "FileWrite and FileEdit" in (judge.deny("NotebookEdit", {"file_path": str(memory / "x")}) or "")


@pytest.mark.parametrize("swapped", ["folder", "file", "hard link"])
def test_a_swap_between_check_and_use_reaches_nothing_outside(memory: Path, swapped: str) -> None:
    """The filter cannot see the swap; opening what it checked, without following links, does."""
    (memory / "deep" / "note.md").write_text("note")
    victim = memory.parent / "other" / "note.md"
    victim.write_text("outside")
    checked = AutoMemFilter(memory).checked({"file_path": str(memory / "deep" / "note.md")})
    if swapped == "folder":
        (memory / "deep").rename(memory / "moved")
        (memory / "deep").symlink_to(victim.parent)
    else:
        checked.unlink()
        checked.symlink_to(victim) if swapped == "file" else os.link(victim, checked)

    with pytest.raises(OSError, match=r"note\.md|deep|symbolic|directory"):
        os.close(open_beneath(memory, checked, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    assert victim.read_text() == "outside"


def test_what_was_not_swapped_is_opened(memory: Path) -> None:
    """An existing file is emptied, a new one made."""
    for name in ("note.md", "deep/new.md"):
        descriptor = open_beneath(memory, memory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "w") as file:
            file.write("new")
        assert (memory / name).read_text() == "new"
    for bad in (memory, memory.parent / "outside.md", memory / ".." / "outside.md"):
        with pytest.raises(ValueError, match=r"outside|not"):
            open_beneath(memory, bad, os.O_WRONLY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["..", ".", "", "memory", "deep", "note.md", "other", "up", "new.md"]), max_size=8)
)
def test_whatever_path_is_allowed_ends_in_the_folder(memory: Path, parts: list[str]) -> None:
    """By the file system's own resolution, links to the parent folder included."""
    if not (memory / "up").is_symlink():
        (memory / "up").symlink_to(memory.parent)
    path = "/".join((str(memory), *parts))

    if denial(memory, path) is None:
        assert memory in Path(os.path.realpath(path)).parents


@pytest.mark.parametrize("envelope", ["arguments", "input", "parameters"])
def test_arguments_in_an_envelope_are_denied_whatever_it_is_called(memory: Path, envelope: str) -> None:
    """A client that did not unwrap what its provider sends is found out at the first call that writes or runs."""
    judge = AutoMemFilter(memory)
    write = {envelope: {"file_path": str(memory / "note.md"), "content": "x"}}

    for name in ("FileWrite", "FileEdit"):
        assert "beside the other arguments, not inside another object" in (judge.deny(name, write) or "")
    assert "not inside another object" in (judge.deny("Bash", {envelope: {"command": "ls"}}) or "")


@pytest.mark.parametrize("program", ["tee", "awk", "perl", "python", "python3", "node", "ruby"])
def test_what_can_start_programs_is_on_no_list(memory: Path, program: str) -> None:
    """Neither alone nor behind a pipe, with whatever harmless arguments: they can write, or run anything."""
    judge = AutoMemFilter(memory)

    assert judge.deny("Bash", {"command": "cat note.md | sort"}) is None
    for command in (program, f"{program} x", f"cat note.md | {program} 1", f"/usr/bin/{program}"):
        assert judge.deny("Bash", {"command": command}) is not None, command


@pytest.mark.parametrize("name", [".dream.lock", ".dream.json", "deep/../.dream.lock", ".DREAM.json"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_dreams_keep_for_themselves_may_not_be_written(memory: Path, name: str, elsewhere: bool) -> None:
    """Neither here nor judged by words; a file of that name in a folder below is a note like any other."""
    judge = AutoMemFilter(memory, elsewhere=elsewhere)

    assert "bookkeeping" in str(judge.deny("FileWrite", {"file_path": f"{memory}/{name}", "content": "x"}))
    assert judge.deny("FileWrite", {"file_path": f"{memory}/deep/.dream.lock", "content": "x"}) is None
