"""Children work in checkouts of their parent's repository, on other hosts, and their commits come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork import ForkStatus, GitWorkspace
from tests.support.conversation import call, says
from tests.support.repositories import Repo, fingerprint
from tests.support.sandboxes import needs_bubblewrap

if TYPE_CHECKING:
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


@needs_bubblewrap
async def test_children_on_two_hosts_bring_their_work_back(fleet: Fleet) -> None:
    """Dirty and untracked files go along; commits and uncommitted work come back; conflicts are named."""
    repo = Repo(fleet.folder / "repo", {"a.txt": "one\n", "b.txt": "two\n", "c.txt": "three\n"})
    repo.write("a.txt", "one, changed\n")
    repo.write("new.txt", "untracked\n")
    before = fingerprint(repo.path / ".git")
    await fleet.daemon("north", state_dir=str(fleet.folder / "north"), slots=2, sandbox="bwrap")
    await fleet.daemon("south", state_dir=str(fleet.folder / "south"), slots=2, sandbox="bwrap")
    hold = {"hold": "together"}
    directives = [
        says("apple", {"tools": [call(command="cat a.txt new.txt; echo 2 >> b.txt; git commit -qam Two")]}, DONE),
        says("birch", {"tools": [call(command="echo 3 >> c.txt; git commit -qam Three")], **hold}, DONE),
        says("cedar", {"tools": [call(command="echo mine > left.txt")], **hold}, DONE),
        says("drum", {"tools": [call(command="echo else > b.txt; git commit -qam Else")], **hold}, DONE),
    ]
    async with fleet.connect() as forks:
        params = await fleet.params("x", workspace=GitWorkspace(repo.path))
        handles = await forks.fork_each(params, directives)
        await fleet.sim.received(1 + 4)
        fleet.sim.release("together")
        results = [await handle.result() for handle in handles]
        assert [result.status for result in results] == [ForkStatus.COMPLETED] * 4, [r.error for r in results]
        assert {result.daemon for result in results} == {"north", "south"}
        assert fingerprint(repo.path / ".git") == before

        repo.commit("Mine")
        repo.write("b.txt", "two and more\n")
        repo.commit("In the way")
        fetched = [await handle.fetch() for handle in handles]
        again = await handles[0].fetch()

    assert again == fetched[0]
    assert [[commit.subject for commit in one.commits] for one in fetched] == [
        ["Two"],
        ["Three"],
        [f"Uncommitted work of fork {handles[2].run_id}"],
        ["Else"],
    ]
    assert [one.merges for one in fetched] == [False, True, True, False]
    assert fetched[3].conflicts == ("b.txt",)
    refs = repo.git("for-each-ref", "--format=%(refname)", "refs/forks").splitlines()
    assert sorted(refs) == sorted(one.ref for one in fetched)
    assert repo.show(fetched[0].ref, "a.txt") == "one, changed"
    assert repo.show(fetched[0].ref, "b.txt") == "two\n2"
    assert repo.show(fetched[2].ref, "left.txt") == "mine"
    assert repo.show(fetched[2].ref, "new.txt") == "untracked"
    assert [work.uncommitted for result in results if (work := result.workspace)] == [False, False, True, False]
    assert list((fleet.folder / "north/runs").iterdir()) == []
