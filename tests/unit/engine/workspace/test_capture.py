"""A repository is captured as its owner sees it, without being touched, whatever state it is in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nexofork import GitWorkspace
from nexofork.errors import ForkRefused
from nexofork.workspace import capture as capture_module
from nexofork.workspace.capture import capture_git
from tests.support.repositories import Repo, fingerprint, tree_of
from tests.unit.engine.workspace.travel import checked_out, sent

if TYPE_CHECKING:
    from pathlib import Path


async def refusal(root: Path) -> str:
    """Why a folder cannot be captured."""
    with pytest.raises(ForkRefused) as caught:
        async with capture_git(GitWorkspace(root)):
            pass
    return str(caught.value)


async def test_every_kind_of_change_arrives_and_nothing_is_touched(tmp_path: Path) -> None:
    """Staged, unstaged, untracked, deleted, renamed, modes, links, odd names; `.git` keeps every byte and time."""
    repo = Repo(tmp_path / "repo", {"a": "1", "gone": "2", "old name": "3" * 99, "tool": "#!/bin/sh\n", "dir": "file"})
    repo.write("a", "unstaged")
    repo.write("staged", "staged")
    repo.git("add", "staged")
    repo.write("staged", "staged, then changed")
    (repo.path / "gone").unlink()
    repo.git("mv", "old name", "new\nname")
    (repo.path / "tool").chmod(0o755)
    (repo.path / "link").symlink_to("a")
    (repo.path / "nowhere").symlink_to("/no/such")
    (repo.path / "dir").unlink()
    repo.write("dir/file", "a folder where a file was")
    repo.write(os.fsdecode(b"caf\xe9"), "not UTF-8")
    repo.write("binary", bytes(range(256)))
    repo.write(".gitignore", "*.log\n")
    repo.write("x.log", "ignored")
    before = fingerprint(repo.path / ".git")

    worktree = await checked_out(repo.path, tmp_path / "run")

    assert fingerprint(repo.path / ".git") == before
    expected = tree_of(repo.path)
    del expected[b"x.log"]
    assert tree_of(worktree.root) == expected
    assert Repo.at(worktree.root).git("status", "--short") == ""


async def test_ignored_files_go_along_when_asked_for(tmp_path: Path) -> None:
    """And only then."""
    repo = Repo(tmp_path / "repo", {".gitignore": "*.log\n", "a": "1"})
    repo.write("deep/x.log", "ignored")

    without = await checked_out(repo.path, tmp_path / "one")
    with_them = await checked_out(repo.path, tmp_path / "two", ignored=True)

    assert not (without.root / "deep").exists()
    assert tree_of(with_them.root) == tree_of(repo.path)


async def test_a_clean_repository_needs_no_commit_and_no_thin_bundle(tmp_path: Path) -> None:
    """The child starts from HEAD itself."""
    repo = Repo(tmp_path / "repo")
    spec, _, thin = await sent(repo.path)
    assert (spec.commit, thin, spec.branch) == (repo.head, None, "main")


async def test_equal_files_are_equal_bytes(tmp_path: Path) -> None:
    """Children of one state share one upload, whenever it is captured."""
    repo = Repo(tmp_path / "repo")
    repo.write("a.txt", "changed")
    assert (await sent(repo.path))[2] == (await sent(repo.path))[2]


async def test_a_dirty_file_travels_alone(tmp_path: Path) -> None:
    """What travels with a fork is what it has beyond the base."""
    repo = Repo(tmp_path / "repo", {f"d/{number}.txt": f"{number}\n" * 200 for number in range(200)})
    repo.write("d/7.txt", "changed\n")
    _, base, thin = await sent(repo.path)
    assert thin is not None
    assert len(thin) < 700 < 5_000 < len(base)


async def test_nothing_of_the_owners_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hook, no filter, no fsmonitor; the user's own settings do not change how files are read."""
    repo = Repo(tmp_path / "repo", {".gitattributes": "*.txt filter=spy\n", "a.txt": "1\n"})
    ran = tmp_path / "ran"
    script = repo.write("../script", f'#!/bin/sh\necho "$0 $*" >> {ran}\ncat\n')
    script.chmod(0o755)
    for key in ("filter.spy.clean", "filter.spy.smudge", "core.fsmonitor", "gpg.program", "core.pager"):
        repo.git("config", key, str(script))
    repo.git("config", "commit.gpgsign", "true")
    for hook in ("post-index-change", "pre-commit", "post-checkout", "reference-transaction"):
        target = repo.path / ".git/hooks" / hook
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(script)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[user]\n\tname = Eve\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    repo.write("a.txt", "2\r\n")
    repo.write("new.txt", "3\n")
    ran.unlink(missing_ok=True)

    worktree = await checked_out(repo.path, tmp_path / "run")

    assert tree_of(worktree.root) == tree_of(repo.path)
    assert not ran.exists()


