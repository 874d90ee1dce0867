from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

import nexofork
from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.failures import ServerFailed
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from nexofork.errors import BadSettings
from tests.support.nats import a_request, connected
from tests.support.waiting import eventually

_OWNER = """
import asyncio, sys
from nexofork.bus.embedded import EmbeddedServer

async def main():
    async with EmbeddedServer() as server:
        print(server.pid, server.url, server.store_dir, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def page(url: str) -> bytes:
    """What is there."""
    with urllib.request.urlopen(url, timeout=5) as response:
        content: bytes = response.read()
        return content


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_the_server_is_there_inside_the_block_and_gone_after_it() -> None:
    """It accepts connections, answers about itself, and leaves neither process nor files."""
    async with EmbeddedServer() as server:
        pid, store = server.pid, server.store_dir
        async with connected(server.url) as bus:
            await provision(bus)
        assert b"nexofork-embedded" in await asyncio.to_thread(page, f"{server.monitor_url}/varz")

    assert not alive(pid)
    assert not store.exists()


def test_the_server_can_be_owned_without_an_event_loop() -> None:
    """The plain context does the same."""
    with EmbeddedServer() as server:
        pid = server.pid
        assert alive(pid)

    assert not alive(pid)


@pytest.mark.parametrize("place", ["file/store", "/proc/store"])
async def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, place: str) -> None:
    """Below a file, or where nobody can write: the error names the folder and what to do."""
    (tmp_path / "file").touch()
    store = tmp_path / place

    with pytest.raises(BadSettings, match=rf"{store} cannot be written: .*[Gg]ive another folder"):
        async with EmbeddedServer(store_dir=store):
            pass


async def test_the_server_dies_with_an_owner_that_is_killed() -> None:
    """`kill -9` of the owner leaves no server behind."""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", _OWNER, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    pid = int((await owner.stdout.readline()).split()[0])
    assert alive(pid)

    owner.send_signal(signal.SIGKILL)
    await owner.wait()

    await eventually(lambda: not alive(pid))


async def test_a_store_is_continued() -> None:
    """What was acknowledged is there after a restart, also after a crash of the server."""
    async with EmbeddedServer() as scratch:
        store = scratch.store_dir / "kept"
        run = a_request()
        async with EmbeddedServer(store_dir=store) as first, connected(first.url) as bus:
            await provision(bus)
            await RunLog(bus, "r1").request(run)
            first.server.kill()
        async with EmbeddedServer(store_dir=store) as second, connected(second.url) as bus:
            entries = await RunLog(bus, "r1").entries()

    assert [entry.message for entry in entries] == [run]


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    """The error holds the server's own reason."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServerFailed, match="address already in use"):
            async with EmbeddedServer(port=taken.getsockname()[1], store_dir=tmp_path):
                pass


async def test_two_servers_do_not_share_a_store(tmp_path: Path) -> None:
    """The second one is refused while the first one runs, and not after it."""
    async with EmbeddedServer(store_dir=tmp_path):
        with pytest.raises(ServerFailed, match="another server has it"):
            async with EmbeddedServer(store_dir=tmp_path):
                pass
    async with EmbeddedServer(store_dir=tmp_path) as again:
        assert alive(again.pid)


async def test_the_servers_process_group_is_its_own() -> None:
    """A Ctrl-C at the terminal reaches the owner only."""
    async with EmbeddedServer() as server:
        assert os.getpgid(server.pid) != os.getpgid(0)


async def test_the_server_listens_on_loopback_only_and_on_the_port_it_is_given(tmp_path: Path) -> None:
    """The port is kept and nothing is open to the network."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with EmbeddedServer(port=port, store_dir=tmp_path) as server:
        assert server.url == f"nats://127.0.0.1:{port}"
        assert server.monitor_url.startswith("http://127.0.0.1:")


async def test_a_machine_without_the_binary_is_told_what_to_install() -> None:
    """Neither on PATH nor installed beside Python: the error names the extra."""
    code = "from nexofork.bus.embedded import find_binary; find_binary()"
    bare = await asyncio.create_subprocess_exec(
        f"{sys.base_prefix}/bin/python3",
        "-c",
        code,
        env={"PATH": "/nowhere", "PYTHONPATH": str(Path(nexofork.__file__).parent.parent)},
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await bare.communicate()

    assert b"pip install nexofork[embedded]" in said
