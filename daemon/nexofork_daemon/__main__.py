"""``python -m nexofork_daemon``: what ``nexofork daemon`` becomes, and where ``nexoforkd`` begins."""

from __future__ import annotations

from importlib import import_module

from nexofork.starting import start

__all__ = ["main"]


def main() -> None:
    """Run the daemon's command line, which is loaded only when nothing can go wrong with that any more."""
    start()
    import_module("nexofork_daemon.command").main()


if __name__ == "__main__":
    main()
