"""What a command in the sandbox, and a file tool beside it, can and cannot reach."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nexofork.errors import ForkRefused
from nexofork.sandbox.mounts import plain_path
from nexofork.sandbox.sandbox import SandboxSettings, open_sandbox
from nexofork.tools.place import Checkout, Place
from tests.support.hands import Hands
from tests.support.sandboxes import boxed, needs_bubblewrap

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = needs_bubblewrap

SECRET = "sk-secret-8fa1"
NAMED = ["-c", "user.name=n", "-c", "user.email=e"]


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder of the host's that is not in ``/tmp``, which inside is another."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


async def test_a_command_has_its_own_user_processes_and_network(tmp_path: Path) -> None:
    """The user has no rights, and the system's folders cannot be changed."""
    async with boxed(tmp_path / "state") as hands:
        said = await hands.good(
            "Bash",
            command="id -u; hostname; ls /proc | grep -c [0-9]; grep -c : /proc/net/dev; grep CapEff /proc/self/status",
        )
        writes = await hands.good(
            "Bash",
            command="for f in / /usr /etc /dev; do echo x 2>&- > $f/x || echo no; done 2>&-",
        )

    uid, hostname, processes, interfaces, capabilities = said.splitlines()
    assert (uid, hostname, interfaces) == ("1000", "fork", "1")
    assert int(processes) < 6
    assert int(capabilities.split()[1], 16) == 0
    assert writes.split() == ["no"] * 4


@pytest.mark.parametrize("name", ["kernel/core_pattern", "kernel/panic", "vm/swappiness", "fs/file-max"])
async def test_a_command_cannot_write_a_sysctl(tmp_path: Path, name: str) -> None:
    """Not even its own value, though the daemon's user may be root."""
    path = f"/proc/sys/{name}"
    async with boxed(tmp_path / "state") as hands:
        await hands.good("Bash", command=f"cat {path}")
        said = await hands.bad("Bash", command=f'value=$(<{path}); echo "$value" > {path}')

    assert "Read-only file system" in said or "Permission denied" in said


async def test_no_file_in_proc_can_be_written(tmp_path: Path) -> None:
    """Wherever the kernel has one: the whole of it is read-only; a command's own streams can be opened there."""
    async with boxed(tmp_path / "state") as hands:
        found = await hands.good("Bash", command="find /proc -type f -writable 2>&-; :")
        tried = (
            "for f in /proc/sysrq-trigger /proc/irq/*/smp_affinity /proc/pressure/*; do : >> $f && echo $f; done 2>&-"
        )
        opened = await hands.good("Bash", command=f"{tried}; :")
        said = await hands.good("Bash", command="echo one > /dev/stdout; echo two > >(cat); wait $!")

    assert (found, opened) == ("", "")
    assert said.split() == ["one", "two"]


@pytest.mark.parametrize("folder", ["/proc", "/proc/sys/kernel", "/sys", "/sys/fs", "/dev"])
async def test_a_run_cannot_work_among_files_of_the_kernel(tmp_path: Path, folder: str) -> None:
    """Its workspace would be writable, and with it the host's settings and devices."""
    async with open_sandbox(SandboxSettings(state_dir=tmp_path / "state")) as sandbox:
        for place in (Place(cwd=Path(folder), named=True), Place(writable=(Path(folder),))):
            with pytest.raises(ForkRefused, match="holds files of the kernel"):
                async with sandbox.open(place, name="run"):
                    pass


async def test_nothing_of_the_hosts_files_is_there(tmp_path: Path, elsewhere: Path) -> None:
    """Neither homes nor accounts nor what services keep, for no tool."""
    hidden = ["/root", "/home", "/var/log", "/run", "/opt", "/srv", "/boot", "/sys", str(elsewhere)]
    async with boxed(tmp_path / "state") as hands:
        seen = await hands.good(
            "Bash", command=f"ls -d {' '.join(hidden)} /etc/shadow /etc/ssh /etc/ssl/private 2>&-; :"
        )
        for path in hidden:
            for name, arguments in (("FileRead", {"file_path": f"{path}/x"}), ("Glob", {"path": path})):
                said = await hands.bad(name, pattern="*", **arguments)
                assert "not available" in said or "belongs to the kernel" in said
        assert "does not exist" in await hands.bad("FileRead", file_path="/etc/shadow")
        names = await hands.good("Glob", pattern="/*", path="/")

    assert seen == ""
    assert names == "No file in / matches."


