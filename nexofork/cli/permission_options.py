"""Which tool calls of a child run, are asked for, or are denied, as the command line and a policy file say it.

A policy file is TOML with `mode`, `allow`, `deny` and `deadline_s`. What the command line says besides is added to its
rules, and its deadline comes before the file's.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from nexofork.cli.options import seconds
from nexofork.errors import BadPermissions
from nexofork.policy.permissions import PermissionMode, Permissions

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["permission_options", "read_permissions"]

_KEYS = ("mode", "allow", "deny", "deadline_s")
_LARGEST_BYTES = 1 << 20


def permission_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for what a child may do."""
    for option in (
        click.option(
            "--permissions",
            metavar="bubble|allow|deny|FILE",
            help="Ask for calls that do more than read, let all run (the default), deny them, or go by a policy file.",
        ),
        click.option(
            "--allow", "allow_rules", metavar="RULE", multiple=True, help="Run without asking: Bash(git commit *)."
        ),
        click.option("--deny", "deny_rules", metavar="RULE", multiple=True, help="Never run: FileWrite(/etc/**)."),
        click.option(
            "--permission-deadline",
            type=seconds,
            metavar="SECONDS",
            help="How long an answer is waited for; 300 if not said.",
        ),
    ):
        command = option(command)
    return command


def read_permissions(options: dict[str, Any]) -> Permissions:
    """Take the options out, and read them.

    Raises:
        BadPermissions: A mode, a rule or the policy file cannot be used; the message names it.
    """
    chosen = options.pop("permissions")
    allow, deny = list(options.pop("allow_rules")), list(options.pop("deny_rules"))
    deadline_s = options.pop("permission_deadline")
    said: dict[str, Any] = {}
    if chosen in get_args(PermissionMode):
        said = {"mode": chosen}
    elif chosen is not None:
        said = _from_file(chosen)
    said["allow"] = [*said.get("allow", ()), *allow]
    said["deny"] = [*said.get("deny", ()), *deny]
    if deadline_s is not None:
        said["deadline_s"] = deadline_s
    return Permissions(**said)


def _from_file(name: str) -> dict[str, Any]:
    modes = ", ".join(get_args(PermissionMode))
    path = Path(name)
    try:
        if not path.is_file():
            raise BadPermissions(
                f"--permissions {name!r} is neither a mode nor a file.", fix=f"Modes: {modes}; or name a policy file."
            )
        if path.stat().st_size > _LARGEST_BYTES:
            raise BadPermissions(f"The policy file {name} is larger than 1 MB.", fix="Name a policy file.")
        said = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise BadPermissions(
            f"The policy file {name} cannot be read: {exc}.", fix=f"Write TOML with {', '.join(_KEYS)}."
        ) from exc
    if unknown := sorted(set(said) - set(_KEYS)):
        raise BadPermissions(
            f"The policy file {name} has unknown keys: {', '.join(unknown)}.", fix=f"Known are {', '.join(_KEYS)}."
        )
    if "mode" not in said:
        raise BadPermissions(f"The policy file {name} names no mode.", fix=f"Add mode = one of {modes}.")
    try:
        return dict(_checked(said))
    except BadPermissions as exc:
        raise BadPermissions(f"The policy file {name} cannot be used: {exc.problem}", fix=exc.fix) from exc


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    Permissions(**said)
    return said
