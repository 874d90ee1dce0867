"""Say something to a running child from any process, and find out when it came too late.

An inbox takes whatever a parent puts there, whether or not anybody will read it. So the log is asked before and after:
a message that is not delivered is an error to its sender, or stands in the run's result, and never just gone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import retry
from nexofork.bus.reading import last_of, store_once
from nexofork.bus.run_log import RunLog
from nexofork.errors import BadMessage, ForkIsOver, ForkRefused
from nexofork.wire.messages import Answer, Delivered, Final, decode_report, encode
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import inbox, reports, run_filter

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus

__all__ = ["post_letter", "written"]


def written(text: str) -> Answer:
    """Return a message to a child, with an id of its own.

    Raises:
        ForkRefused: It says nothing.
    """
    if not text.strip():
        raise ForkRefused("The message is empty; say something.")
    return Answer(kind="message", at=time.time(), text=text)


async def post_letter(bus: Bus, run_id: str, letter: Answer, *, pool: str) -> None:
    """Put a message to a child into its inbox.

    Raises:
        ForkIsOver: The run ended before, or while the message was on its way and without reading it.
        ForkRefused: There is no such run.
        BusError: NATS was not reached.
    """
    if (end := await retry(bus, lambda: _end(bus, run_id, pool))) is not None:
        raise ForkIsOver(run_id, status=end.status)
    if await retry(bus, lambda: last_of(bus, log_stream(pool), run_filter(run_id, pool))) is None:
        raise ForkRefused(f"There is no run {run_id!r} in pool {pool!r}; it may have expired.")
    await store_once(bus, inbox_stream(pool), inbox(run_id, letter.id, pool), encode(letter))
    end = await retry(bus, lambda: _end(bus, run_id, pool))
    if end is not None and not await retry(bus, lambda: _was_delivered(bus, run_id, pool, letter.id)):
        raise ForkIsOver(run_id, status=end.status, stored=True)


async def _end(bus: Bus, run_id: str, pool: str) -> Final | None:
    stored = await last_of(bus, log_stream(pool), reports(run_id, pool))
    try:
        report = None if stored is None else decode_report(stored.data)
    except BadMessage:
        return None
    return report if isinstance(report, Final) else None


async def _was_delivered(bus: Bus, run_id: str, pool: str, letter_id: str) -> bool:
    entries = await RunLog(bus, run_id, pool=pool).entries()
    return any(letter_id in entry.message.ids for entry in entries if isinstance(entry.message, Delivered))
