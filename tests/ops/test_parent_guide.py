"""The parent guide: its commands run in order, and its functions do what the text around them says."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.bus.embedded import EmbeddedServer
from tests.support.conversation import AGENT, BASH, KEY, call, request, says
from tests.support.guides import Reader, blocks, commands
from tests.support.repositories import Repo
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet
    from tests.support.parents import Parent

pytestmark = [pytest.mark.ops, pytest.mark.timeout(300)]

DONE = "Scope: all\nResult: done"
FIX = "echo fixed > a.txt && git commit -qam Fix"


def functions() -> dict[str, Any]:
    """Everything that the guide's Python blocks define."""
    names: dict[str, Any] = {}
    for block in blocks("parent-guide.md"):
        if block.language == "python":
            exec(compile(block.text, "parent-guide.md", "exec"), names)
    return names


@needs_bubblewrap
async def test_the_commands_of_the_guide_run_in_order(sim: Simulator, parent: Parent, tmp_path: Path) -> None:
    """Fork, wait, wake, fetch, message, abort, explain: each succeeds on a server and a daemon of one machine."""
    repo = await asyncio.to_thread(Repo, tmp_path / "repo")
    snapshot = await parent.ask()
    assert snapshot.reply is not None
    (tmp_path / "request.json").write_bytes(snapshot.body)
    (tmp_path / "reply.json").write_bytes(snapshot.reply.to_wire())
    provider = {"ANTHROPIC_BASE_URL": sim.url, "ANTHROPIC_API_KEY": KEY}
    slow = says("Take your time.", {"text": DONE, "hold": "slow"})
    commit = says("Fix the tests and commit.", {"tools": [call(command=FIX)]}, DONE)
    acted = {"Take your time.": slow.replace('"', '\\"'), "Fix the tests and commit.": commit.replace('"', '\\"')}
    async with (
        EmbeddedServer() as server,
        Reader(folder=tmp_path, replaced=acted, environment={**provider, "NATS_URL": server.url}) as reader,
    ):
        await reader.follow(f"nexofork daemon --sandbox bwrap --name d1 --state-dir {tmp_path / 'state'}")
        for command in commands("parent-guide.md"):
            await reader.follow(command)

    printed = {command: out for command, out in reader.outputs.items() if command.endswith("--json")}
    [aside] = [printed.pop(command) for command in list(printed) if command.startswith("nexofork sidecar")]
    ended = [json.loads(out.splitlines()[-1]) for out in printed.values()]
    assert json.loads(aside)["text"]
    assert {one["status"] for one in ended} == {"completed"}
    assert [one["run_id"] for one in ended if one["run_id"].startswith("guide")] == [
        *("guide-1", "guide-1", "guide-2", "guide-3")
    ]
    assert repo.git("status", "--porcelain") == ""
    assert repo.show("refs/forks/guide-3", "a.txt") == "fixed"


async def test_the_fan_out_returns_every_result(fleet: Fleet, sim: Simulator) -> None:
    """Two directives, two reports, from one captured call."""
    async with EmbeddedServer() as server:
        spec = {"urls": [server.url], "base_url": sim.url, "key": KEY, "settings": {"name": "d1", "slots": 4}}
        daemon = await fleet.nursery.start("daemon", "d1", spec)
        try:
            await daemon.until_said("ready")
            done = await functions()["fan_out"](fleet.agent.client, server.url, request())
        finally:
            await daemon.kill()

    assert len(done) == 2


@needs_bubblewrap
async def test_a_checkout_comes_back_as_a_ref(fleet: Fleet, tmp_path: Path) -> None:
    """The guide's repository example fetches what the child did."""
    repo = await asyncio.to_thread(Repo, tmp_path / "repo")
    await fleet.daemon(sandbox="bwrap")
    works = says("Fix the tests and commit.", {"tools": [call(command=FIX)]}, DONE)
    [example] = [block.text for block in blocks("parent-guide.md") if "in_their_own_checkout" in block.text]
    names: dict[str, Any] = {}
    exec(compile(example.replace('"Fix the tests and commit."', repr(works)), "parent-guide.md", "exec"), names)
    async with fleet.connect() as forks:
        ref = await names["in_their_own_checkout"](forks, await fleet.params("x"), repo.path)

    assert ref.startswith("refs/forks/")
    assert repo.show(ref, "a.txt") == "fixed"


async def test_the_bounds_hold(fleet: Fleet, tmp_path: Path) -> None:
    """The reader does not write; the one that asks is answered by the function."""
    await fleet.daemon()
    tally, given = tmp_path / "tally", functions()
    writes = {"tools": [call(command=f"echo ran >> {tally}")]}
    async with fleet.connect() as forks:
        looked = await given["only_look"](forks, await fleet.params(says("apple", writes, DONE)))
        assert not tally.exists()
        asked = await given["ask_me"](forks, await fleet.params(says("birch", writes, DONE)))

    assert (looked.status, asked.status) == (ForkStatus.COMPLETED, ForkStatus.COMPLETED)
    assert tally.read_text() == "ran\n"


async def test_steering_and_sidecars_work(fleet: Fleet) -> None:
    """A child is spoken to and woken; a sidecar answers in passing."""
    await fleet.daemon()
    given = functions()
    async with fleet.connect() as forks:
        first, again = await given["steer"](forks, await fleet.params("cedar"))
        said = await given["in_passing"](fleet.agent.capture, forks, says("date", {"text": "It is late."}))

    assert (first.status, again.status) == (ForkStatus.COMPLETED, ForkStatus.COMPLETED)
    assert said == "It is late."


@pytest.mark.parametrize("name", ["tool_that_asks", "tool_that_asks_nobody"])
async def test_agents_of_the_guides_tools_may_act(fleet: Fleet, tmp_path: Path, name: str) -> None:
    """A command of a fork runs, allowed by the function or by the policy."""
    await fleet.daemon()
    tally = tmp_path / "tally"
    writes = says("apple", {"tools": [call(command=f"echo ran >> {tally}")]}, DONE)
    turn = {"tools": [call("Agent", prompt=writes, description="write")]}
    await fleet.agent.ask(request(answer=turn, tools=[AGENT, BASH]))
    async with fleet.connect() as forks, functions()[name](forks, fleet.agent.capture) as tool:
        await tool.handle_all()
        notice = await tool.next_notification()

    assert "<status>completed</status>" in notice
    assert tally.read_text() == "ran\n"
