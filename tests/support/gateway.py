"""A gateway between a client and the simulator that changes requests, as some proxies in the field do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2
from anthropic import AsyncAnthropic

from nexofork import AnthropicProvider
from tests.support.conversation import KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.simulator import Simulator

__all__ = ["Gateway", "llm_behind"]


class Gateway(httpx2.AsyncBaseTransport):
    """Passes every request on with its body rewritten."""

    def __init__(self, rewrite: Callable[[bytes], bytes]) -> None:
        self._rewrite = rewrite
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the rewritten body under the same headers."""
        body = self._rewrite(await request.aread())
        headers = [pair for pair in request.headers.multi_items() if pair[0] != "content-length"]
        changed = httpx2.Request(
            request.method, request.url, headers=headers, content=body, extensions=request.extensions
        )
        return await self._inner.handle_async_request(changed)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _Owned(AnthropicProvider):
    """A provider that closes the client it was given."""

    async def aclose(self) -> None:
        """Close the client."""
        await self._client.close()


def llm_behind(sim: Simulator, rewrite: Callable[[bytes], bytes]) -> AnthropicProvider:
    """A provider whose requests pass through a gateway."""
    http_client = httpx2.AsyncClient(transport=Gateway(rewrite))
    return _Owned(AsyncAnthropic(base_url=sim.url, api_key=KEY, max_retries=0, http_client=http_client))
