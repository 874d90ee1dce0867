"""A bare HTTP client and builders of exact requests for the simulator's tests.

It shares nothing with the simulator but the socket, so that a framing mistake there shows here.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import h11

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from nexofork.simulator import Simulator

MODEL = "claude-opus-5-5"
KEY = "sk-sim-test"
TEXT_OVERHEAD = len('{"type":"text","text":""}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The error's text."""
        return str(self.json["error"]["message"])

    @property
    def usage(self) -> Usage:
        """The four input counters."""
        usage = self.json["usage"]
        assert usage["cache_creation_input_tokens"] == sum(usage["cache_creation"].values())
        return Usage(
            read=usage["cache_read_input_tokens"],
            write_5m=usage["cache_creation"]["ephemeral_5m_input_tokens"],
            write_1h=usage["cache_creation"]["ephemeral_1h_input_tokens"],
            fresh=usage["input_tokens"],
        )

    @property
    def text(self) -> str:
        """All text blocks joined."""
        return "".join(block["text"] for block in self.json["content"] if block["type"] == "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """How a prompt was charged."""

    read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    fresh: int = 0


@dataclass(slots=True, kw_only=True)
class Call:
    """One request under way; use it as an async context manager, leaving closes the socket."""

    simulator: Simulator
    body: bytes
    path: str = "/v1/messages"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    _http: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Call:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.simulator.port)
        head = {"host": "simulator", "content-length": str(len(self.body)), **self.headers}
        self._writer.write(
            self._http.send(h11.Request(method=self.method, target=self.path, headers=[*head.items()])) or b""
        )
        self._writer.write(self._http.send(h11.Data(data=self.body)) or b"")
        self._http.send(h11.EndOfMessage())
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._writer is not None
        self._writer.close()
        await self._writer.wait_closed()

    async def answer(self) -> Answer:
        """Read the response to its end."""
        head = await self.head()
        return Answer(status=head.status, headers=head.headers, body=await self.rest())

    async def rest(self) -> bytes:
        """Read the body of a response whose head was read."""
        return b"".join([part async for part in self._parts()])

    async def head(self) -> Answer:
        """Read the head of the response; returns once the first byte is there."""
        event = await self._next()
        assert isinstance(event, h11.Response), event
        headers = {name.decode(): value.decode() for name, value in event.headers}
        return Answer(status=event.status_code, headers=headers, body=b"")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The payloads of a stream whose head was read."""
        buffer = b""
        async for part in self._parts():
            buffer += part
            while b"\n\n" in buffer:
                block, _, buffer = buffer.partition(b"\n\n")
                name, data = block.split(b"\n", 1)
                payload = json.loads(data.removeprefix(b"data: "))
                assert name == b"event: " + payload["type"].encode()
                yield payload
        assert not buffer

    async def _parts(self) -> AsyncIterator[bytes]:
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            assert isinstance(event, h11.Data), event
            yield bytes(event.data)

    async def _next(self) -> h11.Event:
        assert self._reader is not None
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(65536))
        assert isinstance(event, h11.Event)
        return event


def call(
    simulator: Simulator,
    body: Mapping[str, Any] | bytes,
    *,
    key: str = KEY,
    path: str = "/v1/messages",
    headers: Mapping[str, str] | None = None,
) -> Call:
    """A request about to be sent."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"x-api-key": key, "anthropic-version": "2026-10-21", **(headers or {})}
    return Call(simulator=simulator, body=raw, path=path, headers=head)


async def post(
    simulator: Simulator,
    body: Mapping[str, Any] | bytes,
    *,
    key: str = KEY,
    path: str = "/v1/messages",
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request and read its whole answer."""
    async with call(simulator, body, key=key, path=path, headers=headers) as under_way:
        return await under_way.answer()


async def stream(simulator: Simulator, body: Mapping[str, Any], *, key: str = KEY) -> list[dict[str, Any]]:
    """Send a streaming request and read all its events."""
    async with call(simulator, {**body, "stream": True}, key=key) as under_way:
        head = await under_way.head()
        assert head.status == 200, head
        return [event async for event in under_way.events()]


def text(tokens: int, label: str = "", *, ttl: str | None = None) -> dict[str, Any]:
    """A text block of exactly so many tokens, marked when a TTL is given."""
    size = tokens * 4 - TEXT_OVERHEAD
    assert size > len(label)
    block: dict[str, Any] = {"type": "text", "text": label + "x" * (size - len(label))}
    return block if ttl is None else {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def mark(block: dict[str, Any], ttl: str = "5m") -> dict[str, Any]:
    """The block with a marker."""
    return {**block, "cache_control": {"type": "ephemeral", "ttl": ttl}}


def user(*blocks: Any) -> dict[str, Any]:
    """A user message of these blocks; strings become text blocks."""
    return {"role": "user", "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks]}


def assistant(*blocks: Any) -> dict[str, Any]:
    """An assistant message of these blocks; strings become text blocks."""
    return {**user(*blocks), "role": "assistant"}


def request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A whole request; with no message it says hello."""
    return {"model": MODEL, "max_tokens": 1000, "messages": list(messages) or [user("hello")], **fields}


def tool(name: str = "Bash", **schema: Any) -> dict[str, Any]:
    """A tool definition."""
    return {"name": name, "description": f"Runs {name}.", "input_schema": {"type": "object", **schema}}


def sim(*turns: Any) -> dict[str, Any]:
    """A user message that carries a script of these turns."""
    return user("@sim " + json.dumps(list(turns)))


def joined(events: list[dict[str, Any]]) -> list[str]:
    """The text of each block, put together from its deltas."""
    texts: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            texts[event["index"]] = ""
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            piece = delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            texts[event["index"]] += piece
    return [texts[index] for index in sorted(texts)]
