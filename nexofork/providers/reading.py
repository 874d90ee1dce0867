"""Read one response: chunks in, events out, and every way it can break off named.

A streamed reply is many small chunks, so the path from a chunk to its events is kept short: one call per chunk,
straight from the transport's own iterator, with a clock only where the transport has none.

The server may be broken or hostile. An answer that was compressed unasked is refused before it is decoded, one that is
over a limit is left, and of an error only the beginning is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING

import httpx2

from nexofork.core.reply import REPLY_BYTES, OversizedReply, Reply, check_size
from nexofork.core.usage import BadUsage, Usage
from nexofork.errors import BadJson, BadReply, ProviderError
from nexofork.providers.assembly import Assembly
from nexofork.providers.diagnosis import (
    failure_of_exception,
    failure_of_status,
    id_in,
    printable,
    redacted,
    said_in,
    secrets_of,
)
from nexofork.providers.failures import ConnectionLost, ImpossibleUsage, ReplyTooLarge, StreamFailed, UnaskedEncoding
from nexofork.providers.provider import BlockFinished, MessageFinished, MessageStarted
from nexofork.providers.sse import SseSplitter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.providers.assembly import ResponseIds
    from nexofork.providers.provider import ProviderEvent

__all__ = ["ResponseReader", "refusal_of"]

_DRAIN_S = 0.5
_ERROR_BYTES = 64 * 1024


async def refusal_of(response: httpx2.Response) -> ProviderError | None:
    """Return why a response is no answer that can be read, and close it; None for one that can."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    plain = encoding in ("", "identity")
    if response.is_success and plain:
        return None
    secrets = secrets_of(response.request)
    if response.is_success:
        await response.aclose()
        return UnaskedEncoding(
            f"it came as {redacted(encoding, secrets)[:40]}",
            status=response.status_code,
            request_id=id_in(response),
        )
    body = bytearray(response.content[:_ERROR_BYTES] if response.is_stream_consumed else b"")
    try:
        if plain and not response.is_redirect and not response.is_stream_consumed:
            async for chunk in response.aiter_raw():
                body += chunk[: _ERROR_BYTES - len(body)]
                if len(body) >= _ERROR_BYTES:
                    break
    except httpx2.HTTPError:
        pass  # what came before is enough
    finally:
        await response.aclose()
    said = said_in(bytes(body)) or response.reason_phrase
    return failure_of_status(response.status_code, said, headers=response.headers, secrets=secrets)


class ResponseReader:
    """The events of one successful response, in order; `MessageFinished` is the last."""

    def __init__(self, response: httpx2.Response, ids: ResponseIds, *, idle_s: float | None) -> None:
        self.finished = False
        """Whether the last event has been returned."""
        self._response = response
        self._ids = ids
        self._idle_s = idle_s
        self._whole = "application/json" in response.headers.get("content-type", "")
        self._chunks = _chunks_of(response)
        self._size = 0
        self._splitter = SseSplitter()
        self._assembly = Assembly(ids, secrets=secrets_of(response.request), billed=True)
        self._failure: ProviderError | None = None

    async def read(self) -> list[ProviderEvent]:
        """Wait for the next chunk and return the events it completed; there may be none.

        Raises:
            ProviderError: The stream broke off, reported an error, or made no sense.
        """
        if self._failure:
            raise self._failure
        if self._whole:
            return await self._read_whole()
        chunk = await self._next_chunk()
        if chunk is None:
            return [self._end()]
        events: list[ProviderEvent] = []
        try:
            for data in self._splitter.feed(chunk):
                event = self._assembly.feed(data)
                if event is not None:
                    events.append(event)
                    if isinstance(event, MessageFinished):
                        await self._drain()
                        break
        except ProviderError as exc:
            # What came before the error in the same chunk has still happened.
            self._failure = exc
        except (BadJson, BadReply, BadUsage) as exc:
            self._failure = self._nonsense(exc)
        return events

    async def aclose(self) -> None:
        """Close the response; an unfinished one loses its connection."""
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
        await self._response.aclose()

    async def _next_chunk(self) -> bytes | None:
        try:
            if self._idle_s is None:
                chunk = await anext(self._chunks, None)
            else:
                async with asyncio.timeout(self._idle_s):
                    chunk = await anext(self._chunks, None)
            if chunk is not None:
                self._size += len(chunk)
                check_size("a number of bytes", self._size, REPLY_BYTES)
            return chunk
        except OversizedReply as exc:
            raise self._nonsense(exc) from exc
        except TimeoutError as exc:
            raise ConnectionLost(f"nothing came for {self._idle_s:g} s", request_id=self._ids.request_id) from exc
        except httpx2.HTTPError as exc:
            raise failure_of_exception(exc) from None

    def _end(self) -> MessageFinished:
        reply = self._assembly.reply
        if reply is None:
            raise ConnectionLost("the stream ended before the message did", request_id=self._ids.request_id)
        self.finished = True
        return MessageFinished(reply=reply)

    async def _drain(self) -> None:
        """Read the end of the response, so that its connection can be used again; the message is already whole."""
        self.finished = True
        try:
            async with asyncio.timeout(_DRAIN_S):
                async for _ in self._chunks:
                    pass
        except (TimeoutError, httpx2.HTTPError):
            return
        # Now, and not with the reader: a caller may stop at the last event without closing anything.
        await self._response.aclose()

    async def _read_whole(self) -> list[ProviderEvent]:
        """The events of a response that does not stream, as a pre-warm's does not."""
        body = bytearray()
        while (chunk := await self._next_chunk()) is not None:
            body += chunk
        try:
            reply = Reply.from_response(bytes(body), usage_of=Usage.billed)
        except (BadReply, BadUsage) as exc:
            raise self._nonsense(exc) from exc
        self.finished = True
        reply = replace(
            reply,
            message_id=printable(reply.message_id or "") or None,
            model=printable(reply.model or "") or None,
            stop_reason=printable(reply.stop_reason or "") or None,
        )
        started = MessageStarted(
            message_id=reply.message_id or "",
            model=reply.model or "",
            usage=reply.usage,
            workspace_id=self._ids.workspace_id,
            organization_id=self._ids.organization_id,
            request_id=self._ids.request_id,
        )
        blocks = [BlockFinished(index=index, block=block) for index, block in enumerate(reply.blocks)]
        return [started, *blocks, MessageFinished(reply=reply)]

    def _nonsense(self, exc: BadJson | BadReply | BadUsage) -> ProviderError:
        failure: ProviderError
        request_id = self._ids.request_id
        match exc:
            case OversizedReply():
                failure = ReplyTooLarge(f"it {exc.problem}", status=200, request_id=request_id)
            case BadUsage():
                failure = ImpossibleUsage(f"the usage {exc.problem}", status=200, request_id=request_id)
            case _:
                failure = StreamFailed(str(exc), type="malformed_stream", request_id=request_id)
        failure.__cause__ = exc
        return failure


def _chunks_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it comes; `refusal_of` has seen to it that it is not compressed."""
    return aiter(response.stream) if isinstance(response.stream, httpx2.AsyncByteStream) else response.aiter_raw()
