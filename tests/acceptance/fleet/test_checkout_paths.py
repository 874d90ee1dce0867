"""A child names files by its parent's absolute paths: they lead to its own checkout, never to the parent's files."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from nexofork import ForkStatus, GitWorkspace, ParentContext
from nexofork.bus.presence import PresenceBoard
from nexofork.wire import messages as wire
from tests.support.conversation import AGENT, call, says
from tests.support.fleet import asked
from tests.support.parents import body_of, results_in
from tests.support.repositories import ELSEWHERE, Repo, fingerprint, from_elsewhere
from tests.support.sandboxes import needs_bubblewrap
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork import ForkResult
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
TOOLS: list[dict[str, Any]] = [
    AGENT,
    *(
        {"name": name, "input_schema": {"type": "object"}}
        for name in ("Bash", "FileRead", "FileWrite", "FileEdit", "Glob", "Grep")
    ),
]


def notice(fleet: Fleet, index: int = 1) -> str:
    """What a child was told after its directive."""
    return str(body_of(fleet.sim, index)["messages"][-1]["content"][-1]["text"])


async def ready(fleet: Fleet, run_id: str) -> wire.WorkspaceReady:
    """What the log says about a run's workspace."""
    return next(one for one in await fleet.reports(run_id) if isinstance(one, wire.WorkspaceReady))


def changed(result: ForkResult) -> list[str]:
    """The files that came back, by their paths below the root."""
    assert result.workspace is not None, result.error
    return sorted(file.path for file in result.workspace.files)


def calls_by(root: str) -> list[dict[str, Any]]:
    """Every tool, with files named below a root."""
    return [
        call("FileRead", file_path=f"{root}/a.txt"),
        call("FileEdit", file_path=f"{root}/a.txt", old_string="one", new_string="edited"),
        call("FileWrite", file_path=f"{root}/docs/../new.txt", content="new\n"),
        call("Glob", pattern="*.txt", path=root),
        call("Grep", pattern="edited", path=root, output_mode="content"),
    ]


@needs_bubblewrap
async def test_the_parents_paths_lead_to_the_checkout_in_the_sandbox(fleet: Fleet) -> None:
    """With the repository under /tmp on the same host: tools and commands agree, and the parent's files stay."""
    repo = Repo(fleet.folder / "repo")
    (repo.path / "docs").mkdir()
    before = fingerprint(repo.path)
    await fleet.daemon(sandbox="bwrap")
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    root = str(repo.path)
    shell = f"pwd; git rev-parse --show-toplevel; echo bash > {root}/src/bash.txt; git -C {root} status --short"
    turns = ({"tools": calls_by(root)}, {"tools": [call(command=shell)]}, DONE)
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("apple", *turns), workspace=GitWorkspace(repo.path)))
        result = await handle.result()
        fetched = await handle.fetch()

    answers = [one["content"] for index in (2, 3) for one in results_in(fleet.sim, index)]
    assert fingerprint(repo.path / "src") == {key[4:]: seen for key, seen in before.items() if key.startswith("src/")}
    assert (repo.path / "a.txt").read_text() == "one\n"
    assert changed(result) == ["a.txt", "new.txt", "src/bash.txt"], answers
    assert repo.show(fetched.ref, "a.txt") == "edited"
    assert answers[1] == f"Edited {root}/a.txt: replaced 1 place, in line 1."
    assert answers[2] == f"Created {root}/new.txt (4 bytes)."
    assert set(answers[3].splitlines()) == {f"{root}/{name}" for name in ("a.txt", "new.txt", "src/b.txt")}
    assert answers[4] == f"{root}/a.txt:1:edited"
    assert answers[5].splitlines() == [root, root, " M a.txt", "?? new.txt", "?? src/bash.txt"]
    assert "every path above is right as it stands" in notice(fleet)
    assert "Read a file again before you edit it" in notice(fleet)
    said = await ready(fleet, handle.run_id)
    assert (said.root, said.mounted, said.notice) == (root, True, notice(fleet))


@needs_bubblewrap
async def test_both_spellings_of_a_linked_root_are_the_checkout(fleet: Fleet) -> None:
    """What the parent saw by either may be edited by either, and neither has hooks that can be written."""
    repo = Repo(fleet.folder / "real/repo")
    link = fleet.folder / "link"
    link.symlink_to(repo.path)
    await fleet.daemon(sandbox="bwrap")
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    seen = {str(link / "a.txt"): hashlib.sha256(b"one\n").hexdigest()}
    tools = [
        call("FileEdit", file_path=f"{repo.path}/a.txt", old_string="one", new_string="1"),
        call(command=f"pwd; cat {link}/a.txt; echo x > {link}/x; echo y > {repo.path}/src/y"),
        *(call(command=f"echo x > {root}/.git/hooks/pre-commit") for root in (link, repo.path)),
        *(call(command=f"mv {root}/.git {root}/old") for root in (link, repo.path)),
    ]
    async with fleet.connect() as forks:
        params = await fleet.params(
            says("birch", {"tools": tools}, DONE),
            workspace=GitWorkspace(link / "src"),
            parent_ctx=ParentContext(file_state=seen),
        )
        result = await (await forks.fork(params)).result()

    edited, shown, *tries = results_in(fleet.sim, 2)
    assert edited["content"].startswith("Edited "), edited
    assert shown["content"].splitlines()[:2] == [f"{link}/src", "1"]
    assert changed(result) == ["a.txt", "src/y", "x"]
    assert [one.get("is_error") for one in tries] == [True] * 4
    assert (repo.path / "a.txt").read_text() == "one\n"
    assert sorted(path.name for path in repo.path.iterdir()) == [".git", "a.txt", "src"]


