"""What an operator may change while the daemon runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Dials"]


@dataclass(slots=True, kw_only=True)
class Dials:
    """The settings in force; fewer slots end no run, they only keep new ones away."""

    slots: int
    drain_s: float
    _changed: list[Callable[[], None]] = field(default_factory=list)

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever a setting was changed."""
        self._changed.append(callback)

    def turn(self, *, slots: int, drain_s: float) -> None:
        """Change the settings."""
        self.slots, self.drain_s = slots, drain_s
        for callback in self._changed:
            callback()
