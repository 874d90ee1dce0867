"""What goes out: the body in pieces, the headers the cache depends on, and the connections they travel on.

Invariant: the pieces of a body are sent as they are and never joined, so requests that share a prefix share its memory.
"""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Literal, TypeAlias
from urllib.parse import urlencode

import httpx2
from anthropic import DefaultAioHttpClient, DefaultAsyncHttpxClient, Omit, omit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.providers.provider import ModelRequest

__all__ = ["Pieces", "Transport", "headers_of", "http_client", "path_of"]

Transport: TypeAlias = Literal["auto", "aiohttp", "httpx2"]

# A burst of forks opens hundreds of connections at once, and the next turn of each should find its own still open.
_LIMITS = httpx2.Limits(max_connections=2000, max_keepalive_connections=1000, keepalive_expiry=60.0)
# A transport holds on to what it could not send yet; slices bound that on a slow network.
_SLICE_BYTES = 128 * 1024


class Pieces:
    """A request's body, which an HTTP client can read more than once, without ever being joined."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        self._request.on_send()
        for piece in self._request.body:
            if len(piece) <= _SLICE_BYTES:
                yield piece
                continue
            view = memoryview(piece)
            for start in range(0, len(view), _SLICE_BYTES):
                yield view[start : start + _SLICE_BYTES]


def headers_of(request: ModelRequest) -> dict[str, str | Omit]:
    """Return the headers to send besides the client's own."""
    headers: dict[str, str | Omit] = {
        # A beta the client itself is set up with is left out: the parent did not send it, so the prefix would differ.
        "anthropic-beta": omit,
        # With its length known, a body in pieces is sent plainly and not in HTTP chunks.
        "content-length": str(len(request.body)),
        # Compressing a token stream only delays it.
        "accept-encoding": "identity",
    }
    for name, value in request.headers:
        known = headers.get(name.lower())
        headers[name.lower()] = f"{known},{value}" if isinstance(known, str) else value
    return headers


def path_of(request: ModelRequest) -> str:
    """Return the path below the client's base URL, with the parent's query."""
    return "/v1/messages" + ("?" + urlencode(request.query) if request.query else "")


def http_client(transport: Transport) -> httpx2.AsyncClient:
    """Open a connection pool fit for bursts; ``auto`` takes aiohttp where it is installed, which needs half the CPU.

    Raises:
        RuntimeError: aiohttp was asked for and is not installed.
    """
    # No cookies: they would stay for the calls of all runs, and one that no header can hold would fail them all.
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    if transport == "httpx2":
        return DefaultAsyncHttpxClient(limits=_LIMITS, cookies=cookies)
    try:
        return DefaultAioHttpClient(limits=_LIMITS, cookies=cookies)
    except RuntimeError:
        if transport == "aiohttp":
            raise
        return DefaultAsyncHttpxClient(limits=_LIMITS, cookies=cookies)
