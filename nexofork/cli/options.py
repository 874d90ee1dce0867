"""Options that several commands share, and the values they take.

A value is checked where it is read, so that nothing wrong reaches NATS and the message names the option.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nexofork.cli.setting_options import client_file, given_flags, setting_options, surroundings
from nexofork.config.keys import CLIENT_KEYS
from nexofork.config.settings import read_settings
from nexofork.economics.settings import PRICES_VARIABLE
from nexofork.errors import BadMessage
from nexofork.wire.subjects import check_run_id, check_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from nexofork.config.settings import Settings

__all__ = [
    "Target",
    "header",
    "json_option",
    "prices_option",
    "rfc3339",
    "run_name",
    "seconds",
    "seconds_or_zero",
    "server_options",
    "target_of",
    "target_options",
    "token",
]

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which NATS, as whom, and which pool of it."""

    urls: tuple[str, ...]
    creds: Path | None
    nkey: Path | None
    pool: str
    ca: Path | None = None


def seconds(value: Any) -> float:
    """Read a time above 0."""
    if (number := seconds_or_zero(value)) == 0:
        raise click.BadParameter("0 is too short; give a number of seconds above 0.")
    return number


def seconds_or_zero(value: Any) -> float:
    """Read a time of 0 or more."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise click.BadParameter(f"{value!r} is not a number of seconds.")
    return number


def token(value: Any) -> str:
    """Read a name that can be part of a subject."""
    try:
        return check_token(str(value), "value")
    except BadMessage as exc:
        raise click.BadParameter(f"{str(value)[:140]!r} cannot be used in a subject. {exc.fix}") from exc


def run_name(value: Any) -> str:
    """Read a run's id."""
    name = token(value)
    try:
        return check_run_id(name)
    except BadMessage as exc:
        raise click.BadParameter(f"{exc.problem}. {exc.fix}") from exc


def header(value: Any) -> tuple[str, str]:
    """Read ``NAME:VALUE``; the name in lower case."""
    name, _, content = (part.strip() for part in str(value).partition(":"))
    if not _HEADER_NAME.fullmatch(name) or not content or not content.isprintable():
        raise click.BadParameter(f"{value!r} is not a header; write it as NAME:VALUE.")
    return name.lower(), content


def rfc3339(value: Any) -> float:
    """Read a time with its zone, as Unix time."""
    try:
        if not _RFC3339.fullmatch(value):
            raise ValueError("not the form of RFC 3339")
        return datetime.fromisoformat(value.upper()).timestamp()
    except (ValueError, OverflowError) as exc:
        raise click.BadParameter(f"{value!r} is not a time in RFC 3339, such as 2026-05-04T10:00:00Z.") from exc


def target_of(settings: Settings) -> Target:
    """Return which NATS the settings name."""
    return Target(
        urls=settings["nats.url"],
        creds=settings["nats.creds_file"],
        nkey=settings["nats.nkey_file"],
        pool=settings["nats.pool"],
        ca=settings["nats.ca_file"],
    )


def target_given(options: Mapping[str, Any]) -> Target:
    """Return which NATS a command line that is not complete yet would use.

    Raises:
        BadSettings: What is set is wrong.
    """
    return target_of(read_settings(CLIENT_KEYS, given_flags(CLIENT_KEYS, options), surroundings(client_file())))


def target_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--nats``, ``--creds``, ``--nkey``, ``--nats-ca`` and ``--pool``, which come as one ``target``.

    What is not given comes from the environment or the user's settings file.
    """

    @setting_options(CLIENT_KEYS, file=client_file)
    @wraps(command)
    def with_target(*args: Any, settings: Settings, **options: Any) -> R:
        return command(*args, target=target_of(settings), **options)

    return with_target


def server_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--nats`` and ``--nats-ca`` for a command that is several roles; they come as one ``target``."""
    keys = [key for key in CLIENT_KEYS if key.path in ("nats.url", "nats.ca_file")]

    @setting_options(keys, every=CLIENT_KEYS, file=client_file)
    @wraps(command)
    def with_target(*args: Any, settings: Settings, **options: Any) -> R:
        return command(*args, target=replace(target_of(settings), creds=None, nkey=None), **options)

    return with_target


prices_option = click.option(
    "--prices",
    metavar="FILE",
    envvar=PRICES_VARIABLE,
    help=f"Prices that come before ours. Also from {PRICES_VARIABLE}.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
