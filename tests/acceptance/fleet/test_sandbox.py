"""A daemon with real secrets in its environment and files keeps them from its forks, and cleans up after them."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus
from nexofork.wire import messages as wire
from tests.support.conversation import AGENT, KEY, call, says
from tests.support.parents import results_in
from tests.support.sandboxes import needs_bubblewrap, processes_with
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.fleet import Fleet

pytestmark = needs_bubblewrap

TOOLS: list[dict[str, Any]] = [
    AGENT,
    *({"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "FileRead", "FileWrite", "Glob", "Grep")),
]
LOOK = r"""
env; cat /proc/*/environ | tr '\0' '\n'; cat /proc/*/cmdline | tr '\0' '\n'
ls -l /proc/*/fd; for f in /proc/self/fd/*; do [ "${f##*/}" -gt 2 ] && timeout 1 cat "$f"; done
"""


@asynccontextmanager
async def daemon_with_secrets(
    fleet: Fleet, secret: str, *options: str, under: tuple[str, ...] = ()
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The daemon's own command, with a secret in its environment, in a file, and behind a descriptor it inherits."""
    file = fleet.folder / "keys/daemon.key"
    file.parent.mkdir()
    file.write_text(secret)
    descriptor = os.open(file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    process = await asyncio.create_subprocess_exec(
        *(*under, sys.executable, "-m", "nexofork_daemon", "--nats", fleet.url, "--pool", fleet.pool),
        *("--name", "real", "--state-dir", str(fleet.folder / "state"), *options),
        env={**os.environ, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": fleet.sim.url, "SECRET": secret},
        stdout=asyncio.subprocess.PIPE,
        close_fds=False,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        os.close(descriptor)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


async def test_no_tool_finds_a_secret_of_the_daemons(fleet: Fleet) -> None:
    """By its environment, its key files, its home, other processes or inherited descriptors; the result says how."""
    secret = f"secret-{secrets.token_hex(8)}"
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    key = str(fleet.folder / "keys/daemon.key")
    home = Path.home()
    calls = [
        call("Bash", command=LOOK),
        call(
            "Bash",
            command=f"cat {key}; ls -la {home} {fleet.folder} /tmp; ls {home}/.*; cat {fleet.folder}/state/*/*/*",
        ),
        call("Bash", command=f"grep -rs {secret[:12]} / --exclude-dir=proc --exclude-dir=usr --exclude-dir=sys"),
        *(call("FileRead", file_path=path) for path in (key, "/proc/self/environ", "/proc/1/environ", "/etc/shadow")),
        *(call("Grep", pattern=secret[:12], path=path) for path in (str(fleet.folder), "/proc", "/tmp", "/etc")),
        *(call("Glob", pattern="**/*", path=path) for path in (str(fleet.folder), str(home), "/tmp")),
    ]
    directive = says("Look.", {"tools": calls}, {"text": "Done."})
    async with daemon_with_secrets(fleet, secret), fleet.connect() as forks:
        result = await (await forks.fork(await fleet.params(directive))).result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert (result.sandbox, result.to_json()["sandbox"]) == ("bwrap", "bwrap")
    answers = results_in(fleet.sim, 2)
    assert len(answers) == len(calls)
    shown = json.dumps(answers)
    for hidden in (secret, KEY, "daemon.key\\n", "keys/daemon.key ->"):
        assert hidden not in shown.replace(key + ":", "")
    assert "PATH=" in shown


async def test_the_same_daemon_bare_hides_its_environment_all_the_same(fleet: Fleet) -> None:
    """What a bare command can do is read files of its user; it inherits neither variables nor descriptors."""
    secret = f"secret-{secrets.token_hex(8)}"
    look = call(
        "Bash",
        command="env; ls -l /proc/self/fd; for f in /proc/self/fd/*; do [ ${f##*/} -gt 2 ] && cat $f; done;"
        "readlink /proc/$PPID/exe; cat /proc/$PPID/environ /proc/$PPID/task/*/environ | tr '\\0' '\\n'",
    )
    async with daemon_with_secrets(fleet, secret, "--sandbox", "none", "--allow-root"), fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("Look.", {"tools": [look]}, {"text": "Done."})))
        result = await handle.result()

    assert (result.status, result.sandbox) == (ForkStatus.COMPLETED, "none")
    (answer,) = results_in(fleet.sim, 2)
    assert "PATH=" in answer["content"]
    for hidden in (secret, KEY, "ANTHROPIC_API_KEY"):
        assert hidden not in answer["content"]
    assert "daemon.key" not in answer["content"]


async def test_a_bare_command_cannot_look_into_a_daemon_without_rights(fleet: Fleet) -> None:
    """Its memory, its descriptors and its environment are closed to commands of the same user, who is not root here."""
    tries = (
        "for f in environ mem maps; do : </proc/$PPID/$f && echo $f; done; readlink /proc/$PPID/fd/0 /proc/$PPID/cwd"
    )
    look = call("Bash", command=f"id -u; {{ {tries}; }} 2>&-; :")
    another = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    daemon = daemon_with_secrets(fleet, "secret", "--sandbox", "none", under=another)
    async with daemon, fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("Look.", {"tools": [look]}, {"text": "Done."})))
        assert (await handle.result()).status is ForkStatus.COMPLETED

    (answer,) = results_in(fleet.sim, 2)
    assert answer["content"] == "1000\n"


