"""What parents put into the inboxes of this daemon's runs.

One subscription serves all runs of the daemon; the live message is a hint, what counts is what the stream has. A run
that was asked for while we were listening, and for which nothing came, has an empty inbox: nobody need read it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import call, retry
from nexofork.bus.reading import read_subject
from nexofork.run.mailbox import Letter
from nexofork.wire.messages import Answer
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import inbox_filter, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nexofork.bus.connection import Bus, Msg
    from nexofork.run.mailbox import Mailbox

__all__ = ["InboxMail", "Inboxes", "NoticeFirst"]

log = logging.getLogger(__name__)

_REMEMBERED = 10_000


class Inboxes:
    """Tells each run when something came for it."""

    def __init__(self, bus: Bus, *, pool: str) -> None:
        self._bus = bus
        self._pool = pool
        self._listeners: dict[str, list[Callable[[str], None]]] = {}
        self._addressed: OrderedDict[str, None] = OrderedDict()
        self._since: int | None = None
        self._asking = asyncio.Lock()
        self._bus.on_reconnect(self._missed)

    async def open(self) -> None:
        """Start listening.

        Raises:
            BusError: NATS does not let us.
        """
        await self._bus.subscribe(inbox_filter("*", self._pool), self._arrived)
        await retry(self._bus, lambda: self.may_hold("", 0), limit_s=math.inf)

    async def may_hold(self, run_id: str, seq: int) -> bool:
        """Whether a run's inbox may hold something.

        Args:
            run_id: The run.
            seq: Where its request stands in the log's stream.

        Raises:
            BusError: NATS did not answer.
        """
        async with self._asking:
            if self._since is None:
                info = await call(self._bus, f"STREAM.INFO.{log_stream(self._pool)}")
                self._since = int(info["state"]["last_seq"])
            return seq <= self._since or run_id in self._addressed

    def _missed(self) -> None:
        # What came while we were away was not seen.
        self._since = None

    def listen(self, owner: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener(name)` for everything that comes for a run, or from a parent; returns what ends that."""
        self._listeners.setdefault(owner, []).append(listener)

        def stop() -> None:
            listeners = self._listeners[owner]
            listeners.remove(listener)
            if not listeners:
                del self._listeners[owner]

        return stop

    def _arrived(self, message: Msg) -> None:
        name, run_id = message.subject.rpartition(".")[2], run_of(message.subject)
        if name != "alive":
            self._addressed[run_id] = None
            if len(self._addressed) > _REMEMBERED:
                self._addressed.popitem(last=False)
                self._missed()
        for listener in list(self._listeners.get(run_id, ())):
            listener(name)


class InboxMail:
    """The messages to one run; a `Mailbox` for the engine."""

    def __init__(self, bus: Bus, run_id: str, *, pool: str, delivered: Iterable[str], waiting: bool) -> None:
        self._bus = bus
        self._filter = inbox_filter(run_id, pool)
        self._stream = inbox_stream(pool)
        self._delivered = set(delivered)
        self._next = 1
        self._waiting = waiting

    def hint(self, _: str) -> None:
        """Something came; look at the next turn."""
        self._waiting = True

    async def take(self) -> Sequence[Letter]:
        """Return the messages that were not delivered yet.

        Raises:
            BusError: NATS was not reached.
        """
        if not self._waiting:
            return ()
        self._waiting = False
        letters = []
        try:
            found = await read_subject(self._bus, self._stream, self._filter, start_seq=self._next)
        except BaseException:
            self._waiting = True  # whoever looks next finds them
            raise
        for stored in found:
            self._next = stored.seq + 1
            try:
                answer = Answer.model_validate_json(stored.data)
            except ValueError:
                log.warning("ignored an unreadable message in %s", stored.subject)
                continue
            if answer.kind == "message" and answer.id not in self._delivered and answer.text.strip():
                self._delivered.add(answer.id)
                letters.append(Letter(id=answer.id, text=answer.text))
        return letters

    def left(self) -> Sequence[Letter]:
        """Return nothing: what has come is known to the stream, which is asked once more when the run reports."""
        return ()


class NoticeFirst:
    """A mailbox in which something of the daemon's own lies on top: it is written down and shown like any letter."""

    def __init__(self, mail: Mailbox, news: Letter | None) -> None:
        self._mail = mail
        self._news = [news] if news else []

    async def take(self) -> Sequence[Letter]:
        """Return what has come since the last call, the news before it."""
        news, self._news = self._news, []
        return [*news, *await self._mail.take()]

    def left(self) -> Sequence[Letter]:
        """Return what has come and was never taken; news of the daemon's own is nobody's message."""
        return self._mail.left()
