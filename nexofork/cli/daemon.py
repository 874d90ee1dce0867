"""``nexofork daemon``: become the daemon. The library never imports it, so it is started by its module's name."""

from __future__ import annotations

import os
import sys

import click

__all__ = ["daemon"]


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def daemon(arguments: tuple[str, ...]) -> None:
    """Run forks on this host."""
    sys.stdout.flush()
    # -P: what lies in the folder it is started in is not imported.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "nexofork_daemon", *arguments])