async def test_the_runs_own_tmp_is_one_for_all_tools(tmp_path: Path) -> None:
    """What a command writes to ``/tmp`` a file tool reads there, and the other way round; the host's is another."""
    theirs = Path("/tmp") / f"nexofork-{os.getpid()}-host"
    theirs.write_text("host")
    try:
        async with boxed(tmp_path / "state") as hands:
            await hands.good("Bash", command="echo from bash > /tmp/a; ln -s /tmp/a link")
            await hands.good("FileWrite", file_path="/tmp/b", content="from a tool")

            assert await hands.good("FileRead", file_path="/tmp/a") == "     1\tfrom bash"
            assert await hands.good("FileRead", file_path="link") == "     1\tfrom bash"
            assert await hands.good("Bash", command="cat /tmp/b") == "from a tool"
            assert await hands.good("Grep", pattern="from", path="/tmp") == "/tmp/a\n/tmp/b"
            assert "/tmp/b" in await hands.good("Glob", pattern="/tmp/*")
            assert "does not exist" in await hands.bad("FileRead", file_path=str(theirs))
    finally:
        theirs.unlink()


async def test_both_searches_work_inside(tmp_path: Path) -> None:
    """Ripgrep, and our own where a glob and a type are to hold both; the interpreter is not to be searched."""
    async with boxed(tmp_path / "state") as hands:
        await hands.good("FileWrite", file_path="src/a.py", content="needle\n")
        own = await hands.good("Grep", pattern="needle", type="py", glob="*.py", output_mode="content")
        newest = await hands.good("Glob", pattern="**/*.py")
        if not sys.base_prefix.startswith("/usr"):
            assert "not available" in await hands.bad("Glob", pattern="**/os.py", path=sys.base_prefix)

        assert own == f"{hands.folder}/src/a.py:1:needle"
        assert newest == f"{hands.folder}/src/a.py"


async def test_links_and_detours_do_not_lead_out(tmp_path: Path, elsewhere: Path) -> None:
    """A file tool follows a link as it would be followed inside, where there is nothing to be found."""
    secret = elsewhere / "secret"
    secret.write_text(SECRET)
    links = f"ln -s {secret} l; ln -s {elsewhere} d; ln -s /proc/self/root r; ln -s {'../' * 20}{elsewhere} up"
    async with boxed(tmp_path / "state") as hands:
        said = await hands.good(
            "Bash", command=f"{links}; ln {secret} h 2>&-; cat l d/secret r{secret} up/secret 2>&-; :"
        )
        paths = ["l", "d/secret", f"r{secret}", "up/secret", str(secret), f"/proc/self/cwd/{secret}"]
        answers = [await hands.bad("FileRead", file_path=path) for path in (*paths, "h")]
        answers += [await hands.bad("FileWrite", file_path=path, content="x") for path in paths]
        answers += [await hands.bad("Grep", pattern="sk-", path=path) for path in paths]

    assert not [answer for answer in (said, *answers) if SECRET in answer]
    assert secret.read_text() == SECRET


async def test_a_folder_swapped_for_a_link_is_not_followed(tmp_path: Path, elsewhere: Path) -> None:
    """Between the look at a path and its opening; the filter, which is asked in between, does the swap here."""
    (elsewhere / "f").write_text(SECRET)
    async with boxed(tmp_path / "state") as hands:
        await hands.good("FileWrite", file_path="d/f", content="mine")

        def swap(*_: object) -> None:
            (hands.folder / "d").rename(hands.folder / "e")
            (hands.folder / "d").symlink_to(elsewhere)

        outcome = await hands.judged("FileRead", swap, file_path="d/f")

    assert outcome.is_error
    assert SECRET not in str(outcome.content)


