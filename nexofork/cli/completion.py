"""``nexofork completion``: the lines that teach a shell to complete this program's words.

The script asks the program itself at every press of the key, so it never gets old: names of commands come without
loading them, run ids from NATS within a moment, or not at all.
"""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

__all__ = ["completion"]

_PROGRAM = "nexofork"
_VARIABLE = "_NEXOFORK_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print what lets a shell complete commands, options and run ids.

    \b
    bash (4.4 or newer), in ~/.bashrc:   eval "$(nexofork completion bash)"
    zsh, in ~/.zshrc behind compinit:    eval "$(nexofork completion zsh)"
    fish: nexofork completion fish > ~/.config/fish/completions/nexofork.fish

    Run ids are asked for where NATS_URL, or the options before them, say.
    """  # noqa: D301 - click wants the character: these lines are not to be wrapped
    found = get_completion_class(shell)
    assert found is not None
    # Of this class, not of the shell's: bash's own would start a bash to ask for its version.
    click.echo(ShellComplete.source(found(click.Command(_PROGRAM), {}, _PROGRAM, _VARIABLE)))
