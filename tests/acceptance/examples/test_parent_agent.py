"""The parent agent at a terminal: it forks onto two hosts, is interrupted without leaving a child, and merges."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.client.runs import list_runs
from nexofork.wire import messages as wire
from tests.support.conversation import call
from tests.support.parents import body_of
from tests.support.repositories import Repo
from tests.support.sandboxes import needs_bubblewrap
from tests.support.screens import CTRL_B, CTRL_C, CTRL_D, AtTerminal
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork.client.runs import RunRow
    from tests.support.fleet import Fleet

pytestmark = needs_bubblewrap

PARTS = ("apple", "birch", "cedar")
ONE_PART = {
    "match": "one part",
    "turns": [{"tools": [call("Agent", prompt="Do apple.", description="it")]}, {"text": "I wait."}],
}
DONE = {"text": "Scope: all\nResult: done"}


@pytest.fixture
def repo(fleet: Fleet) -> Repo:
    """What the agent works on."""
    return Repo(fleet.folder / "repo", {f"{part}.txt": f"{part}\n" for part in PARTS})


@pytest.fixture
def agent(repo: Repo, environment: dict[str, str]) -> AtTerminal:
    """The agent, in that repository."""
    command = [sys.executable, "-m", "examples.parent_agent", "--allow", "Bash(sleep *)", "--allow", "Bash(echo *)"]
    return AtTerminal(command, cwd=repo.path, env=environment)


async def two_hosts(fleet: Fleet) -> None:
    """Start two daemons that can take three children only together."""
    for name in ("north", "south"):
        await fleet.daemon(name, state_dir=str(fleet.folder / name), slots=2, sandbox="bwrap")


def fan_out(*turns: dict[str, Any]) -> dict[str, Any]:
    """A rule by which the model starts an agent per part, and has these turns after that."""
    calls = [call("Agent", prompt=f"Do {part}.", description=f"the {part}") for part in PARTS]
    return {"match": "all parts", "turns": [{"text": "I fork.", "tools": calls}, *turns]}


def child(part: str, *commands: str, **more: Any) -> dict[str, Any]:
    """A rule by which a child runs commands, one per turn, and reports."""
    return {"match": f"Do {part}.", "turns": [*({"tools": [call(command=one)]} | more for one in commands), DONE]}


async def runs(fleet: Fleet) -> list[RunRow]:
    """The runs on the log."""
    return await list_runs(fleet.bus, fleet.pool)


def processes(mark: str) -> list[str]:
    """The commands of this machine's processes that have a mark in them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
    return [command for command in found if mark in command]


async def until_tools_run(fleet: Fleet) -> list[RunRow]:
    """Return the three runs, once each of them is in its first tool call."""
    await fleet.sim.received(1 + len(PARTS))
    rows = await runs(fleet)
    for row in rows:
        await fleet.until_logged(row.run_id, lambda report: isinstance(report, wire.ToolStarted))
    return await runs(fleet)


async def test_ctrl_c_ends_every_child_on_every_host(fleet: Fleet, agent: AtTerminal) -> None:
    """After the interrupt each run has its end on the log, no command is left, and the conversation can go on."""
    await two_hosts(fleet)
    mark = f"sleep 9{secrets.randbelow(10**8):08}"
    fleet.sim.script(fan_out({"text": "I wait."}), *(child(part, mark) for part in PARTS))
    async with agent:
        await agent.until("> ")
        agent.type("Do all parts.")
        await agent.until("Waiting for 3 agents")
        assert {row.daemon for row in await until_tools_run(fleet)} == {"north", "south"}
        await eventually(lambda: len(processes(mark)) >= 3)

        agent.press(CTRL_C)
        await agent.until("Ended 3 of 3 agents")

        for row in await runs(fleet):
            last = (await fleet.reports(row.run_id))[-1]
            assert isinstance(last, wire.Final)
            assert last.status == ForkStatus.ABORTED
        await eventually(lambda: not processes(mark))
        await agent.until("> ")
        agent.type("What now?")
        await agent.until("Scope: ")
        said = str(body_of(fleet.sim, fleet.sim.request_count - 1)["messages"][-1])
        assert said.count("<status>killed</status>") == 3
        await agent.until("> ")

        before = fleet.sim.request_count
        agent.type("Do all parts.")
        await fleet.sim.finished(before + 1)
        agent.press(CTRL_C)  # while it is forking
        await agent.until("\n> ")
        for row in await runs(fleet):
            await fleet.until_logged(row.run_id, lambda report: isinstance(report, wire.Final))
        assert {row.status for row in await runs(fleet)} == {ForkStatus.ABORTED}
        agent.press(CTRL_C)
        assert await agent.ended() == 130