@needs_bubblewrap
async def test_what_is_written_outside_the_checkout_is_called_scratch(fleet: Fleet) -> None:
    """The child learns that the parent does not get it."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    tools = [
        call("FileWrite", file_path="/tmp/notes.txt", content="x\n"),
        call("FileEdit", file_path="/tmp/notes.txt", old_string="x", new_string="y"),
        call("FileWrite", file_path=f"{repo.path}-other/notes.txt", content="x\n"),
        call("FileWrite", file_path="inside.txt", content="x\n"),
    ]
    async with fleet.connect() as forks:
        params = await fleet.params(says("cedar", {"tools": tools}, DONE), workspace=GitWorkspace(repo.path))
        result = await (await forks.fork(params)).result()

    *outside, inside = [one["content"] for one in results_in(fleet.sim, 2)]
    assert all("scratch" in said and "not returned to the parent" in said for said in outside), outside
    assert "scratch" not in inside
    assert changed(result) == ["inside.txt"]


async def test_a_bare_daemon_refuses_a_checkout_of_a_repository_on_its_own_host(fleet: Fleet) -> None:
    """By either spelling of its root; the parent's files are as they were, and no model was asked."""
    repo = Repo(fleet.folder / "real/repo")
    link = fleet.folder / "link"
    link.symlink_to(repo.path)
    before = fingerprint(repo.path)
    await fleet.daemon()
    edit = says("drum", {"tools": [call(command=f"echo child > {repo.path}/a.txt")]}, DONE)
    async with fleet.connect() as forks:
        for spec in ({}, {"root": ELSEWHERE, "real_root": str(repo.path)}, {"root": f"/{link}/../link/"}):
            params = await fleet.params(edit, workspace=GitWorkspace(link))
            params = await from_elsewhere(forks, params, **spec) if spec else params
            result = await (await forks.fork(params)).result()
            assert result.status is ForkStatus.REFUSED, result
            assert "--sandbox bwrap" in (result.error or "")
            assert "--shared-dir" in (result.error or "")

    assert fingerprint(repo.path) == before
    assert asked(fleet.sim, "drum") == []


