"""What a request must not be run without.

Decoders ignore fields they do not know, which is right for a label and wrong for a filter: an earlier daemon would run
the fork without it. So a request names in `needs` what may not be ignored, and carries version 2, which daemons from
before `needs` refuse. Whoever reads version 2 leaves a run whose needs it does not know to a daemon that does, so the
next thing that may not be ignored takes a name here and no new version.
Invariant: a request that needs nothing is version 1, and daemons of either version run it alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.wire.contents import REQUEST_VERSION, VERSION

if TYPE_CHECKING:
    from nexofork.wire.request import Requested

__all__ = ["KNOWN_NEEDS", "stating_needs", "unknown_needs"]

KNOWN_NEEDS = ("continues", "filters", "parent_tools", "permissions", "tool_names", "workspace")
"""Each is the field of a request that must not be ignored where it says something."""


def stating_needs(request: Requested) -> Requested:
    """Return a request that says what it needs, in the lowest version that can."""
    needs = [name for name in KNOWN_NEEDS if getattr(request, name)]
    return request.model_copy(update={"needs": needs, "v": REQUEST_VERSION if needs else VERSION})


def unknown_needs(request: Requested) -> tuple[str, ...]:
    """Return what a request needs and this version does not know."""
    return tuple(name for name in request.needs if name not in KNOWN_NEEDS)
