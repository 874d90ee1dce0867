"""A child keeps notes in its parent's memory folder, which no daemon can see."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AllOfFilter, AutoMemFilter, ForkStatus, ReadOnlyFilter
from nexofork.bus.jetstream import store
from nexofork.wire import messages as wire
from tests.support.conversation import AGENT, BASH, call, declared, says
from tests.support.parents import results_in

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import ForkResult
    from tests.support.fleet import Fleet

NAMES = {"read_file": "FileRead", "write_file": "FileWrite", "edit_file": "FileEdit", "find": "Glob", "search": "Grep"}
TOOLS = [AGENT, BASH, *({"name": name, "input_schema": {"type": "object"}} for name in NAMES)]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """A memory folder with a note."""
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "note.md").write_text("one\n")
    return folder


async def run(fleet: Fleet, *turns: list[dict[str, Any]], **more: Any) -> ForkResult:
    """Fork a child that makes these calls, turn by turn."""
    fleet.captured = fleet.captured or await fleet.agent.ask(tools=TOOLS)
    directive = says("Dream.", *({"tools": calls} for calls in turns), {"text": "Done."})
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(directive, tool_names=NAMES, **more))
        return await handle.result()


async def asked(fleet: Fleet, run_id: str) -> list[str]:
    """The tools that the parent was asked to run."""
    return [report.name for report in await fleet.reports(run_id) if isinstance(report, wire.Asked)]


async def test_the_file_tools_run_where_the_folder_is(fleet: Fleet, memory: Path, tmp_path: Path) -> None:
    """Every path in it is asked for at the parent under the parent's names; what is outside is read on the daemon."""
    await fleet.daemon()
    (tmp_path / "other.md").write_text("elsewhere\n")
    note = str(memory / "note.md")
    result = await run(
        fleet,
        [call("read_file", file_path=note), call("read_file", file_path=str(tmp_path / "other.md"))],
        [
            call("edit_file", file_path=note, old_string="one", new_string="two"),
            call("write_file", file_path=str(memory / "new.md"), content="new two\n"),
            call("find", pattern="*.md", path=str(memory)),
            call("search", pattern="two", path=str(memory), output_mode="content"),
            call("write_file", file_path=str(tmp_path / "other.md"), content="x"),
            call("Bash", command=f"echo x > {note}"),
        ],
        tool_filter=AutoMemFilter(memory),
    )

    assert result.status is ForkStatus.COMPLETED, result.error
    seen, other = results_in(fleet.sim, 2)
    assert (seen["content"], other["content"]) == ("     1\tone", "     1\telsewhere")
    edited, written, found, searched, outside, shell = results_in(fleet.sim, 3)
    assert edited["content"] == f"Edited {note}: replaced 1 place, in line 1."
    assert not written.get("is_error")
    assert set(found["content"].splitlines()) == {note, str(memory / "new.md")}
    assert searched["content"].splitlines() == [f"{memory}/new.md:1:new two", f"{note}:1:two"]
    assert f"may write regular files under {memory} only" in outside["content"]
    assert "may only run commands that read" in shell["content"]
    assert (memory / "note.md").read_text() == "two\n"
    assert await asked(fleet, result.run_id) == ["read_file", "edit_file", "write_file", "find", "search"]
    assert result.audit == ()


async def test_the_parent_has_the_last_word_on_a_path(fleet: Fleet, memory: Path, tmp_path: Path) -> None:
    """A path that only looks like one in the folder passes the daemon, which cannot see it; the parent denies it."""
    await fleet.daemon()
    (tmp_path / "victim.md").write_text("safe\n")
    (memory / "link.md").symlink_to(tmp_path / "victim.md")
    (memory / "folder").symlink_to(tmp_path)
    result = await run(
        fleet,
        [
            call("read_file", file_path=str(memory / "link.md")),
            call("write_file", file_path=str(memory / "folder/new.md"), content="x"),
            call("write_file", file_path=str(memory / "../victim.md"), content="x"),
            call("search", pattern=".", path=str(memory / "folder")),
        ],
        tool_filter=AutoMemFilter(memory),
    )

    read, through, up, searched = results_in(fleet.sim, 2)
    assert all(answer["is_error"] for answer in (read, through, up, searched))
    assert f"serves files under {memory} only" in read["content"]
    assert "is outside" in through["content"]
    assert (tmp_path / "victim.md").read_text() == "safe\n"
    assert not (tmp_path / "new.md").exists()
    assert await asked(fleet, result.run_id) == ["read_file", "write_file", "search"], "`..` is seen by its words"


async def test_a_daemon_that_shares_the_folder_uses_it_itself(fleet: Fleet, memory: Path) -> None:
    """Nothing is asked; the file is read and written on the daemon's host."""
    await fleet.daemon(shared_dirs=[str(memory.parent)])
    note = str(memory / "note.md")
    result = await run(
        fleet,
        [call("read_file", file_path=note)],
        [call("edit_file", file_path=note, old_string="one", new_string="two")],
        tool_filter=AutoMemFilter(memory),
    )

    assert result.status is ForkStatus.COMPLETED, result.error
    assert (memory / "note.md").read_text() == "two\n"
    assert await asked(fleet, result.run_id) == []


