"""``nexofork answer``: give a run what it asks for.

An inbox subject takes one message for ever, so a wrong answer cannot be taken back: it is sent only for a question that
is open on the run's log.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from nexofork.bus.jetstream import retry
from nexofork.bus.run_log import RunLog
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, target_options, token
from nexofork.cli.output import plain, print_json
from nexofork.cli.run_ids import resolve_run, run_argument
from nexofork.cli.session import finish, open_target
from nexofork.client.answers import check_open, put_answer, reply_of
from nexofork.errors import ForkRefused
from nexofork.policy.permissions import PermissionAnswer
from nexofork.policy.rules import parse_rule
from nexofork.wire.messages import Answer

if TYPE_CHECKING:
    from nexofork.cli.options import Target
    from nexofork.wire.messages import Asked

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
@run_argument()
@click.argument("ask_id", type=token)
@click.argument("text", metavar="[allow|deny]", required=False, default="")
@click.option("--remember", is_flag=True, help="Let the same go for the like of it until the run is over.")
@click.option("--rule", metavar="RULE", default="", help="What to remember, if not what the question suggests.")
@click.option("--note", metavar="TEXT", default="", help="Why; the model reads it where it is denied.")
@click.option("--data", type=_json_object, metavar="JSON", help="The answer to what is no permission, as JSON.")
@json_option
@target_options
def answer(run_id: str, ask_id: str, *, target: Target, as_json: bool, **said: Any) -> None:
    """Allow or deny a call that a run asks permission for; `nexofork logs RUN_ID` shows what it asks.

    The first answer stands. Exits with 2 if the question is not open.
    """
    if not said["text"] and said["data"] is None:
        raise click.UsageError("Say the answer: allow or deny, or --data JSON for what is no permission.")
    finish(lambda: _answer(run_id, ask_id, _Said(**said), as_json=as_json, target=target))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    text: str
    remember: bool
    rule: str
    note: str
    data: dict[str, Any] | None


async def _answer(given: str, ask_id: str, said: _Said, *, as_json: bool, target: Target) -> int:
    async with open_target(target) as bus:
        run_id = await resolve_run(bus, given, pool=target.pool)
        entries = await retry(bus, RunLog(bus, run_id, pool=target.pool).entries)
        asked = check_open(run_id, ask_id, entries)
        if asked.what == "permission":
            answer = _permission(run_id, ask_id, said, asked)
            message = reply_of(answer, by="nexofork answer")
        else:
            message = _data(run_id, said)
        await put_answer(bus, run_id, ask_id, message, pool=target.pool)
    shown: dict[str, Any] = {"run_id": run_id, "ask_id": ask_id, "outcome": "answered"}
    if asked.what == "permission":
        shown["answer"] = said.text
        remembered = [said.rule] if said.rule else asked.rules if said.remember else []
        if remembered:
            shown["rules"] = remembered
    if as_json:
        print_json(shown)
    else:
        rules = f", and for the rest of the run: {', '.join(shown['rules'])}" if "rules" in shown else ""
        click.echo(f"{run_id}  {ask_id}  answered {said.text}{plain(rules)}".rstrip())
    return OK


def _permission(run_id: str, ask_id: str, said: _Said, asked: Asked) -> PermissionAnswer:
    if said.text not in ("allow", "deny") or said.data is not None:
        raise ForkRefused(f"Ask {ask_id} of run {run_id} is about a permission; answer it with allow or deny.")
    if said.rule:
        parse_rule(said.rule)
    elif said.remember and not asked.rules:
        raise ForkRefused(
            f"Ask {ask_id} of run {run_id} suggests nothing to remember; name it with --rule, or leave --remember out."
        )
    return PermissionAnswer(
        allow=said.text == "allow", note=said.note, remember=said.remember or bool(said.rule), rule=said.rule
    )


def _data(run_id: str, said: _Said) -> Answer:
    message = Answer(kind="answer", at=time.time(), text=said.text, data=said.data or {})
    if "payload" not in message.data:
        raise ForkRefused(
            f"Run {run_id} asks for a content that only its parent has; leave it to the parent, "
            "or give --data with its `payload`."
        )
    return message
