"""A group of commands that helps whoever mistypes one. It imports nothing heavy: `--help` waits for it."""

from __future__ import annotations

from difflib import get_close_matches

import click

__all__ = ["HelpfulGroup", "ListingGroup"]

_OTHER_NAMES = {
    **dict.fromkeys(("list", "ls", "status", "runs"), "ps"),
    **dict.fromkeys(("top", "watch"), "ps --watch"),
    **dict.fromkeys(("kill", "stop", "cancel"), "abort"),
    **dict.fromkeys(("send", "say"), "message"),
    **dict.fromkeys(("resume", "continue"), "wake"),
    **dict.fromkeys(("allow", "deny"), "answer"),
    **dict.fromkeys(("run", "spawn"), "fork"),
    "tail": "logs -f",
    "version": "--version",
    "help": "--help",
}
"""What other programs call these things; only said where the group has the command."""


class HelpfulGroup(click.Group):
    """Names the nearest command where there is none of the given name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; options are left to click."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command {name!r}.{self._advice(ctx, name)}", ctx)
        return super().resolve_command(ctx, args)

    def _advice(self, ctx: click.Context, name: str) -> str:
        names = self.list_commands(ctx)
        near = get_close_matches(name, names, n=2)
        other = _OTHER_NAMES.get(name, "")
        if other and (other.startswith("-") or other.split()[0] in names):
            near = [other, *(one for one in near if one != other)]
        return f" Did you mean {' or '.join(f'`{ctx.command_path} {one}`' for one in near)}?" if near else ""


class ListingGroup(HelpfulGroup):
    """Runs its command ``list``, with that command's options, where none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command in front of its options."""
        unnamed = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if unnamed and not ctx.resilient_parsing else args)
