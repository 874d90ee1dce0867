"""The Bash tool: what a command prints, how it ends, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.tools.bash import BashTool
from nexofork.tools.process import Limits
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nexofork.tools.dispatch import ToolOutcome


async def run(command: str, **settings: Any) -> ToolOutcome:
    """Run a command with these settings."""
    return await BashTool(**settings).run({"command": command})


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_output_and_errors_come_back_together() -> None:
    """Both streams are in the answer, in order."""
    outcome = await run("echo out; echo err >&2; echo out again")

    assert (outcome.content, outcome.is_error) == ("out\nerr\nout again\n", False)


async def test_a_command_can_open_its_own_streams() -> None:
    """``/dev/stdout`` and ``/dev/stderr`` are what they are in a terminal's shell."""
    outcome = await run("echo one > /dev/stderr; echo two > /dev/stdout")

    assert (outcome.content, outcome.is_error) == ("one\ntwo\n", False)


async def test_a_failure_says_its_exit_code() -> None:
    """The model can tell a failed command from one that printed nothing."""
    outcome = await run("echo half; exit 3")

    assert (outcome.content, outcome.is_error) == ("half\n\n[exit code 3]", True)


async def test_a_command_that_takes_too_long_is_killed() -> None:
    """What it printed until then is kept, and the limit is named."""
    outcome = await run("echo begun; sleep 60", limits=Limits(time_s=0.3))

    assert outcome.is_error
    assert outcome.content == "begun\n\n[killed: it ran longer than 0.3 s]"


async def test_a_background_job_does_not_outlive_its_command(tmp_path: Path) -> None:
    """The command ends when it ends, not when its children do, and they end with it."""
    note = tmp_path / "pid"
    outcome = await run(f"sleep 60 & echo $! > {note}; echo done")

    assert outcome.content == "done\n"
    await eventually(lambda: not alive(int(note.read_text())))


async def test_long_output_keeps_its_start_and_its_end() -> None:
    """What is left out is counted."""
    outcome = await run("echo first; head -c 100000 /dev/zero | tr '\\0' x; echo; echo last", max_output_bytes=1000)

    assert isinstance(outcome.content, str)
    assert outcome.content.startswith("first\nxxx")
    assert outcome.content.endswith("xxx\nlast\n")
    assert "bytes left out" in outcome.content
    assert len(outcome.content) < 1100


async def test_a_call_may_ask_for_less_time() -> None:
    """In seconds, or in the milliseconds that many schemas have."""
    for limit in ({"timeout_s": 0.2}, {"timeout": 200}):
        outcome = await BashTool().run({"command": "sleep 60", **limit})
        assert outcome.content == "\n[killed: it ran longer than 0.2 s]"


async def test_output_without_end_is_an_error() -> None:
    """What prints more than anybody could want is killed long before it is done; little of it was kept."""
    outcome = await run(
        "yes | head -c 10G; echo done", max_output_bytes=1000, limits=Limits(printed_bytes=2_000_000, time_s=30)
    )

    assert outcome.is_error
    assert isinstance(outcome.content, str)
    assert outcome.content.endswith("[killed: it printed more than 2000000 bytes]")
    assert len(outcome.content) < 1200


async def test_a_command_that_multiplies_is_killed(tmp_path: Path) -> None:
    """With all it has started; this one would stop by itself at 127 processes, a real one would not."""
    note = tmp_path / "pids"
    bomb = f"f() {{ echo $BASHPID >> {note}; [ $1 -gt 0 ] && {{ f $(($1-1)) & f $(($1-1)) & }}; sleep 60; }}; f 6"

    outcome = await run(bomb, limits=Limits(processes=20, time_s=30))

    assert (outcome.content, outcome.is_error) == ("\n[killed: it had more than 20 processes at once]", True)
    await eventually(lambda: not any(map(alive, map(int, note.read_text().split()))))


