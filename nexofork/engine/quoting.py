"""Say before a call what it may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.engine.budget import Quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.engine.params import ForkParams
    from nexofork.engine.result import CallRecord

__all__ = ["quote_call"]


def quote_call(params: ForkParams, *, body_bytes: int, calls: Sequence[CallRecord]) -> Quote:
    """Return the most a call may cost.

    Args:
        params: The fork.
        body_bytes: The length of the request.
        calls: The fork's calls so far.
    """
    return Quote(tokens=body_bytes // 2, usd=None)
