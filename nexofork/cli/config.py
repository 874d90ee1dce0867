"""``nexofork config``: the settings in force here and where each comes from, or all that is wrong with them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexofork.cli.exit_codes import BAD_INPUT, OK
from nexofork.cli.options import json_option
from nexofork.cli.output import plain, print_json, print_table
from nexofork.cli.setting_options import client_file, daemon_file, surroundings
from nexofork.config.keys import CLIENT_KEYS, DAEMON_KEYS
from nexofork.config.kinds import looks_secret
from nexofork.config.secrets import find_provider_key
from nexofork.config.settings import content_problems, missing_key, read_settings
from nexofork.errors import BadSettings, ForkRefused

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from nexofork.config.settings import Setting, Settings

    R = TypeVar("R")

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show or check the settings in force here.

    They are the user's, for commands and parents; with --daemon, those a daemon on this host would start with.
    """


def _which(command: Callable[..., R]) -> Callable[..., R]:
    for option in (
        json_option,
        click.option("--daemon", "of_daemon", is_flag=True, help="The daemon's settings."),
        click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="This settings file."),
    ):
        command = option(command)
    return command


@config.command()
@_which
def show(*, config: Path | None, of_daemon: bool, as_json: bool) -> int:
    """Show every setting with its source; of secrets, the source alone."""
    settings = _read(config, of_daemon=of_daemon)
    rows = [_row(setting) for setting in settings]
    if of_daemon:
        rows.append(_key_row(settings))
    if as_json:
        print_json({"file": settings.file, "settings": rows, "warnings": settings.warnings})
        return OK
    click.echo(f"File: {settings.file or 'none'}\n")
    cells = [(row["key"], plain(_words(row["value"])), row["source"]) for row in rows]
    print_table(("setting", "value", "from"), cells)
    for warning in settings.warnings:
        click.echo(f"WARNING: {warning}", err=True)
    return OK


@config.command()
@_which
def check(*, config: Path | None, of_daemon: bool, as_json: bool) -> int:
    """Say all that is wrong with the settings and with the files they name; exit code 2 if anything is."""
    problems: list[dict[str, str]] = []
    warnings: tuple[str, ...] = ()
    file = _file(config, of_daemon=of_daemon)
    try:
        warnings = _checked(config, of_daemon=of_daemon)
    except BadSettings as exc:
        problems, warnings = [asdict(problem) for problem in exc.problems], exc.warnings
        if not as_json:
            raise
    if as_json:
        print_json({"ok": not problems, "file": file, "problems": problems, "warnings": warnings})
        return BAD_INPUT if problems else OK
    for warning in warnings:
        click.echo(f"WARNING: {warning}", err=True)
    click.echo(f"{file or 'No settings file, environment'}: nothing is wrong.")
    return OK


def _file(named: Path | None, *, of_daemon: bool) -> Path | None:
    return named or (daemon_file() if of_daemon else client_file())


def _read(named: Path | None, *, of_daemon: bool) -> Settings:
    keys = DAEMON_KEYS if of_daemon else CLIENT_KEYS
    return read_settings(keys, {}, surroundings(_file(named, of_daemon=of_daemon)))


def _checked(named: Path | None, *, of_daemon: bool) -> tuple[str, ...]:
    """Return what is no error and should be changed.

    Raises:
        BadSettings: A setting is wrong, or a file that one names.
    """
    settings, environment = _read(named, of_daemon=of_daemon), surroundings(None).environment
    lacking = missing_key(settings, environment)
    warnings = (*settings.warnings, *([lacking] if lacking else []))
    if problems := tuple(content_problems(settings, environment)):
        raise BadSettings(problems, warnings)
    return warnings


def _row(setting: Setting) -> dict[str, Any]:
    values = setting.value if isinstance(setting.value, tuple) else (setting.value,)
    hidden = any(looks_secret(str(value)) for value in values)
    return {
        "key": setting.key.path,
        "value": "(not shown)" if hidden else setting.value,
        "source": f"{setting.level} {setting.source}".strip(),
    }


def _key_row(settings: Settings) -> dict[str, Any]:
    """Where the provider's key comes from."""
    try:
        source = find_provider_key(settings, surroundings(None).environment).source
    except BadSettings as exc:
        source = str(exc)
    except ForkRefused:
        source = "nowhere"
    return {"key": "provider key", "value": "(not shown)" if source != "nowhere" else None, "source": source}


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
