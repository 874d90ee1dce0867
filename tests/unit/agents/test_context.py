"""What named agents are told of a project: its conventions and its state in git, as the session begins."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from nexofork.agents.context import AgentContext, read_context

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository without a commit."""
    subprocess.run(["git", "init", "-q", "-b", "trunk", str(tmp_path)], check=True)
    return tmp_path


async def test_a_projects_conventions_and_git_status_are_read(repository: Path) -> None:
    """From the first of the usual files that says something, and from git itself."""
    (repository / "AGENTS.md").write_text(" \n")
    (repository / "CLAUDE.md").write_text("Use tabs.\n")
    found = await read_context(repository)

    assert found.project_conventions == "Use tabs."
    assert found.git_status.splitlines() == ["## No commits yet on trunk", "?? AGENTS.md", "?? CLAUDE.md"]


async def test_a_folder_without_either_has_nothing_to_tell(tmp_path: Path) -> None:
    """Outside of a repository and without a file both are empty, and so they are left out."""
    (tmp_path / ".git").write_text("gitdir: /no/such/place\n")

    assert await read_context(tmp_path) == AgentContext()


async def test_a_very_long_status_is_cut(repository: Path) -> None:
    """And says that it was: thousands of untracked files are nothing an agent needs."""
    for number in range(300):
        (repository / f"{'x' * 90}{number}").touch()
    found = await read_context(repository)

    assert len(found.git_status) < 20_100
    assert found.git_status.endswith("characters left out]")
