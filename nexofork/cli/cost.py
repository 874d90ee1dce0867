"""``nexofork cost``: what model calls cost, what they would have cost without sharing, and the least they could."""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import click

from nexofork.bus.ledger import check_ledger, read_bookings
from nexofork.cli.cost_chart import chart_lines
from nexofork.cli.exit_codes import OK
from nexofork.cli.options import prices_option, rfc3339, target_options, token
from nexofork.cli.output import brief, counted, print_json, print_table
from nexofork.cli.patience import patience
from nexofork.cli.run_ids import match_run
from nexofork.cli.session import finish, open_target
from nexofork.economics.ledger import By, Sums, price_calls, sum_by, total
from nexofork.economics.prices import load_prices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.bus.ledger import Booking, CheckedLedger
    from nexofork.cli.options import Target
    from nexofork.economics.ledger import PricedCall
    from nexofork.economics.prices import PriceList
    from nexofork.wire.ledger import BookedCall

__all__ = ["cost"]

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_SIBLINGS_S = 3_600.0
_NAME = 200
"""How much of a group's name the ledger keeps."""


def moment(value: Any) -> float:
    """Read a time: how long ago (``24h``), a day, or in RFC 3339."""
    if found := _SPAN.fullmatch(str(value)):
        return max(time.time() - int(found[1]) * _UNIT_S[found[2]], 0.0)
    try:
        return max(rfc3339(f"{value}T00:00:00Z" if _DAY.fullmatch(str(value)) else value), 0.0)
    except click.BadParameter:
        raise click.BadParameter(
            f"{value!r} is not a time: give how long ago, such as 90m, 24h or 7d, a day in UTC, "
            "such as 2026-05-04, or a time in RFC 3339, such as 2026-05-04T10:00:00Z."
        ) from None


