"""``nexofork answer``: give a run what it asks for.

An inbox subject takes one message for ever, so a wrong answer cannot be taken back: it is sent only for a question that
is open on the run's log.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from nexofork.bus.failures import AlreadyStored
from nexofork.bus.jetstream import store
from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, run_name, target_options, token
from nexofork.cli.output import print_json
from nexofork.cli.session import finish, open_target
from nexofork.errors import ForkRefused
from nexofork.wire.messages import Answer, Asked, Final, encode
from nexofork.wire.subjects import inbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.bus.run_log import Entry
    from nexofork.cli.options import Target

__all__ = ["answer"]


def _json_object(value: Any) -> dict[str, Any]:
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise click.BadParameter(f"{str(value)[:80]!r} is not a JSON object.")
    return data


@click.command()
@click.argument("run_id", type=run_name)
@click.argument("ask_id", type=token)
@click.argument("text", required=False, default="")
@click.option("--data", type=_json_object, metavar="JSON", help="The answer as a JSON object.")
@json_option
@target_options
def answer(run_id: str, ask_id: str, text: str, *, data: dict[str, Any] | None, as_json: bool, target: Target) -> None:
    """Answer something a run asks for; `nexofork logs RUN_ID` shows what that is."""
    if not text and data is None:
        raise click.UsageError("Say the answer: as text, or as --data JSON.")
    message = Answer(kind="answer", at=time.time(), text=text, data=data or {})
    finish(lambda: _answer(run_id, ask_id, message, as_json=as_json, target=target))


async def _answer(run_id: str, ask_id: str, message: Answer, *, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        _check_open(run_id, ask_id, await RunLog(bus, run_id, pool=target.pool).entries())
        if "payload" not in message.data:  # the one thing that is asked for as yet
            raise ForkRefused(
                f"Run {run_id} asks for a content that only its parent has; leave it to the parent, "
                "or give --data with its `payload`."
            )
        try:
            await store(bus, inbox(run_id, ask_id, target.pool), encode(message))
        except AlreadyStored as exc:
            raise ForkRefused(f"Ask {ask_id} of run {run_id} was answered before; the first answer stands.") from exc
    if as_json:
        print_json({"run_id": run_id, "ask_id": ask_id, "outcome": "answered"})
    else:
        click.echo(f"{run_id}  {ask_id}  answered")
    return OK


def _check_open(run_id: str, ask_id: str, entries: Sequence[Entry]) -> None:
    """Refuse an answer to what is not asked.

    Raises:
        ForkRefused: The question is not on the log, or the run waits for no answer any more.
    """
    if not entries:
        raise ForkRefused(f"There is no run {run_id!r}; it may have expired.")
    if any(isinstance(entry.message, Final) for entry in entries):
        raise ForkRefused(f"Run {run_id} is over; it asks for nothing any more.")
    asked = [entry.message.ask_id for entry in entries if isinstance(entry.message, Asked)]
    if ask_id not in asked:
        known = ", ".join(asked) or "nothing"
        raise ForkRefused(f"Run {run_id} has no open ask {ask_id!r}; it asked: {known}.")
