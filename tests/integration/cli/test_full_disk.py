"""A NATS server whose disk is full: whoever stores something is told what to look at, and so is who asks the doctor."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.blobs import BlobStore
from nexofork.bus.failures import NotStored
from nexofork.bus.provisioning import provision
from tests.support.nats import SMALL, ServerProcess, connected, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.cli.conftest import World

_DISK = 12 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a small disk: a full one is NOT tested")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def crammed(small_disk: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that thinks it has more room than its disk."""
    room = f'store_dir: "{small_disk / "store"}", max_file: 4GB, max_mem: 64MB'
    server = ServerProcess(
        f'host: 127.0.0.1\nport: -1\nhttp: "127.0.0.1:-1"\njetstream {{ domain: fork, {room} }}\n',
        folder=tmp_path / "server",
    )
    with running(server) as started:
        yield started


async def test_a_full_disk_is_named_by_who_stores_and_by_the_doctor(
    crammed: ServerProcess, world: World, tmp_path: Path
) -> None:
    """The stream still answers for itself, so silence about a blob is the disk's; the fix says so, and to restart."""
    async with connected(crammed.url, request_timeout_s=1.0, patience_s=2.0) as bus:
        await provision(bus, max_bytes=SMALL)
        blobs = BlobStore(bus, "parent")
        with pytest.raises(NotStored, match=r"NATS does not store 'blob\.parent.*disk.*log.*restart"):
            await blobs.put(secrets.token_bytes(2 * _DISK))

    shown = world.run("doctor", "--nats", crammed.url, "--sandbox", "none", "--state-dir", tmp_path / "state", "--json")

    assert shown.returncode == 1
    wrong = [check for check in json.loads(shown.stdout)["checks"] if check["state"] == "wrong"]
    assert [check["name"] for check in wrong] == ["storing"]
    assert "make room and restart the server" in wrong[0]["fix"]
