"""Send a request's exact bytes to the Messages API and stream its answer as events.

The SDK keeps what it is good at (credentials, base URL, connection pool); the bytes, the reading of the stream and the
retries are ours. That sends a parent's prefix untouched, and costs a fraction of what ``messages.stream`` costs.

Invariant: every attempt of a call sends the same bytes under the same cache-relevant headers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import httpx2
from anthropic import AnthropicError, AsyncAnthropic, AsyncStream

from nexofork.errors import ForkRefused, ProviderError
from nexofork.providers.assembly import ResponseIds
from nexofork.providers.capture import uncaptured
from nexofork.providers.diagnosis import failure_of_exception, id_in
from nexofork.providers.failures import ConnectionLost, Unauthorized
from nexofork.providers.outgoing import Pieces, headers_of, http_client, path_of
from nexofork.providers.provider import CallRepeated, CallRetried
from nexofork.providers.reading import ResponseReader, refusal_of
from nexofork.providers.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
    from types import TracebackType
    from typing import Self

    from anthropic import APIRequest, AsyncAPIResponse, AsyncCallNext

    from nexofork.providers.outgoing import Transport
    from nexofork.providers.provider import ModelRequest, ProviderEvent

__all__ = ["AnthropicProvider", "Timeouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long the provider waits for a sign of life; each passing ends the attempt as `ConnectionLost`."""

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    """From the call until the response begins; includes connecting and sending the body."""
    idle_s: float = 120.0
    """Between two chunks of a response; the API sends pings in the pauses."""


class AnthropicProvider:
    """A `Provider` for the Claude API and every server that speaks its Messages protocol.

    Closing the iterator that `stream` returned, or cancelling the task that reads it, closes the socket at once.
    """

    def __init__(
        self,
        client: AsyncAnthropic,
        *,
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not isinstance(client, AsyncAnthropic):
            raise ForkRefused(
                f"A provider needs an AsyncAnthropic client, not {type(client).__name__}. A synchronous parent keeps "
                "its own client and gives its forks AnthropicProvider.from_env()."
            )
        self._client = client
        self._timeouts = timeouts or Timeouts()
        self._retry = retry or RetryPolicy()
        # A clock of our own around every chunk costs CPU, so there is none where the transport's own will do.
        self._idle_s = None if self._timeouts.idle_s >= self._timeouts.first_byte_s else self._timeouts.idle_s
        self._sleep = sleep
        self._owns_client = False
        self.diagnostics = True
        """Whether requests may ask for cache diagnostics; set to False once a server has refused the field."""
        self._workspace_id: str | None = None

    @classmethod
    def from_env(
        cls,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: Transport = "auto",
        timeouts: Timeouts | None = None,
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> Self:
        """Build a provider with a connection pool of its own; what is not given comes from the SDK's usual variables.

        ``ANTHROPIC_API_KEY``, ``ANTHROPIC_AUTH_TOKEN``, ``ANTHROPIC_BASE_URL`` and the SDK's profiles all work.
        """
        client = AsyncAnthropic(
            base_url=base_url,
            api_key=api_key,
            max_retries=0,
            http_client=http_client(transport),
            open_telemetry=False,
        )
        provider = cls(client, timeouts=timeouts, retry=retry, sleep=sleep)
        provider._owns_client = True
        return provider

    @property
    def workspace_id(self) -> str | None:
        """The workspace the calls are billed to, once a response has shown it."""
        return self._workspace_id

    async def aclose(self) -> None:
        """Close the connection pool, if it is the provider's own."""
        if self._owns_client:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent]:
        """Send the bytes and yield what happens; ends with `MessageFinished` or raises.

        A failed attempt that may be repeated is announced by `CallRetried`. After its pause comes `CallRepeated`, and
        then it is sent again from scratch.

        Raises:
            ProviderError: The call failed and retrying did not help or would not; a note says how often it was tried.
        """
        for attempt in count(1):
            try:
                reader = await self._open(request)
                try:
                    while not reader.finished:
                        for event in await reader.read():
                            yield event
                finally:
                    await reader.aclose()
                return
            except ProviderError as error:
                delay_s = self._retry.delay_s(error, attempt=attempt)
                if delay_s is None:
                    error.add_note(f"Attempts made: {attempt} of at most {self._retry.attempts}.")
                    raise
                retried = CallRetried(attempt=attempt, error=error, delay_s=delay_s)
            yield retried
            await self._sleep(retried.delay_s)
            yield CallRepeated()

    async def _open(self, request: ModelRequest) -> ResponseReader:
        """Send the body and wait for the response to begin."""
        timeouts = self._timeouts
        # The transport has one clock for both waits, so it gets the longer one.
        longest_s = max(timeouts.first_byte_s, timeouts.idle_s)
        try:
            async with asyncio.timeout(timeouts.first_byte_s):
                with uncaptured():
                    stream = await self._client.with_middleware(_answered).post(
                        path_of(request),
                        content=cast("AsyncIterator[bytes]", Pieces(request)),
                        cast_to=object,
                        stream=True,
                        stream_cls=AsyncStream[object],
                        options={
                            "headers": headers_of(request),
                            "timeout": httpx2.Timeout(longest_s, connect=timeouts.connect_s),
                            "max_retries": 0,
                            "follow_redirects": False,
                        },
                    )
        except TimeoutError as exc:
            raise ConnectionLost(f"no response began within {timeouts.first_byte_s:g} s") from exc
        except (AnthropicError, httpx2.HTTPError) as exc:
            # Not `from exc`: the text of a cause may hold the key, and a log would show it.
            raise failure_of_exception(exc) from None
        except TypeError as exc:
            if "authentication" not in str(exc):
                raise
            raise Unauthorized("no credentials were found.", status=None) from exc
        response = stream.response
        return ResponseReader(response, self._ids(response), idle_s=self._idle_s)

    def _ids(self, response: httpx2.Response) -> ResponseIds:
        ids = ResponseIds(
            request_id=id_in(response),
            workspace_id=id_in(response, "anthropic-workspace-id"),
            organization_id=id_in(response, "anthropic-organization-id"),
        )
        self._workspace_id = ids.workspace_id or self._workspace_id
        return ids


async def _answered(request: APIRequest, call_next: AsyncCallNext) -> AsyncAPIResponse[Any]:
    """Stop at a response that is no answer, before the SDK reads all of it.

    Raises:
        ProviderError: What the response says, or why it is not read.
    """
    answer = await call_next(request)
    if failure := await refusal_of(answer.http_response):
        raise failure
    return answer
