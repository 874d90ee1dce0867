"""Daemons and parents of the previous message version: real processes of an earlier commit of this repository."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.conversation import KEY
from tests.support.processes import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.fleet import Fleet
    from tests.support.processes import Process

__all__ = ["PREVIOUS", "Previous", "previous_nursery"]

PREVIOUS = "8c6c4a5e95de58c1737fc61bfeeda18299ff0c9d"
"""The last commit whose daemons read version 1 of a request only, and ignore filters, permissions and workspaces."""

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def previous_nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where processes of the previous version come from."""
    found = subprocess.run(["git", "archive", PREVIOUS], cwd=_ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"commit {PREVIOUS[:7]} is not in this copy of the repository; a full clone has it")
    root = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(root, filter="data")
    forker = Nursery(tmp_path_factory.mktemp("previous-nursery"), root)
    try:
        forker.wait_open()
        yield forker
    finally:
        forker.close()


class Previous:
    """The previous version's part of a fleet."""

    def __init__(self, fleet: Fleet, nursery: Nursery) -> None:
        self._fleet = fleet
        self._nursery = nursery

    async def daemon(self, name: str, **settings: Any) -> Process:
        """Start a daemon, and return when it can take work."""
        fleet = self._fleet
        chosen = {"name": name, "pool": fleet.pool, "lease_s": fleet.lease_s, "slots": 16, "drain_s": 0, **settings}
        spec = {"urls": fleet.urls, "base_url": fleet.sim.url, "key": KEY, "settings": chosen}
        process = await self._nursery.start("daemon", name, spec)
        fleet.processes.append(process)
        await process.until_said("ready")
        return process

    async def parent(self, directives: Sequence[str]) -> tuple[Process, list[str]]:
        """Start a parent that forks these directives, and return it with the run ids."""
        return await self._fleet.parent_process(directives, nursery=self._nursery)
