"""Options that several commands share, and the values they take.

A value is checked where it is read, so that nothing wrong reaches NATS and the message names the option.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from nexofork.economics.settings import PRICES_VARIABLE
from nexofork.errors import BadMessage
from nexofork.wire.subjects import DEFAULT_POOL, check_run_id, check_token

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Target",
    "has_api_key",
    "header",
    "json_option",
    "prices_option",
    "rfc3339",
    "run_name",
    "seconds",
    "seconds_or_zero",
    "target_options",
    "token",
]

DEFAULT_URL = "nats://127.0.0.1:4222"
_URL = re.compile(r"(?:(?:nats|tls|ws|wss)://)?(?:[^\s@/]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?/?")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which NATS, as whom, and which pool of it."""

    urls: tuple[str, ...]
    creds: Path | None
    nkey: Path | None
    pool: str


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


def nats_urls(value: Any) -> tuple[str, ...]:
    """Read one NATS URL, or several with commas between them."""
    urls = tuple(str(value).split(","))
    for url in urls:
        found = _URL.fullmatch(url)
        if found is None or int(found[1] or 0) > 65535:
            raise click.BadParameter(f"{url!r} is not a NATS URL, such as {DEFAULT_URL}.")
    return urls


def target_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--nats``, ``--creds``, ``--nkey`` and ``--pool``; the command gets them as one ``target``."""

    @click.option(
        "--nats",
        type=nats_urls,
        metavar="URL",
        envvar="NATS_URL",
        default=DEFAULT_URL,
        show_default=True,
        help="Where NATS is; several with commas. Also from NATS_URL.",
    )
    @click.option("--creds", type=_FILE, help="Credentials file of this role.")
    @click.option("--nkey", type=_FILE, help="File with this role's nkey seed.")
    @click.option(
        "--pool", type=token, metavar="NAME", default=DEFAULT_POOL, show_default=True, help="The pool of daemons."
    )
    @wraps(command)
    def with_target(
        *args: Any, nats: tuple[str, ...], creds: Path | None, nkey: Path | None, pool: str, **options: Any
    ) -> R:
        if creds is not None and nkey is not None:
            raise click.UsageError("--creds and --nkey both say who you are; give one of them.")
        return command(*args, target=Target(urls=nats, creds=creds, nkey=nkey, pool=pool), **options)

    return with_target


prices_option = click.option(
    "--prices",
    metavar="FILE",
    envvar=PRICES_VARIABLE,
    help=f"Prices that come before ours. Also from {PRICES_VARIABLE}.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")


def has_api_key() -> bool:
    """Whether the environment names a key for the provider."""
    return any(os.environ.get(name) for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"))
