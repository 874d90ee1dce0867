"""Where this host, and its user, keep what outlives a process."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_ignore_file", "default_state_dir"]


def default_state_dir() -> Path:
    """Return the state directory: the one systemd made for this unit, else the user's; root's is the system's."""
    if made := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(made)
    if os.geteuid() == 0:
        return Path("/var/lib/nexofork")
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home and os.path.isabs(home) else Path.home() / ".local/state") / "nexofork"


def default_ignore_file() -> Path:
    """Return where git reads which files a user ignores in every repository, unless it was told another place."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "git/ignore"
