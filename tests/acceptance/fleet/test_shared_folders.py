"""A `path` workspace is a folder that the daemon's operator shares, reached without a link: nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nexofork import AutoMemFilter, ForkStatus, PathWorkspace
from tests.support.conversation import call, says
from tests.support.fleet import asked
from tests.support.parents import results_in
from tests.support.sandboxes import needs_bubblewrap
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork import ForkResult
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
both = pytest.mark.parametrize("sandbox", [pytest.param("bwrap", marks=needs_bubblewrap), "none"])


async def worked_in(
    fleet: Fleet, folder: str | Path, *, word: str = "apple", command: str = "echo x > written"
) -> ForkResult:
    """How a fork ends that runs a command in a folder of the daemon's host."""
    write = says(word, {"tools": [call(command=command)]}, DONE)
    async with fleet.connect() as forks:
        params = await fleet.params(write, workspace=PathWorkspace(folder))
        return await (await forks.fork(params)).result()


@both
async def test_a_folder_that_is_not_shared_is_refused(fleet: Fleet, sandbox: str) -> None:
    """Of the system, of the kernel, next to a shared one or above it; the refusal names the option."""
    shared, other = fleet.folder / "shared", fleet.folder / "shared-not"
    shared.mkdir()
    other.mkdir()
    await fleet.daemon(sandbox=sandbox, shared_dirs=[str(shared)])
    tried = ("/etc", "/proc", "/proc/self/root", "/sys", "/dev", "/run", "/", str(other), str(fleet.folder))
    spelt = (f"{shared}/../shared-not", f"/{other}", f"{shared}/./../", f"/proc/self/root{shared}", f"{shared}\n")
    for number, folder in enumerate((*tried, *spelt)):
        result = await worked_in(fleet, folder, word=f"folder{number}", command="pwd")
        assert result.status is ForkStatus.REFUSED, (folder, result.error)
        assert "--shared-dir" in (result.error or ""), folder
        assert asked(fleet.sim, f"folder{number}") == []


@both
async def test_a_shared_folder_and_what_is_in_it_are_worked_in(fleet: Fleet, sandbox: str) -> None:
    """By the operator's spelling of it and by the canonical one."""
    real, link = fleet.folder / "real", fleet.folder / "link"
    (real / "inner/deep").mkdir(parents=True)
    link.symlink_to(real)
    await fleet.daemon(sandbox=sandbox, shared_dirs=[str(link)])
    for number, folder in enumerate(map(str, (link, real, f"{link}/inner//./deep/", real / "inner"))):
        result = await worked_in(fleet, folder, word=f"folder{number}")
        assert result.status is ForkStatus.COMPLETED, (folder, result.error)
        assert (Path(folder) / "written").read_text() == "x\n"


@both
async def test_a_link_in_a_shared_folder_leads_nowhere(fleet: Fleet, sandbox: str) -> None:
    """Whether it is the folder itself, on the way to it, relative, or leads back into a shared folder."""
    shared, secret = fleet.folder / "shared", fleet.folder / "secret"
    (shared / "inner").mkdir(parents=True)
    (secret / "inner").mkdir(parents=True)
    (shared / "out").symlink_to(secret)
    (shared / "up").symlink_to("../secret")
    (shared / "back").symlink_to(shared / "inner")
    (shared / "file").write_text("x")
    await fleet.daemon(sandbox=sandbox, shared_dirs=[str(shared)])
    for number, name in enumerate(("out", "out/inner", "up", "up/../out/inner", "back", "file", "out/.")):
        result = await worked_in(fleet, f"{shared}/{name}", word=f"folder{number}")
        assert result.status is ForkStatus.REFUSED, (name, result.error)
        assert "--shared-dir" in (result.error or ""), name

    assert sorted(os.listdir(secret)) == ["inner"]
    assert os.listdir(secret / "inner") == []


@both
async def test_the_daemons_own_folders_are_refused_even_where_they_are_shared(fleet: Fleet, sandbox: str) -> None:
    """Its state, what is in it, and a folder around it."""
    shared = fleet.folder / "shared"
    state = shared / "state"
    (state / "runs").mkdir(parents=True)
    (shared / "fine").mkdir()
    await fleet.daemon(sandbox=sandbox, state_dir=str(state), shared_dirs=[str(shared)])
    for number, folder in enumerate((state, state / "runs", shared)):
        result = await worked_in(fleet, folder, word=f"folder{number}")
        assert result.status is ForkStatus.REFUSED, (folder, result.error)
        assert "the daemon's own" in (result.error or "")
    result = await worked_in(fleet, shared / "fine", word="fine")

    assert result.status is ForkStatus.COMPLETED, result.error


@both
async def test_a_file_system_of_the_kernel_is_refused_even_where_it_is_shared(fleet: Fleet, sandbox: str) -> None:
    """By what is mounted there, whatever the folder is called."""
    await fleet.daemon(sandbox=sandbox, shared_dirs=["/proc", "/sys", "/dev"])
    for number, folder in enumerate(("/proc", "/proc/sys", "/sys", "/sys/fs/cgroup", "/dev", "/dev/pts")):
        result = await worked_in(fleet, folder, word=f"folder{number}", command="pwd")
        assert result.status is ForkStatus.REFUSED, (folder, result.error)
        assert "of the kernel" in (result.error or ""), result.error