async def test_a_folder_below_the_root_is_where_the_child_works(tmp_path: Path) -> None:
    """The whole repository goes along all the same."""
    repo = Repo(tmp_path / "repo")
    spec, *_ = await sent(repo.path / "src")
    assert spec.folder == "src"


async def test_a_linked_worktree_and_a_split_index_are_repositories_too(tmp_path: Path) -> None:
    """Their index and objects are found where they are."""
    repo = Repo(tmp_path / "repo")
    repo.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    repo.git("-C", str(tmp_path / "side"), "update-index", "--split-index")
    (tmp_path / "side/a.txt").write_text("from the side\n")
    before = fingerprint(repo.path / ".git")

    worktree = await checked_out(tmp_path / "side", tmp_path / "run")

    assert (worktree.root / "a.txt").read_text() == "from the side\n"
    assert fingerprint(repo.path / ".git") == before


async def test_a_file_changed_within_the_same_instant_is_not_missed(tmp_path: Path) -> None:
    """Same size, same time: git tells by the time of the index, which the copy keeps."""
    repo = Repo(tmp_path / "repo", {"a": "1"})
    path = repo.path / "a"
    repo.git("update-index", "--refresh")
    index = (repo.path / ".git/index").stat()
    path.write_text("2")
    os.utime(path, ns=(index.st_mtime_ns, index.st_mtime_ns))
    os.utime(repo.path / ".git/index", ns=(index.st_mtime_ns, index.st_mtime_ns))

    worktree = await checked_out(repo.path, tmp_path / "run")

    assert (worktree.root / "a").read_text() == "2"


async def test_detached_shallow_and_sparse_checkouts_travel(tmp_path: Path) -> None:
    """Each as it is; the child is told where it differs."""
    origin = Repo(tmp_path / "origin", {"in/a": "1", "out/b": "2"})
    for number in range(3):
        origin.write("in/a", f"{number}")
        origin.commit(f"More {number}")
    origin.git("clone", "-q", "--depth", "1", f"file://{origin.path}", str(tmp_path / "shallow"))
    shallow = Repo.at(tmp_path / "shallow")
    shallow.git("checkout", "-q", "--detach")
    shallow.git("sparse-checkout", "set", "in")
    shallow.write("in/a", "dirty")

    spec, *_ = await sent(shallow.path)
    worktree = await checked_out(shallow.path, tmp_path / "run")

    assert spec.branch == ""
    assert any("cut off" in note for note in spec.notes)
    assert any("sparse" in note for note in spec.notes)
    assert tree_of(worktree.root) == {b"in/a": ("-", b"dirty"), b"out/b": ("-", b"2")}
    assert Repo.at(worktree.root).git("log", "--format=%s").splitlines() == [capture_module.SNAPSHOT_MESSAGE, "More 2"]


