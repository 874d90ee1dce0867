"""The manual page of the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from nexofork.cli import COMMANDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def test_the_manual_is_current() -> None:
    """`make manual` would change nothing; a process of its own, because click remembers how commands were run."""
    written = subprocess.run([sys.executable, "-m", "nexofork.cli.manual"], capture_output=True, text=True, check=True)
    assert PAGE.read_text() == written.stdout, "docs/cli.md is not what the commands say; run `make manual`"


def test_the_manual_has_every_command() -> None:
    """Those of groups and the daemon's options too."""
    page = PAGE.read_text()
    assert [name for name in COMMANDS if f"## nexofork {name}\n" not in page] == []
    for words in ("## nexofork auth rotate\n", "`--slots N`", "`-w, --watch`"):
        assert words in page