@needs_bubblewrap
async def test_a_folder_that_becomes_a_link_while_its_run_works_leads_nowhere(fleet: Fleet) -> None:
    """Commands go on in the folder that was checked, and file tools do not follow the link."""
    shared, secret = fleet.folder / "shared", fleet.folder / "secret"
    for folder in (shared / "work", secret):
        folder.mkdir(parents=True)
    await fleet.daemon(sandbox="bwrap", shared_dirs=[str(shared)])
    escape = [
        call(command="echo x > written; ls -la . /proc/self/fd"),
        call("FileWrite", file_path="tool", content="x"),
        call("FileRead", file_path="../secret/key"),
    ]
    turns = ({"tools": [call(command="echo before > before")]}, {"tools": escape, "hold": "swapped"}, DONE)
    async with fleet.connect() as forks:
        params = await fleet.params(says("birch", *turns), workspace=PathWorkspace(shared / "work"))
        handle = await forks.fork(params)
        await fleet.sim.received(3)
        (shared / "work").rename(shared / "moved")
        (shared / "work").symlink_to(secret)
        fleet.sim.release("swapped")
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert os.listdir(secret) == []
    assert (shared / "moved/before").read_text() == "before\n"
    listed = results_in(fleet.sim, 3)[0]["content"]
    assert str(shared) not in listed.partition("/proc/self/fd")[2]


async def test_a_run_is_left_to_the_daemon_that_shares_its_folder(fleet: Fleet) -> None:
    """However many others do not; each says once why it did not take it."""
    shared = fleet.folder / "shared"
    shared.mkdir()
    other = await fleet.daemon("other", state_dir=str(fleet.folder / "other"))
    await fleet.daemon("sharing", state_dir=str(fleet.folder / "sharing"), shared_dirs=[str(shared)])
    results = [await worked_in(fleet, shared, word=f"run{number}") for number in range(4)]

    assert {(one.status, one.daemon) for one in results} == {(ForkStatus.COMPLETED, "sharing")}
    assert "--shared-dir" in other.log or "left to another daemon" not in other.log


async def test_a_run_waits_for_the_daemon_that_shares_its_folder_and_is_full(fleet: Fleet) -> None:
    """Two others leave it meanwhile; the one that can do it takes it when it has a slot, and they take other work."""
    shared = fleet.folder / "shared"
    shared.mkdir()
    await fleet.daemon("sharing", state_dir=str(fleet.folder / "sharing"), shared_dirs=[str(shared)], slots=1)
    write = says("fern", {"tools": [call(command="echo x > written")]}, DONE)
    async with fleet.connect() as forks:
        first = await forks.fork(await fleet.params(says("elder", {"text": DONE, "hold": "slot"})))
        await fleet.sim.received(2)
        await fleet.until_present(lambda there: there.running == 1)
        others = [await fleet.daemon(f"d{number}", state_dir=str(fleet.folder / f"d{number}")) for number in range(2)]
        handle = await forks.fork(await fleet.params(write, workspace=PathWorkspace(shared)))
        await eventually(lambda: all(f"run {handle.run_id}: left to another" in daemon.log for daemon in others))
        elsewhere = await (await forks.fork(await fleet.params("gorse"))).result()
        fleet.sim.release("slot")
        results = [await first.result(), await handle.result()]

    assert [(one.status, one.daemon) for one in results] == [(ForkStatus.COMPLETED, "sharing")] * 2
    assert elsewhere.daemon in {"d0", "d1"}
    assert (shared / "written").read_text() == "x\n"


async def test_a_parent_is_told_when_no_daemon_shares_its_folder(fleet: Fleet) -> None:
    """By one of them, after each had the run."""
    folder = fleet.folder / "mine"
    folder.mkdir()
    daemons = [await fleet.daemon(f"d{number}", state_dir=str(fleet.folder / f"d{number}")) for number in range(2)]
    write = says("cedar", {"tools": [call(command="echo x > written")]}, DONE)
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(write, workspace=PathWorkspace(folder)))
        await eventually(lambda: all("left to another daemon: The folder" in daemon.log for daemon in daemons))
        result = await handle.result()

    assert result.status is ForkStatus.REFUSED
    assert f"{str(folder)!r} is not shared" in (result.error or "")
    assert "--shared-dir" in (result.error or "")
    assert os.listdir(folder) == []


async def test_a_memory_folder_through_a_link_is_not_shared(fleet: Fleet) -> None:
    """A shared folder's link to another one makes no memory folder of that."""
    shared, secret = fleet.folder / "shared", fleet.folder / "secret"
    shared.mkdir()
    secret.mkdir()
    (secret / "note.md").write_text("one\n")
    await fleet.daemon(shared_dirs=[str(shared)])
    (shared / "memory").mkdir()
    memory = AutoMemFilter(shared / "memory")
    (shared / "memory").rmdir()
    (shared / "memory").symlink_to(secret)
    write = call("FileWrite", file_path=f"{shared}/memory/new.md", content="x")
    async with fleet.connect(serve_files=False) as forks:
        params = await fleet.params(says("drum", {"tools": [write]}, DONE), tool_filter=memory)
        result = await (await forks.fork(params)).result()

    assert os.listdir(secret) == ["note.md"]
    assert (result.status, "--shared-dir" in (result.error or "")) == (ForkStatus.REFUSED, True)