async def test_submodules_embedded_repositories_and_lfs_are_named(tmp_path: Path) -> None:
    """They cannot go along; the child is told, and the rest does."""
    inner = Repo(tmp_path / "inner")
    repo = Repo(tmp_path / "repo", {".gitattributes": "*.bin filter=lfs diff=lfs -text\n", "a": "1"})
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.path), "sub")
    repo.commit("With a submodule")
    Repo(repo.path / "nested")
    repo.git("init", "-q", str(repo.path / "empty"))

    spec, *_ = await sent(repo.path)
    worktree = await checked_out(repo.path, tmp_path / "run")

    assert spec.notes == [
        "Submodules are empty here: sub.",
        "Repositories inside the repository were left out: empty, nested.",
        "Files kept by Git LFS are pointers here, not their contents.",
    ]
    assert (worktree.root / "a").read_text() == "1"


async def test_what_cannot_be_captured_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Each says what is wrong and what to do."""
    (tmp_path / "plain").mkdir()
    assert "is not in a git repository" in await refusal(tmp_path / "plain")
    assert "is not a folder" in await refusal(tmp_path / "missing")
    repo = Repo(tmp_path / "repo")
    assert "is inside a repository's .git" in await refusal(repo.path / ".git")
    repo.git("clone", "-q", "--bare", str(repo.path), str(tmp_path / "bare"))
    assert "is bare" in await refusal(tmp_path / "bare")
    assert "has no commit yet" in await refusal(Repo(tmp_path / "empty", commit=False).path)
    repo.git("init", "-q", "--object-format=sha256", str(tmp_path / "sha256"))
    assert "only sha1" in await refusal(tmp_path / "sha256")
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.git("clone", "-q", "--filter=blob:none", f"file://{repo.path}", str(tmp_path / "partial"))
    assert "partial clone" in await refusal(tmp_path / "partial")


async def test_a_merge_with_conflicts_is_refused_and_one_without_is_told(tmp_path: Path) -> None:
    """An unmerged file has no one content; a merge that only waits for its commit has."""
    repo = Repo(tmp_path / "repo")
    repo.git("checkout", "-q", "-b", "side")
    repo.write("a.txt", "side\n")
    repo.commit("Side")
    repo.git("checkout", "-q", "main")
    repo.write("a.txt", "main\n")
    repo.commit("Main")
    repo.git("merge", "-q", "side", code=1)
    assert "in the middle of a merge with conflicts (a.txt)" in await refusal(repo.path)

    repo.write("a.txt", "both\n")
    repo.git("add", "a.txt")
    spec, *_ = await sent(repo.path)
    assert "in the middle of a merge" in spec.notes[0]


async def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """Named, with its size."""
    repo = Repo(tmp_path / "repo")
    with (repo.path / "huge").open("wb") as file:
        file.truncate(65 << 20)
    assert "'huge' has 65 MB and at most 64" in await refusal(repo.path)


IGNORING = {
    "the default": ("", ".config/git/ignore"),
    "the user's": ("[core]\n\texcludesFile = ~/mine\n", "mine"),
    "one in an included file": ("[include]\n\tpath = more\n", "mine"),
}


@pytest.mark.parametrize("way", IGNORING)
async def test_what_the_user_ignores_everywhere_stays_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Secrets are often ignored by the user's own file alone, wherever git was told that it is."""
    settings, where = IGNORING[way]
    home = tmp_path / "home"
    (home / where).parent.mkdir(parents=True)
    (home / where).write_text(".env\n")
    (home / ".gitconfig").write_text(settings)
    (home / "more").write_text("[core]\n\texcludesFile = ~/mine\n")
    monkeypatch.setenv("HOME", str(home))
    repo = Repo(tmp_path / "repo", {"a": "1"})
    repo.write(".env", "TOKEN=secret")
    repo.write("new", "2")

    worktree = await checked_out(repo.path, tmp_path / "run")

    assert sorted(tree_of(worktree.root)) == [b"a", b"new"]


