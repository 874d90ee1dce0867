"""A hostile server cannot make a call take a host's memory, and every such call ends under its own name."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from nexofork import capture
from nexofork.core.reply import BLOCK_BYTES, BLOCKS, JSON_VALUES, REPLY_BYTES
from nexofork.providers.sse import SseSplitter
from tests.integration.rawserver import Flood, plain_response, raw_server

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MB = 2**20
LARGE = 200 * MB
SSE = "content-type: text/event-stream"
JSON = "content-type: application/json"
START = b'data: {"type":"message_start","message":{"id":"m","model":"m","usage":{"input_tokens":4}}}\n\n'
OPEN = b'data: {"type":"content_block_start","index":%d,"content_block":{"type":"text","text":""}}\n\n'
TOOL = (
    b'data: {"type":"content_block_start","index":0,"content_block":'
    b'{"type":"tool_use","id":"t","name":"n","input":{}}}\n\n'
)
CLOSE = b'data: {"type":"content_block_stop","index":%d}\n\n'
STOP = b'data: {"type":"message_stop"}\n\n'

# Makes one call per line it reads, each in a process of its own, and says how it ended and how far its memory grew.
CALLS = """
import asyncio, json, os, resource, sys
from nexofork import AnthropicProvider
from nexofork.core.rope import Rope
from nexofork.errors import ProviderError
from nexofork.providers.provider import ModelRequest
from nexofork.providers.retry import RetryPolicy

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

async def main(url, transport):
    retry = RetryPolicy(first_delay_s=0.0)
    async with AnthropicProvider.from_env(base_url=url, api_key="k", transport=transport, retry=retry) as provider:
        before, end, said, retryable = peak(), "", "", False
        try:
            async for _ in provider.stream(ModelRequest(body=Rope([b'{"model":"m","stream":true}']))):
                pass
        except ProviderError as exc:
            end, said, retryable = type(exc).__name__, str(exc), exc.retryable
        print(json.dumps({"grew": peak() - before, "end": end, "said": said, "retryable": retryable}), flush=True)

for line in sys.stdin:
    child = os.fork()
    if not child:
        asyncio.run(main(*line.split()))
        os._exit(0)
    os.waitpid(child, 0)
"""


class Caller:
    """Makes calls in other processes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def __call__(self, url: str, transport: str = "aiohttp") -> dict[str, Any]:
        """Make a call and return how it ended."""
        return await asyncio.to_thread(self._call, f"{url} {transport}\n")

    def _call(self, line: str) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        found: dict[str, Any] = json.loads(process.stdout.readline())
        return found


@pytest.fixture(scope="module")
def call() -> Iterator[Caller]:
    """For all tests, because starting takes longer than a call."""
    with subprocess.Popen(
        [sys.executable, "-c", CALLS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Caller(process)
        assert process.stdin is not None
        process.stdin.close()


def head(*headers: str, status: str = "200 OK") -> bytes:
    """The head of a response that ends with its connection."""
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "connection: close"]).encode() + b"\r\n\r\n"


