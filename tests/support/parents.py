"""A parent agent with the user's own SDK client, and what its children need."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from anthropic import AsyncAnthropic

from nexofork import AnthropicProvider, ForkParams, capture
from nexofork.core.usage import Usage
from nexofork.providers.retry import RetryPolicy
from tests.support.conversation import KEY, request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    import httpx2

    from nexofork import CacheSafeParams
    from nexofork.providers.provider import Provider
    from nexofork.simulator import RequestRecord, Simulator

__all__ = ["QUICK", "Parent", "body_of", "equivalents", "fork", "open_llm", "results_in", "usage_in_log"]

QUICK = RetryPolicy(first_delay_s=0.01)
"""Retries without the waiting."""


class Parent:
    """An agent that talks to a simulator through the SDK, recorded by `capture`."""

    def __init__(self, url: str, *, key: str = KEY, http_client: httpx2.AsyncClient | None = None) -> None:
        self.client = AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=http_client)
        self.capture = capture(self.client)

    async def ask(self, body: Mapping[str, Any] | None = None, **changes: Any) -> CacheSafeParams:
        """Make one call, by default a short marked one, and return the snapshot that was captured."""
        await self.client.messages.create(**(request(**changes) if body is None else body))
        return self.capture.snapshot()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


def open_llm(url: str, *, key: str = KEY, retry: RetryPolicy = QUICK) -> AnthropicProvider:
    """A provider for children, with quick retries."""
    return AnthropicProvider.from_env(base_url=url, api_key=key, retry=retry)


def fork(snapshot: CacheSafeParams, llm: Provider, directive: Sequence[str] | str = "Look.", **more: Any) -> ForkParams:
    """A fork of a snapshot."""
    return ForkParams(cache_safe=snapshot, llm=llm, prompt_messages=directive, **more)


def body_of(sim: Simulator, index: int) -> dict[str, Any]:
    """A request the simulator received, parsed."""
    raw = sim.body(index)
    assert raw is not None
    body: dict[str, Any] = json.loads(raw)
    return body


def results_in(sim: Simulator, index: int) -> list[dict[str, Any]]:
    """The tool results in the last message of a request."""
    content = body_of(sim, index)["messages"][-1]["content"]
    return [block for block in content if block["type"] == "tool_result"]


def equivalents(record: RequestRecord, *, read: float = 0.1) -> float:
    """What a request's prompt cost, in tokens at the price of fresh input."""
    return record.fresh + 1.25 * record.write_5m + 2 * record.write_1h + read * record.read


def usage_in_log(record: RequestRecord) -> Usage:
    """The log's counts in the form of ours, to compare the two."""
    return Usage(
        input_tokens=record.fresh,
        cache_read_tokens=record.read,
        cache_write_5m_tokens=record.write_5m,
        cache_write_1h_tokens=record.write_1h,
        output_tokens=record.output,
    )
