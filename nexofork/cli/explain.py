"""``nexofork explain``: why a request did not read what an earlier one cached; two files, or a run and its parent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexofork.cli.exit_codes import BAD_INPUT, NOT_COMPLETED, OK
from nexofork.cli.explained_run import explain_run
from nexofork.cli.explanation_lines import explanation_lines, run_lines
from nexofork.cli.options import header, json_option, rfc3339, target_options, token
from nexofork.cli.output import plain, print_json
from nexofork.cli.patience import patience
from nexofork.cli.run_ids import resolve_run
from nexofork.cli.session import finish, open_target
from nexofork.core.explain import Sent
from nexofork.core.explain import explain as compare
from nexofork.core.layout import scan_request
from nexofork.core.reply import Reply
from nexofork.economics.prices import model_facts
from nexofork.errors import BadReply, BadRequestBody, ForkRefused, NexoforkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.cli.options import Target

__all__ = ["explain"]

_WORKSPACE = "anthropic-workspace-id"
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("what", nargs=-1, required=True, metavar="A.json B.json | RUN_ID")
@click.option("--header-a", "headers_a", type=header, multiple=True, metavar="NAME:VALUE", help="A header of A's.")
@click.option("--header-b", "headers_b", type=header, multiple=True, metavar="NAME:VALUE", help="A header of B's.")
@click.option("--reply-a", type=_FILE, metavar="FILE", help="The response to A: its usage says what was cached.")
@click.option("--reply-b", type=_FILE, metavar="FILE", help="The response to B: its usage says what was read.")
@click.option("--sent-at-a", type=rfc3339, metavar="TIME", help="When A was sent (RFC 3339).")
@click.option("--sent-at-b", type=rfc3339, metavar="TIME", help="When B was sent (RFC 3339).")
@click.option("--parent", type=_FILE, metavar="FILE", help="For a run: what its parent really sent.")
@json_option
@target_options
def explain(what: tuple[str, ...], *, parent: Path | None, as_json: bool, target: Target, **facts: Any) -> None:
    """Say why a request did not read what an earlier one cached.

    A is what was cached, B what came later; or give the id of a run, which is compared with its parent. The exit code
    is 0 where nothing is lost, 1 where something is, 2 for bad input.
    """
    if len(what) > 2:
        raise click.UsageError(f"{len(what)} things were given; compare two request files, or name one run.")
    if len(what) == 2:
        if parent is not None:
            raise click.UsageError("--parent is for a run; of two files the first is the parent.")
        raise click.exceptions.Exit(_files(what[0], what[1], as_json=as_json, **facts))
    if Path(what[0]).exists():
        raise click.UsageError(f"{what[0]} is a file; give the file to compare it with as well.")
    if given := [name for name, value in facts.items() if value]:
        raise click.UsageError(f"--{given[0].replace('headers', 'header').replace('_', '-')} is for two files.")
    run_id = token(what[0])
    finish(lambda: _run(run_id, parent=parent, as_json=as_json, target=target))


def _files(
    a: str,
    b: str,
    *,
    as_json: bool,
    headers_a: Sequence[tuple[str, str]],
    headers_b: Sequence[tuple[str, str]],
    reply_a: Path | None,
    reply_b: Path | None,
    sent_at_a: float | None,
    sent_at_b: float | None,
) -> int:
    try:
        one = _sent(a, headers_a, reply_a, sent_at_a)
        other = _sent(b, headers_b, reply_b, sent_at_b)
        minimum = _minimum(one.body)
    except NexoforkError as exc:
        click.echo(plain(f"Error: {' '.join(str(exc).split())}"), err=True)
        return BAD_INPUT
    explanation = compare(one, other, minimum_tokens=minimum)
    if as_json:
        print_json(explanation.to_json())
    else:
        for line in explanation_lines(explanation):
            click.echo(line)
    return NOT_COMPLETED if explanation.loses else OK


async def _run(given: str, *, parent: Path | None, as_json: bool, target: Target) -> int:
    """Explain a run; its parent's file is read before NATS is asked for anything."""
    sent = None if parent is None else _sent(str(parent), (), None, None).body
    async with open_target(target) as bus:
        run_id = await resolve_run(bus, given, pool=target.pool)
        with patience("Comparing the run with its parent"):
            explained = await explain_run(bus, run_id, pool=target.pool, parent=sent)
    if as_json:
        print_json(explained.to_json())
    else:
        for line in run_lines(explained):
            click.echo(line)
    return NOT_COMPLETED if explained.cause not in (None, "below_minimum", "unmarked") else OK


def _sent(name: str, headers: Sequence[tuple[str, str]], reply: Path | None, sent_at: float | None) -> Sent:
    body = _read(name)
    try:
        scan_request(body)
    except BadRequestBody as exc:
        where = "" if exc.offset is None else f" at byte {exc.offset}"
        raise ForkRefused(f"{name} {exc.problem}{where}. Give the body of a Messages request, as it was sent.") from exc
    joined: dict[str, str] = {}
    for key, value in headers:
        joined[key] = f"{joined[key]},{value}" if key in joined else value
    workspace_id = joined.pop(_WORKSPACE, None)
    return Sent(
        body=body,
        headers=joined,
        workspace_id=workspace_id,
        sent_at=sent_at,
        usage=None if reply is None else _reply(reply).usage,
    )


def _reply(path: Path) -> Reply:
    try:
        return Reply.from_response(_read(str(path)))
    except BadReply as exc:
        raise ForkRefused(f"{path} {exc.problem}. Give the API's response as it was received.") from exc


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as exc:
        raise ForkRefused(f"{name} cannot be read: {getattr(exc, 'strerror', None) or exc}.") from exc


def _minimum(body: bytes) -> int | None:
    facts = model_facts(scan_request(body).model)
    return facts.minimum_tokens if facts else None
