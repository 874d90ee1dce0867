"""A session with a warm turn behind it, and what its sidecars are made to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.conversation import AGENT, BASH, MARK, request, says, text, tokens_of

if TYPE_CHECKING:
    from nexofork.simulator import RequestRecord, Simulator

__all__ = ["FILES", "TOOLS", "reads_the_parent", "warm_request"]

FILES = ("FileRead", "FileWrite", "FileEdit", "Glob", "Grep")
TOOLS = [AGENT, BASH, *({"name": name, "input_schema": {"type": "object"}} for name in FILES)]


def warm_request(
    *turns: dict[str, Any] | str, answer: dict[str, Any] | str = "All done here.", tokens: int = 20_000, **more: Any
) -> dict[str, Any]:
    """A parent's request that the model answers with `answer`; a sidecar of that turn then says `turns`."""
    body = request(messages=[], tools=TOOLS, **more)
    said = text(says("Go on.", answer, *turns), tokens=tokens - tokens_of(body), mark=MARK)
    return body | {"messages": [{"role": "user", "content": [said]}]}


def reads_the_parent(sim: Simulator, record: RequestRecord) -> bool:
    """Whether a request read at least 99% of the session's tokens from the cache, by the server's own log."""
    return record.read >= 0.99 * sim.log[0].prompt_tokens