@needs_bubblewrap
async def test_a_bare_daemon_leaves_such_a_run_to_one_with_a_sandbox(fleet: Fleet) -> None:
    """The one that may take it does, whichever is offered it first; two that may not refuse it together."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon("bare", state_dir=str(fleet.folder / "bare"))
    other = await fleet.daemon("other", state_dir=str(fleet.folder / "other"))
    write = {"tools": [call(command=f"echo x > {repo.path}/x")]}
    async with fleet.connect() as forks:
        refused = await (
            await forks.fork(await fleet.params(says("elder", write, DONE), workspace=GitWorkspace(repo.path)))
        ).result()
        await other.kill()
        await fleet.daemon("boxed", state_dir=str(fleet.folder / "boxed"), sandbox="bwrap")
        params = await fleet.params(says("fern", write, DONE), workspace=GitWorkspace(repo.path))
        results = [await handle.result() for handle in [await forks.fork(params) for _ in range(4)]]

    assert (refused.status, "--sandbox bwrap" in (refused.error or "")) == (ForkStatus.REFUSED, True)
    assert {(one.status, one.daemon) for one in results} == {(ForkStatus.COMPLETED, "boxed")}
    assert [changed(one) for one in results] == [["x"]] * 4
    assert not (repo.path / "x").exists()


async def test_file_tools_of_a_bare_daemon_take_the_parents_paths_for_the_checkout(fleet: Fleet) -> None:
    """Where the host has no such folder; the notice still names both roots, because commands do not."""
    repo = Repo(fleet.folder / "repo")
    (repo.path / "docs").mkdir()
    await fleet.daemon()
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    odd = call("FileRead", file_path=f"/{ELSEWHERE}/src/./../../repo//src/b.txt")
    out = call("FileRead", file_path=f"{ELSEWHERE}/../../etc/hostname-of-nothing")
    shell = call(command=f"cat {ELSEWHERE}/a.txt")
    turns = ({"tools": [*calls_by(ELSEWHERE), odd, out, shell]}, DONE)
    async with fleet.connect() as forks:
        params = await fleet.params(says("grape", *turns), workspace=GitWorkspace(repo.path))
        handle = await forks.fork(await from_elsewhere(forks, params), run_id="told")
        result = await handle.result()

    root = f"{fleet.folder}/state/runs/told/work"
    answers = [one["content"] for one in results_in(fleet.sim, 2)]
    assert changed(result) == ["a.txt", "new.txt"], answers
    assert answers[2] == f"Created {root}/new.txt (4 bytes)."
    assert set(answers[3].splitlines()) == {f"{root}/{name}" for name in ("a.txt", "new.txt", "src/b.txt")}
    assert answers[4] == f"{root}/a.txt:1:edited"
    assert answers[5] == "     1\ttwo"
    assert "/etc/hostname-of-nothing does not exist" in answers[6]
    assert "No such file" in answers[7]
    assert f"took place in {ELSEWHERE}. You work in {root}" in notice(fleet)
    said = await ready(fleet, "told")
    assert (said.root, said.mounted) == (root, False)


@needs_bubblewrap
async def test_a_child_that_was_told_of_the_parents_paths_goes_on_where_they_are_right(fleet: Fleet) -> None:
    """A daemon without a sandbox leaves it; the next one with one has the files at the same path, and says nothing."""
    repo = Repo(fleet.folder / "repo")
    first = await fleet.daemon("first", state_dir=str(fleet.folder / "first"), sandbox="bwrap")
    turns = (
        {"tools": [call(command="echo kept > kept.txt")]},
        {"tools": [call(command=f"cat {ELSEWHERE}/kept.txt; pwd")], "hold": "look"},
        DONE,
    )
    async with fleet.connect() as forks:
        params = await fleet.params(says("hazel", *turns), workspace=GitWorkspace(repo.path))
        handle = await forks.fork(await from_elsewhere(forks, params))
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Checkpoint))
        await fleet.sim.received(3)
        await first.kill()
        bare = await fleet.daemon("bare", state_dir=str(fleet.folder / "bare"))
        await eventually(lambda: f"its child sees its checkout at '{ELSEWHERE}'" in bare.log)
        await fleet.daemon("heir", state_dir=str(fleet.folder / "heir"), sandbox="bwrap")
        await fleet.sim.received(4)
        fleet.sim.release("look")
        result = await handle.result()

    assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, "heir", 2), result.error
    assert results_in(fleet.sim, fleet.sim.log[-1].index)[0]["content"] == f"kept\n{ELSEWHERE}\n"
    assert body_of(fleet.sim, 3)["messages"] == body_of(fleet.sim, 2)["messages"]
    assert [one.mounted for one in await fleet.reports(handle.run_id) if isinstance(one, wire.WorkspaceReady)] == [True]


@needs_bubblewrap
async def test_a_daemon_from_before_can_go_on_while_one_is_in_the_pool(fleet: Fleet) -> None:
    """The child is told to translate, as that daemon would tell it; the parent's paths lead to the checkout anyway."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    earlier = wire.Daemon(nkey=fleet.bus.identity, instance="earlier", name="earlier")
    await PresenceBoard(fleet.bus).announce(
        wire.Presence(at=time.time(), daemon=earlier, pool=fleet.pool, slots=4, sandbox="bwrap", reads=2)
    )
    tools = [call(command=f"pwd; echo new > {repo.path}/new.txt; cat new.txt")]
    async with fleet.connect() as forks:
        params = await fleet.params(says("iris", {"tools": tools}, DONE), workspace=GitWorkspace(repo.path))
        result = await (await forks.fork(params, run_id="told")).result()

    root = f"{fleet.folder}/state/runs/told/work"
    assert f"took place in {repo.path}. You work in {root}" in notice(fleet)
    assert results_in(fleet.sim, 2)[0]["content"] == f"{root}\nnew\n"
    assert changed(result) == ["new.txt"]
    assert not (repo.path / "new.txt").exists()
    assert (await ready(fleet, "told")).mounted is False


@needs_bubblewrap
async def test_a_root_in_the_system_is_never_mounted(fleet: Fleet) -> None:
    """Such a run is refused where the root is there, and told to translate where it is not."""
    repo = Repo(fleet.folder / "repo")
    await fleet.daemon(sandbox="bwrap")
    look = {"tools": [call(command="test -e a.txt && echo own; ls /usr/bin/env /bin/bash; cat /etc/passwd")]}
    seen: dict[str, tuple[ForkStatus, bool]] = {}
    async with fleet.connect() as forks:
        for number, root in enumerate(("/", "/tmp", "/usr/bin", "/srv/../etc", "/proc", "/usr/no-such/repo", "repo")):
            params = await fleet.params(says(f"look{number}", look, DONE), workspace=GitWorkspace(repo.path))
            handle = await forks.fork(await from_elsewhere(forks, params, root=root))
            result = await handle.result()
            mounted = any(getattr(one, "mounted", False) for one in await fleet.reports(handle.run_id))
            seen[root] = (result.status, mounted)
            if result.ok:
                said = results_in(fleet.sim, fleet.sim.log[-1].index)[0]["content"]
                assert said.startswith("own\n/bin/bash\n/usr/bin/env\nfork:x:1000"), said

    refused, told = (ForkStatus.REFUSED, False), (ForkStatus.COMPLETED, False)
    assert seen == {
        **dict.fromkeys(("/", "/tmp", "/usr/bin", "/srv/../etc", "/proc"), refused),
        **dict.fromkeys(("/usr/no-such/repo", "repo"), told),
    }
