"""A child on another host has the filter it was given, or it does not run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.errors import ForkRefused
from nexofork.policy.filters import AutoMemFilter, ReadOnlyFilter
from nexofork.wire import messages as wire
from tests.support.conversation import call, says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet


async def blocks(fleet: Fleet, run_id: str) -> list[dict[str, Any]]:
    """The tool results on the log of a run, as they went to the model."""
    finished = [report for report in await fleet.reports(run_id) if isinstance(report, wire.ToolFinished)]
    return [json.loads(report.block.text or "") for report in finished]


async def test_a_read_only_child_is_told_why_and_goes_on(fleet: Fleet, tmp_path: Path) -> None:
    """The command that deletes is denied, with the reason on the log; the one that reads runs; the file is there."""
    await fleet.daemon()
    kept = tmp_path / "kept"
    kept.write_text("still here")
    directive = says(
        "Clean up.",
        {"tools": [call(command=f"rm {kept}")]},
        {"tools": [call(command=f"cat {kept}")]},
        {"text": "Scope: as told. Result: not deleted."},
    )
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(directive, tool_filter=ReadOnlyFilter()))
        result = await handle.result()

    denied, read = await blocks(fleet, result.run_id)
    assert result.status is ForkStatus.COMPLETED
    assert denied["is_error"]
    assert "rm changes files" in str(denied["content"])
    assert "still here" in str(read["content"])
    started = [report for report in await fleet.reports(result.run_id) if isinstance(report, wire.ToolStarted)]
    assert len(started) == 1
    assert kept.exists()


async def test_the_request_names_the_filter(fleet: Fleet, tmp_path: Path) -> None:
    """By name and arguments; any daemon that takes the run makes it from them."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params("Look.", tool_filter=AutoMemFilter(tmp_path)))
        request = (await fleet.entries(handle.run_id))[0].message
        handle.detach()

    assert isinstance(request, wire.Requested)
    assert request.filters == [wire.FilterSpec(name="automem", args=[str(tmp_path)])]


async def test_a_filter_of_the_parents_own_is_refused_before_anything_is_sent(fleet: Fleet) -> None:
    """Shipped without it, the child could do what the parent forbade."""

    class Mine:
        def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
            return "no"

    async with fleet.connect() as forks:
        with pytest.raises(ForkRefused, match="Mine cannot travel"):
            await forks.fork(await fleet.params("Look.", tool_filter=Mine()))

    assert fleet.sim.request_count == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "from-the-future"}, "There is no filter 'from-the-future' here"),
        ({"name": "automem", "args": ["/no/such/folder"]}, "'/no/such/folder' is not a folder on this host"),
    ],
)
async def test_a_daemon_refuses_a_filter_it_cannot_make(fleet: Fleet, spec: dict[str, Any], words: str) -> None:
    """The run ends as refused with the reason; no model call is made without the filter."""
    await fleet.daemon()
    snapshot = await fleet.snapshot()
    run_id = wire.new_run_id()
    request = wire.Requested(
        snapshot=wire.Payload(text=snapshot.body.decode()),
        reply=wire.Payload(text=snapshot.reply.to_wire().decode()) if snapshot.reply else None,
        directive="Look.",
        filters=[wire.FilterSpec(**spec)],
    )
    await fleet.log(run_id).request(request)
    async with fleet.connect() as forks:
        result = await (await forks.attach(run_id)).result()

    assert result.status is ForkStatus.REFUSED
    assert words in (result.error or "")
    assert fleet.sim.request_count == 1
