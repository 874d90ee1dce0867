from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.fleet import fleet, nursery
from tests.support.nats import accounts_server, nats_server
from tests.support.previous import previous_nursery

__all__ = ["accounts_server", "fleet", "nats_server", "nursery", "previous_nursery"]


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The program, installed where we may."""
    if shutil.which("prometheus") is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", "prometheus"], check=False)
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("prometheus is not installed and cannot be: install Debian's package `prometheus`")
    return found
