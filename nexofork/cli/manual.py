"""Write ``docs/cli.md`` from the commands' own definitions: ``python -m nexofork.cli.manual > docs/cli.md``.

What the page says is what ``--help`` says, on every machine alike; a test compares them.
"""

from __future__ import annotations

import inspect
import re
import socket
from importlib import import_module
from typing import TYPE_CHECKING

import click

from nexofork.cli import COMMANDS, root

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["manual"]

_HEAD = """# The command line

Made from the commands' own help by `make manual`; do not edit it here. `nexofork COMMAND --help` says the same.

A run may be named by the beginning of its id where no other run of the pool begins so. Colours are used on terminals;
`NO_COLOR`, `TERM=dumb` and `FORCE_COLOR` change that. Progress goes to stderr, data to stdout; `--json` prints one
object per line. `nexofork completion SHELL` lets a shell complete commands, options and run ids.

| exit code | meaning |
|---|---|
| 0 | all completed, or what was asked for was done |
| 1 | some child did not complete, or something that was checked is wrong |
| 2 | bad usage or input; stderr names it |
| 3 | NATS was not reached, or refused; or the port to listen on is taken |
| 130 | interrupted by Ctrl-C or SIGTERM |

A signal that comes before a command has begun its work ends it as the kernel does; a shell shows 130 for Ctrl-C then,
and 143 for SIGTERM.
"""


def manual() -> str:
    """Return the page."""
    with click.Context(root, info_name="nexofork") as context:
        parts = [_HEAD]
        for name in COMMANDS:
            # The daemon is another program, which the library knows by its name alone.
            command = (
                import_module("nexofork_daemon.command").daemon if name == "daemon" else root.get_command(context, name)
            )
            assert isinstance(command, click.Command)
            parts += _sections(command, click.Context(command, info_name=name, parent=context))
    return "\n".join(parts)


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {context.command_path}\n\n```\n{context.command_path} {usage}\n```\n"
    yield f"{_prose(command.help or '')}\n"
    records = [one.get_help_record(context) for one in command.get_params(context) if one.name != "help"]
    rows = [record for record in records if record is not None]
    if rows:
        yield "| option | |\n|---|---|\n" + "".join(f"| `{_cell(names)}` | {_cell(said)} |\n" for names, said in rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _sections(inner, click.Context(inner, info_name=name, parent=context))


def _prose(text: str) -> str:
    """Return a help as Markdown: what click must not wrap is code."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if paragraph.startswith("\b"):
            paragraphs.append("```\n" + paragraph.removeprefix("\b").strip("\n") + "\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()).replace("|", "\\|"))
    return "\n\n".join(paragraphs)


def _cell(text: str) -> str:
    # A default that is this machine's name is another one elsewhere.
    text = text.replace(f"default: {socket.gethostname()}]", "default: the host's name]")
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    click.echo(manual(), nl=False)