async def test_a_workspace_is_written_and_its_protected_parts_are_not(tmp_path: Path) -> None:
    """Neither by a command, which cannot put them aside either, nor by a file tool; they can be read."""
    repo = tmp_path / "repo"
    (repo / ".git/hooks").mkdir(parents=True)
    (repo / ".git/config").write_text("[core]\n")
    place = Place(cwd=repo, protected=(repo / ".git/hooks", repo / ".git/config"))
    async with boxed(tmp_path / "state", place) as hands:
        attempts = [
            "echo x > .git/config",
            "echo x > .git/hooks/post-commit",
            "mv .git/config .git/old",
            "rm -rf .git/hooks",
            "mv .git gone",
            "ln .git/config hard",
            "mount -o remount,rw .git/config",
        ]
        for attempt in attempts:
            assert await hands.bad("Bash", command=attempt), attempt
        assert await hands.good("FileRead", file_path=".git/config") == "     1\t[core]"
        assert "not changed" in await hands.bad("FileWrite", file_path=".git/config", content="x")
        assert "not changed" in await hands.bad("FileWrite", file_path=".git/hooks/post-commit", content="x")
        await hands.good("Bash", command="echo ref > .git/HEAD; mkdir sub; echo made > sub/file; chmod 000 sub")

    assert (repo / ".git/config").read_text() == "[core]\n"
    assert os.listdir(repo / ".git/hooks") == []
    assert (repo / "sub").stat().st_uid == os.geteuid()
    (repo / "sub").chmod(0o700)
    assert (repo / "sub/file").read_text() == "made\n"


def make_repository(repo: Path, tree: Path) -> None:
    """A repository with one commit and a worktree."""
    repo.mkdir()
    commit = [*NAMED, "commit", "-q", "--allow-empty", "-m", "one"]
    for arguments in (["init", "-q"], commit, ["worktree", "add", "-q", str(tree)]):
        subprocess.run(["git", *arguments], cwd=repo, check=True)


async def test_git_works_in_a_worktree_of_its_own(tmp_path: Path) -> None:
    """With its repository beside it, whose configuration and hooks are protected."""
    repo, tree = tmp_path / "repo", tmp_path / "tree"
    make_repository(repo, tree)
    place = Place(cwd=tree, writable=(repo / ".git",), protected=(repo / ".git/hooks", repo / ".git/config"))
    async with boxed(tmp_path / "state", place) as hands:
        said = await hands.good(
            "Bash",
            command=f"echo x > f && git add f && git {' '.join(NAMED)} commit -q -m two && git log --format=%s",
        )
        assert await hands.bad("Bash", command="git config core.hooksPath /tmp")

    assert said.split() == ["two", "one"]


async def test_credentials_in_a_workspace_are_covered(tmp_path: Path) -> None:
    """A key file that lies where a run works is empty to it, for all tools."""
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "daemon.creds").write_text(SECRET)
    async with boxed(tmp_path / "state", Place(cwd=shared), secrets=(shared / "daemon.creds",)) as hands:
        assert await hands.good("Bash", command="cat daemon.creds; cp daemon.creds x; cat x") == ""
        assert "is empty" in await hands.good("FileRead", file_path="daemon.creds")
        assert "Nothing" in await hands.good("Grep", pattern="sk-")
        assert "not changed" in await hands.bad("FileWrite", file_path="daemon.creds", content="x")

    assert (shared / "daemon.creds").read_text() == SECRET


@pytest.mark.parametrize("folder", ["/", "home", "state/..", "missing"])
async def test_a_place_that_shows_too_much_is_refused(tmp_path: Path, folder: str) -> None:
    """A run that would work in the daemon's home, around its state, or nowhere."""
    cwd = Path.home() if folder == "home" else tmp_path / folder
    async with open_sandbox(SandboxSettings(state_dir=tmp_path / "state")) as sandbox:
        with pytest.raises(ForkRefused):
            async with sandbox.open(Place(cwd=cwd), name="run"):
                pass


@pytest.mark.parametrize("folder", ["home", "state/sandbox"])
async def test_a_request_cannot_name_a_folder_that_no_run_may_see(tmp_path: Path, folder: str) -> None:
    """Inside the daemon's home or state, though the same folder may be made for a run by the daemon itself."""
    cwd = Path.home() / f".nexofork-test-{os.getpid()}" if folder == "home" else tmp_path / folder
    cwd.mkdir(parents=True, exist_ok=True)
    settings = SandboxSettings(state_dir=tmp_path / "state")
    try:
        async with open_sandbox(settings) as sandbox:
            with pytest.raises(ForkRefused, match="which no run may see on this host"):
                async with sandbox.open(Place(cwd=cwd, named=True), name="run"):
                    pass
        if folder == "home":
            async with (
                open_sandbox(replace(settings, shared=(cwd,))) as sandbox,
                sandbox.open(Place(cwd=cwd, named=True), name="run") as place,
            ):
                assert await Hands.at(place).good("Bash", command="pwd") == f"{cwd}\n"
    finally:
        if folder == "home":
            cwd.rmdir()


