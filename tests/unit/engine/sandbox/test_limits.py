"""What a command in the sandbox uses up is its own loss: it ends with an error, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import TYPE_CHECKING

import pytest

from nexofork.sandbox.sandbox import SandboxSettings, open_sandbox
from nexofork.tools.bash import BashTool
from nexofork.tools.place import Place
from nexofork.tools.process import Limits
from tests.support.sandboxes import boxed, needs_bubblewrap, processes_with
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_bubblewrap

MB = 1024 * 1024
ESCAPES = [
    "sleep 1000 & sleep 1000",
    "setsid sleep 1000 & nohup sleep 1000 & sleep 1000 & disown -a; sleep 1000",
    "setsid -f bash -c 'setsid -f sleep 1000; sleep 1000'; sleep 1000",
]


def marked(command: str) -> tuple[str, str]:
    """A command whose processes can be found by a word, wherever they went."""
    word = f"mark-{secrets.token_hex(6)}"
    return f"export {word.replace('-', '_')}=1; {command}", word.replace("-", "_")


@pytest.mark.parametrize("command", ESCAPES)
async def test_an_abort_leaves_no_process(tmp_path: Path, command: str) -> None:
    """Not even one that left its session and its parents; they are gone when the cancellation goes on."""
    command, word = marked(command)
    async with boxed(tmp_path / "state") as hands, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(hands.outcome("Bash", command=command))
        await eventually(lambda: len(processes_with(word)) >= 3)
        running.cancel()
        await asyncio.wait([running])
        assert processes_with(word) == []


async def test_a_timeout_and_an_end_leave_no_process_either(tmp_path: Path) -> None:
    """What a command started in the background ends with its call."""
    slow, word = marked("setsid sleep 1000 & nohup sleep 1000 & sleep 1000")
    quick, other = marked("setsid -f sleep 1000; (sleep 1000 &); echo done")
    async with boxed(tmp_path / "state") as hands:
        killed = await hands.bad("Bash", command=slow, timeout_s=0.5)
        assert processes_with(word) == []
        assert await hands.good("Bash", command=quick) == "done\n"
        assert processes_with(other) == []

    assert "it ran longer than 0.5 s" in killed


async def test_a_fork_bomb_is_an_error(tmp_path: Path) -> None:
    """Also one whose processes leave their sessions."""
    bomb, word = marked("f() { setsid bash -c 'sleep 1000' & f & f & wait; }; f")
    limits = Limits(processes=60, time_s=30)
    async with boxed(tmp_path / "state", limits=limits) as hands:
        said = await hands.bad("Bash", command=bomb)
        assert processes_with(word) == []
        assert await hands.good("Bash", command="echo alive") == "alive\n"

    assert "[killed: it had more than 60 processes at once]" in said


async def test_memory_without_bound_is_an_error(tmp_path: Path) -> None:
    """One process is refused more; several are ended together, with the limit named."""
    one = "dd if=/dev/zero of=/dev/null bs=600M count=1"
    many = "for i in 1 2 3 4; do (x=$(head -c 60M /dev/zero | tr '\\0' x); sleep 30) & done; wait"
    async with boxed(tmp_path / "state", limits=Limits(resident_bytes=200 * MB, time_s=30)) as hands:
        killed = f"[killed: it used more than {200 * MB} bytes of memory]"
        assert "memory exhausted" in await hands.bad("Bash", command=one)
        assert killed in await hands.bad("Bash", command=many)


PYTHON = "/usr/bin/python3"
needs_python = pytest.mark.skipif(not os.path.exists(PYTHON), reason="the host has no Python that a sandbox shows")
FILL = """
import ctypes, mmap, os, socket, sys, threading, time
MB = 1024 * 1024
def fill(descriptor, size):
    for _ in range(size):
        os.write(descriptor, bytes(MB))
    return descriptor
def stay():
    time.sleep(60)
    sys.exit("was not ended")
"""
IN_MEMORY = {
    "one": "d = [fill(os.memfd_create('a'), 30) for _ in range(20)]; stay()",
    "children": "[os.fork() or (fill(os.memfd_create('a'), 30), stay()) for _ in range(20)]; stay()",
    "apart": "os.fork() and stay(); os.setsid(); os.fork() and os._exit(0); fill(os.memfd_create('a'), 600); stay()",
    "shared": "m = [mmap.mmap(-1, 30 * MB) for _ in range(20)]; [x.write(bytes(30 * MB)) for x in m]; stay()",
    "thread": """
