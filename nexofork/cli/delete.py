"""``nexofork delete``: remove what NATS stores of runs that are over, before it expires.

Messages are deleted one by one, because then the server overwrites their bytes on disk. The log goes last, so that a
deletion that was interrupted can be repeated: the log names the contents that are stored apart from it. A content that
another run refers to is kept.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from nexofork.bus.failures import JetStreamRefused
from nexofork.bus.jetstream import call
from nexofork.bus.reading import last_direct, read_subject
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import counted, print_json
from nexofork.cli.patience import patience
from nexofork.cli.run_ids import resolve_runs, runs_argument
from nexofork.cli.session import finish, open_target
from nexofork.client.runs import find_runs, list_runs
from nexofork.errors import ForkRefused
from nexofork.wire import subjects
from nexofork.wire.streams import BLOBS, inbox_stream, log_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored
    from nexofork.cli.options import Target

__all__ = ["delete"]

_NO_MESSAGE = (10037, 10043)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """A content that is stored apart from the log."""

    owner: str
    name: str
    chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deleted:
    """What was removed of one run."""

    run_id: str
    log: int
    """Messages of its log."""
    inbox: int
    """Messages of its inbox."""
    contents: int
    """Contents that were stored apart."""
    kept: int
    """Contents that other runs refer to."""


@click.command()
@runs_argument(required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@target_options
def delete(run_ids: tuple[str, ...], *, yes: bool, as_json: bool, target: Target) -> None:
    """Delete what NATS stores of runs that are over (admin).

    Removes the log, the inbox and the contents that no other run refers to. The ledger keeps the bill, without any text
    of the conversation. Works where the streams were made with `nexofork provision --deletable`. Exits with 0 once all
    of it is gone, 2 if a run is unknown or not over, or the streams do not allow it; then nothing is deleted.
    """
    if not yes:
        click.confirm(f"Delete {counted(len(run_ids), 'run')} for good?", abort=True, err=True)
    finish(lambda: _delete(run_ids, as_json=as_json, target=target))


async def _delete(given: Sequence[str], *, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        run_ids = await resolve_runs(bus, given, pool=target.pool)
        logs = {run_id: await _log(bus, run_id, target.pool) for run_id in run_ids}
        if unknown := [run_id for run_id, entries in logs.items() if not entries]:
            raise ForkRefused(f"There is no run {' '.join(unknown)} in pool {target.pool}; it may have expired.")
        if going := [row.run_id for row in await list_runs(bus, target.pool, ids=run_ids) if not row.over]:
            raise ForkRefused(f"Not over yet: {' '.join(going)}. End them with `nexofork abort` first.")
        await _check_streams(bus, target.pool)
        for run_id, entries in logs.items():
            with patience(f"Deleting {run_id}"):
                gone = await _delete_run(bus, run_id, entries, pool=target.pool)
            if as_json:
                print_json(asdict(gone))
            else:
                kept = f"; {counted(gone.kept, 'content')} kept for other runs" if gone.kept else ""
                messages = counted(gone.log + gone.inbox, "message")
                click.echo(f"{run_id}  deleted {messages} and {counted(gone.contents, 'content')}{kept}")
    return OK


async def _check_streams(bus: Bus, pool: str) -> None:
    for stream in (log_stream(pool), inbox_stream(pool), BLOBS):
        if (await call(bus, f"STREAM.INFO.{stream}"))["config"].get("deny_delete"):
            raise ForkRefused(
                f"Stream {stream} does not allow messages to be deleted, because it was not made with `nexofork "
                "provision --deletable`. Its messages expire by age."
            )


async def _log(bus: Bus, run_id: str, pool: str) -> list[Stored]:
    return await read_subject(bus, log_stream(pool), subjects.run_filter(run_id, pool))


async def _delete_run(bus: Bus, run_id: str, entries: Sequence[Stored], *, pool: str) -> _Deleted:
    named = {content for entry in entries for content in await _named(bus, entry)}
    shared = await _shared(bus, run_id, named)
    contents = 0
    for content in named - shared:
        contents += bool(sum([await _delete_all(bus, BLOBS, [chunk]) async for chunk in _chunks(bus, content)]))
    inbox = inbox_stream(pool)
    letters = await _delete_all(bus, inbox, await read_subject(bus, inbox, subjects.inbox_filter(run_id, pool)))
    # The request goes last: without it the run is unknown, and the rest of it could not be found again.
    logged = await _delete_all(bus, log_stream(pool), reversed(entries))
    return _Deleted(run_id=run_id, log=logged, inbox=letters, contents=contents, kept=len(shared))


async def _delete_all(bus: Bus, stream: str, messages: Iterable[Stored]) -> int:
    deleted = 0
    for message in messages:
        try:
            await call(bus, f"STREAM.MSG.DELETE.{stream}", {"seq": message.seq})
        except JetStreamRefused as refused:
            if refused.err_code not in _NO_MESSAGE:
                raise
        else:
            deleted += 1
    return deleted


async def _chunks(bus: Bus, content: _Content) -> AsyncIterator[Stored]:
    for number in range(content.chunks):
        if (chunk := await last_direct(bus, BLOBS, subjects.blob(content.owner, content.name, number))) is not None:
            yield chunk


async def _shared(bus: Bus, run_id: str, contents: set[_Content]) -> set[_Content]:
    """Return those of the contents that another run of any pool refers to."""
    found = set[_Content]()
    for pool in await _pools(bus):
        for other in await find_runs(bus, "", pool=pool):
            if other != run_id and contents - found:
                data = b"\n".join([entry.data for entry in await _log(bus, other, pool)])
                found |= {content for content in contents - found if content.name.encode() in data}
    return found


async def _pools(bus: Bus) -> list[str]:
    """Return the pools of this account; they share the stored contents."""
    pools, seen = list[str](), 0
    while True:
        page = await call(bus, "STREAM.LIST", {"offset": seen})
        streams = page.get("streams") or []
        seen += len(streams)
        subjects_of = [subject.split(".") for one in streams for subject in one["config"].get("subjects") or []]
        pools += [parts[1] for parts in subjects_of if parts[0] == "agent" and parts[-1] == "events"]
        if not streams or seen >= int(page.get("total", 0)):
            return pools


async def _named(bus: Bus, entry: Stored) -> list[_Content]:
    """Return the contents that a message of the log refers to, and those that its result refers to."""
    message = _parsed(entry.data)
    found = list(_references(message))
    result = message.get("result") if isinstance(message, dict) else None
    if isinstance(result, dict):
        stored = b"".join([chunk.data for content in _references(result) async for chunk in _chunks(bus, content)])
        found += _references(_parsed(stored or str(result.get("text", "")).encode("utf-8", "surrogatepass")))
    return found


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _references(value: Any) -> Iterable[_Content]:
    """Return the references in a JSON value, at any depth."""
    left = [value]
    while left:
        match left.pop():
            case {"owner": str(owner), "sha256": str(digest), "chunks": int(chunks), **more}:
                yield _Content(owner=owner, name=str(more.get("name", digest)), chunks=min(chunks, 100_000))
            case dict(fields):
                left += fields.values()
            case list(items):
                left += items