async def test_the_work_of_three_children_is_merged(fleet: Fleet, agent: AtTerminal, repo: Repo) -> None:
    """Each asks at the terminal before it commits; their reports reach the model; git log shows all their commits."""
    await two_hosts(fleet)
    told = {"match": "task-notification", "turns": ["All parts are done."]}
    edits = {part: f"echo more >> {part}.txt; git commit -qam 'Grow {part}'" for part in PARTS}
    fleet.sim.script(told, fan_out({"text": "I wait."}), *(child(part, edits[part]) for part in PARTS))
    async with agent:
        await agent.until("> ")
        agent.type("Do all parts.")
        for _ in PARTS:
            await agent.until(r"Agent \d \(the \w+\) asks to run Bash(.|\n)*Allow\?")
            agent.type("y")
        await agent.until("All parts are done.")
        await agent.until("> ")
        assert {row.daemon for row in await runs(fleet)} == {"north", "south"}
        assert [row.status for row in await runs(fleet)] == [ForkStatus.COMPLETED] * 3

        agent.type("/fetch 2")
        await agent.until("Agent 2 .*: refs/forks/(.|\n)*Grow birch(.|\n)*It merges.")
        agent.type("/merge")
        for part in PARTS:
            await agent.until(f"Agent . .the {part}. is merged: Grow {part}")
        agent.type("/merge")
        await agent.until("No agent is done whose work was not merged yet")
        agent.press(CTRL_D)
        assert await agent.ended() == 0

    log = repo.git("log", "--format=%s")
    assert all(f"Grow {part}" in log for part in PARTS)
    assert [(repo.path / f"{part}.txt").read_text() for part in PARTS] == [f"{part}\nmore\n" for part in PARTS]
    assert repo.git("status", "--porcelain") == ""
    reported = str(body_of(fleet.sim, fleet.sim.request_count - 1)["messages"][-1])
    assert reported.count("<status>completed</status>") == 3


async def test_a_wait_goes_to_the_background_and_the_user_goes_on(fleet: Fleet, agent: AtTerminal) -> None:
    """At Ctrl-B the prompt is back: ask the model, ask aside, look, speak to a child; its report enters by itself."""
    await fleet.daemon("north", sandbox="bwrap")
    told = {"match": "task-notification", "turns": ["Heard of one end."]}
    fleet.sim.script(
        told,
        ONE_PART,
        {"match": "Do apple.", "turns": [{"tools": [call(command="echo")], "hold": "apple"}, DONE]},
        {"match": "Are you there", "turns": ["I am here."]},
        {"match": "asks something aside", "turns": ["Aside: forty-two."]},
    )
    async with agent:
        await agent.until("> ")
        agent.type("/tasks")
        await agent.until("No agent was started yet.")
        agent.type("/btw Too early?")
        await agent.until("/btw: ")
        agent.type("Do one part.")
        await agent.until("Waiting for an agent")
        agent.press(CTRL_B)
        await agent.until("They go on in the background.\n> ")
        agent.type("Are you there?")
        await agent.until("I am here.")
        agent.type("/btw How many?")
        await agent.until("Aside: forty-two.")
        agent.type("/tasks")
        await agent.until("1  running  on north  it  ")
        agent.type("/merge 1")
        await agent.until("Agent 1 .it. is still at work")
        agent.type("/msg 1 Hurry up.")
        await agent.until("Agent 1 .it. reads it after its present turn")
        agent.type("/msg 7 Who are you?")
        await agent.until("7 names no agents; agents here are: 1 to 1")
        fleet.sim.release("apple")
        await agent.until(r"Heard of one end\.\n> ")  # the prompt is back: the call is over and counted
        agent.type("/cost")
        await agent.until(r"This conversation: 5 calls, .* cached\), \$0\.")
        await agent.until(r"Agent 1 .it.: [12] calls, .* cached\), \$0\.")
        agent.type("/quit")
        assert await agent.ended() == 0

    (row,) = await runs(fleet)
    assert row.status == ForkStatus.COMPLETED
    bodies = [str(body_of(fleet.sim, record.index)) for record in fleet.sim.log]
    assert any("Hurry up." in body for body in bodies)
    assert not any("forty-two" in body for body in bodies)


