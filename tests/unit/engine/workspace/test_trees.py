"""Trees that are built here are the trees that git builds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nexofork.workspace.capture import build_trees
from tests.support.repositories import Repo

NAMES = st.text("ab.-0", min_size=1, max_size=3).filter(lambda name: name.strip(".") != "")


@settings(max_examples=15, deadline=None)
@given(paths=st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=12))
def test_the_root_is_what_git_says(paths: list[list[str]]) -> None:
    """Whatever folders and names sort next to each other."""
    with tempfile.TemporaryDirectory() as folder:
        repo = Repo(Path(folder), {"first": "x"}, commit=False)
        for parts in paths:
            target = repo.path.joinpath(*parts)
            if not target.exists() and all(not parent.is_file() for parent in target.parents):
                repo.write("/".join(parts), "/".join(parts))
        repo.git("add", "-A")
        entries = []
        for line in repo.git("ls-files", "--stage").splitlines():
            facts, _, path = line.partition("\t")
            mode, oid, _ = facts.split()
            entries.append((mode.encode(), oid.encode(), path.encode()))

        assert build_trees(entries)[0] == repo.git("write-tree")
