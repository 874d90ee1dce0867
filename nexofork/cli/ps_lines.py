"""Runs, daemons and their sums: as lines for people and as objects for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from nexofork.cli.columns import table_lines
from nexofork.cli.output import brief, coloured, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nexofork.client.pool import PoolTotals
    from nexofork.client.runs import RunRow
    from nexofork.wire.messages import Presence

__all__ = ["by_urgency", "daemon_lines", "daemon_object", "run_lines", "run_phrase", "totals_line", "totals_object"]

_ORDER = {"running": 0, "aborting": 0, "aborting (no daemon)": 0, "queued": 1}


def daemon_object(presence: Presence) -> dict[str, Any]:
    """Return a daemon as JSON values."""
    identity = presence.daemon
    return {
        "name": identity.name,
        "host": identity.host,
        "instance": identity.instance,
        "nkey": identity.nkey,
        "pool": presence.pool,
        "slots": presence.slots,
        "running": presence.running,
        "draining": presence.draining,
        "version": presence.version,
        "workspace_id": presence.workspace_id,
        "sandbox": presence.sandbox,
    }


def daemon_lines(daemons: Iterable[Presence]) -> list[str]:
    """Return the daemons as a table."""
    rows = [
        (
            brief(one.daemon.name, 30),
            brief(one.daemon.host, 30),
            f"{one.running}/{one.slots}",
            one.pool,
            brief(one.sandbox, 20),
            brief(one.version, 20),
            "draining" if one.draining else "",
        )
        for one in daemons
    ]
    if not rows:
        return ["No daemons. Start one with `nexofork daemon`."]
    return table_lines(("daemon", "host", "slots", "pool", "sandbox", "version", ""), rows, right=frozenset({2}))


def by_urgency(rows: Iterable[RunRow]) -> list[RunRow]:
    """Return what runs first, then what waits, then what is over; in each the newest first."""
    newest = sorted(rows, key=lambda row: row.requested_at or 0.0, reverse=True)
    return sorted(newest, key=lambda row: _ORDER.get(row.status, 2))


def run_lines(rows: Sequence[RunRow]) -> list[str]:
    """Return the runs as a table."""
    if not rows:
        return ["No runs."]
    cells = [
        (
            row.run_id,
            coloured(row.status),
            row.last,
            brief(row.daemon or "-", 24),
            str(row.epoch),
            "-" if row.turns is None else str(row.turns),
            f"{row.usage.hit_ratio:.0%}" if row.usage.prompt_tokens else "-",
            "-" if row.cost_usd is None else f"{row.cost_usd:.4f}",
            _age(row.to_json()["age_s"]),
            brief(row.directive or row.label, 40),
        )
        for row in rows
    ]
    header = ("run", "status", "last", "daemon", "epoch", "turns", "hit", "$", "age", "directive")
    return table_lines(header, cells, right=frozenset(range(4, 9)))


def run_phrase(row: RunRow) -> str:
    """Return what a run is at, as one line."""
    hit = f", read {row.usage.hit_ratio:.0%} from the cache" if row.usage.prompt_tokens else ""
    cost = f", ${row.cost_usd:.4f}" if row.cost_usd is not None else ""
    where = f" on {row.daemon}" if row.daemon else ""
    turns = "" if row.turns is None else f", {counted(row.turns, 'turn')}"
    last = "" if row.over else f" ({row.last})"
    return f"{row.run_id}  {coloured(row.status)}{last}{brief(where, 40)}{turns}{hit}{cost}"


def totals_object(totals: PoolTotals) -> dict[str, Any]:
    """Return the sums as JSON values."""
    return {
        "hosts": totals.hosts,
        "daemons": totals.daemons,
        "slots": totals.slots,
        "busy": totals.busy,
        "queued": totals.queued,
        "running": totals.running,
        "ended": totals.ended,
        "usage": totals.usage.to_wire(),
        "hit_ratio": round(totals.usage.hit_ratio, 6),
        "cost_usd": totals.cost_usd,
    }


def totals_line(totals: PoolTotals) -> str:
    """Return the sums as one line."""
    spent = "-" if totals.cost_usd is None else f"${totals.cost_usd:.4f}"
    hit = f"{totals.usage.hit_ratio:.1%}" if totals.usage.prompt_tokens else "-"
    words = (
        f"{counted(totals.hosts, 'host')}, {totals.busy}/{totals.slots} slots",
        f"{totals.running} running, {totals.queued} queued, {totals.ended} ended",
        f"hit {hit}",
        f"spent {spent}",
    )
    return "   ".join(click.style(word, bold=True) for word in words)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
