"""Ask a run's parent for something only it can give."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from nexofork.bus.reading import last_of
from nexofork.wire.messages import Answer, Asked, Payload
from nexofork.wire.streams import inbox_stream
from nexofork.wire.subjects import inbox

if TYPE_CHECKING:
    from nexofork.errors import BusError
    from nexofork_daemon.host import Host
    from nexofork_daemon.journal import LogJournal

__all__ = ["ask_for"]


async def ask_for(payload: Payload, *, problem: BusError, run_id: str, journal: LogJournal, host: Host) -> bytes:
    """Ask for a content that is gone, and take what the parent puts into the inbox.

    Raises:
        RunAborted: The parent answered with an abort.
        BusError: The problem itself, where no usable answer came in time.
    """
    settings = host.settings
    ask_id = uuid.uuid4().hex
    subject = inbox(run_id, ask_id, settings.pool)
    answered = asyncio.Event()
    deaf = host.inboxes.listen(run_id, lambda name: answered.set() if name == ask_id else None)
    try:
        await journal.append(
            Asked(epoch=journal.epoch, at=time.time(), ask_id=ask_id, payload=payload, deadline_s=settings.ask_s)
        )
        async with asyncio.timeout(settings.ask_s):
            stored = None
            while stored is None:
                # The live message is a hint that may come before the stream has it.
                await answered.wait()
                stored = await last_of(host.bus, inbox_stream(settings.pool), subject)
    except TimeoutError:
        raise problem from None
    finally:
        deaf()
    try:
        answer = Answer.model_validate_json(stored.data)
        found = Payload.model_validate(answer.data.get("payload"))
    except ValueError:
        raise problem from None
    return await host.blobs.resolve(found)
