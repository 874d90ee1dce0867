"""What a parent runs for its children, as its request says it."""

from __future__ import annotations

from pydantic import Field

from nexofork.wire.contents import WireModel

__all__ = ["ParentTools"]


class ParentTools(WireModel):
    """The tools that a parent runs when a daemon asks it to. A parent that says nothing is never asked."""

    names: list[str] | None = None
    """The tools it has; None is a parent that does not list them and takes every call."""
    parallel: list[str] = Field(default_factory=list)
    """Those that may run beside others of the same turn."""
    read_only: list[str] = Field(default_factory=list)
    """Those that change nothing."""
    gates_inside: list[str] = Field(default_factory=list)
    """Those whose inner calls pass the fork's filter again, at the parent."""
    files: bool = False
    """Whether the built-in file tools work there, in the folders of the request's automem filters."""
    deadline_s: float | None = Field(default=None, gt=0)
    """The longest a child waits for an answer; a daemon may have a shorter limit."""
