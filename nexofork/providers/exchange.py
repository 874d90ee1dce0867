"""One captured request and its reply, recorded while they pass by.

The reader of the response gets every chunk first and unchanged; the recorder looks at it afterwards. Nothing that goes
wrong here may reach the reader: a reply that cannot be understood is recorded as unknown. So is one over a limit of
`nexofork.core.reply`, which is then no longer collected or decoded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import httpx2

from nexofork.core.reply import REPLY_BYTES, OversizedReply, Reply, check_size
from nexofork.core.snapshot import CACHE_HEADERS, CacheSafeParams
from nexofork.errors import NexoforkError, ProviderError
from nexofork.providers.assembly import Assembly
from nexofork.providers.sse import SseSplitter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

__all__ = ["AsyncTee", "Exchange", "SyncTee"]

_log = logging.getLogger(__name__)

# A few bytes of a compressed body can stand for megabytes, so they are decoded in pieces this small.
_PACKED_BYTES = 16
_SLICE_BYTES = 64 * 1024


class Exchange:
    """Follows one exchange; hands over a snapshot when it has succeeded, at most once.

    It succeeded when its response was read to the end, or when the reader stopped on its own; then the reply is unknown
    unless it was already whole. It failed when the transport did, or the API reported an error inside the stream.
    """

    def __init__(self, request: httpx2.Request, keep: Callable[[CacheSafeParams], None]) -> None:
        self._request = request
        self._keep = keep
        self._sent_at = time.time()
        self._headers = httpx2.Headers()
        self._splitter = SseSplitter()
        self._assembly: Assembly | None = None
        self._whole = bytearray()
        self._size = 0
        self._unreadable = False
        self._passed: bytes | None = None
        self._over = False

    def begin(self, response: httpx2.Response) -> None:
        """The response has begun with success."""
        self._headers = response.headers
        streamed = "text/event-stream" in response.headers.get("content-type", "")
        if streamed and "content-encoding" not in response.headers:
            self._assembly = Assembly()
        if response.is_stream_consumed:
            # Some transports, doubles above all, hand over a response that is already in memory.
            self.passing(response.content)
            self.passed()
            self.end()

    def passing(self, chunk: bytes) -> None:
        """Note the chunk that is about to be handed to the reader."""
        self._passed = chunk

    def passed(self) -> None:
        """Look at the noted chunk, now that the reader has had it."""
        chunk, self._passed = self._passed, None
        if chunk is None or self._over:
            return
        if self._unreadable:
            return
        try:
            self._size += len(chunk)
            check_size("a number of bytes", self._size, REPLY_BYTES)
            if self._assembly is None:
                self._whole += chunk
            else:
                _feed(self._assembly, self._splitter, chunk)
        except ProviderError:
            self.fail()
        except NexoforkError as exc:
            self._give_up(exc)

    def fail(self) -> None:
        """The transport failed; the reader has the error."""
        self._over = True

    def end(self) -> None:
        """The response was read to its end."""
        if self._over:
            return
        self._over = True
        self._record(self._assembly.reply if self._assembly else self._whole_reply())

    def close(self) -> None:
        """The reader is done, perhaps before the end."""
        self.passed()
        if self._over:
            return
        self._over = True
        self._record(self._assembly.reply if self._assembly else None)

    def _give_up(self, exc: Exception) -> None:
        """Forget what came; the reply is recorded as unknown."""
        _log.warning("A captured reply could not be read: %s", exc)
        self._unreadable = True
        self._assembly = None
        self._whole = bytearray()

    def _whole_reply(self) -> Reply | None:
        """Read a response that was collected because it did not stream or was compressed."""
        if self._unreadable:
            return None
        try:
            body = _decoded(bytes(self._whole), self._headers.get("content-encoding", ""))
            if "text/event-stream" not in self._headers.get("content-type", ""):
                return Reply.from_response(body)
            assembly = Assembly()
            _feed(assembly, SseSplitter(), body)
        except (NexoforkError, httpx2.DecodingError) as exc:
            self._give_up(exc)
            return None
        return assembly.reply

    def _record(self, reply: Reply | None) -> None:
        request = self._request
        try:
            params = CacheSafeParams.captured(
                request.content,
                headers={name: request.headers[name] for name in CACHE_HEADERS if name in request.headers},
                query=tuple(request.url.params.multi_items()),
                # A pre-warm has no content, and an assistant message must have some.
                reply=reply if reply and reply.blocks else None,
                workspace_id=self._headers.get("anthropic-workspace-id"),
                organization_id=self._headers.get("anthropic-organization-id"),
                sent_at=self._sent_at,
            )
        except NexoforkError as exc:
            _log.warning("A captured request cannot be forked: %s", exc)
            return
        self._keep(params)


def _feed(assembly: Assembly, splitter: SseSplitter, body: bytes) -> None:
    """Feed a body, in slices because some clients hand it over in one piece."""
    for start in range(0, len(body), _SLICE_BYTES):
        for data in splitter.feed(body[start : start + _SLICE_BYTES]):
            assembly.feed(data)


def _decoded(raw: bytes, encoding: str) -> bytes:
    """Return a body decoded.

    Raises:
        OversizedReply: It becomes larger than any reply, or was compressed more than once.
        httpx2.DecodingError: It is not what its encoding says.
    """
    if not encoding:
        return raw
    if "," in encoding:
        raise OversizedReply("was compressed more than once")
    pieces = (raw[at : at + _PACKED_BYTES] for at in range(0, len(raw), _PACKED_BYTES))
    body = bytearray()
    for piece in httpx2.Response(200, headers={"content-encoding": encoding}, content=pieces).iter_bytes():
        body += piece
        check_size("a number of bytes", len(body), REPLY_BYTES)
    return bytes(body)


class AsyncTee(httpx2.AsyncByteStream):
    """Passes an async response body on and shows it to the exchange."""

    def __init__(self, stream: httpx2.AsyncByteStream, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        chunks = aiter(self._stream)
        try:
            async for chunk in chunks:
                exchange.passing(chunk)
                yield chunk
                exchange.passed()
        except Exception:
            exchange.fail()
            raise
        finally:
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
        exchange.end()

    async def aclose(self) -> None:
        """Close the connection first, then the books."""
        await self._stream.aclose()
        self._exchange.close()


class SyncTee(httpx2.SyncByteStream):
    """Passes a blocking response body on and shows it to the exchange."""

    def __init__(self, stream: httpx2.SyncByteStream, exchange: Exchange) -> None:
        self._stream = stream
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        exchange = self._exchange
        try:
            for chunk in self._stream:
                exchange.passing(chunk)
                yield chunk
                exchange.passed()
        except Exception:
            exchange.fail()
            raise
        exchange.end()

    def close(self) -> None:
        """Close the connection first, then the books."""
        self._stream.close()
        self._exchange.close()