FREE = ("/Users/me/repo", "/app", "/workspace", "/home/me", "/home/me/repo", "/tmp/repo", "/root/repo", "/var/www/app")
TAKEN = (
    *(
        "/",
        "/tmp",
        "/home",
        "/root",
        "/var",
        "/boot",
        "/boot/x",
        "/proc",
        "/proc/1/root",
        "/sys/x",
        "/dev",
        "/dev/shm/x",
    ),
    *("/etc", "/etc/nixos", "/usr", "/usr/src/app", "/bin", "/sbin/x", "/lib", "/lib64/x", "/libx32", "/run", "/run/x"),
)


async def test_a_checkout_is_mounted_at_its_parents_path_unless_the_system_is_there(tmp_path: Path) -> None:
    """Nor in, at or around the daemon's state, a folder that runs read, or another path of the same checkout."""
    read = tmp_path / "read"
    read.mkdir()
    state = tmp_path / "state"
    async with open_sandbox(SandboxSettings(state_dir=state, read=(read,))) as sandbox:
        mounted = [path for path in (*FREE, *TAKEN) if sandbox.mounts_at([path])]
        around = [state, state / "runs/x/work", tmp_path, read, read / "x"]
        nested = [("/srv/a", "/srv/a/b"), ("/srv/a/b", "/srv/a"), ("/srv/a", "/usr/a")]
        refused = [*([str(path)] for path in around), *nested, ()]

        assert mounted == list(FREE)
        assert [paths for paths in refused if sandbox.mounts_at(paths)] == []
        assert sandbox.mounts_at(("/srv/a", "/srv/b"))


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("//home//me/./x/../repo/", "/home/me/repo"),
        ("/home/../../etc", "/etc"),
        ("///", "/"),
        ("/a b/\u00e9", "/a b/\u00e9"),
        *((path, None) for path in ("", "repo", "./repo", "C:\\repo", "C:/repo", "\\\\host\\share", "~/repo")),
        *((f"/repo{char}x", None) for char in ("\0", "\n", "\x1b", "\x7f", "\u202e", "\udc80")),
        *((path, None) for path in ("/" + "x" * 300, "/x" * 100, "/" + "/".join(["y" * 200] * 20))),
    ],
)
def test_only_what_can_be_a_path_here_is_one(given: str, plain: str | None) -> None:
    """Windows paths, relative ones, control characters and endless ones are not."""
    assert plain_path(given) == plain


async def test_the_way_to_a_checkout_in_tmp_cannot_be_moved(tmp_path: Path) -> None:
    """Else the next command would find a link there, and the checkout would be mounted where it leads."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.txt").write_text("one\n")
    checkout = Checkout(root=work, known_as=("/tmp/some/where/repo",), mounted=True)
    place = Place(cwd=work, writable=(work,), checkout=checkout)
    async with boxed(tmp_path / "state", place) as hands:
        for command in ("mv /tmp/some /tmp/x", "mv /tmp/some/where /tmp/x", "rm -rf /tmp/some; ln -sT /usr /tmp/some"):
            await hands.bad("Bash", command=f"cd /; {command}")
        (work / "a.txt").write_text("one\n")
        listed = await hands.good("Bash", command="pwd; cat a.txt; ls /tmp/some/where /tmp/some")

    assert listed.split() == [*("/tmp/some/where/repo", "one", "/tmp/some:", "where", "/tmp/some/where:", "repo")]


async def test_all_a_run_leaves_in_its_scratch_is_removed(tmp_path: Path) -> None:
    """Folders without rights and thousands deep as well; nothing is left of the daemon's folder at its end."""
    deep = "p=$(printf 'd/%.0s' {1..900}); for i in 1 2 3; do mkdir -p $p; cd $p; done"
    locked = "mkdir locked; touch locked/f; chmod 000 locked"
    async with open_sandbox(SandboxSettings(state_dir=tmp_path / "state")) as sandbox:
        async with sandbox.open(Place(), name="run") as place:
            assert place.cwd is not None
            assert stat.S_IMODE(place.cwd.stat().st_mode) == 0o700
            run = place.cwd.parent
            await Hands.at(place).good("Bash", command=f"{locked}; {deep}")
            assert run.exists()
        assert not run.exists()
    assert os.listdir(tmp_path / "state/sandbox") == []