def own():
    ctypes.CDLL(None).unshare(0x400)  # CLONE_FILES: descriptors of its own
    d = [fill(os.memfd_create('a'), 30) for _ in range(20)]
    stay()
threading.Thread(target=own).start()
stay()
""",
    "without its first thread": """
def own():
    d = [fill(os.memfd_create('a'), 30) for _ in range(20)]
    stay()
threading.Thread(target=own).start()
ctypes.CDLL(None).pthread_exit(None)
""",
    "segments": """
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(20):
    there = libc.shmat(libc.shmget(0, 30 * MB, 0o1600), None, 0)
    ctypes.memset(there, 1, 30 * MB)
    libc.shmdt(ctypes.c_void_p(there))
stay()
""",
}
MAPPED = """
for _ in range(20):
    d = fill(os.memfd_create('a'), 30)
    m = mmap.mmap(d, 4096); globals()[f'm{_}'] = m
    os.close(d)
stay()
"""


@needs_python
@pytest.mark.parametrize("how", IN_MEMORY)
async def test_memory_that_is_only_held_counts(tmp_path: Path, how: str) -> None:
    """Files in memory and shared memory count, whichever process or thread holds them and whether it is mapped."""
    async with boxed(tmp_path / "state", limits=Limits(resident_bytes=300 * MB, time_s=30)) as hands:
        said = await hands.bad("Bash", command=f"{PYTHON} - <<'END'\n{FILL}{IN_MEMORY[how]}\nEND")

    assert f"[killed: it used more than {300 * MB} bytes of memory]" in said


@needs_python
@pytest.mark.skipif(os.geteuid() != 0, reason="only root, or a control group, knows how large a mapped file is")
async def test_memory_of_files_with_a_small_mapping_counts(tmp_path: Path) -> None:
    """One page of each file in memory is mapped and never touched, and no descriptor is left."""
    async with boxed(tmp_path / "state", limits=Limits(resident_bytes=300 * MB, time_s=30)) as hands:
        said = await hands.bad("Bash", command=f"{PYTHON} - <<'END'\n{FILL}{MAPPED}\nEND")

    assert f"[killed: it used more than {300 * MB} bytes of memory]" in said


@needs_python
async def test_memory_within_the_limit_is_counted_once(tmp_path: Path) -> None:
    """A file in memory that several processes have open and mapped, and a segment that is attached."""
    shared = """
d = fill(os.memfd_create('a'), 120)
m = mmap.mmap(d, 120 * MB)
sum(m[::4096])
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
ctypes.memset(libc.shmat(libc.shmget(0, 60 * MB, 0o1600), None, 0), 1, 60 * MB)
for _ in range(3):
    if os.fork() == 0:
        sum(m[::4096])
        break
