"""The parent's request and reply as files: the options that name them, and the snapshot they make.

REQUEST.json is used byte for byte: it is the prefix that the children share.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from nexofork.cli.options import header, rfc3339
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CACHE_HEADERS, CacheSafeParams
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["parent_options", "read_snapshot", "snapshot_options"]

_WORKSPACE = "anthropic-workspace-id"

R = TypeVar("R")


def snapshot_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``--request``, ``--reply``, ``--header`` and ``--sent-at``."""
    for option in reversed(
        (
            click.option("--request", metavar="FILE", required=True, help="The parent's request body; - is stdin."),
            click.option("--reply", metavar="FILE", help="The assistant message it got: response or content array."),
            click.option(
                "--header",
                "headers",
                type=header,
                metavar="K:V",
                multiple=True,
                help="A header the parent sent: anthropic-version, anthropic-beta. Also anthropic-workspace-id, from "
                "the response it got: daemons known to be of another workspace then leave the children alone.",
            ),
            click.option("--sent-at", type=rfc3339, metavar="RFC3339", help="When the parent sent its request."),
        )
    ):
        command = option(command)
    return command


def parent_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of a snapshot, and ``-d``."""
    directive = click.option(
        "-d", "--directive", "directives", multiple=True, required=True, help="What a child shall do; repeat it."
    )
    return snapshot_options(directive(command))


def read_snapshot(
    *, request: str, reply: str | None, headers: Sequence[tuple[str, str]], sent_at: float | None
) -> CacheSafeParams:
    """Read the files and check that they go together.

    Raises:
        ForkRefused: They cannot be read, or are not what they should be.
    """
    if request == reply == "-":
        raise ForkRefused("--request and --reply cannot both come from stdin; give one as a file.")
    return CacheSafeParams.from_parent_request(
        _read("--request", request),
        reply=None if reply is None else Reply.from_response(_read("--reply", reply)),
        headers=_joined(headers),
        workspace_id=_workspace_id(headers),
        sent_at=sent_at,
    )


def _read(option: str, name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except (OSError, ValueError) as exc:
        raise ForkRefused(f"{option} {name} cannot be read: {getattr(exc, 'strerror', None) or exc}.") from exc


def _joined(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the headers as HTTP reads them: a repeated one is one list."""
    found: dict[str, str] = {}
    for name, value in headers:
        if name == _WORKSPACE:
            continue
        if name not in CACHE_HEADERS:
            click.echo(f"Note: header {name} takes no part in the cache and is not passed on.", err=True)
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _workspace_id(headers: Sequence[tuple[str, str]]) -> str | None:
    """Return the workspace that the response named."""
    found = {value for name, value in headers if name == _WORKSPACE}
    if len(found) > 1:
        raise ForkRefused(f"--header {_WORKSPACE} names several workspaces; the parent's call was in one.")
    return found.pop() if found else None