async def test_a_run_without_workspace_has_a_folder_until_its_end(fleet: Fleet) -> None:
    """Its calls share it and ``/tmp``, another run has another, and nothing is left of either."""
    await fleet.daemon(sandbox="bwrap", state_dir=str(fleet.folder / "state"))
    fleet.captured = await fleet.agent.ask(tools=TOOLS)
    directive = says(
        "Work.",
        {
            "tools": [
                call("Bash", command="echo one > here; echo two > /tmp/there; pwd"),
                call("FileRead", file_path="here"),
            ]
        },
        {"tools": [call("Bash", command="cat here /tmp/there; ls -A /tmp"), call("Glob", pattern="*")]},
        {"text": "Done."},
    )
    async with fleet.connect() as forks:
        first = await (await forks.fork(await fleet.params(directive))).result()
        seen = [answer["content"] for index in (2, 3) for answer in results_in(fleet.sim, index)]
        second = await (
            await forks.fork(await fleet.params(says("Look.", {"tools": [call(command="ls -A . /tmp")]}, "x")))
        ).result()
    await fleet.until_present(lambda presence: presence.sandbox == "bwrap")

    assert [first.status, second.status] == [ForkStatus.COMPLETED] * 2, (first.error, second.error)
    assert seen[1] == "     1\tone"
    assert seen[2].startswith("one\ntwo\n")
    assert seen[3] == f"{seen[0].strip()}/here"
    (listed,) = results_in(fleet.sim, 5)
    assert "here" not in listed["content"]
    (daemon,) = (fleet.folder / "state/sandbox").iterdir()
    assert {path.name for path in daemon.iterdir()} == {"lock", "etc", "empty"}


@pytest.mark.parametrize("end", ["abort", "kill"])
async def test_an_abort_or_a_dead_daemon_leaves_no_process(fleet: Fleet, end: str) -> None:
    """Of a command that put its processes into sessions of their own; the next daemon removes the folder."""
    word = f"mark_{secrets.token_hex(6)}"
    state = str(fleet.folder / "state")
    process = await fleet.daemon(sandbox="bwrap", state_dir=state)
    command = f"export {word}=1; setsid sleep 1000 & nohup sleep 1000 & sleep 1000 & disown -a; sleep 1000"
    async with fleet.connect() as forks:
        handle = await forks.fork(
            await fleet.params(says("Work.", {"tools": [call(command=command)]}, {"text": "Done."}))
        )
        await eventually(lambda: len(processes_with(word)) >= 4)
        if end == "abort":
            await handle.abort("enough")
            assert (await handle.result()).status is ForkStatus.ABORTED
            assert processes_with(word) == []
        else:
            await process.kill()
            await eventually(lambda: processes_with(word) == [])
            handle.detach()
            await fleet.daemon(sandbox="bwrap", state_dir=state)
            assert len(os.listdir(f"{state}/sandbox")) == 1
            await fleet.until_logged(
                handle.run_id, lambda report: isinstance(report, wire.Claimed) and report.epoch == 2
            )