time.sleep(5)
"""
    async with boxed(tmp_path / "state", limits=Limits(resident_bytes=300 * MB, time_s=30)) as hands:
        await hands.good("Bash", command=f"{PYTHON} - <<'END'\n{FILL}{shared}\nEND")


DELETED = {
    "deleted": "exec {fd}>f; rm f; head -c 8M /dev/zero >&$fd",
    "unnamed": "exec {fd}>f; rm f; head -c 8M /dev/zero >&$fd; (sleep 60) & exec {fd}>&-",
    "background": "(exec {fd}>f; rm f; head -c 8M /dev/zero >&$fd; exec setsid sleep 60) & sleep 0.05",
}


@pytest.mark.parametrize("folder", ["/tmp", ".", "/dev/shm"])
@pytest.mark.parametrize("how", DELETED)
async def test_deleted_files_count_while_they_are_held(tmp_path: Path, folder: str, how: str) -> None:
    """In every folder the run may write to, and whichever process holds them; afterwards there is room again."""
    command = f"cd {folder}; for i in $(seq 40); do {DELETED[how]}; done; sleep 60"
    async with boxed(tmp_path / "state", disk_bytes=64 * MB) as hands:
        said = await hands.bad("Bash", command=command)
        again = await hands.bad("Bash", command=command)
        room = await hands.good("Bash", command="head -c 8M /dev/zero > f; sleep 0.5; echo room")

    for one in (said, again):
        assert f"[killed: its files grew by more than {64 * MB} bytes" in one
    assert room == "room\n"


async def test_deleted_files_of_commands_at_once_count_together(tmp_path: Path) -> None:
    """The limit is the run's, not each command's."""
    command = "exec 9>f$RANDOM$RANDOM; rm -f f*; head -c 40M /dev/zero >&9; sleep 60"
    async with boxed(tmp_path / "state", disk_bytes=64 * MB) as hands, asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(hands.outcome("Bash", command=command, timeout_s=30)) for _ in range(2)]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        ended = next(one for one in both if one.done())
        for one in both:
            one.cancel()

    assert f"[killed: its files grew by more than {64 * MB} bytes" in str(ended.result().content)


HIDDEN = {
    "locked": "mkdir -p a/b; cd a/b; {write}; cd ../..; chmod 000 a/b a; sleep 60",
    "deep": "n=$(printf 'd%.0s' {{1..200}}); for i in {{1..30}}; do mkdir $n; cd -P $n; done; {write}; sleep 60",
}


@pytest.mark.parametrize("how", HIDDEN)
async def test_files_in_folders_that_are_hard_to_read_count(tmp_path: Path, how: str) -> None:
    """Folders without rights, and paths longer than the kernel takes."""
    write = "for i in $(seq 20); do head -c 8M /dev/zero > f$i; done"
    async with boxed(tmp_path / "state", disk_bytes=64 * MB) as hands:
        said = await hands.bad("Bash", command=HIDDEN[how].format(write=write), timeout_s=30)

    assert f"[killed: its files grew by more than {64 * MB} bytes" in said


async def test_commands_are_the_first_to_go_when_memory_runs_out(tmp_path: Path) -> None:
    """The kernel is told to take them and not the daemon, bare or not."""
    look = "cat /proc/self/oom_score_adj"
    async with boxed(tmp_path / "state") as hands:
        assert await hands.good("Bash", command=look) == "1000\n"
    assert (await BashTool().run({"command": look})).content == "1000\n"


@pytest.mark.parametrize("folder", ["/tmp", ".", "/dev/shm"])
async def test_a_full_scratch_is_an_error(tmp_path: Path, folder: str) -> None:
    """By one file or by many, in every folder the run may write to; making room is allowed afterwards."""
    many = f"cd {folder}; for i in $(seq 100); do head -c 8M /dev/zero > f$i || exit 1; done; sleep 30"
    async with boxed(tmp_path / "state", disk_bytes=32 * MB) as hands:
        assert await hands.bad("Bash", command=f"head -c 40M /dev/zero > {folder}/big")
        assert f"[killed: its files grew by more than {32 * MB} bytes" in await hands.bad("Bash", command=many)
        assert (
            await hands.good(
                "Bash", command=f"rm {folder}/f* {folder}/big; sleep 0.5; echo room > {folder}/f; cat {folder}/f"
            )
            == "room\n"
        )


@pytest.mark.parametrize("make", ["os.close(os.open(name, os.O_CREAT))", "os.symlink('x', name)"])
async def test_files_without_content_count(tmp_path: Path, make: str) -> None:
    """They take no block, but a file system has room for so many files only."""
    script = f"import os, time\nfor name in map(str, range(20_000)):\n    {make}\ntime.sleep(100)\n"
    async with boxed(tmp_path / "state", disk_bytes=32 * MB) as hands:
        await hands.good("FileWrite", file_path="fill.py", content=script)
        assert "[killed: its files grew by more than" in await hands.bad("Bash", command="python3 fill.py")


async def test_what_a_workspace_held_before_does_not_count(tmp_path: Path) -> None:
    """Only what the run adds does."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (workspace / "old").write_bytes(bytes(64 * MB))
    settings = SandboxSettings(state_dir=tmp_path / "state", disk_bytes=32 * MB)
    async with open_sandbox(settings) as sandbox, sandbox.open(Place(cwd=workspace), name="run") as place:
        bash = BashTool(sandbox=place.sandbox)
        assert not (await bash.run({"command": "head -c 20M /dev/zero > new; sleep 0.5"})).is_error
        assert (await bash.run({"command": "head -c 20M /dev/zero > more; sleep 30"})).is_error


async def test_ten_gigabytes_of_output_are_an_error(tmp_path: Path) -> None:
    """Most of it is never printed."""
    async with boxed(tmp_path / "state", limits=Limits(printed_bytes=20 * MB)) as hands:
        said = await hands.bad("Bash", command="yes | head -c 10G")

    assert said.endswith(f"[killed: it printed more than {20 * MB} bytes]")
    assert len(said) < 400_000
