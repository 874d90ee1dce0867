"""A daemon's key announces what is not true: the forks of others go on, or end as they would without it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from anthropic import AsyncAnthropic

from nexofork import AnthropicProvider, ForkStatus, ReadOnlyFilter
from nexofork.bus.jetstream import store
from nexofork.bus.peers import Peers
from nexofork.bus.presence import PresenceBoard
from nexofork.sandbox.sandbox import SandboxSettings, shared_folders
from nexofork.tools.builtin import BuiltinTools
from nexofork.wire import messages as wire
from nexofork.wire.subjects import presence
from nexofork_daemon.placement import Placement
from nexofork_daemon.run_environment import Environments
from nexofork_daemon.state_folder import DiskLimits, StateFolder
from nexofork_daemon.workspaces import Workspaces
from tests.integration.auth.test_rogue_daemon import rogue_seed, server
from tests.support.conversation import KEY, says
from tests.support.fleet import open_fleet
from tests.support.nats import a_request, connected
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nexofork.bus.connection import Bus
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery
    from tests.support.nats import AccountsServer

__all__ = ["server"]

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}


@pytest.fixture
async def guarded(server: AccountsServer, sim: Simulator, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet on a server with keys; its own daemons have another key than the rogue."""
    async with open_fleet(
        (server.url,), sim=sim, nursery=nursery, folder=tmp_path, pool="fork", seeds=server.seeds
    ) as opened:
        yield opened


@pytest.fixture
async def rogue(server: AccountsServer) -> AsyncIterator[Bus]:
    """A connection with the rogue's key."""
    async with connected(server.url, seed=rogue_seed(server)) as bus:
        yield bus


@asynccontextmanager
async def announced(rogue: Bus, instance: str = "liar", **said: Any) -> AsyncIterator[None]:
    """A false presence for as long as the block."""
    who = wire.Daemon(nkey=rogue.identity, instance=instance, name=f"{instance}\x1b[2J")
    there = wire.Presence(daemon=who, **{"slots": 4, "reads": 2, **said})
    board = PresenceBoard(rogue)
    await board.announce(there)
    try:
        yield
    finally:
        await board.withdraw(there)


async def test_a_daemon_that_calls_itself_old_keeps_forks_back_for_a_while_only(
    guarded: Fleet, rogue: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    """Then the fork is asked for; the same key keeps no further one back, under whichever name."""
    await guarded.daemon()
    async with guarded.connect(old_daemons_s=1.0) as forks, asyncio.timeout(PATIENCE_S):
        params = await guarded.params(says("apple", DONE), tool_filter=ReadOnlyFilter())
        async with announced(rogue, reads=1):
            first = await (await forks.fork(params)).result()
        async with announced(rogue, "another", reads=1):
            second = await (await forks.fork(params)).result()

    assert [first.status, second.status] == [ForkStatus.COMPLETED] * 2
    assert caplog.text.count("kept back") == 1
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("said", [{"slots": 1, "running": 1}, {"slots": 100_000}, {"slots": 2, "draining": True}])
async def test_a_daemon_that_does_not_exist_keeps_no_fork_waiting(
    guarded: Fleet, rogue: Bus, said: dict[str, Any]
) -> None:
    """Busy, free or draining: a fork that no daemon takes ends as it would without it."""
    async with announced(rogue, **said), guarded.connect(queue_limit_s=0.5) as forks, asyncio.timeout(PATIENCE_S):
        result = await (await forks.fork(await guarded.params("birch"))).result()

    assert (result.status, result.end) == (ForkStatus.FAILED, "no_daemon")


async def test_a_fork_waits_for_a_daemon_that_is_busy(guarded: Fleet, rogue: Bus) -> None:
    """The log of the run that it has under way tells so, for as long as that takes."""
    await guarded.daemon(slots=1)
    async with guarded.connect(queue_limit_s=2.0) as forks:
        running = await forks.fork(await guarded.params(says("cedar", HELD)))
        await guarded.sim.begun(2)
        await guarded.until_present(lambda there: there.running == 1)
        waiting = await forks.fork(await guarded.params(says("elm", DONE)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(6):
                await waiting.result()
        guarded.sim.release("held")
        results = [await running.result(), await waiting.result()]

    assert [result.status for result in results] == [ForkStatus.COMPLETED] * 2


async def test_a_run_is_not_left_for_ever_to_a_daemon_that_does_not_exist(rogue: Bus, tmp_path: Path) -> None:
    """One that says it knows everything is given the run for a while; then the run is refused by name."""
    folders = shared_folders(SandboxSettings(state_dir=tmp_path))
    environments = Environments(BuiltinTools, workspaces=Workspaces(StateFolder(tmp_path, DiskLimits()), folders))
    provider = AnthropicProvider(AsyncAnthropic(api_key=KEY))
    placement = Placement(provider, Peers(rogue, pool="fork"), environments=environments, instance="d1")
    request = a_request().model_copy(update={"v": 2, "needs": ["holograms"]})
    async with announced(rogue, reads=99, knows=["holograms"]):
        assert "holograms" in (await placement.reason(request, attempt=1) or "")
        assert await placement.is_read_by_others(3, attempt=1)

        assert await placement.reason(request, attempt=361) is None
        assert not await placement.is_read_by_others(3, attempt=361)


@pytest.mark.parametrize(
    "said", [{"slots": -1}, {"slots": 10**9}, {"running": -(10**9)}, {"reads": 10**12}, {"knows": ["x"] * 5_000}]
)
async def test_an_absurd_presence_is_not_shown(rogue: Bus, said: dict[str, Any]) -> None:
    """Sums of slots and runs stay sums of what daemons can have."""
    plain = {"v": 1, "kind": "presence", "id": "x", "daemon": {"nkey": rogue.identity, "instance": "absurd"}, **said}
    await store(rogue, presence(rogue.identity, "absurd"), json.dumps(plain).encode())

    assert [one for one in await PresenceBoard(rogue).daemons() if one.daemon.instance == "absurd"] == []
