"""What a model call can die of, by name.

The branches say what to do::

    ProviderError
    ├── BadRequest           the API refuses the request; the same bytes will be refused again
    │   └── ContextOverflow      the conversation no longer fits the model
    ├── Unauthorized         the key is missing, wrong, or not allowed to do this
    ├── TooLarge             the body is over the API's size limit
    ├── RateLimited          wait for `retry_after_s`; without one, a spend cap was reached
    ├── Overloaded           the API is busy
    ├── ServerFault          the API failed
    ├── ConnectionLost       no answer, or it stopped in the middle
    ├── StreamFailed         the API reported an error inside a stream it had begun
    ├── Redirected           the API points to another address; a prompt is not sent there
    ├── UnaskedEncoding      the answer is compressed, and no compression was asked for
    ├── ReplyTooLarge        the answer is larger than any model writes
    └── ImpossibleUsage      the answer's token counts cannot be true

A caller reads ``retryable``; a person reads the message, which ends with what to do.
"""

from __future__ import annotations

from typing import ClassVar

from nexofork.errors import ProviderError

__all__ = [
    "BadRequest",
    "ConnectionLost",
    "ContextOverflow",
    "ImpossibleUsage",
    "Overloaded",
    "RateLimited",
    "Redirected",
    "ReplyTooLarge",
    "ServerFault",
    "StreamFailed",
    "TooLarge",
    "UnaskedEncoding",
    "Unauthorized",
]


class _Answered(ProviderError):
    """The API answered, with an error; a subclass says what that means."""

    means: ClassVar[str]
    advice: ClassVar[str]
    may_retry: ClassVar[bool] = False

    def __init__(
        self, said: str, *, status: int | None, request_id: str | None = None, advice: str = "", retryable: bool = False
    ) -> None:
        self.said = said.strip()
        """What the API said, in its words."""
        http = "no request was sent" if status is None else f"HTTP {status}"
        reference = f"{http}, request {request_id}" if request_id else http
        end = "" if self.said.endswith((".", "!", "?")) else "."
        super().__init__(
            f"{self.means} ({reference}): {self.said}{end} {advice or self.advice}",
            retryable=retryable or self.may_retry,
            status=status,
            request_id=request_id,
        )


class BadRequest(_Answered):
    """The API refuses this request."""

    means = "The API refused the request"
    advice = "Sending it again will not help; change the request."


class ContextOverflow(BadRequest):
    """The conversation no longer fits the model's context window."""

    means = "The conversation does not fit the model's context"
    advice = "Fork from an earlier turn, or compact the parent's conversation first."


class Unauthorized(_Answered):
    """The key is missing, wrong, out of credit or not allowed to do this."""

    means = "The API does not accept the credentials"
    advice = "Check ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) and, for another server, ANTHROPIC_BASE_URL."


class TooLarge(_Answered):
    """The body is over the API's size limit."""

    means = "The request body is too large"
    advice = "Take images or documents out of the parent's conversation, or fork from an earlier turn."


class RateLimited(_Answered):
    """The key's rate limit or spend cap was reached."""

    means = "The API limits this key"
    advice = "It names no time to wait, so this is a spend cap: raise the limit in the console."

    def __init__(
        self, said: str, *, retry_after_s: float | None, status: int = 429, request_id: str | None = None
    ) -> None:
        self.retry_after_s = retry_after_s
        """How long the API asks to wait; None when it names no time, as for a spend cap."""
        limited = retry_after_s is not None
        advice = f"It asks to wait {retry_after_s:g} s: do so, or run fewer forks at a time." if limited else ""
        super().__init__(said, status=status, request_id=request_id, advice=advice, retryable=limited)


class Overloaded(_Answered):
    """The API is busy."""

    means = "The API is overloaded"
    advice = "Try again in a while."
    may_retry = True


class ServerFault(_Answered):
    """The API failed on its side."""

    means = "The API failed"
    advice = "Try again; if it stays, report the request to the provider."
    may_retry = True


class Redirected(_Answered):
    """The API points to another address. It is not followed: the prompt and the key are for the configured server."""

    means = "The API redirects the request"
    advice = "Redirects are not followed. Set ANTHROPIC_BASE_URL to the address that answers."


class UnaskedEncoding(_Answered):
    """The answer is compressed, and the request asked for ``identity``."""

    means = "The answer is encoded in a way that was not asked for"
    advice = "Turn off compression in the server or the proxy in front of it."


class ReplyTooLarge(_Answered):
    """The answer is larger than any model writes; reading it stopped at the limit."""

    means = "The answer is too large"
    advice = "Check the server that ANTHROPIC_BASE_URL names."


class ImpossibleUsage(_Answered):
    """The answer's token counts cannot be true, so they are not booked; the call may have been billed."""

    means = "The answer's token counts cannot be true"
    advice = "The bill of this call is unknown. Check the server that ANTHROPIC_BASE_URL names."


class StreamFailed(_Answered):
    """The API reported an error inside a stream it had begun, or the stream made no sense."""

    means = "The stream broke off"
    advice = "Sending it again will not help; change the request."

    def __init__(self, said: str, *, type: str, request_id: str | None = None) -> None:
        self.type = type
        """The API's own ``error.type``, or ``malformed_stream``."""
        retryable = type not in _FINAL_TYPES
        advice = "Try again." if retryable else ""
        super().__init__(f"{type}: {said}", status=200, request_id=request_id, advice=advice, retryable=retryable)


_FINAL_TYPES = frozenset(
    {
        "authentication_error",
        "billing_error",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "request_too_large",
    }
)


class ConnectionLost(ProviderError):
    """No answer came, or it stopped in the middle."""

    def __init__(self, what: str, *, retryable: bool = True, request_id: str | None = None) -> None:
        self.what = what
        advice = "Check the network and ANTHROPIC_BASE_URL." if retryable else "Use a client that is open."
        super().__init__(
            f"The connection to the API failed: {what}. {advice}", retryable=retryable, request_id=request_id
        )
