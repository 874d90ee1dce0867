"""The command line. Commands are loaded when they are called, so that ``--help`` need not wait for any of them."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click

from nexofork import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "run_command"]

COMMANDS = {
    "demo": "Fork a long conversation five ways and show what sharing saved.",
    "fork": "Fork a conversation onto the fleet, one child per directive.",
    "estimate": "Say what forking a conversation would cost, and whether it pays.",
    "wait": "Wait for runs and print their results.",
    "ps": "Show the runs and daemons of a pool.",
    "logs": "Show what a run's log holds.",
    "explain": "Say why a request, or a run, did not read its parent's cache.",
    "attach": "Watch a run until it is over.",
    "abort": "End runs.",
    "answer": "Answer something a run asks for.",
    "daemon": "Run forks on this host.",
    "serve": "Run a NATS server for one machine.",
    "provision": "Create or update the streams of a pool (admin).",
    "simulate": "Serve an Anthropic-compatible API with real cache accounting.",
}


class _Commands(click.Group):
    """Knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"nexofork.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nexofork")
@click.pass_context
def _root(ctx: click.Context) -> None:
    """Fork an agent and pay for its context once."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """Run the command line; the exit code is documented in the README."""
    sys.exit(run_command())


def run_command(
    command: click.Command = _root, arguments: Sequence[str] | None = None, *, name: str | None = None
) -> int:
    """Run a command and return its exit code; errors are one line on stderr.

    Args:
        command: Which one.
        arguments: What it is given; this process's own unless said.
        name: What its help calls it; how this process was started unless said.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a character the terminal lacks must not end a command
    try:
        code = command(arguments, prog_name=name, standalone_mode=False)
    except click.UsageError as exc:
        where = f" See `{exc.ctx.command_path} --help`." if exc.ctx else ""
        click.echo(f"Error: {exc.format_message()}{where}", err=True)
        return 2
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever read our output has left; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
