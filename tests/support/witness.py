"""Judge, from the raw bodies a simulator received, whether forks kept their prefix.

Written without the library's own scanner: two bodies are compared as bytes, with the markers, the ``stream`` flag and
the question for ``diagnostics`` cut out by pattern. A child's body has to be its parent's with something inserted, each
later body of a child one of its earlier ones with something inserted, and siblings have to be the same bytes up to the
end of the boilerplate. A child whose turns were compacted starts again: from the very bytes of its first request, with
the summary inserted behind them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.core.boilerplate import BOILERPLATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Witness", "check_prefixes", "common_prefix", "common_suffix", "is_grown", "stripped"]

_SUMMARY = b'{"type":"text","text":"<compacted-turns>'
_TOLD = json.dumps(BOILERPLATE, ensure_ascii=False).encode()
# A quote inside a string is escaped, so these match members only.
_MARKER = re.compile(rb',"cache_control":\{[^{}]*\}|"cache_control":\{[^{}]*\},?')
_STREAM = re.compile(rb',"stream":(?:true|false)|"stream":(?:true|false),?')
_MAX_TOKENS = re.compile(rb'"max_tokens":\d+,')
_PREWARM = b'"max_tokens":0,'
_DIAGNOSTICS = re.compile(rb',"diagnostics":\{[^{}]*\}')


@dataclass(slots=True)
class Witness:
    """Collects the bodies of every simulator of a test."""

    readers: list[Callable[[], Sequence[bytes]]] = field(default_factory=list)
    """Each returns the bodies one simulator took, in order of arrival."""

    def watch(self, bodies: Callable[[], Sequence[bytes]]) -> None:
        """Judge these bodies at the end of the test."""
        self.readers.append(bodies)

    def check(self) -> None:
        """Fail unless every fork kept its prefix."""
        for bodies in self.readers:
            check_prefixes(bodies())


def check_prefixes(bodies: Sequence[bytes]) -> None:
    """Fail unless children extend their parents, their own turns and nothing else."""
    parents: list[bytes] = []
    children: list[bytes] = []
    for body in map(stripped, bodies):
        (children if _TOLD in body else parents).append(body)
    shared: dict[bytes, bytes] = {}
    for body in children:
        # A parent that went on is grown from its own earlier request; the child's parent is the longest that fits.
        own = max((parent for parent in parents if is_grown(_like(parent, body), body)), key=len, default=None)
        assert own is not None or not parents, "a child's body is not its parent's body with something inserted"
        if own is None:
            continue  # its parent was never sent here, so nobody can say who its siblings are
        told = _like(body[: body.index(_TOLD) + len(_TOLD)], _PREWARM)
        assert shared.setdefault(own, told) == told, "siblings differ before the end of the boilerplate"
    _check_turns(children)


def _like(parent: bytes, child: bytes) -> bytes:
    """The parent's body, with the ``max_tokens`` of a pre-warm where the child is one."""
    return _MAX_TOKENS.sub(_PREWARM, parent) if _PREWARM in child else parent


def _check_turns(children: Sequence[bytes]) -> None:
    for number, body in enumerate(children):
        if _turns(body) == 1:
            assert _SUMMARY not in body or _is_restart(body, children[:number]), "a summary stands on another beginning"
            continue
        assert any(is_grown(earlier, body) for earlier in children[:number]), "a later turn rewrote an earlier one"


def _is_restart(body: bytes, earlier: Sequence[bytes]) -> bool:
    """Whether a body with a summary is a first request that was sent, and nothing but what stands behind it."""
    until = body.index(_SUMMARY)
    return any(_turns(one) == 1 and is_grown(one, body) and common_prefix(one, body) >= until - 1 for one in earlier)


def _turns(body: bytes) -> int:
    behind = body[body.index(_TOLD) :]
    return 1 + behind.count(b'{"role":"assistant","content":')


def is_grown(before: bytes, after: bytes) -> bool:
    """Whether one body is the other with a single insertion, or the same."""
    return len(after) >= len(before) and common_prefix(before, after) + common_suffix(before, after) >= len(before)


def stripped(body: bytes) -> bytes:
    """The body without what a child may edit."""
    return _DIAGNOSTICS.sub(b"", _STREAM.sub(b"", _MARKER.sub(b"", body)))


def common_prefix(one: bytes, other: bytes) -> int:
    """How many bytes two bodies share from their start."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def common_suffix(one: bytes, other: bytes) -> int:
    """How many bytes two bodies share at their end."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        same = one[len(one) - middle : len(one) - low] == other[len(other) - middle : len(other) - low]
        low, high = (middle, high) if same else (low, middle - 1)
    return low
