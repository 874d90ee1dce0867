"""The README's examples, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork.bus.embedded import EmbeddedServer
from nexofork.cli import COMMANDS
from tests.support.conversation import BASH, call, request, says
from tests.support.parents import results_in
from tests.support.sessions import reads_the_parent, warm_request

if TYPE_CHECKING:
    import pytest

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery
    from tests.support.parents import Parent

README = Path(__file__).resolve().parents[3] / "README.md"


def examples() -> list[str]:
    """The Python blocks of the README."""
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def names_in(example: str) -> dict[str, Any]:
    """Run a block and return what it defines."""
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    return names


async def test_the_fleet_example_forks_onto_a_daemon(
    sim: Simulator, parent: Parent, nursery: Nursery, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parent, a capture, a connection: two children complete on the daemon and read the parent's cache."""
    async with EmbeddedServer() as server:
        example = examples()[0]
        assert "nats://127.0.0.1:4222" in example
        main = names_in(example.replace("nats://127.0.0.1:4222", server.url))["main"]
        settings = {"name": "d1", "lease_s": 1.0, "slots": 4}
        spec = {"urls": [server.url], "base_url": sim.url, "key": parent.client.api_key, "settings": settings}
        daemon = await nursery.start("daemon", "d1", spec)
        try:
            await daemon.until_said("ready")
            await main(parent.client, request())
        finally:
            await daemon.kill()

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("completed d1 0.9") for line in lines)


async def test_the_in_process_example_forks(parent: Parent, sim: Simulator, capsys: pytest.CaptureFixture[str]) -> None:
    """The same without NATS."""

    async def grep(arguments: dict[str, Any]) -> str:
        return "nothing"

    await parent.ask()
    await names_in(examples()[1])["in_process"](parent.client, parent.capture, grep)

    assert capsys.readouterr().out.count("status=<ForkStatus.COMPLETED: 'completed'>") == 2
    assert sim.request_count == 3


async def test_the_sidecar_example_answers_and_guesses(fleet: Fleet, tmp_path: Path) -> None:
    """Three runs beside the session, each reading its cache."""
    await fleet.daemon()
    await fleet.agent.ask(warm_request("All is well."))
    async with fleet.connect() as forks:
        said = await names_in(examples()[3])["after_turn"](fleet.agent.client, forks, str(tmp_path), "How is it?")

    assert said == ("All is well.", "All is well.")
    assert fleet.sim.request_count == 4
    assert all(reads_the_parent(fleet.sim, record) for record in fleet.sim.log[1:])


async def test_the_session_example_forks_and_hears_of_the_end(fleet: Fleet) -> None:
    """The model starts a fork and a named agent, is told of both ends, and has the last word."""
    await fleet.daemon()
    calls = {"tools": [call("Agent", prompt="apple"), call("Agent", prompt="birch", subagent_type="general-purpose")]}
    asked = request(tools=[BASH], messages=[{"role": "user", "content": says("Go.", calls, {"text": "I wait."})}])
    async with fleet.connect() as forks:
        said = await names_in(examples()[2])["session"](fleet.agent.client, forks, asked)

    users = [str(message["content"]) for message in asked["messages"] if message["role"] == "user"]
    told = [text for text in users if "<task-notification>" in text]
    assert len(told) == 2
    assert all("<status>completed</status>" in text for text in told)
    assert said


def test_every_command_is_in_the_readme() -> None:
    """A command that exists is named, and none is named that does not exist."""
    table = README.read_text().partition("## Commands")[2].partition("NATS comes from")[0]
    named = set(re.findall(r"`([a-z]+)`", table.replace("`nexoforkd`", "").replace("`ready`", "")))

    assert named == set(COMMANDS)


async def test_the_session_examples_callback_decides_what_its_agents_do(fleet: Fleet) -> None:
    """A command that does more than read is asked for and denied with the example's note, without a wait."""
    await fleet.daemon()
    touches = says("touch", {"tools": [call("Bash", command="touch x")]}, {"text": "Scope: x\nResult: tried"})
    calls = {"tools": [call("Agent", prompt=touches, description="touch")]}
    asked = request(tools=[BASH], messages=[{"role": "user", "content": says("Go.", calls, {"text": "I wait."})}])
    async with fleet.connect() as forks:
        await names_in(examples()[2])["session"](fleet.agent.client, forks, asked)

    denied = [
        found["content"]
        for record in fleet.sim.log[1:]
        for found in results_in(fleet.sim, record.index)
        if found.get("is_error")
    ]
    assert any("permission was denied: files only" in text for text in denied)
