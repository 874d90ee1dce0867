"""What an operator sets about prices."""

from __future__ import annotations

import os

__all__ = ["PRICES_VARIABLE", "prices_file"]

PRICES_VARIABLE = "NEXOFORK_PRICES"


def prices_file() -> str | None:
    """Return the price file whose entries come before ours; None where none is named."""
    return os.environ.get(PRICES_VARIABLE) or None
