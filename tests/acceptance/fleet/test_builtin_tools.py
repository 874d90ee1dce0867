"""A child on another host does real work on files, with tools its parent's schema calls otherwise."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, ParentContext
from nexofork.errors import ForkRefused
from nexofork.wire import messages as wire
from tests.acceptance.fleet.test_blobs import lose_blobs
from tests.support.conversation import AGENT, call, declared, says
from tests.support.fleet import open_fleet
from tests.support.parents import results_in

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer

NAMES = {
    "read": "FileRead",
    "create": "FileWrite",
    "replace": "FileEdit",
    "find": "Glob",
    "search": "Grep",
    "sh": "Bash",
}
TOOLS: list[dict[str, Any]] = [AGENT, *({"name": name, "input_schema": {"type": "object"}} for name in NAMES)]


async def test_a_child_reads_edits_greps_and_globs_real_files(fleet: Fleet) -> None:
    """The files change on the daemon's host; the log has our names, and the model's requests the parent's."""
    await fleet.daemon()
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    root = fleet.folder / "project"
    (root / "src").mkdir(parents=True)
    (root / "src/main.py").write_text("def main():\n    return 1\n")
    main = str(root / "src/main.py")
    directive = says(
        "Work.",
        {"tools": [call("find", pattern="**/*.py", path=str(root)), call("read", file_path=main)]},
        {
            "tools": [
                call("replace", file_path=main, old_string="return 1", new_string="return 2"),
                call("replace", file_path=main, old_string="return 2", new_string="return 3"),
                call("create", file_path=str(root / "doc/new.md"), content="main returns 3\n"),
                call("search", pattern=r"returns? 3", path=str(root), output_mode="content"),
                call("sh", command=f"cat {main}"),
            ]
        },
        {"text": "Done."},
    )
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(directive, tool_names=NAMES))
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    found, read = results_in(fleet.sim, 2)
    assert (found["content"], read["content"]) == (main, "     1\tdef main():\n     2\t    return 1")
    *_, searched, printed = results_in(fleet.sim, 3)
    assert searched["content"].splitlines() == [f"{root}/doc/new.md:1:main returns 3", f"{main}:2:    return 3"]
    assert printed["content"] == "def main():\n    return 3\n"
    started = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.ToolStarted)]
    assert [(report.name, report.read_only) for report in started] == [
        ("Glob", True),
        ("FileRead", True),
        ("FileEdit", False),
        ("FileEdit", False),
        ("FileWrite", False),
        ("Grep", True),
        ("Bash", False),
    ]


async def test_what_the_parent_has_seen_travels_and_is_asked_for_again(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """A child edits at once what its parent had read, also when the content of the state had to be sent again."""
    target = tmp_path / "seen.txt"
    target.write_text("old")
    seen = {f"/elsewhere/{number}": "0" * 64 for number in range(50)}
    seen[str(target)] = hashlib.sha256(b"old").hexdigest()
    edit = call("FileEdit", file_path=str(target), old_string="old", new_string="new")
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path) as fleet:
        fleet.captured = await fleet.agent.ask(tools=declared("FileEdit"))
        params = await fleet.params(
            says("Work.", {"tools": [edit]}, {"text": "Done."}), parent_ctx=ParentContext(file_state=seen)
        )
        async with fleet.connect() as forks:
            handle = await forks.fork(params)
            await lose_blobs(fleet)
            await fleet.daemon()
            result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert results_in(sim, 2)[0]["content"] == f"Edited {target}: replaced 1 place, in line 1."
    assert target.read_text() == "new"


async def test_a_mapping_to_nothing_is_refused_before_anything_is_sent(fleet: Fleet) -> None:
    """By the parent, with the names there are; a daemon that gets one refuses it as well."""
    await fleet.daemon()
    params = await fleet.params("Look.", tool_names={"Bash": "Shell"})
    async with fleet.connect() as forks:
        with pytest.raises(ForkRefused, match="known are Bash, FileRead"):
            await forks.fork(params)
    assert fleet.sim.request_count == 1

    bad = wire.Requested(
        snapshot=wire.Payload(text=params.cache_safe.body.decode()), directive="Look.", tool_names={"Bash": "Shell"}
    )
    for request in (bad, bad.model_copy(update={"tool_names": {}, "file_state": wire.Payload(text="[]")})):
        run_id = wire.new_run_id()
        await fleet.log(run_id).request(request)
        await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Final))
        (final,) = [report for report in await fleet.reports(run_id) if isinstance(report, wire.Final)]
        assert final.status == "refused"
    assert fleet.sim.request_count == 1