async def test_no_child_outlives_the_terminal(fleet: Fleet, agent: AtTerminal) -> None:
    """When the terminal is closed the agent ends its child, waits for that, and goes."""
    await fleet.daemon("north", sandbox="bwrap")
    fleet.sim.script(ONE_PART, {"match": "Do apple.", "turns": [DONE | {"hold": "apple"}]})
    async with agent:
        await agent.until("> ")
        agent.type("Do one part.")
        await agent.until("Waiting for an agent")
        await fleet.sim.received(3)

        agent.hang_up()

        assert await agent.ended() == 130
    (row,) = await runs(fleet)
    assert row.status == ForkStatus.ABORTED


async def test_what_the_user_denies_is_not_run(fleet: Fleet, agent: AtTerminal, repo: Repo) -> None:
    """The agent's own command is asked for like a child's; the model reads why not, and an interrupt is an answer."""
    removes = {"tools": [call(command="rm apple.txt")]}
    fleet.sim.script(
        {"match": "Clean up", "turns": [removes, removes, "I give up."]}, {"match": "Well", "turns": ["Well."]}
    )
    async with agent:
        await agent.until("> ")
        agent.type("Clean up.")
        await agent.until(r"The agent asks to run Bash(.|\n)*rm apple.txt(.|\n)*Allow\?")
        agent.type("what?")
        await agent.until(r"Allow\?")
        agent.type("n keep the apple")
        await agent.until(r"Allow\?")
        agent.press(CTRL_C)
        await agent.until("> ")
        agent.type("Well?")
        await agent.until("Well\\.")
        agent.press(CTRL_D)
        assert await agent.ended() == 0

    assert (repo.path / "apple.txt").exists()
    said = str(body_of(fleet.sim, fleet.sim.request_count - 1)["messages"])
    assert "permission was denied: keep the apple" in said
    assert "The user interrupted before this was done" in said


async def test_a_server_that_is_not_there_is_named(repo: Repo, environment: dict[str, str]) -> None:
    """The agent says so in one line, and ends."""
    command = [sys.executable, "-m", "examples.parent_agent", "--nats", "nats://127.0.0.1:9"]
    async with AtTerminal(command, cwd=repo.path, env=environment) as agent:
        await agent.until("parent_agent: .*127.0.0.1:9")
        assert await agent.ended() == 3


async def test_an_interrupt_withdraws_the_questions_of_the_children(fleet: Fleet, agent: AtTerminal) -> None:
    """Nothing is asked any more while they are ended, neither what was open nor what waited behind it."""
    await two_hosts(fleet)
    fleet.sim.script(fan_out({"text": "I wait."}), *(child(part, f"rm {part}.txt") for part in PARTS))
    async with agent:
        await agent.until("> ")
        agent.type("Do all parts.")
        await agent.until(r"asks to run Bash(.|\n)*Allow\?")
        await fleet.sim.received(1 + len(PARTS))
        for row in await runs(fleet):
            await fleet.until_logged(row.run_id, lambda report: isinstance(report, wire.Asked))

        agent.press(CTRL_C)
        ending = await agent.until("Ending 3 agents")
        await agent.until("Ended 3 of 3 agents")
        await agent.until("> ")
        agent.press(CTRL_D)
        assert await agent.ended() == 0

    assert "Allow?" not in agent.shown[ending.end() :]
    assert "asks to run" not in agent.shown[ending.end() :]
    assert {row.status for row in await runs(fleet)} == {ForkStatus.ABORTED}