@click.command()
@click.option(
    "--by",
    type=click.Choice(get_args(By)),
    default="day",
    show_default=True,
    help="What to add up; days are UTC.",
)
@click.option(
    "--since", type=moment, metavar="WHEN", help="Only calls sent since: 24h, 7d, a day, or a time in RFC 3339."
)
@click.option("--until", type=moment, metavar="WHEN", help="Only calls sent before.")
@click.option("--group", metavar="NAME", help="Only calls of this group.")
@click.option(
    "--run", "run_id", type=token, metavar="ID", help="Only calls of this run; the beginning of its id will do."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--chart/--no-chart", default=None, help="Draw bars; on a terminal unless said otherwise.")
@prices_option
@target_options
def cost(*, as_json: bool, as_csv: bool, chart: bool | None, target: Target, **chosen: Any) -> None:
    """Show what model calls cost: tokens, dollars, what no sharing would have cost, and the least possible.

    Confirmed calls came to their end; unconfirmed ones may have been billed for more than is known, because a
    connection or a daemon was lost; failed ones were refused and cost nothing.

    Each call is compared with the log of its run. Disputed ones contradict the entry of the daemon that claimed the
    run; unverified ones were booked by a daemon that the log does not name. Both are shown below the total and are not
    part of it. Logs are kept for three days; older calls count as they were booked.
    """
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms of the same; give one of them.")
    if chosen["since"] is not None and chosen["until"] is not None and chosen["since"] >= chosen["until"]:
        raise click.UsageError("--since is not before --until, so nothing can lie between them.")
    form = "json" if as_json else "csv" if as_csv else "table"
    finish(lambda: _cost(form=form, chart=chart, target=target, **chosen))


async def _cost(
    *,
    by: By,
    since: float | None,
    until: float | None,
    group: str | None,
    run_id: str | None,
    form: str,
    chart: bool | None,
    prices: str | None,
    target: Target,
) -> int:
    listed = load_prices(prices) if prices else None
    async with open_target(target) as bus:
        # What a call could have cost at least depends on its siblings, which may have been sent a little before.
        with patience("Reading the ledger"):
            booked = await read_bookings(bus, None if since is None else since - _SIBLINGS_S)
            checked = await check_ledger(bus, booked, pool=target.pool)
    if run_id is not None:
        # Not by the log: the ledger remembers runs for longer.
        named = [one.call.run_id for one in booked if one.call.pool == target.pool]
        run_id = match_run(run_id, named, where="runs with calls")

    def is_asked_for(call: BookedCall) -> bool:
        return (
            (since is None or call.at >= since)
            and (until is None or call.at < until)
            and (group is None or call.group == group[:_NAME])
            and (run_id is None or call.run_id == run_id)
        )

    calls = [priced for priced in price_calls(checked.counted, listed) if is_asked_for(priced.call)]
    doubted = _doubted(checked, is_asked_for, listed)
    rows, sums = sum_by(calls, by), total(calls)
    notes = [*_notes(calls), *_doubts(calls, checked, doubted)]
    if form == "json":
        plain = _calls_as_json(calls) if by == "call" else [row.to_json() for row in rows]
        apart = {one.sums.key: one.to_json() for one in doubted}
        print_json({"by": by, "rows": plain, "total": sums.to_json(), "notes": notes, **apart})
    elif form == "csv":
        _print_csv(rows, by)
        for note in _doubts(calls, checked, doubted):
            click.echo(note, err=True)
    elif not calls and not any(one.sums.calls for one in doubted):
        click.echo("No calls in the ledger that match.")
    else:
        _print_table(rows, [sums, *(one.sums for one in doubted if one.sums.calls)], by)
        if chart or (chart is None and sys.stdout.isatty()):
            click.echo()
            for line in chart_lines(rows, width=shutil.get_terminal_size().columns):
                click.echo(line)
        for note in notes:
            click.echo(note, err=True)
    return OK


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubted:
    """Entries that are shown and not added up."""

    sums: Sums
    keys: list[str]
    """The public keys of the daemons that booked them."""

    def to_json(self) -> dict[str, Any]:
        return {**self.sums.to_json(), "booked_by": self.keys}


def _doubted(
    checked: CheckedLedger, is_asked_for: Callable[[BookedCall], bool], listed: PriceList | None
) -> tuple[_Doubted, _Doubted]:
    def summed(key: str, bookings: Sequence[Booking]) -> _Doubted:
        # Each key's entries by themselves: one call may be booked by several.
        sums = Sums(key=key)
        keys = sorted({one.nkey for one in bookings if is_asked_for(one.call)})
        for nkey in keys:
            for priced in price_calls((one.call for one in bookings if one.nkey == nkey), listed):
                if is_asked_for(priced.call):
                    sums.add(priced)
        return _Doubted(sums=sums, keys=keys)

    return summed("disputed", checked.disputed), summed("unverified", checked.unverified)


def _doubts(calls: Sequence[PricedCall], checked: CheckedLedger, doubted: tuple[_Doubted, _Doubted]) -> list[str]:
    """Say what was not added up, and what could not be checked."""
    notes = []
    for one, why in zip(doubted, (_DISPUTED, _UNVERIFIED), strict=True):
        if one.sums.calls:
            who = ", ".join(brief(nkey, 60) for nkey in one.keys[:_KEYS])
            more = f" and {len(one.keys) - _KEYS} more" if len(one.keys) > _KEYS else ""
            notes.append(
                f"{counted(one.sums.calls, f'{one.sums.key} call')} not added up: {why} Booked by {who}{more}."
            )
    old = sum(priced.call.call_id in checked.unchecked for priced in calls)
    if old:
        notes.append(f"{counted(old, 'call')} cannot be checked any more: the logs of their runs have expired.")
    return notes


_KEYS = 3
_DISPUTED = "another daemon's key than the run's own booked them, with another bill."
_UNVERIFIED = "the run's log does not show that the daemon had the run."


def _calls_as_json(calls: Sequence[PricedCall]) -> list[dict[str, Any]]:
    """Return each call with everything that was booked of it."""
    return [
        {**total([one]).to_json(), "key": one.call.call_id, **one.call.model_dump(mode="json", exclude={"billed"})}
        for one in calls
    ]


def _notes(calls: Sequence[PricedCall]) -> list[str]:
    notes = []
    unpriced = sorted({priced.call.model for priced in calls if priced.money is None})
    if unpriced:
        names = ", ".join(repr(brief(name, 60)) for name in unpriced)
        notes.append(f"No price is known for {names}: tokens are counted, dollars are not.")
    blank = sum(priced.call.outcome == "unconfirmed" and priced.call.billed is None for priced in calls)
    if blank:
        notes.append(f"{counted(blank, 'unconfirmed call')} may have been billed for tokens that are not known here.")
    return notes


def _print_csv(rows: Sequence[Sums], by: By) -> None:
    plain = [row.to_json() for row in rows]
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    fields = list(total(()).to_json())
    writer.writerow([by, *fields[1:]])
    for row in plain:
        writer.writerow([_inert(str(row["key"])), *(row[field] for field in fields[1:])])
    click.echo(out.getvalue().encode("utf-8", "backslashreplace"), nl=False)


def _inert(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula: names come from strangers."""
    return f"'{text}" if text[:1] in ("=", "+", "@", "\t", "\r") or (text[:1] == "-" and text != "-") else text


def _print_table(rows: Sequence[Sums], below: Sequence[Sums], by: By) -> None:
    lines = [_cells(row) for row in (*rows, *below)]
    header = (by, *lines[0])
    # A column that says nothing in any row is left out.
    kept = [name for name in header[1:] if name in _ALWAYS or any(line[name] not in ("0", "-") for line in lines)]
    table = [
        (brief(row.key, 44), *(line[name] for name in kept)) for row, line in zip((*rows, *below), lines, strict=True)
    ]
    print_table((by, *kept), table, right=frozenset(range(1, len(kept) + 1)))


_ALWAYS = ("calls", "read", "fresh", "output", "$")


def _cells(row: Sums) -> dict[str, str]:
    def dollars(amount: float) -> str:
        return f"{amount:.4f}" if row.priced else "-"

    return {
        "calls": f"{row.calls:,}",
        "confirmed": f"{row.confirmed:,}",
        "unconfirmed": f"{row.unconfirmed:,}",
        "failed": f"{row.failed:,}",
        "read": f"{row.usage.cache_read_tokens:,}",
        "write 5m": f"{row.usage.cache_write_5m_tokens:,}",
        "write 1h": f"{row.usage.cache_write_1h_tokens:,}",
        "fresh": f"{row.usage.input_tokens:,}",
        "output": f"{row.usage.output_tokens:,}",
        "$": dollars(row.money.billed),
        "$ unshared": dollars(row.money.unshared),
        "$ ideal": dollars(row.money.ideal),
        "saved": "-" if row.saved is None else f"{row.saved:.1%}",
        "input/ideal": "-" if row.to_ideal is None else f"{row.to_ideal:.3f}",
    }
