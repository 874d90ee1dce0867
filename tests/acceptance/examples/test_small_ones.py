"""The small examples: forty lines around a plain client, and a shell script that speaks to a socket."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any

from nexofork.client.runs import list_runs
from nexofork.wire import messages as wire
from tests.acceptance.examples.conftest import EXAMPLES
from tests.support.conversation import KEY, call, says
from tests.support.conversation import request as conversation

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fleet import Fleet

DONE = {"text": "Scope: all\nResult: done"}
BARE = str(EXAMPLES / "bare_nats.sh")


async def run(*command: str, env: dict[str, str]) -> tuple[int | None, str, str]:
    """Run a program to its end."""
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def recorded(fleet: Fleet) -> Path:
    """A file with the request of a parent that puts white space between tokens, which a shell could get wrong."""
    body = json.dumps(conversation(), indent="\t").replace("\n", "\r\n").encode()
    head = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}
    asking = urllib.request.Request(f"{fleet.sim.url}/v1/messages", data=body, headers=head)
    (await asyncio.to_thread(urllib.request.urlopen, asking)).close()
    path = fleet.folder / "request.json"
    path.write_bytes(body)
    return path


async def test_forty_lines_around_a_plain_client_fork(fleet: Fleet, environment: dict[str, str]) -> None:
    """Two children run elsewhere and read the client's conversation from the cache."""
    await fleet.daemon("north")
    directives = [says(word, {"tools": [call(command=f"echo {word}")]}, word.upper()) for word in ("apple", "birch")]

    code, out, err = await run(sys.executable, "-m", "examples.plain_sdk", *directives, env=environment)

    assert code == 0, err
    assert sorted(line.rpartition(" ")[2] for line in out.splitlines()) == ["APPLE", "BIRCH"]
    assert out.count("completed on north, 9") == 2
    assert len((EXAMPLES / "plain_sdk.py").read_text().splitlines()) <= 40


async def test_the_plain_client_says_that_nats_is_not_there(fleet: Fleet, environment: dict[str, str]) -> None:
    """As every command does: one line with the address and what to do, and exit code 3."""
    nobody = {**environment, "NATS_URL": "nats://127.0.0.1:9"}

    code, out, err = await run(sys.executable, "-m", "examples.plain_sdk", "apple", env=nobody)

    assert (code, out, len(err.splitlines())) == (3, "", 1)
    assert "nats://127.0.0.1:9" in err


async def test_a_shell_script_with_a_socket_forks(fleet: Fleet, environment: dict[str, str]) -> None:
    """One PUB asks for the run, one SUB brings its reports; a directive may hold whatever JSON has to escape."""
    await fleet.daemon("north")
    directive = says('Say "it" with \\ and ü.', {"tools": [call(command="echo 'a\"b'")]}, DONE)

    code, out, err = await run(BARE, str(await recorded(fleet)), directive, "bare-1", env=environment)

    assert code == 0, err
    reports: list[dict[str, Any]] = [json.loads(line) for line in out.splitlines()]
    assert (reports[0]["kind"], reports[-1]["kind"]) == ("claimed", "final")
    assert json.loads(reports[-1]["result"]["text"])["final_text"] == DONE["text"]
    requested = (await fleet.entries("bare-1"))[0].message
    assert isinstance(requested, wire.Requested)
    assert requested.directive == directive
    assert fleet.sim.log[1].read == fleet.sim.log[0].write_5m


async def test_the_shell_script_aborts_its_run_when_it_is_interrupted(
    fleet: Fleet, environment: dict[str, str]
) -> None:
    """The abort is a second PUB; the script ends when the run has."""
    await fleet.daemon("north")
    request = await recorded(fleet)
    held = says("apple", DONE | {"hold": "apple"})
    process = await asyncio.create_subprocess_exec(
        BARE, str(request), held, env=environment, stdout=PIPE, start_new_session=True
    )
    await fleet.sim.received(2)

    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()

    assert process.returncode == 1
    assert json.loads(out.splitlines()[-1])["status"] == "aborted"
    (row,) = await list_runs(fleet.bus, fleet.pool)
    assert row.status == "aborted"


async def test_the_shell_script_says_what_is_wrong(fleet: Fleet, environment: dict[str, str]) -> None:
    """A missing file, a server that is not there, and one whose streams nobody made are told apart."""
    request = str(await recorded(fleet))
    nobody = {**environment, "NATS_URL": "nats://127.0.0.1:9"}

    usage = await run(BARE, "no-such-file", "apple", env=environment)
    no_server = await run(BARE, request, "apple", env=nobody)
    no_run = await run(BARE, request, "apple", "budget.x", env=environment)

    assert (usage[0], no_server[0], no_run[0]) == (2, 3, 3)
    assert "usage: bare_nats.sh REQUEST.json DIRECTIVE" in usage[2]
    assert "there is no NATS at 127.0.0.1:9" in no_server[2]
    assert "nobody stores requests at" in no_run[2]
