"""Files that look like definitions and are none, and spellings of YAML that people use."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from nexofork.agents.files import read_definition, read_folder
from nexofork.errors import BadAgentDefinition

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, *lines: str) -> Path:
    """A file with these keys."""
    path = folder / "agent.md"
    path.write_text("\n".join(("---", *lines, "---", "Do it.")))
    return path


@pytest.mark.parametrize("target", ["/dev/zero", "fifo", "folder"])
def test_what_is_no_regular_file_is_refused_without_reading_it(tmp_path: Path, target: str) -> None:
    """A link to a device without end, a FIFO that nobody writes to, a folder: named, and the others are read."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    agents = tmp_path / "agents"
    agents.mkdir()
    written(agents, "description: fine")
    (agents / "odd.md").symlink_to(tmp_path / target)

    found, (problem,) = read_folder(agents)

    assert [one.name for one in found] == ["agent"]
    assert problem.where == str(agents / "odd.md")
    assert "is no regular file" in str(problem)


def test_a_link_to_a_definition_is_read(tmp_path: Path) -> None:
    """People link to definitions that they keep elsewhere."""
    (tmp_path / "link.md").symlink_to(written(tmp_path, "description: d"))

    assert read_definition(tmp_path / "link.md").description == "d"


def test_a_huge_file_is_refused_by_its_size(tmp_path: Path) -> None:
    """It is not read for that."""
    path = written(tmp_path, "description: d")
    os.truncate(path, 10**12)

    with pytest.raises(BadAgentDefinition, match="has 1,000,000,000,000 bytes"):
        read_definition(path)


@pytest.mark.parametrize(
    ("line", "description"),
    [
        ('description: "quoted" # comment', "quoted"),
        ("description: 'quoted'\t# comment", "quoted"),
        ('description: "a # b"', "a # b"),
        ('description: "a" # says "b"', "a"),
        ('description: "a "b" c"', 'a "b" c'),
        ('description: "a"#b"', 'a"#b'),
        ("description: plain # comment", "plain"),
    ],
)
def test_a_comment_may_stand_behind_a_text(tmp_path: Path, line: str, description: str) -> None:
    """Quoted or not; a # inside of quotes is none."""
    assert read_definition(written(tmp_path, line)).description == description


@pytest.mark.parametrize(
    "lines",
    [
        ['tools: [Bash, "FileRead"] # read'],
        ["tools: [Bash, FileRead]  # see [x]"],
        ["tools:", "- Bash # runs", '- "FileRead" # reads'],
        ["tools: # these", "  - Bash", "  - FileRead"],
        ["tools: Bash, FileRead # read"],
    ],
)
def test_a_comment_may_stand_behind_a_list(tmp_path: Path, lines: list[str]) -> None:
    """However it is written, and behind each of its items."""
    assert read_definition(written(tmp_path, "description: d", *lines)).tools == ("Bash", "FileRead")


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (["tools:"], 3, "'' is not a list of names"),
        (["tools: # none yet", "model: haiku"], 3, "'' is not a list of names"),
        (["disallowed_tools:"], 3, "'' is not a list of names"),
        (["tools: [Bash # all]"], 3, "has a list without its ]"),
        (["tools:", "- Bash", '- "FileRead'], 5, "has only one of its quotes"),
        (["tools:", "- Bash", "- # FileRead"], 3, "is not a list of names"),
    ],
)
def test_a_list_that_says_nothing_is_no_list(tmp_path: Path, lines: list[str], line: int, words: str) -> None:
    """An agent without tools has to be meant: `tools: []`; a slip in an item is named by its line."""
    with pytest.raises(BadAgentDefinition, match=words) as caught:
        read_definition(written(tmp_path, "description: d", *lines))

    assert caught.value.line == line
    assert read_definition(written(tmp_path, "description: d", "tools: []")).tools == ()


def test_a_line_of_blanks_costs_like_any_other(tmp_path: Path) -> None:
    """A definition in a repository cannot hold its reader up."""

    def cpu_time(filling: str) -> float:
        path = written(tmp_path, f"description: a{filling * 30_000}b")
        begun = time.process_time()
        assert read_definition(path).description.endswith("b")
        return time.process_time() - begun

    plain = min(cpu_time("x") for _ in range(3))
    assert cpu_time(" ") < 100 * plain
