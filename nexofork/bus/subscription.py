"""A message that came in, and the standing interest that brings it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from nats import errors as nats_errors

from nexofork.errors import BusError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from nats.aio.client import Client
    from nats.aio.msg import Msg as NatsMsg
    from nats.aio.subscription import Subscription as NatsSubscription

    from nexofork.bus.connection import Bus
    from nexofork.bus.failures import NotPermitted

__all__ = ["Msg", "Reply", "Subscription"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Msg:
    """A message as it came; nothing in it is trusted but the subject and what the server adds."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: NatsMsg) -> Msg:
        """Take over a message of nats-py."""
        return cls(subject=raw.subject, data=raw.data, reply=raw.reply, headers=raw.headers or {})

    @property
    def status(self) -> str:
        """The status the server gives a message that carries no data; a stored message can forge it."""
        return self.headers.get("Status", "")


Reply: TypeAlias = Msg


class Subscription:
    """Interest in a subject; restored after every reconnect until it is given up."""

    def __init__(
        self, bus: Bus, client: Client, subject: str, handler: Callable[[Msg], Awaitable[None] | None]
    ) -> None:
        self.subject = subject
        self.denied: NotPermitted | None = None
        """Set when the server does not permit this subscription; ``Bus.flushed`` waits until that is known."""
        self._bus = bus
        self._client = client
        self._handler = handler
        self._inner: NatsSubscription | None = None

    async def begin(self) -> None:
        """Tell the server; done by ``Bus.subscribe``."""
        self._inner = await self._client.subscribe(self.subject, cb=self._receive)

    async def unsubscribe(self) -> None:
        """Give up the interest; messages that were not handled yet are dropped."""
        if self._inner is not None:
            try:
                await self._inner.unsubscribe()
            except nats_errors.Error:
                log.debug("the subscription to %s ended with its connection", self.subject)

    async def drain(self) -> None:
        """Give up the interest after everything that the server has sent so far was handled."""
        if self._inner is not None and self._bus.connected:
            try:
                # nats-py's own drain pings before the server has its UNSUB, and would miss what comes between.
                await self._client._send_unsubscribe(self._inner._id)
                await self._bus.flushed()
                async with asyncio.timeout(self._bus.settings.request_timeout_s):
                    await self._inner._pending_queue.join()
            except (BusError, nats_errors.Error, TimeoutError):
                log.debug("the subscription to %s was not drained", self.subject)
        await self.unsubscribe()

    async def _receive(self, raw: NatsMsg) -> None:
        try:
            result = self._handler(Msg.of(raw))
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The handler awaited something that was cancelled; nats-py would end the subscription without a word.
            log.exception("the handler of %s was cancelled from inside", self.subject)
        except Exception:
            log.exception("the handler of %s failed", self.subject)
