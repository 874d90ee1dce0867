"""A call finds its tool: built in, the parent's own, a plug-in, an MCP server, and the parent for the rest."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork import FunctionTools, Permissions, ReadOnlyFilter
from nexofork.wire import messages as wire
from tests.support.conversation import AGENT, BASH, call, says
from tests.support.parents import results_in

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

SERVER = str(Path(__file__).parents[2] / "support/mcp_server.py")
TOOLS = [
    AGENT,
    BASH,
    *(
        {"name": name, "input_schema": {"type": "object"}}
        for name in ("Weather", "Mine", "Other", "add", "mcp__probe__long", "Gone")
    ),
]
PLUGIN = """
from nexofork import FunctionTools

async def weather(arguments):
    return f"Sunny in {arguments['city']}."

def tools(place):
    return FunctionTools({"Weather": weather, "Mine": weather, "Bash": weather}), ["Weather", "Mine", "Bash"]

def broken(place):
    raise RuntimeError("no weather today")
"""


def installed(folder: Path) -> str:
    """Install a package with two plug-ins, one of them broken, as pip does; returns where it is."""
    files = {
        "skyline/__init__.py": PLUGIN,
        "skyline-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: skyline\nVersion: 1.0\n",
        "skyline-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: us\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "skyline-1.0.dist-info/entry_points.txt": (
            "[nexofork.tools]\nweather = skyline:tools\nbroken = skyline:broken\nmissing = skyline:nope\n"
        ),
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},\n"
        for name, text in files.items()
    )
    wheel = folder / "skyline-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, "skyline-1.0.dist-info/RECORD": record}.items():
            archive.writestr(name, text)
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, capture_output=True)
    return str(target)


async def answers(fleet: Fleet, *calls: dict[str, Any], **more: Any) -> tuple[list[dict[str, Any]], list[str]]:
    """What a child's calls are answered with, and which of them the parent was asked for."""
    fleet.captured = fleet.captured or await fleet.agent.ask(tools=TOOLS)
    directive = says("Work.", {"tools": list(calls)}, {"text": "Done."})
    async with fleet.connect() as forks:
        result = await (await forks.fork(await fleet.params(directive, **more))).result()
    assert result.ok, result.error
    asked = [report.name for report in await fleet.reports(result.run_id) if isinstance(report, wire.Asked)]
    return results_in(fleet.sim, fleet.sim.request_count - 1), asked


async def test_every_call_goes_to_the_first_that_has_the_tool(fleet: Fleet, tmp_path: Path) -> None:
    """What the parent lists as its own is not hidden by a plug-in, what is built in is by nobody."""
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"probe": {"command": sys.executable, "args": [SERVER]}}}))
    daemon = await fleet.daemon(path=[installed(tmp_path)], mcp_config=config)

    async def mine(arguments: dict[str, Any]) -> str:
        return "the parent's"

    found, asked = await answers(
        fleet,
        call("Bash", command="echo built in"),
        call("Weather", city="Rome"),
        call("Mine", city="Rome"),
        call("add", a=1, b=2),
        call("mcp__probe__long", count=250_000),
        call("Gone"),
        tool_dispatcher=FunctionTools({"Mine": mine}),
    )

    assert [str(one["content"])[:20] for one in found[:4]] == ["built in\n", "Sunny in Rome.", "the parent's", "3"]
    assert "[246000 characters left out]" in found[4]["content"], "MCP results pass the budget for results too"
    assert all(name in found[5]["content"] for name in ("Bash", "Weather", "Mine", "mcp__probe__add"))
    assert asked == ["Mine"]
    assert "plug-in broken gives no tools" in daemon.log
    assert "plug-in missing (skyline:nope) cannot be loaded" in daemon.log
    assert "the tool Bash of plug-in weather is hidden by that of nexofork itself" in daemon.log


async def test_a_parent_that_lists_nothing_comes_last(fleet: Fleet, tmp_path: Path) -> None:
    """A dispatcher that does not say what it has is asked for what nobody on the daemon has; filters come first."""
    await fleet.daemon(path=[installed(tmp_path)])
    heard: list[str] = []

    class Anything(FunctionTools):
        offered = None  # type: ignore[assignment]

    async def other(arguments: dict[str, Any]) -> str:
        heard.append("Other")
        return "the parent's"

    tools = Anything({"Other": other, "Mine": other})
    found, asked = await answers(fleet, call("Mine", city="Rome"), call("Other"), tool_dispatcher=tools)
    assert [one["content"] for one in found] == ["Sunny in Rome.", "the parent's"]
    assert asked == ["Other"]

    found, asked = await answers(fleet, call("Other"), tool_dispatcher=tools, tool_filter=ReadOnlyFilter())
    assert "may only read" in found[0]["content"]
    assert (asked, heard) == ([], ["Other"])


async def test_a_daemon_runs_only_what_the_parents_request_declares(fleet: Fleet, tmp_path: Path) -> None:
    """Built-in, plug-in, MCP and parent tools that are not declared stay unused, after a take-over and a wake too."""
    config, door, made = tmp_path / "mcp.json", tmp_path / "door", tmp_path / "made"
    config.write_text(json.dumps({"mcpServers": {"probe": {"command": sys.executable, "args": [SERVER]}}}))
    plugins = installed(tmp_path)
    lost = await fleet.daemon("lost", path=[plugins], mcp_config=config)
    fleet.captured = await fleet.agent.ask(tools=[AGENT, {"name": "sh", "input_schema": {"type": "object"}}])
    undeclared = [call(command=f"touch {made}"), call("Weather", city="Rome"), call("add", a=1, b=2), call("Mine")]
    held = call("sh", command="true", behind=str(door))

    async def mine(arguments: dict[str, Any]) -> str:
        raise AssertionError("the parent was asked")

    directive = says("Work.", {"tools": [*undeclared, held]}, {"tools": undeclared}, "Done.")
    async with fleet.connect() as forks:
        params = await fleet.params(
            directive,
            tool_dispatcher=FunctionTools({"Mine": mine}),
            tool_names={"sh": "Bash"},
            permissions=Permissions(mode="bubble", allow=("Bash",)),
        )
        handle = await forks.fork(params)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.ToolStarted))
        await lost.kill()
        door.touch()
        await fleet.daemon("next", path=[plugins], mcp_config=config)
        first = await handle.result()
        answers = [results_in(fleet.sim, fleet.sim.request_count - 1)]
        again = await forks.wake(handle.run_id, says("More.", {"tools": undeclared}, "Done."))
        second = await again.result()
    answers.append(results_in(fleet.sim, fleet.sim.request_count - 1))

    assert (first.ok, first.attempts, second.ok) == (True, 2, True), (first.error, second.error)
    for found in answers:
        assert all(one["is_error"] and "Declared tools: Agent, sh." in one["content"] for one in found)
        named = zip(found, ("'Bash'", "'Weather'", "'add'", "'Mine'"), strict=True)
        assert all(name in one["content"] for one, name in named)
    reports = [*await fleet.reports(handle.run_id), *await fleet.reports(again.run_id)]
    assert [report.name for report in reports if isinstance(report, wire.ToolStarted)] == ["Bash"]
    assert not [report for report in reports if isinstance(report, wire.Asked)]
    assert not made.exists()
