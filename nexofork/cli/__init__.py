"""The command line. Commands are loaded when they are called, so that ``--help`` need not wait for any of them."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from nexofork import __version__
from nexofork.cli.groups import HelpfulGroup
from nexofork.cli.os_errors import is_unwritten
from nexofork.cli.terminal import colour_choice, plain
from nexofork.errors import BadSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMANDS", "main", "root", "run_command"]

COMMANDS = {
    "demo": "Fork a long conversation five ways and show what sharing saved.",
    "fork": "Fork a conversation onto the fleet, one child per directive.",
    "estimate": "Say what forking a conversation would cost, and whether it pays.",
    "wait": "Wait for runs and print their results.",
    "ps": "Show the runs and daemons of a pool.",
    "logs": "Show what a run's log holds.",
    "cost": "Show what model calls cost, and what sharing saved.",
    "explain": "Say why a request, or a run, did not read its parent's cache.",
    "attach": "Watch a run until it is over.",
    "abort": "End runs.",
    "delete": "Delete what NATS stores of runs that are over (admin).",
    "message": "Say something to a running child.",
    "wake": "Continue a run that has ended.",
    "fetch": "Take the commits of finished runs into a repository.",
    "answer": "Answer something a run asks for.",
    "sidecar": "Work beside a session: memory, notes, answers in passing.",
    "eval": "Judge forks by scripted prompts and what is expected of them.",
    "agents": "Show the named agents that a parent can start here.",
    "daemon": "Run forks on this host.",
    "config": "Show or check the settings in force here.",
    "doctor": "Check that this host can run forks, and what to do where not.",
    "serve": "Run a NATS server for one machine.",
    "provision": "Create or update the streams of a pool (admin).",
    "auth": "Make, change and check keys and permissions of a NATS server.",
    "simulate": "Serve an Anthropic-compatible API with real cache accounting.",
    "completion": "Print what lets a shell complete commands, options and run ids.",
}
_OPTION_HINT = " Options of a command stand behind it, as in `nexofork ps --json`."


class _Commands(HelpfulGroup):
    """Knows its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "daemon" and ctx.resilient_parsing:
            # A shell completes the options of what the command becomes; loaded by its name, as it is started.
            daemon: click.Command = import_module("nexofork_daemon.command").daemon
            return daemon
        command: click.Command = getattr(import_module(f"nexofork.cli.{cmd_name}"), cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names without loading what they name."""
        found = [CompletionItem(name, help=said) for name, said in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *super(click.Group, self).shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nexofork")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Fork an agent and pay for its context once."""
    ctx.color = colour_choice(os.environ)


def main() -> None:
    """Run the command line; the exit code is documented in the README."""
    sys.exit(run_command())


def run_command(
    command: click.Command = root, arguments: Sequence[str] | None = None, *, name: str | None = None
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
    except click.exceptions.NoArgsIsHelpError as exc:
        click.echo(exc.format_message())  # click calls it an error; whoever gave nothing wants to know what there is
        return 0
    except click.UsageError as exc:
        where = f" See `{exc.ctx.command_path} --help`." if exc.ctx else ""
        if isinstance(exc, click.NoSuchOption) and exc.ctx is not None and exc.ctx.command is root:
            where = f"{_OPTION_HINT}{where}"
        click.echo(plain(f"Error: {exc.format_message()}{where}"), err=True)
        return 2
    except BadSettings as exc:
        for warning in exc.warnings:
            click.echo(plain(f"WARNING: {warning}"), err=True)
        click.echo(plain(f"Error: {exc}"), err=True)
        return 2
    except click.ClickException as exc:
        click.echo(plain(f"Error: {exc.format_message()}"), err=True)
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as exc:
        if not is_unwritten(exc):
            raise
        if not isinstance(exc, BrokenPipeError):  # then nobody is left to be told
            click.echo(f"Error: The output could not be written ({exc.strerror}). Make room where it goes.", err=True)
        # What is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
