"""``python -m nexofork``, and where the ``nexofork`` program begins."""

from __future__ import annotations

from importlib import import_module

from nexofork.starting import start

__all__ = ["main"]


def main() -> None:
    """Run the command line, which is loaded only when nothing can go wrong with that any more."""
    start()
    import_module("nexofork.cli").main()


if __name__ == "__main__":
    main()
