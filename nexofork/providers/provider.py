"""The seam between the engine and a model: a request's exact bytes go in, typed events come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from nexofork.core.reply import Reply, ReplyBlock
    from nexofork.core.rope import Rope
    from nexofork.core.usage import Usage
    from nexofork.errors import ProviderError

__all__ = [
    "BlockFinished",
    "CallRepeated",
    "CallRetried",
    "MessageFinished",
    "MessageStarted",
    "ModelRequest",
    "Provider",
    "ProviderEvent",
    "TextDelta",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One streaming Messages call."""

    body: Rope
    """The exact body; it holds ``"stream":true`` itself."""
    headers: tuple[tuple[str, str], ...] = ()
    """Cache-relevant headers of the parent: ``anthropic-version`` and ``anthropic-beta``, as the parent sent them."""
    query: tuple[tuple[str, str], ...] = ()
    """The parent's query string (``beta=true``)."""
    on_send: Callable[[], object] = field(default=lambda: None, compare=False)
    """Called each time the body begins to be sent; an attempt that ended before that was not billed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStarted:
    """The response has begun: from here on its cache writes can be read by others."""

    message_id: str
    model: str
    usage: Usage
    """Input counts are final, the output count is not."""
    workspace_id: str | None = None
    organization_id: str | None = None
    request_id: str | None = None
    diagnostics: dict[str, Any] | None = None
    """The API's own cache diagnostics: empty where it found nothing changed, None where it said nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of visible text, for whoever watches."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFinished:
    """A content block is complete."""

    index: int
    block: ReplyBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFinished:
    """The whole message arrived; always the last event."""

    reply: Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRetried:
    """The attempt failed and the same bytes are sent again; what it had yielded no longer counts."""

    attempt: int
    """The number of the attempt that failed, from 1."""
    error: ProviderError
    delay_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRepeated:
    """The pause after a failed attempt is over; the next attempt is sent when the consumer asks for the next event."""


ProviderEvent: TypeAlias = MessageStarted | TextDelta | BlockFinished | MessageFinished | CallRetried | CallRepeated


class Provider(Protocol):
    """Something that answers Messages requests."""

    diagnostics: bool
    """Whether requests may ask for cache diagnostics; set to False once a server has refused the field."""

    @property
    def workspace_id(self) -> str | None:
        """The workspace the calls are billed to, once a response has shown it."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent]:
        """Send the bytes and yield what happens; ends with `MessageFinished` or raises.

        Every attempt calls the request's `on_send` before the first byte of the body goes out. Closing the iterator or
        cancelling its task closes the socket.

        Raises:
            ProviderError: The call failed and retrying did not help or would not.
        """