async def test_many_processes_one_after_the_other_are_fine() -> None:
    """Only those that live at the same time count."""
    outcome = await run("for i in $(seq 100); do /bin/true; done; echo ok", limits=Limits(processes=20))

    assert (outcome.content, outcome.is_error) == ("ok\n", False)


async def test_a_programs_memory_can_be_limited() -> None:
    """The limit is its own, not the daemon's."""
    outcome = await run("ulimit -v", limits=Limits(memory_bytes=512 * 1024 * 1024))

    assert outcome.content == "524288\n"


async def test_the_daemons_environment_stays_with_the_daemon() -> None:
    """A command sees neither keys nor anything else the daemon was started with."""
    outcome = await run("env | cut -d= -f1 | sort | tr '\\n' ' '")

    assert outcome.content == "HOME LANG PATH PWD SHLVL _ "


async def test_the_home_of_a_bare_command_is_nobody_elses() -> None:
    """What other users put into a folder that all may write to is not its configuration."""
    home = (await run('printf %s "$HOME"; stat -c " %a %u" "$HOME"')).content

    assert isinstance(home, str)
    assert home.split()[1:] == ["700", str(os.getuid())]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": ""},
        {"command": ["ls"]},
        {"command": "ls", "timeout_s": 0},
        {"command": "ls", "timeout_s": "x"},
        {"command": "ls", "timeout": float("nan")},
        {"command": "ls", "run_in_background": True},
    ],
)
async def test_wrong_arguments_are_an_answer(arguments: dict[str, Any]) -> None:
    """The model is told what the tool needs."""
    assert (await BashTool().run(arguments)).is_error


async def test_a_command_that_cannot_start_is_an_answer(tmp_path: Path) -> None:
    """A missing directory or a NUL byte ends nothing but the call."""
    assert (await run("ls", cwd=tmp_path / "gone")).is_error
    assert (await run("echo \0")).is_error


async def test_cancelling_kills_the_whole_group(tmp_path: Path) -> None:
    """The command and what it started were killed when the cancellation goes on; the kernel may take a moment."""
    note = tmp_path / "pids"
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(run(f"sleep 60 & echo $$ $! > {note}; sleep 60"))
        await eventually(lambda: note.exists() and len(note.read_text().split()) == 2)
        running.cancel()

    pids = [int(pid) for pid in note.read_text().split()]
    await eventually(lambda: not any(map(alive, pids)))


async def test_killing_the_daemon_kills_its_commands(tmp_path: Path) -> None:
    """Nobody cleans up after ``kill -9``, so the group watches for it itself."""
    note = tmp_path / "pids"
    code = (
        "import asyncio; from nexofork.tools.bash import BashTool; "
        f"asyncio.run(BashTool().run({{'command': 'sleep 60 & echo $$ $! > {note}; sleep 60'}}))"
    )
    daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    await eventually(lambda: note.exists() and len(note.read_text().split()) == 2)

    os.kill(daemon.pid, signal.SIGKILL)
    await daemon.wait()

    await eventually(lambda: not any(alive(pid) for pid in map(int, note.read_text().split())))


MANY_COMMANDS = """
import asyncio, sys, uvloop
from nexofork.tools.bash import BashTool

async def work(numbers):
    for _ in numbers:
        outcome = await BashTool().run({"command": "echo out; echo err >&2"})
        assert outcome.content == "out\\nerr\\n", outcome

async def main(numbers):
    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(work(numbers))

uvloop.run(main(iter(range(int(sys.argv[1])))))
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed (apt install strace)")
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.ops)])
def test_no_descriptor_is_closed_twice(tmp_path: Path, count: int) -> None:
    """No close of a process that runs commands fails; the number could be another thread's by then."""
    trace = tmp_path / "trace"
    traced = ("strace", "-f", "-qq", "-e", "trace=close", "--detach-on=execve", "-o", trace)

    subprocess.run([*traced, sys.executable, "-c", MANY_COMMANDS, str(count)], check=True)

    closes = trace.read_text().splitlines()
    assert len(closes) > count
    assert [line for line in closes if "EBADF" in line] == []
