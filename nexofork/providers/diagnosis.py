"""Tell which failure it is, from what the SDK raised, the status, or an ``error`` event.

The SDK's transports do not agree on their exceptions (aiohttp's "server disconnected" arrives as a connect timeout), so
a lost connection is described by the first cause in the chain, not by the last wrapper.
"""

from __future__ import annotations

import email.utils
import time
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2

from nexofork.providers.failures import (
    BadRequest,
    ConnectionLost,
    ContextOverflow,
    Overloaded,
    RateLimited,
    ServerFault,
    StreamFailed,
    TooLarge,
    Unauthorized,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.errors import ProviderError

__all__ = ["failure_of_event", "failure_of_exception", "failure_of_status"]

_NO_REASON = "no reason given"
_OVERFLOW = ("prompt is too long", "exceed context limit")


def failure_of_event(event: Mapping[str, Any], *, request_id: str | None = None) -> StreamFailed:
    """Name the failure an ``error`` event reports."""
    error = event.get("error")
    error = error if isinstance(error, dict) else {}
    said, type_ = error.get("message") or _NO_REASON, error.get("type") or "unknown_error"
    return StreamFailed(str(said), type=str(type_), request_id=str(event.get("request_id") or "") or request_id)


def failure_of_exception(exc: Exception) -> ProviderError:
    """Name the failure behind what the SDK or its HTTP client raised."""
    match exc:
        case anthropic.APIStatusError():
            said = exc.api_message or exc.response.reason_phrase or _NO_REASON
            return failure_of_status(exc.status_code, said, headers=exc.response.headers)
        case anthropic.CredentialsError():
            return Unauthorized(str(exc), status=None)
        case anthropic.APIConnectionError() if isinstance(exc.__cause__, RuntimeError):
            # The HTTP client refuses to work at all, for example because it was closed.
            return ConnectionLost(str(exc.__cause__).rstrip("."), retryable=False)
    return ConnectionLost(_story(exc))


def failure_of_status(status: int, said: str, *, headers: Mapping[str, str]) -> ProviderError:
    """Name the failure an error response means; a server that says whether to retry is believed."""
    error = _by_status(status, said, headers)
    verdict = headers.get("x-should-retry")
    if verdict in ("true", "false"):
        error.retryable = verdict == "true"
    return error


def _by_status(status: int, said: str, headers: Mapping[str, str]) -> ProviderError:
    request_id = headers.get("request-id")
    match status:
        case 401 | 402 | 403:
            return Unauthorized(said, status=status, request_id=request_id)
        case 413:
            return TooLarge(said, status=status, request_id=request_id)
        case 429:
            return RateLimited(said, retry_after_s=_retry_after_s(headers), request_id=request_id)
        case 529:
            return Overloaded(said, status=status, request_id=request_id)
        case 408 | 409:
            return ServerFault(said, status=status, request_id=request_id)
        case _ if status >= 500:
            return ServerFault(said, status=status, request_id=request_id)
        case _ if any(phrase in said for phrase in _OVERFLOW):
            return ContextOverflow(said, status=status, request_id=request_id)
    return BadRequest(said, status=status, request_id=request_id)


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read ``retry-after`` in any of its forms: milliseconds, seconds or a date."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit_s)
        except (KeyError, ValueError):
            continue
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())


def _story(exc: BaseException) -> str:
    root = exc
    waited_for = None
    while root.__cause__ is not None:
        waited_for = waited_for or _WAITED_FOR.get(type(root))
        root = root.__cause__
    waited_for = waited_for or _WAITED_FOR.get(type(root))
    if waited_for and isinstance(root, TimeoutError | httpx2.TimeoutException):
        return waited_for
    text = str(root).strip().rstrip(".")
    return f"{type(root).__name__}: {text}" if text else type(root).__name__


_WAITED_FOR: dict[type[BaseException], str] = {
    httpx2.ConnectTimeout: "no connection within the connect timeout",
    httpx2.PoolTimeout: "no free connection in the pool",
    httpx2.WriteTimeout: "the request could not be sent in time",
    httpx2.ReadTimeout: "nothing came within the idle timeout",
    httpx2.TimeoutException: "no connection within the connect timeout",
}
