"""The daemon resolves a path exactly as the kernel does inside the sandbox."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexofork.sandbox.mounts import Mount, NotShown, View
from tests.support.sandboxes import boxed, needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "tmp", "usr", "etc", "root", "nowhere"])
PATHS = st.builds(
    lambda root, parts: ("/" if root else "") + "/".join(parts), st.booleans(), st.lists(PARTS, max_size=5)
)


@pytest.fixture
def view(tmp_path: Path) -> View:
    """A folder seen as ``/box``, with a protected part, and another seen as ``/tmp``."""
    for name in ("work/locked", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    work = str(tmp_path / "work")
    return View(
        [
            Mount(inside="/box/locked", outside=f"{work}/locked"),
            Mount(inside="/box", outside=work, writable=True),
            Mount(inside="/tmp", outside=str(tmp_path / "scratch"), writable=True),
            Mount(inside="/usr", outside="/usr"),
        ]
    )


def test_the_deepest_mount_decides(view: View, tmp_path: Path) -> None:
    """Whether a path may be written, and where it is."""
    assert view.find("/box/new").writable
    assert not view.find("/box/locked/config").writable
    assert not view.find("/usr/bin/new").writable
    assert view.find("/tmp/x").outside == f"{tmp_path}/scratch/x"
    assert view.find("/tmp/../tmp/./x").inside == "/tmp/x"


def test_what_is_not_mounted_is_not_shown(view: View, tmp_path: Path) -> None:
    """However it is named: by its path, behind ``..``, or as the target of a link."""
    work = tmp_path / "work"
    (work / "out").symlink_to("/home/.ssh")
    (work / "up").symlink_to("../scratch")
    for path in ("/home/.ssh/id", "/box/../scratch/x", "/box/out/id", "/box/up/x", "/etc/shadow"):
        with pytest.raises(NotShown):
            view.find(path)


def test_a_link_means_what_it_means_inside(view: View, tmp_path: Path) -> None:
    """A link to ``/tmp`` leads to the run's own."""
    (tmp_path / "work/link").symlink_to("/tmp/deep")

    assert view.find("/box/link/file").outside == f"{tmp_path}/scratch/deep/file"


def test_links_in_a_circle_end(view: View, tmp_path: Path) -> None:
    """With an error, as the kernel ends them."""
    (tmp_path / "work/a").symlink_to("b")
    (tmp_path / "work/b").symlink_to("a")

    with pytest.raises(OSError, match="too many links"):
        view.find("/box/a/x")


@needs_bubblewrap
async def test_random_trees_of_links_lead_where_the_kernel_says(tmp_path: Path) -> None:
    """Every path that can be opened inside is the same file for the daemon; every other is refused or not there."""
    async with boxed(tmp_path / "state") as hands:
        sandbox = hands.sandbox
        assert sandbox is not None
        trees: list[tuple[dict[str, str], list[str]]] = []

        @given(links=st.dictionaries(st.sampled_from("abc"), PATHS.filter(bool), max_size=3), asked=st.lists(PATHS))
        @settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck))
        def collect(links: dict[str, str], asked: list[str]) -> None:
            trees.append((links, asked))

        collect()
        order = []
        for number, (links, asked) in enumerate(trees):
            folder = hands.folder / str(number)
            (folder / "a/b").mkdir(parents=True) if "a" not in links else folder.mkdir()
            for name, target in links.items():
                (folder / name).symlink_to(target)
            order += [os.path.join(str(folder), path) for path in asked]
        (hands.folder / "order").write_bytes(b"\0".join(map(os.fsencode, order)))
        # Without a process for each: a shell resolves where it goes to.
        ask = 'cd -P -- "$p" 2>&- && echo "$PWD" || echo -'
        said = await hands.good("Bash", command=f"while read -r -d '' p; do {ask}; done < order")

        # A shell says `//` for a root that was asked for with two slashes.
        real_paths = [real if real == "-" else "/" + real.lstrip("/") for real in said.splitlines()]
        there = [(path, real) for path, real in zip(order, real_paths, strict=False) if real != "-"]
        assert len(there) > 20
        assert [(path, sandbox.view.find(path).inside) for path, _ in there] == there
