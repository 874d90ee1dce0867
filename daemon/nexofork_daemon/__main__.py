"""``python -m nexofork_daemon``: what ``nexofork daemon`` becomes."""

from __future__ import annotations

from nexofork_daemon.command import main

if __name__ == "__main__":
    main()