async def test_a_folder_that_nobody_serves_is_refused(fleet: Fleet, memory: Path) -> None:
    """A parent that does not stay to serve it, and a daemon that does not share it: the run does not begin."""
    await fleet.daemon()
    params = await fleet.params("Dream.", tool_filter=AutoMemFilter(memory))
    async with fleet.connect(serve_files=False) as forks:
        result = await (await forks.fork(params)).result()

    assert result.status is ForkStatus.REFUSED
    assert "--shared-dir" in (result.error or "")
    assert fleet.sim.request_count == 1


async def test_what_a_hostile_daemon_asks_for_is_judged_by_the_parents_own_filter(
    fleet: Fleet, memory: Path, tmp_path: Path
) -> None:
    """Whatever it names: only file tools, only in the folder, only what the filter lets."""
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    params = await fleet.params("Dream.", tool_filter=AllOfFilter([AutoMemFilter(memory), ReadOnlyFilter()]))
    asks = {
        "a1": ("FileRead", {"file_path": str(secret)}),
        "a2": ("FileRead", {"file_path": "note.md"}),
        "a3": ("Bash", {"command": f"cat {secret}"}),
        "a4": ("FileWrite", {"file_path": str(memory / "x"), "content": "x"}),
        "a5": ("Grep", {"pattern": "s3", "path": "/"}),
        "a6": ("Glob", {"pattern": f"{tmp_path}/*"}),
        "a7": ("FileRead", {"file_path": f"/proc/self/root{memory}/../secret"}),
        "a8": ("Todo", {}),
        "a9": ("Agent", {"prompt": "x"}),
        "b1": ("FileRead", {"file_path": str(memory / "note.md")}),
    }
    async with fleet.connect() as forks:
        handle = await forks.fork(params)
        log = fleet.log(handle.run_id)
        tip = await log.tip()
        assert tip is not None
        seq = await log.append(wire.Claimed(epoch=1, daemon=wire.Daemon(name="evil")), after=tip.seq)
        for ask_id, (name, arguments) in asks.items():
            asked = wire.Asked(
                epoch=1,
                ask_id=ask_id,
                what="tool",
                payload=wire.Payload(text=json.dumps(arguments)),
                deadline_s=20,
                call_id=ask_id,
                name=name,
            )
            seq = await log.append(asked, after=seq)
        answers = {ask_id: await answer(fleet, handle.run_id, ask_id) for ask_id in asks}

    assert answers.pop("b1") == {"content": "     1\tone"}
    assert all(one.get("is_error") for one in answers.values()), answers
    assert "s3cret" not in json.dumps(answers)
    assert not (memory / "x").exists()


async def answer(fleet: Fleet, run_id: str, ask_id: str) -> dict[str, Any]:
    """The outcome that is in the inbox under an id, once it is there."""
    data = await fleet.until_answered(run_id, ask_id)
    outcome: dict[str, Any] = json.loads(wire.Answer.model_validate_json(data).data["payload"]["text"])
    return outcome


async def test_what_changes_in_the_folder_against_the_filter_is_reported(fleet: Fleet, memory: Path) -> None:
    """Somebody writes there during a run that may not: its result says what."""
    await fleet.daemon()
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    both = AllOfFilter([AutoMemFilter(memory), ReadOnlyFilter()])
    async with fleet.connect() as forks:
        params = await fleet.params(says("Dream.", {"text": "Done.", "hold": "end"}), tool_filter=both)
        handle = await forks.fork(params)
        await fleet.sim.received(2)
        (memory / "note.md").write_text("two\n")
        fleet.sim.release("end")
        result = await handle.result()

    assert result.ok
    assert result.audit == ({"path": str(memory / "note.md"), "what": "changed"},)


async def test_an_answer_that_cannot_be_read_is_said_to_be(fleet: Fleet, memory: Path) -> None:
    """Whoever puts nonsense into the inbox gives the model an error it can read, and the run goes on."""
    await fleet.daemon()
    snapshot = await fleet.agent.ask(tools=declared("Todo"))
    run_id = wire.new_run_id()
    request = wire.Requested(
        snapshot=wire.Payload(text=snapshot.body.decode()),
        reply=wire.Payload(text=snapshot.reply.to_wire().decode()) if snapshot.reply else None,
        directive=says("Work.", {"tools": [call("Todo")]}, {"text": "Done."}),
        parent_tools=wire.ParentTools(),
    )
    await fleet.log(run_id).request(request)
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Asked))
    (ask,) = [report for report in await fleet.reports(run_id) if isinstance(report, wire.Asked)]
    nonsense = wire.Answer(kind="answer", at=time.time(), data={"payload": {"text": '{"content": 7}'}})
    await store(fleet.bus, f"agent.{fleet.pool}.{run_id}.inbox.{ask.ask_id}", wire.encode(nonsense))
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert "its answer cannot be used" in results_in(fleet.sim, fleet.sim.request_count - 1)[0]["content"]
