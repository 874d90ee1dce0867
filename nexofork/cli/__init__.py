"""The command line. Commands are loaded when they are called, so that ``--help`` need not wait for any of them."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from nexofork import __version__

__all__ = ["main"]

_COMMANDS = {
    "demo": "Fork a long conversation five ways and show what sharing saved.",
    "simulate": "Serve an Anthropic-compatible API with real cache accounting.",
}


class _Commands(click.Group):
    """Knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"nexofork.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nexofork")
def _root() -> None:
    """Fork an agent and pay for its context once."""


def main() -> None:
    """Run the command line; the exit code is documented in the README."""
    try:
        _root(standalone_mode=False)
    except click.UsageError as exc:
        exc.show()
        sys.exit(2)
    except click.ClickException as exc:
        exc.show()
        sys.exit(exc.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