def flood(piece: bytes, *headers: str, first: bytes = b"", status: str = "200 OK") -> Flood:
    """So much of one piece that keeping it all would show."""
    piece *= max(1, MB // len(piece))
    return Flood(head=head(*headers, status=status) + first, piece=piece, times=LARGE // len(piece))


def deltas(kind: str, field: str, text: bytes) -> bytes:
    """A delta of the first block."""
    return b'data: {"type":"content_block_delta","index":0,"delta":{"type":"%s","%s":"%s"}}\n\n' % (
        kind.encode(),
        field.encode(),
        text,
    )


def streamed(events: Iterable[bytes]) -> bytes:
    """A stream in one response."""
    return plain_response(START + b"".join(events), SSE)


def zipped(status: str) -> bytes:
    """A response that is a thousand times as large as it looks."""
    return plain_response(gzip.compress(bytes(LARGE)), SSE, "content-encoding: gzip", status=status)


@pytest.mark.parametrize("transport", ["aiohttp", "httpx2"])
@pytest.mark.parametrize(
    ("bomb", "end"),
    [
        (flood(b"x", SSE, first=b"data: "), "ReplyTooLarge"),
        (flood(b": nothing\n", SSE), "ReplyTooLarge"),
        (flood(b"data: " + b"x" * 90 + b"\n", SSE), "ReplyTooLarge"),
        (flood(b" ", JSON), "ReplyTooLarge"),
        (flood(deltas("text_delta", "text", b"x" * 5000), SSE, first=START + OPEN % 0), "ReplyTooLarge"),
        (flood(deltas("signature_delta", "signature", b"x" * 5000), SSE, first=START + OPEN % 0), "ReplyTooLarge"),
        (flood(b"x", JSON, status="400 Bad Request"), "BadRequest"),
        (flood(b"x", JSON, status="503 Unavailable"), "ServerFault"),
    ],
    ids=["line", "comments", "event", "json", "text", "signatures", "refusal", "fault"],
)
async def test_an_answer_without_end_is_left_at_its_limit(call: Caller, bomb: Flood, end: str, transport: str) -> None:
    """The connection is closed long before the server is done, and memory grows by a few times the limit at most."""
    async with raw_server(bomb) as server:
        found = await call(server.url, transport)

        assert found["end"] == end
        assert found["grew"] < 3 * REPLY_BYTES
        assert server.pieces < bomb.times * len(server.heads)
        assert len(server.heads) == (4 if end == "ServerFault" else 1)


@pytest.mark.parametrize("transport", ["aiohttp", "httpx2"])
@pytest.mark.parametrize(("status", "end"), [("200 OK", "UnaskedEncoding"), ("400 Bad Request", "BadRequest")])
async def test_what_was_compressed_unasked_is_not_unpacked(call: Caller, status: str, end: str, transport: str) -> None:
    """Neither an answer nor an error is decoded: the request asked for no compression."""
    async with raw_server(zipped(status)) as server:
        found = await call(server.url, transport)

        assert (found["end"], found["retryable"], len(server.heads)) == (end, False, 1)
        assert found["grew"] < REPLY_BYTES


@pytest.mark.parametrize("encoding", ["deflate", "br", "zstd", "x-gzip", "identity, gzip", "GZIP", "gzip, gzip"])
async def test_any_encoding_but_identity_is_refused(call: Caller, encoding: str) -> None:
    """By its name, whatever the body is."""
    async with raw_server(plain_response(START, SSE, f"content-encoding: {encoding}")) as server:
        found = await call(server.url)

    assert found["end"] == "UnaskedEncoding"
    assert encoding.lower() in found["said"]


@pytest.mark.parametrize(
    "answer",
    [
        streamed([OPEN % 0, deltas("text_delta", "text", b"\\n" * (BLOCK_BYTES // 2 + 1))]),
        streamed(OPEN % index for index in range(BLOCKS + 1)),
        streamed(OPEN % index + CLOSE % index for index in range(BLOCKS + 1)),
        streamed([TOOL, deltas("input_json_delta", "partial_json", b'{\\"a\\":' * 300 + b"1" + b"}" * 300), CLOSE % 0]),
        streamed(
            [TOOL, deltas("input_json_delta", "partial_json", b'{\\"a\\":[' + b"{}," * JSON_VALUES + b"1]}"), CLOSE % 0]
        ),
        streamed([b'data: {"type":"ping","x":[' + b"[]," * (3 * MB) + b"1]}\n\n"]),
        streamed([b'data: {"type":"ping","x":' + b"[" * 5000 + b"]" * 5000 + b"}\n\n"]),
        plain_response(b'{"role":"assistant","content":[' + b'{"type":"x"},' * (4 * MB) + b'{"type":"x"}]}', JSON),
        plain_response(b'{"role":"assistant","content":[{"type":"x","y":' + b"[" * 500 + b"]" * 500 + b"}]}", JSON),
        plain_response(b'{"role":"assistant","content":[],"id":"' + b"x" * MB + b'"}', JSON),
    ],
    ids=[
        "escapes",
        "open blocks",
        "blocks",
        "deep input",
        "wide input",
        "wide event",
        "deep event",
        "wide body",
        "deep body",
        "long id",
    ],
)
async def test_an_answer_that_grows_when_it_is_read_is_refused(call: Caller, answer: bytes) -> None:
    """Blocks, nesting and values that no model writes end the call at once; it is not tried again."""
    async with raw_server(answer) as server:
        found = await call(server.url)

        assert (found["end"], found["retryable"], len(server.heads)) == ("ReplyTooLarge", False, 1)
        assert found["grew"] < 4 * REPLY_BYTES
        assert "The answer is too large (HTTP 200)" in found["said"]


@pytest.mark.parametrize("transport", ["aiohttp", "httpx2"])
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_a_prompt_does_not_follow_a_redirect(call: Caller, status: str, transport: str) -> None:
    """The error names the server it points to, and not what the address holds beyond that; nothing is sent there."""
    async with raw_server(plain_response(b"no")) as elsewhere:
        target = elsewhere.url.replace("http://", "http://user:hunter2@") + "/p?token=hunter3"
        async with raw_server(plain_response(b"", f"location: {target}", status=status)) as server:
            found = await call(server.url, transport)

        assert (found["end"], found["retryable"], len(server.heads)) == ("Redirected", False, 1)
        assert elsewhere.url in found["said"]
        assert "hunter" not in found["said"]
        assert elsewhere.heads == []


def test_an_unfinished_line_costs_its_bytes_however_it_is_cut() -> None:
    """A line that comes byte by byte takes no more than a few times its length."""
    splitter = SseSplitter()
    size = 200_000
    tracemalloc.start()
    try:
        for _ in range(size):
            splitter.feed(b"x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * size


@pytest.mark.parametrize("form", [SSE, JSON])
async def test_a_captured_bomb_is_the_parents_and_not_unpacked_twice(form: str) -> None:
    """The parent's own client reads what it was sent; the recording stops at the limit and leaves the reply unknown."""
    # A parent that only passes the bytes on, so that what grows is the recording.
    bomb = plain_response(gzip.compress(bytes(LARGE)), form, "content-encoding: gzip")
    async with raw_server(bomb) as server:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0)
        async with client:
            with capture(client) as recording:
                tracemalloc.start()
                try:
                    async with client.messages.with_streaming_response.create(
                        model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]
                    ) as response:
                        raw = b"".join([chunk async for chunk in response.http_response.aiter_raw()])
                    _, peak = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()

                assert gzip.decompress(raw)[:1] == b"\0"
                assert peak < 3 * REPLY_BYTES
                assert recording.snapshot().reply is None
