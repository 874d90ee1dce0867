"""Processes of a fleet, forked from one that has everything imported; see `tests.support.nursery`."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Nursery", "Process", "nursery"]

_ROOT = Path(__file__).resolve().parents[2]
_START_S = 60.0


class Process:
    """A process of the fleet."""

    def __init__(self, nursery: Nursery, pid: int, name: str, log: Path) -> None:
        self.pid = pid
        self.name = name
        self._nursery = nursery
        self._log = log
        self._told = False

    @property
    def log(self) -> str:
        """What it logged so far."""
        return self._log.read_text() if self._log.exists() else ""

    @property
    def said(self) -> list[dict[str, Any]]:
        """What it said so far."""
        return self._nursery.said.get(self.pid, [])

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it lives."""
        return self._nursery.ended.get(self.pid)

    def signal(self, number: int) -> None:
        """Send it a signal, if it is still there; it is told to stop once, whoever does."""
        if self.exit_code is None and not (number == signal.SIGTERM and self._told):
            self._told |= number == signal.SIGTERM
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def until_said(self, what: str) -> dict[str, Any]:
        """Return what it said under this name, once it has; fails with its log when it ends instead."""

        def found() -> bool:
            assert self.exit_code is None or self._fact(what), f"{self.name} ended with {self.exit_code}:\n{self.log}"
            return self._fact(what) is not None

        await eventually(found)
        fact = self._fact(what)
        assert fact is not None
        return fact

    async def gone(self) -> int:
        """Return how it ended, once it has."""
        await eventually(lambda: self.exit_code is not None)
        assert self.exit_code is not None
        return self.exit_code

    async def kill(self) -> None:
        """End it as a crash would."""
        self.signal(signal.SIGKILL)
        await self.gone()

    def _fact(self, what: str) -> dict[str, Any] | None:
        return next((fact for fact in self.said if fact["said"] == what), None)


class Nursery:
    """Forks processes from one that has everything imported, of the code under `root`; see `tests.support.nursery`."""

    def __init__(self, folder: Path, root: Path = _ROOT) -> None:
        self.said: dict[int, list[dict[str, Any]]] = {}
        self.ended: dict[int, int] = {}
        self._folder = folder
        self._orders = itertools.count()
        self._forked: dict[int, int] = {}
        self._open = threading.Event()
        self._errors = (folder / "nursery.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"],
            cwd=root,
            env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'daemon'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_open(self) -> None:
        """Return when it can fork."""
        opened = self._open.wait(_START_S)
        assert opened
        assert self._process.poll() is None, (self._folder / "nursery.log").read_text()

    async def start(self, role: str, name: str, spec: dict[str, Any]) -> Process:
        """Fork a process; it is under way, and may not have said anything yet."""
        order = next(self._orders)
        log = self._folder / f"{order}-{name}.log"
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**spec, "role": role, "order": order, "log": str(log)}).encode() + b"\n")
        self._process.stdin.flush()
        await eventually(lambda: order in self._forked or self._process.poll() is not None)
        return Process(self, self._forked[order], name, log)

    def close(self) -> None:
        """End it and everything it forked."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fact = json.loads(line)
            if "ended" in fact:
                self.ended[fact["ended"]] = fact["code"]
            elif "forked" in fact:
                self._forked[fact["order"]] = fact["forked"]
            elif fact["said"] == "open":
                self._open.set()
            else:
                self.said.setdefault(fact["pid"], []).append(fact)
        self._open.set()


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Where the processes of all tests come from."""
    forker = Nursery(tmp_path_factory.mktemp("nursery"))
    try:
        forker.wait_open()
        yield forker
    finally:
        forker.close()
