"""Record a parent's requests at the HTTP transport of its own client.

The transport is the last place in Python that sees the exact bytes, so a snapshot taken there is right by
construction: nothing has to be called after each turn, and no argument is serialised a second time. The client works as
before: same bytes out, same chunks in, no request more.

Invariant: what a child sends under `uncaptured` never replaces the parent's snapshot.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2

from nexofork.core.snapshot import CacheSafeSlot
from nexofork.errors import ForkRefused, NothingCaptured
from nexofork.providers.exchange import AsyncTee, Exchange, SyncTee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self, TypeAlias

    from nexofork.core.snapshot import CacheSafeParams

    AnyHttpClient: TypeAlias = httpx2.Client | httpx2.AsyncClient

__all__ = ["CannotCapture", "Capture", "capture", "uncaptured"]

_uncaptured: ContextVar[bool] = ContextVar("nexofork_uncaptured", default=False)
_installing = threading.Lock()


@contextmanager
def uncaptured() -> Iterator[None]:
    """Make the requests started inside invisible to every capture."""
    token = _uncaptured.set(True)
    try:
        yield
    finally:
        _uncaptured.reset(token)


class CannotCapture(ForkRefused):
    """The client is not built in a way that can be captured."""

    def __init__(self, client: object) -> None:
        self.sdk_version = anthropic.__version__
        super().__init__(
            f"Cannot capture a {type(client).__name__}: anthropic {self.sdk_version} does not keep its HTTP transport "
            "where nexofork looks for it. Pass an Anthropic or AsyncAnthropic client, "
            "or build the snapshot from the request yourself."
        )


class Capture:
    """The recording of one client; its `slot` holds the newest finished request and reply."""

    def __init__(self, http_client: AnyHttpClient, *, query_source: str) -> None:
        self.slot = CacheSafeSlot()
        self._http_client = http_client
        self._query_source = query_source
        self._closed = False

    def snapshot(self) -> CacheSafeParams:
        """Return the newest request that was answered.

        Raises:
            NothingCaptured: There is none yet.
        """
        params = self.slot.get()
        if params is None:
            raise NothingCaptured
        return params

    def close(self) -> None:
        """Give the client its own transport back; the slot keeps what it holds."""
        self._closed = True
        _uninstall(self._http_client, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def exchange(self, request: httpx2.Request) -> Exchange | None:
        """Begin to follow a request, unless it is none of ours."""
        if self._closed or _uncaptured.get() or not _is_messages_call(request):
            return None
        return Exchange(request, self._keep)

    def _keep(self, params: CacheSafeParams) -> None:
        if not self._closed:
            self.slot.save(params, self._query_source)


def capture(client: anthropic.AsyncAnthropic | anthropic.Anthropic, *, query_source: str = "sdk") -> Capture:
    """Record the requests of `client` from now on, in place; a second call returns the same `Capture`.

    Clients made from it by ``with_options`` share its HTTP client and are recorded as well.

    Args:
        client: The parent's own client.
        query_source: Who the parent is; only the main loop and the SDK leave snapshots.

    Raises:
        CannotCapture: This version of the SDK keeps its transport somewhere else.
    """
    http_client = getattr(client, "_client", None)
    if not isinstance(http_client, httpx2.Client | httpx2.AsyncClient) or not _has_known_shape(http_client):
        raise CannotCapture(client)
    with _installing:
        transport = http_client._transport
        if isinstance(transport, AsyncCapturing | SyncCapturing):
            return transport.capture
        found = Capture(http_client, query_source=query_source)
        _install(http_client, found)
        return found


class AsyncCapturing(httpx2.AsyncBaseTransport):
    """An async transport that shows its exchanges to a capture."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, capture: Capture) -> None:
        self.inner = inner
        self.capture = capture

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass the request on, and its successful response back through a tee."""
        exchange = self.capture.exchange(request)
        response = await self.inner.handle_async_request(request)
        if exchange and response.status_code == httpx2.codes.OK and isinstance(response.stream, httpx2.AsyncByteStream):
            exchange.begin(response)
            response.stream = AsyncTee(response.stream, exchange)
        return response

    async def aclose(self) -> None:
        """Close the transport below."""
        await self.inner.aclose()

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self.inner.__aexit__(exc_type, exc_value, traceback)


class SyncCapturing(httpx2.BaseTransport):
    """A blocking transport that shows its exchanges to a capture."""

    def __init__(self, inner: httpx2.BaseTransport, capture: Capture) -> None:
        self.inner = inner
        self.capture = capture

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Pass the request on, and its successful response back through a tee."""
        exchange = self.capture.exchange(request)
        response = self.inner.handle_request(request)
        if exchange and response.status_code == httpx2.codes.OK and isinstance(response.stream, httpx2.SyncByteStream):
            exchange.begin(response)
            response.stream = SyncTee(response.stream, exchange)
        return response

    def close(self) -> None:
        """Close the transport below."""
        self.inner.close()

    def __enter__(self) -> Self:
        self.inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self.inner.__exit__(exc_type, exc_value, traceback)


def _is_messages_call(request: httpx2.Request) -> bool:
    if request.method != "POST" or not request.url.path.endswith("/v1/messages"):
        return False
    try:
        # A body that streams out or is compressed is not in memory as the API will see it.
        return bool(request.content) and "content-encoding" not in request.headers
    except httpx2.RequestNotRead:
        return False


def _has_known_shape(http_client: AnyHttpClient) -> bool:
    return hasattr(http_client, "_transport") and isinstance(getattr(http_client, "_mounts", None), dict)


def _install(http_client: AnyHttpClient, found: Capture) -> None:
    blocking = isinstance(http_client, httpx2.Client)
    _exchange_transports(http_client, lambda inner: (SyncCapturing if blocking else AsyncCapturing)(inner, found))


def _uninstall(http_client: AnyHttpClient, found: Capture) -> None:
    def unwrapped(transport: Any) -> Any:
        ours = isinstance(transport, AsyncCapturing | SyncCapturing) and transport.capture is found
        return transport.inner if ours else transport

    _exchange_transports(http_client, unwrapped)


def _exchange_transports(http_client: Any, exchanged: Callable[[Any], Any]) -> None:
    """Replace the client's transport and the mounted ones, which stand for proxies and single hosts."""
    http_client._transport = exchanged(http_client._transport)
    for pattern, transport in http_client._mounts.items():
        if transport is not None:
            http_client._mounts[pattern] = exchanged(transport)