@pytest.mark.parametrize("value", ["/ignore", "", None])
async def test_the_repositorys_own_list_of_ignored_files_counts_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """`core.excludesFile` of the repository, or an empty one, replaces the user's file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    (tmp_path / "xdg/git").mkdir(parents=True)
    (tmp_path / "xdg/git/ignore").write_text("b\n")
    (tmp_path / "ignore").write_text("c\n")
    repo = Repo(tmp_path / "repo", {"a": "1"})
    repo.write("b", "2")
    repo.write("c", "3")
    if value is not None:
        repo.git("config", "core.excludesFile", value and f"{tmp_path}{value}")

    worktree = await checked_out(repo.path, tmp_path / "run")

    expected = {"/ignore": [b"a", b"b"], "": [b"a", b"b", b"c"], None: [b"a", b"c"]}
    assert sorted(tree_of(worktree.root)) == expected[value]


async def test_a_sparse_index_leaves_nothing_out(tmp_path: Path) -> None:
    """What the parent's patterns exclude is not removed, in folders of folders neither; `.git` keeps every time."""
    repo = Repo(tmp_path / "repo", {"in/a": "1", "out/b": "2", "out/deep/c": "3", "other/d": "4", "top": "5"})
    repo.git("sparse-checkout", "init", "--cone", "--sparse-index")
    repo.git("sparse-checkout", "set", "in")
    assert "040000" in repo.git("ls-files", "--sparse", "--stage")
    repo.write("in/a", "changed")
    repo.write("in/new", "6")
    before = fingerprint(repo.path / ".git")

    spec, *_ = await sent(repo.path)
    worktree = await checked_out(repo.path, tmp_path / "run")

    assert fingerprint(repo.path / ".git") == before
    assert Repo.at(worktree.root).git("show", "--format=", "--name-status").splitlines() == ["M\tin/a", "A\tin/new"]
    assert (worktree.root / "out/deep/c").read_text() == "3"
    assert any("sparse" in note for note in spec.notes)


async def test_a_clean_sparse_index_is_head(tmp_path: Path) -> None:
    """There is nothing to commit on top of it."""
    repo = Repo(tmp_path / "repo", {"in/a": "1", "out/b": "2"})
    repo.git("sparse-checkout", "init", "--cone", "--sparse-index")
    repo.git("sparse-checkout", "set", "in")
    assert (await sent(repo.path))[0].commit == repo.head


async def test_files_that_git_was_told_not_to_look_at_are_looked_at(tmp_path: Path) -> None:
    """The child gets what the parent sees; a skipped file that is not there is no removed one."""
    repo = Repo(tmp_path / "repo", {"assumed": "1", "gone": "2", "skipped": "3", "away": "4", "both": "5"})
    repo.git("update-index", "--assume-unchanged", "assumed", "gone", "both")
    repo.git("update-index", "--skip-worktree", "skipped", "away", "both")
    for name in ("assumed", "skipped", "both"):
        repo.write(name, "edited")
    for name in ("gone", "away"):
        (repo.path / name).unlink()
    before = fingerprint(repo.path / ".git")

    worktree = await checked_out(repo.path, tmp_path / "run")

    assert fingerprint(repo.path / ".git") == before
    edited = dict.fromkeys((b"assumed", b"skipped", b"both"), ("-", b"edited"))
    assert tree_of(worktree.root) == {**edited, b"away": ("-", b"4")}


@pytest.mark.parametrize(("key", "value"), [("core.autocrlf", "true"), ("core.eol", "crlf")])
async def test_a_child_is_told_of_other_ends_of_lines(tmp_path: Path, key: str, value: str) -> None:
    """It finds LF where its parent has CRLF."""
    repo = Repo(tmp_path / "repo")
    assert (await sent(repo.path))[0].notes == []
    repo.git("config", key, value)
    assert any("CRLF" in note for note in (await sent(repo.path))[0].notes)


async def test_a_path_with_a_line_break_is_refused(tmp_path: Path) -> None:
    """Git names paths on lines; the repository's own, or that of the one it is a worktree of."""
    repo = Repo(tmp_path / "re\npo")
    repo.git("worktree", "add", "-q", str(tmp_path / "side"))
    assert "line break" in await refusal(repo.path)
    assert "line break" in await refusal(repo.path / "src")
    assert "line break" in await refusal(tmp_path / "side")
    assert "line break" in await refusal(Repo(tmp_path / "em\npty", commit=False).path)
