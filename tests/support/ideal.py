"""Judge a bill by the provider's log alone: what the requests cost, and the least they could have cost.

Written without the library's economics and without the simulator's: bodies are read as JSON, laid out as the provider
does (tools, system, messages), and compared block by block. The least is what an omniscient sender would pay: each
prefix that two or more requests share is written once at the price of the TTL in force, every other request reads the
longest prefix it shares with one before it, and only the rest is fresh. A request that was sent twice, and one that
asked for no answer, is on the bill and not in the least.

Prices are in tokens of fresh input, so that two bills make a ratio. Assumes that the requests came within one TTL.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Billed", "Verdict", "judge"]

_WRITE = {"5m": 1.25, "1h": 2.0}
_TTL_S = {"5m": 300.0, "1h": 3600.0}
_READ = {"claude-sonnet-5": 0.1, "claude-opus-4-8": 0.1, "claude-opus-5": 0.1, "claude-opus-5-5": 0.05}
_LEAST_CACHED = {"claude-sonnet-5": 1024, "claude-opus-4-8": 1024, "claude-opus-5": 512, "claude-opus-5-5": 512}
_NO_PROMPT = frozenset({"tools", "system", "messages", "cache_control", "stream", "max_tokens", "diagnostics"})
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """One request that was answered, as the provider's log has it."""

    body: bytes
    received_at: float
    read: int = 0
    write_5m: int = 0
    write_1h: int = 0
    fresh: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A bill beside the least it could have been, in tokens of fresh input."""

    billed: float
    ideal: float
    writes: int
    """How many requests wrote more than half of the longest prefix that was to be shared."""

    @property
    def ratio(self) -> float:
        """How many times the least was paid."""
        return self.billed / self.ideal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    chain: tuple[bytes, ...]
    """Names the prefix up to and including each block."""
    totals: tuple[int, ...]
    """Its tokens."""
    marked: tuple[int, ...]
    """Positions with a marker."""

    def shared_with(self, other: _Prompt) -> int:
        """How many blocks the two have in common from the start."""
        low, high = 0, min(len(self.chain), len(other.chain))
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.chain[middle - 1] == other.chain[middle - 1] else (low, middle - 1)
        return low

    def tokens(self, blocks: int) -> int:
        """The tokens of the first so many blocks."""
        return self.totals[blocks - 1] if blocks else 0


def judge(requests: Iterable[Billed], *, ttl: str, before: Iterable[Billed] = ()) -> Verdict:
    """Compare what requests were billed with the least they could have been.

    Args:
        requests: The answered requests of one fan-out, all turns of all children, in order of arrival.
        ttl: The TTL that entries are written with.
        before: What the parent sent; as far as it marked and within its TTL, that is in the cache.
    """
    answered = list(requests)
    model = json.loads(answered[0].body)["model"]
    distinct: dict[bytes, _Prompt] = {}
    for request in answered:
        prompt = _read(request)
        if json.loads(request.body)["max_tokens"] > 0:
            distinct.setdefault(prompt.chain[-1], prompt)
    cached = [
        (prompt, prompt.marked[-1] + 1)
        for request in before
        if answered[0].received_at - request.received_at < _TTL_S[ttl] and (prompt := _read(request)).marked
    ]
    ideal, longest = _least(list(distinct.values()), cached, model=model, ttl=ttl)
    return Verdict(
        billed=sum(_cost(request, _READ[model]) for request in answered),
        ideal=ideal,
        writes=sum(request.write_5m + request.write_1h > longest / 2 for request in answered),
    )


def _least(
    prompts: Sequence[_Prompt], cached: Sequence[tuple[_Prompt, int]], *, model: str, ttl: str
) -> tuple[float, int]:
    """Return the lowest bill of these prompts in this order, and the tokens of the longest prefix read in it."""
    minimum, cost, longest = _LEAST_CACHED[model], 0.0, 0
    for number, prompt in enumerate(prompts):
        earlier = [prompt.shared_with(other) for other in prompts[:number]]
        earlier += [min(prompt.shared_with(other), blocks) for other, blocks in cached]
        later = (prompt.shared_with(other) for other in prompts[number + 1 :])
        read = _cacheable(prompt, max(earlier, default=0), minimum)
        written = _cacheable(prompt, max(later, default=0), minimum)
        write = max(written - read, 0)
        cost += _READ[model] * read + _WRITE[ttl] * write + prompt.totals[-1] - read - write
        longest = max(longest, read)
    return cost, longest


def _cacheable(prompt: _Prompt, blocks: int, minimum: int) -> int:
    tokens = prompt.tokens(blocks)
    return tokens if tokens >= minimum else 0


def _cost(request: Billed, read: float) -> float:
    written = _WRITE["5m"] * request.write_5m + _WRITE["1h"] * request.write_1h
    return request.fresh + written + read * request.read


def _read(request: Billed) -> _Prompt:
    """Lay a body out, and check that the log counted the same tokens."""
    body = json.loads(request.body)
    link = json.dumps({key: value for key, value in sorted(body.items()) if key not in _NO_PROMPT}).encode()
    chain, totals, marked, total = [], [], [], 0
    for position, (place, block) in enumerate(_blocks(body)):
        plain = json.dumps(_unmarked(block), ensure_ascii=False, separators=(",", ":")).encode()
        link = hashlib.sha256(link + place.encode() + b"\0" + plain).digest()
        total += -(-len(plain) // _BYTES_PER_TOKEN)
        chain.append(link)
        totals.append(total)
        if plain != json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode():
            marked.append(position)
    if "cache_control" in body:  # automatic caching marks the last block
        marked.append(len(chain) - 1)
    counted = request.read + request.write_5m + request.write_1h + request.fresh
    assert counted == total, f"the log counts {counted} tokens where the body has {total}"
    return _Prompt(chain=tuple(chain), totals=tuple(totals), marked=tuple(marked))


def _blocks(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each block in the order the provider caches in, with where it stands."""
    yield from (("tools", tool) for tool in body.get("tools", ()))
    yield from (("system", block) for block in _listed(body.get("system", ())))
    for number, message in enumerate(body["messages"]):
        yield from ((f"{number} {message['role']}", block) for block in _listed(message["content"]))


def _listed(content: Any) -> Any:
    return [content] if isinstance(content, str) else content


def _unmarked(block: Any) -> Any:
    if isinstance(block, dict):
        return {key: value for key, value in block.items() if key != "cache_control"}
    return block
