"""A real sandbox for tests, and its tools called as a fork would."""

from __future__ import annotations

import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.sandbox.sandbox import SandboxSettings, open_sandbox
from nexofork.tools.place import Place
from tests.support.hands import Hands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["BWRAP", "boxed", "needs_bubblewrap", "processes_with"]

BWRAP = shutil.which("bwrap")
needs_bubblewrap = pytest.mark.skipif(
    BWRAP is None, reason="bubblewrap is not installed: the sandbox is NOT tested (apt install bubblewrap)"
)


@asynccontextmanager
async def boxed(state_dir: Path, place: Place | None = None, **settings: Any) -> AsyncIterator[Hands]:
    """A fork's tools in a sandbox; without a place of its own it works in the sandbox's scratch folder."""
    async with (
        open_sandbox(SandboxSettings(kind="bwrap", state_dir=state_dir, **settings)) as sandbox,
        sandbox.open(place or Place(), name="run") as opened,
    ):
        yield Hands.at(opened)


def processes_with(word: str) -> list[int]:
    """The living processes of the whole host whose command line or environment has a word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if word.encode() in said and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found
