"""Ask a daemon's health port, and read what it says as Prometheus would."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Scrape", "get", "parse", "scrape"]

_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass
class Scrape:
    """What one scrape showed."""

    kinds: dict[str, str] = field(default_factory=dict)
    samples: list[tuple[str, dict[str, str], float]] = field(default_factory=list)

    @property
    def names(self) -> set[str]:
        """The names that a query can ask for."""
        return {name for name, _, _ in self.samples}

    def sum(self, name: str, **labels: str) -> float:
        """All samples of a name that have these labels, added up."""
        return sum(value for sample, has, value in self.samples if sample == name and labels.items() <= has.items())


async def get(port: int, path: str, *, request: bytes | None = None) -> tuple[int, str]:
    """Return status and content of a request; `request` is sent as it is, where given."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request or f"GET {path} HTTP/1.1\r\nHost: daemon\r\n\r\n".encode())
            head, _, content = (await reader.read()).decode().partition("\r\n\r\n")
        finally:
            writer.close()
    return int(head.split(" ")[1]), content


async def scrape(port: int) -> Scrape:
    """Return what /metrics shows."""
    status, content = await get(port, "/metrics")
    assert status == 200
    return parse(content)


def parse(content: str) -> Scrape:
    """Read the text format strictly: a line that is none fails."""
    found = Scrape()
    assert content == "" or content.endswith("\n")
    for line in content.split("\n")[:-1]:
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in found.kinds, f"{name} has two blocks"
            found.kinds[name] = kind
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample, line
        found.samples.append((sample[1], dict(_labels(sample[2] or "")), float(sample[3])))
    return found


def _labels(text: str) -> Iterator[tuple[str, str]]:
    end = 0
    for label in _LABEL.finditer(text):
        assert label.start() == end, text
        end = label.end()
        yield label[1], re.sub(r"\\.", lambda escape: _UNESCAPED[escape[0]], label[2])
    assert end == len(text), text
