"""The examples run as their users run them: as programs, against a server, daemons and a provider of their own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.embedded import EmbeddedServer
from tests.support.conversation import KEY
from tests.support.fleet import nursery, open_fleet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery

__all__ = ["nursery"]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
async def fleet(sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet in the pool that everybody uses unless told otherwise."""
    async with (
        EmbeddedServer() as server,
        open_fleet((server.url,), sim=sim, nursery=nursery, folder=tmp_path, pool="fork") as opened,
    ):
        yield opened


@pytest.fixture
def environment(fleet: Fleet) -> dict[str, str]:
    """What the examples are told by their environment, and no more of ours than they need."""
    who = {f"GIT_{role}_{what}": "ada@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(fleet.folder),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NATS_URL": fleet.url,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": fleet.sim.url,
        **who,
    }
