"""A daemon gets the sandbox it asks for, or is told why not and what to do; it never runs bare by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from nexofork.errors import SandboxUnavailable
from nexofork.sandbox.run_folder import daemon_folder
from nexofork.sandbox.sandbox import SandboxSettings, open_sandbox
from nexofork.tools.place import Place
from tests.support.hands import Hands
from tests.support.sandboxes import BWRAP, needs_bubblewrap

if TYPE_CHECKING:
    from pathlib import Path


@needs_bubblewrap
@pytest.mark.parametrize(
    ("without", "words"),
    [
        (["--dev-bind", "/", "/", "--ro-bind", "/dev/null", str(BWRAP)], "bubblewrap is not installed"),
        (["--unshare-user", "--disable-userns", "--dev-bind", "/", "/"], "a command could not be run in it"),
    ],
    ids=["not installed", "not allowed"],
)
@pytest.mark.parametrize("kind", ["auto", "bwrap"])
async def test_a_daemon_without_bubblewrap_does_not_start(
    tmp_path: Path, without: list[str], words: str, kind: str
) -> None:
    """It says why, and both ways out; this host is made into one where it is missing, or may not do its work."""
    assert BWRAP is not None
    daemon = await asyncio.create_subprocess_exec(
        *(BWRAP, *without, sys.executable, "-m", "nexofork_daemon", "--sandbox", kind, "--state-dir", str(tmp_path)),
        *("--nats", "nats://127.0.0.1:9"),
        env={**os.environ, "ANTHROPIC_API_KEY": "sk-sim-team"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = (stream.decode() for stream in await daemon.communicate())

    assert (daemon.returncode, out) == (2, "")
    assert words in err
    assert "--sandbox none" in err
    assert len(err.splitlines()) == 1


LEAKY = """#!/bin/bash
words=()
while [ $# -gt 0 ]; do
    if [ "$1 $2" = "--remount-ro /proc" ]; then shift 2; else words+=("$1"); shift; fi
done
exec /run/bwrap "${words[@]}"
"""


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write the kernel's settings")
async def test_a_daemon_whose_sandbox_can_write_sysctls_does_not_start(tmp_path: Path) -> None:
    """Bubblewrap is made to leave /proc writable here; the daemon tries it before it takes any work."""
    assert BWRAP is not None
    leaky = tmp_path / "bwrap"
    leaky.write_text(LEAKY)
    leaky.chmod(0o755)
    there = ("--dev-bind", "/", "/", "--tmpfs", "/run", "--ro-bind", BWRAP, "/run/bwrap", "--ro-bind", leaky, BWRAP)
    daemon = await asyncio.create_subprocess_exec(
        *(BWRAP, *there, sys.executable, "-m", "nexofork_daemon", "--state-dir", str(tmp_path / "state")),
        *("--nats", "nats://127.0.0.1:9"),
        env={**os.environ, "ANTHROPIC_API_KEY": "sk-sim-team"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = (stream.decode() for stream in await daemon.communicate())

    assert (daemon.returncode, out) == (2, "")
    assert "a command in it can write to /proc/sys/kernel/core_pattern" in err
    assert "User=" in err


async def test_none_closes_nothing_off(tmp_path: Path) -> None:
    """The home of its commands is in the state directory, and gone at the end."""
    state = tmp_path / "state"
    async with open_sandbox(SandboxSettings(kind="none", state_dir=state)) as sandbox:
        async with sandbox.open(Place(cwd=tmp_path), name="run") as place:
            assert (place.cwd, place.sandbox) == (tmp_path, None)
            home = await Hands.at(place).good("Bash", command='printf %s "$HOME"; stat -c " %a" "$HOME"')
        assert sandbox.name == "none"
    assert home.startswith(str(state))
    assert home.endswith(" 700\n")
    assert list(state.rglob("*")) == [state / "sandbox"]


async def test_a_bare_command_has_a_home_without_a_state_directory(tmp_path: Path) -> None:
    """A daemon whose state directory cannot be written runs commands all the same."""
    (tmp_path / "file").touch()
    async with (
        open_sandbox(SandboxSettings(kind="none", state_dir=tmp_path / "file/state")) as sandbox,
        sandbox.open(Place(cwd=tmp_path), name="run") as place,
    ):
        assert await Hands.at(place).good("Bash", command='stat -c %a "$HOME"') == "700\n"


def test_daemons_that_start_together_keep_their_folders(tmp_path: Path) -> None:
    """None takes the folder that another has just made for the folder of a dead daemon."""

    def start_and_end(_: int) -> bool:
        with daemon_folder(tmp_path) as folder:
            return (folder / "lock").exists()

    with ThreadPoolExecutor(8) as daemons:
        assert all(daemons.map(start_and_end, range(80)))
    assert list((tmp_path / "sandbox").iterdir()) == []


@needs_bubblewrap
@pytest.mark.parametrize(
    ("read", "words"),
    [
        ("/", "which no command may see"),
        ("gone", "is no folder"),
        (".", "which no command may see"),
        ("/proc", "holds files of the kernel"),
    ],
)
async def test_a_folder_that_shows_too_much_cannot_be_given(tmp_path: Path, read: str, words: str) -> None:
    """Here the state directory is in it."""
    with pytest.raises(SandboxUnavailable, match=words):
        async with open_sandbox(SandboxSettings(state_dir=tmp_path / "state", read=(tmp_path / read,))):
            pass


WITH_MOUNTS = """
set -e
mount -t tmpfs none "$1"
mkdir "$1/devices" "$1/$2"
mount -t proc none "$1/$2"
mount -t tmpfs none /dev
shift 2
exec "$@"
"""
LOOK = """
import subprocess
import sys
from nexofork.sandbox.mounts import kernel_files
for folder in sys.argv[1:]:
    print(ascii(kernel_files(folder)))
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="this user may not mount",
)
def test_the_kernels_files_are_found_whatever_a_mount_is_called(tmp_path: Path) -> None:
    """A name may have other spaces and line ends in it; ``/dev`` may be an ordinary file system, as in containers."""
    name = "a\u00a0b\u2028c d"
    asked = (str(tmp_path), str(tmp_path / name / "self"), str(tmp_path / "devices"), "/dev/input", "/dev/shm/x")
    shell = ("unshare", "--mount", "bash", "-c", WITH_MOUNTS, "bash", str(tmp_path), name)
    shown = subprocess.run([*shell, sys.executable, "-c", LOOK, *asked], capture_output=True, text=True, check=True)
    found = ascii(str(tmp_path / name))
    assert shown.stdout.splitlines() == [found, found, "None", "'/dev'", "None"]


@needs_bubblewrap
@pytest.mark.parametrize("folder", ["/usr/local/nexofork-test", "/bin/nexofork-test", "/tmp/../usr"])
async def test_a_state_directory_that_every_command_sees_is_refused(tmp_path: Path, folder: str) -> None:
    """Runs could read each other's files in it."""
    with pytest.raises(SandboxUnavailable, match=r"which every command sees.* --state-dir"):
        async with open_sandbox(SandboxSettings(state_dir=tmp_path / folder)):
            pass


@needs_bubblewrap
async def test_a_state_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With the option to give another."""
    (tmp_path / "file").touch()
    with pytest.raises(SandboxUnavailable, match=r"file/state cannot be written .* --state-dir"):
        async with open_sandbox(SandboxSettings(state_dir=tmp_path / "file/state")):
            pass
