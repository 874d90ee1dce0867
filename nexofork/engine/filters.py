"""Say no to a tool call before it runs. The schema the model sees never changes; refusal happens at call time."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["AllowAllFilter", "ToolFilter"]


class ToolFilter(Protocol):
    """Judges a call by its name and its flat arguments."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Return why the call is denied, in words the model can act on, or None to let it run."""


class AllowAllFilter:
    """Denies nothing."""

    def deny(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Let the call run."""
        return None