async def test_what_a_killed_daemon_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """And what a living one has is not."""
    left = tmp_path / "state/sandbox/abcdef/run-1/work"
    left.mkdir(parents=True)
    settings = SandboxSettings(state_dir=tmp_path / "state")
    async with open_sandbox(settings) as sandbox, sandbox.open(Place(), name="run") as place:
        assert not left.exists()
        async with open_sandbox(settings):
            assert place.cwd is not None
            assert place.cwd.exists()


async def test_network_and_folders_are_the_operators_to_give(tmp_path: Path) -> None:
    """Given, a command has the host's interfaces and reads a folder beside the system's; it cannot write there."""
    more = tmp_path / "toolchain"
    more.mkdir()
    (more / "tool").write_text("here")
    async with boxed(tmp_path / "state", network=True, read=(more,)) as hands:
        said = await hands.good("Bash", command=f"readlink /proc/self/ns/net; cat {more}/tool; echo x > {more}/y || :")
        assert await hands.good("FileRead", file_path=f"{more}/tool") == "     1\there"
        assert "not changed" in await hands.bad("FileWrite", file_path=f"{more}/y", content="x")

    assert said.startswith(os.readlink("/proc/self/ns/net") + "\nhere")
    assert os.listdir(more) == ["tool"]


KEYCTL = {"x86_64": (248, 250), "aarch64": (217, 219)}
known_machine = pytest.mark.skipif(os.uname().machine not in KEYCTL, reason="no filter for this machine")
SEARCH = """
import ctypes
kernel = ctypes.CDLL(None)
session = ctypes.c_int(-3)
print(kernel.syscall({keyctl}, 10, session, b"user", b"nexofork-test", 0))
print(kernel.syscall({add_key}, b"user", b"left", b"x", ctypes.c_size_t(1), session))
"""


@known_machine
async def test_the_daemons_keyring_is_out_of_reach(tmp_path: Path) -> None:
    """A command neither finds a key that the daemon was started with nor leaves one for other runs."""
    add_key, keyctl = KEYCTL[os.uname().machine]
    kernel = ctypes.CDLL(None)
    kernel.syscall(keyctl, 1, None)  # a keyring of this process's own
    if kernel.syscall(add_key, b"user", b"nexofork-test", b"key", ctypes.c_size_t(3), ctypes.c_int(-3)) < 0:
        pytest.skip("this kernel, or the container, has no keyrings")
    async with boxed(tmp_path / "state") as hands:
        await hands.good("FileWrite", file_path="search.py", content=SEARCH.format(add_key=add_key, keyctl=keyctl))
        assert (await hands.good("Bash", command="python3 search.py")).split() == ["-1", "-1"]


SET_UID = {
    "chmod": "os.chmod('plain', 0o4755)",
    "fchmod": "os.fchmod(os.open('plain', os.O_RDONLY), 0o6755)",
    "open": "os.open('made', os.O_CREAT | os.O_WRONLY, 0o4755)",
    "tmpfile": "os.link(f\"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755)}\", 'made')",
    "mknod": "os.mknod('made', 0o104755)",
}


@known_machine
@pytest.mark.parametrize("how", SET_UID)
async def test_a_command_leaves_no_file_that_runs_as_the_daemons_user(tmp_path: Path, how: str) -> None:
    """On the host its owner is the daemon's user, who may be root; other modes are given as always."""
    shared = tmp_path / "shared"
    shared.mkdir()
    script = f"import os\nos.umask(0)\nos.mknod('plain')\nos.chmod('plain', 0o1751)\n{SET_UID[how]}\n"
    async with boxed(tmp_path / "state", Place(cwd=shared)) as hands:
        await hands.good("FileWrite", file_path="try.py", content=script)
        assert "PermissionError" in await hands.bad("Bash", command="python3 try.py")
    assert stat.S_IMODE((shared / "plain").stat().st_mode) == 0o1751
    assert not [path for path in shared.iterdir() if path.stat().st_mode & stat.S_ISUID]


@known_machine
async def test_a_command_cannot_reach_the_host_of_a_virtual_machine(tmp_path: Path) -> None:
    """Sockets to it do not go through the network, so having no network does not stop them."""
    opens = "python3 -c 'import socket; socket.socket(socket.AF_{0})' 2>/dev/null && echo {0}"
    command = "; ".join([*map(opens.format, ("UNIX", "INET", "VSOCK", "PACKET")), "true"])
    for network in (False, True):
        async with boxed(tmp_path / "state", network=network) as hands:
            assert (await hands.good("Bash", command=command)).split() == ["UNIX", "INET"]
