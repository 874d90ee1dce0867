"""Flags for settings, and the reading of settings where a command starts."""

from __future__ import annotations

import os
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nexofork.config.settings import Surroundings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexofork.config.keys import Key

__all__ = [
    "CLIENT_VARIABLE",
    "DAEMON_FILE",
    "DAEMON_VARIABLE",
    "client_file",
    "daemon_file",
    "given_flags",
    "setting_options",
    "surroundings",
]

R = TypeVar("R")

CLIENT_VARIABLE = "NEXOFORK_CONFIG"
DAEMON_VARIABLE = "NEXOFORKD_CONFIG"
DAEMON_FILE = Path("/etc/nexofork/nexoforkd.toml")


def setting_options(
    keys: Sequence[Key], *, every: Sequence[Key] = (), file: Callable[[], Path | None], warn: bool = True
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add a flag for each key; the command gets ``settings``, read and checked with environment and file.

    Args:
        keys: What has a flag here.
        every: All keys that the file may have; the same ones unless said.
        file: Returns which file to read, called when the command starts.
        warn: Whether to print what is no error and should be changed.
    """

    def add(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def with_settings(*args: Any, **options: Any) -> R:
            flags = {key.path: options.pop(_parameter(key)) for key in keys}
            settings = read_settings(every or keys, flags, surroundings(file()))
            for warning in settings.warnings if warn else ():
                click.echo(f"WARNING: {warning}", err=True)
            return command(*args, settings=settings, **options)

        wrapped: Callable[..., R] = with_settings
        for key in reversed(keys):
            wrapped = _option(key)(wrapped)
        return wrapped

    return add


def given_flags(keys: Sequence[Key], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags among a command's options, by the path of their key; those that were not given are None."""
    return {key.path: options.get(_parameter(key)) for key in keys}


def surroundings(file: Path | None) -> Surroundings:
    """Return what this process finds, with this settings file."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    return Surroundings(environment=os.environ, file=file, credentials=Path(folder) if folder else None)


def client_file() -> Path | None:
    """Return the settings file of commands: the named one, or the user's if there is one."""
    if named := os.environ.get(CLIENT_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME", "")
    path = (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "nexofork" / "config.toml"
    return path if path.exists() else None


def daemon_file() -> Path | None:
    """Return the daemon's settings file: the named one, or the system's if there is one."""
    ctx = click.get_current_context(silent=True)
    named = (ctx.params.get("config") if ctx else None) or os.environ.get(DAEMON_VARIABLE)
    if named:
        return Path(named)
    return DAEMON_FILE if DAEMON_FILE.exists() else None


def _parameter(key: Key) -> str:
    return key.flag.removeprefix("--").replace("-", "_")


def _option(key: Key) -> Callable[[Callable[..., R]], Callable[..., R]]:
    text = f"{key.help}{_also(key)}{_default(key)}"
    if key.kind.is_flag:
        return click.option(f"{key.flag}/--no-{key.flag.removeprefix('--')}", default=None, help=text)
    several = key.kind.split == os.pathsep
    return click.option(key.flag, metavar=_metavar(key), multiple=several, help=text)


def _also(key: Key) -> str:
    return f" Also from {key.also[0]}." if key.also else ""


def _default(key: Key) -> str:
    words = key.default_words
    if not words and not callable(key.default) and key.default not in (None, ()):
        value = key.default[0] if isinstance(key.default, tuple) else key.default
        words = f"{value:g}" if isinstance(value, float) else str(value).lower() if value is False else str(value)
    return f"  [default: {words}]" if words else ""


def _metavar(key: Key) -> str:
    for ending, word in (
        ("_s", "SECONDS"),
        ("_mb", "MB"),
        ("_file", "FILE"),
        ("config", "FILE"),
        ("url", "URL"),
        ("_port", "PORT"),
    ):
        if key.path.endswith(ending):
            return word
    if key.kind.wanted.startswith("one of "):
        return "|".join(key.kind.wanted.removeprefix("one of ").split(", "))
    return {
        "daemon.slots": "N",
        "daemon.state_dir": "DIR",
        "sandbox.read": "DIR",
        "tools.shared_dirs": "DIR",
        "telemetry.health_host": "ADDRESS",
    }.get(key.path, "NAME")
