"""Read the commands and examples of a guide, and run the commands as a reader would: in order, in one folder."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from asyncio.subprocess import Process as Child
    from collections.abc import Mapping
    from typing import Self

__all__ = ["DOCS", "GUIDES", "NOT_RUN", "Block", "Reader", "blocks", "commands"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = ("operator-guide.md", "parent-guide.md", "upgrade.md", "sizing.md")
NOT_RUN = "# not run here: "
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SERVES = ("nats-server -c", "nexofork daemon", "nexofork serve")
"""Commands that stay; the reader goes on beside them once they are up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a guide."""

    language: str
    text: str


def blocks(guide: str) -> list[Block]:
    """The fenced blocks of a guide, in order."""
    return [Block(language=found[1], text=found[2]) for found in _FENCE.finditer((DOCS / guide).read_text())]


def commands(guide: str) -> list[str]:
    """The commands of a guide that are run here."""
    shells = [block.text for block in blocks(guide) if block.language == "sh" and not block.text.startswith(NOT_RUN)]
    return [line for text in shells for line in text.splitlines() if line.strip()]


@dataclass(kw_only=True)
class Reader:
    """Follows a guide in a folder; what is started and stays is ended with it."""

    folder: Path
    replaced: Mapping[str, str]
    """What the guide says to what it means here: addresses and system folders."""
    environment: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    """What each command printed."""
    serving: list[tuple[Child, Path]] = field(default_factory=list)

    async def follow(self, command: str) -> str:
        """Run a command as it stands in the guide, and return what it printed; fails if the command does."""
        meant = command
        for said, here in self.replaced.items():
            meant = meant.replace(said, here)
        if meant.startswith("export "):
            name, _, value = meant.removeprefix("export ").partition("=")
            self.environment[name] = value
            return ""
        if meant.startswith(_SERVES):
            await self._serve(meant)
            return ""
        child = await self._start(meant, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            out, trouble = await child.communicate()
        self.outputs[command] = out.decode()
        assert child.returncode == 0, f"{command}\nexit code {child.returncode}\n{out.decode()}{trouble.decode()}"
        return out.decode()

    async def _serve(self, command: str) -> None:
        said = self.folder / f"serving-{len(self.serving)}.log"
        with said.open("wb") as out:
            child = await self._start(command, out.fileno(), asyncio.subprocess.STDOUT)
        self.serving.append((child, said))
        ready = b"Server is ready" if command.startswith("nats-server") else b"ready"

        def up() -> bool:
            assert child.returncode is None, f"{command}\n{said.read_text()}"
            return ready in said.read_bytes()

        await eventually(up, deadline_s=30)

    async def _start(self, command: str, out: int, err: int) -> Child:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return await asyncio.create_subprocess_exec(
            *shlex.split(command),
            cwd=self.folder,
            env={**os.environ, **self.environment, "PATH": path, "PYTHONUNBUFFERED": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for child, _said in reversed(self.serving):
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(10):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()
