"""Tell which failure it is, from what the SDK raised, the status, or an ``error`` event.

This is where a server's words become part of our errors, and from there of results, logs and the ledger. Some servers
repeat the key they were sent, so `redacted` takes out all that looks like a credential, and cuts long texts.

The SDK's transports do not agree on their exceptions (aiohttp's "server disconnected" arrives as a connect timeout), so
a lost connection is described by the first cause in the chain, not by the last wrapper.
"""

from __future__ import annotations

import base64
import email.utils
import html
import json
import math
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, unquote, urlsplit

import anthropic
import httpx2

from nexofork.core.reply import ID_CHARACTERS
from nexofork.providers.failures import (
    BadRequest,
    ConnectionLost,
    ContextOverflow,
    Overloaded,
    RateLimited,
    Redirected,
    ServerFault,
    StreamFailed,
    TooLarge,
    Unauthorized,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from nexofork.errors import ProviderError

__all__ = [
    "failure_of_event",
    "failure_of_exception",
    "failure_of_status",
    "id_in",
    "printable",
    "redacted",
    "said_in",
    "secrets_of",
]

_NO_REASON = "no reason given"
_OVERFLOW = ("prompt is too long", "exceed context limit")

_READ_CHARACTERS = 4000
_KEPT_CHARACTERS = 1000
_REDACTED = "[redacted]"
_SHORTEST_SECRET = 8
_SECRET_NAMES = re.compile(r"auth|key|token|secret|passw|cookie|credential|signature", re.IGNORECASE)
_CREDENTIALS = re.compile(
    r"""
    (?P<name>\b(?:bearer|basic)\s{1,4}
        |[\w-]{0,40}(?:api[-_ ]?key|authorization|auth[-_ ]?token|access[-_ ]?token|secret|password|passwd|credential)s?
         ["']?\s{0,4}[:=]\s{0,4}["']?(?:(?:bearer|basic)\s{1,4})?)
    [^\s"',;]{3,}
    |\b(?:sk|rk|pk)-[\w-]{6,}                      # Anthropic, OpenAI and others
    |\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}         # AWS
    |\bAIza[\w-]{16,}|\bya29\.[\w.-]{8,}           # Google
    |\b(?:gh[pousr]|github_pat|xox[abposr]|glpat|hf|nvapi)[-_][\w-]{10,}
    |\beyJ[\w-]{8,}\.[\w.-]{8,}                    # JSON Web Tokens
    |\b[0-9a-fA-F]{32,}\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\x([0-9a-fA-F]{2})")
_LONG_WORD = re.compile(r"[\w+/=-]{24,}", re.ASCII)
_ENTROPY = 4.1


def redacted(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a server's text without credentials, as far as it is kept.

    Args:
        text: What the server said; of a long one only the beginning is looked at.
        secrets: What was sent and must not be repeated, in no part of nine or more characters and in no encoding.
    """
    shown = text[:_READ_CHARACTERS]
    read = html.unescape(unquote(_ESCAPE.sub(lambda found: chr(int(found[1] or found[2], 16)), shown)))
    shown = printable(shown)
    if (read := printable(read)) != _without(read, secrets):
        shown = read
    shown = _LONG_WORD.sub(_unless_random, _CREDENTIALS.sub(_keep_name, _without(shown, secrets)))
    if len(text) <= _READ_CHARACTERS and len(shown) <= _KEPT_CHARACTERS:
        return shown
    return shown[:_KEPT_CHARACTERS] + " [shortened]"


def secrets_of(request: httpx2.Request) -> tuple[str, ...]:
    """Return the credentials that a request carries, in its headers and its address."""
    found = [value for name, value in request.headers.items() if _SECRET_NAMES.search(name)]
    found += [value for name, value in request.url.params.multi_items() if _SECRET_NAMES.search(name)]
    found.append(request.url.password or "")
    words = {word for value in found for word in re.split(r"[\s;,]+", value)}
    for value in found:
        scheme, _, rest = value.partition(" ")
        if scheme.lower() == "basic":
            words.add(_password(rest))
    return tuple(word for word in words if len(word) >= _SHORTEST_SECRET)


def id_in(response: httpx2.Response, name: str = "request-id") -> str | None:
    """Return the id in a header of a response."""
    return _plain_id(response.headers.get(name, ""), secrets_of(response.request))


def said_in(body: bytes) -> str:
    """Return the message of an error response; empty where there is none in the API's form."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"]) if isinstance(error["message"], str) else ""
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""


def failure_of_event(
    event: Mapping[str, Any], *, request_id: str | None = None, secrets: Sequence[str] = ()
) -> StreamFailed:
    """Name the failure an ``error`` event reports."""
    error = event.get("error")
    error = error if isinstance(error, dict) else {}
    said, type_ = error.get("message") or _NO_REASON, error.get("type") or "unknown_error"
    given = _plain_id(str(event.get("request_id") or ""), secrets)
    return StreamFailed(
        redacted(str(said), secrets), type=redacted(str(type_), secrets)[:80], request_id=given or request_id
    )


def failure_of_exception(exc: Exception) -> ProviderError:
    """Name the failure behind what the SDK or its HTTP client raised."""
    match exc:
        case anthropic.APIStatusError():
            said = exc.api_message or exc.response.reason_phrase or _NO_REASON
            secrets = secrets_of(exc.response.request)
            return failure_of_status(exc.status_code, said, headers=exc.response.headers, secrets=secrets)
        case anthropic.CredentialsError():
            return Unauthorized(redacted(str(exc)), status=None)
        case anthropic.APIConnectionError() if isinstance(exc.__cause__, RuntimeError):
            # The HTTP client refuses to work at all, for example because it was closed.
            return ConnectionLost(redacted(str(exc.__cause__).rstrip("."), _sent_with(exc)), retryable=False)
    return ConnectionLost(redacted(_story(exc), _sent_with(exc)))


def failure_of_status(
    status: int, said: str, *, headers: Mapping[str, str], secrets: Sequence[str] = ()
) -> ProviderError:
    """Name the failure an error response means; a server that says whether to retry is believed."""
    request_id = _plain_id(headers.get("request-id", ""), secrets)
    if 300 <= status < 400:
        where = redacted(_origin(headers.get("location", "")), secrets)
        return Redirected(f"it points to {where}", status=status, request_id=request_id)
    error = _by_status(status, redacted(said, secrets) or _NO_REASON, headers, request_id)
    verdict = headers.get("x-should-retry")
    if verdict in ("true", "false"):
        error.retryable = verdict == "true"
    return error


def _by_status(status: int, said: str, headers: Mapping[str, str], request_id: str | None) -> ProviderError:
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
    try:
        date = email.utils.parsedate_tz(headers.get("retry-after", ""))
        return None if date is None else max(0.0, email.utils.mktime_tz(date) - time.time())
    except (ValueError, OverflowError):  # a year that no calendar has
        return None


def _plain_id(given: str, secrets: Sequence[str]) -> str | None:
    """Return an id, which may look as random as a key does, without what cannot be printed.

    Only a whole key is taken out: a workspace and its key may well be named alike.
    """
    shown = printable(given[:ID_CHARACTERS])
    for secret in secrets:
        shown = shown.replace(secret, "[redacted]")
    return shown or None


def printable(text: str) -> str:
    """Leave out what may drive a terminal, fits no message (half a surrogate pair), or hides a key by cutting it."""
    return "".join(char for char in text if char.isprintable() or char in "\n\t")


def _origin(location: str) -> str:
    """Return the server an address points to, without path, query and user."""
    try:
        parts = urlsplit(location[:_READ_CHARACTERS])
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an address that cannot be read"
    if not parts.hostname:
        return "another path of the same server" if location else "no address"
    return f"{parts.scheme or 'the same scheme'}://{parts.hostname}{port}"


def _sent_with(exc: BaseException) -> tuple[str, ...]:
    request = getattr(exc, "_request", None) or getattr(exc, "__dict__", {}).get("request")
    return secrets_of(request) if isinstance(request, httpx2.Request) else ()


def _password(basic: str) -> str:
    try:
        return base64.b64decode(basic).decode("utf-8", "replace").partition(":")[2]
    except ValueError:
        return ""


def _without(text: str, secrets: Sequence[str]) -> str:
    """Take every part of a secret out, in any of its forms, upper or lower case."""
    lowered = text.lower()
    if len(lowered) != len(text):  # some letters are longer in lower case; positions must agree
        lowered = text
    hidden = bytearray(len(text))
    for secret in secrets:
        for form in _forms(secret):
            size = min(len(form), _SHORTEST_SECRET + 1)
            parts = {form[at : at + size] for at in range(len(form) - size + 1)}
            for at in range(len(lowered) - size + 1):
                if lowered[at : at + size] in parts:
                    hidden[at : at + size] = b"\1" * size
    pieces: list[str] = []
    at = 0
    for run in re.finditer(rb"\x01+", hidden):
        pieces += (text[at : run.start()], _REDACTED)
        at = run.end()
    return "".join(pieces) + text[at:]


def _forms(secret: str) -> Iterator[str]:
    """The ways a server may write a secret, in lower case."""
    raw = secret[:_KEPT_CHARACTERS].encode("utf-8", "replace")
    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], raw.hex(), secret[::-1]}
    for ahead in range(3):
        # In a longer text the same bytes look different at each of three offsets; the ends depend on the neighbours.
        code = base64.b64encode(b"\0" * ahead + raw).decode().rstrip("=")
        inner = code[4 if ahead else 0 : len(code) - 1]
        forms |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return (form.lower() for form in forms if len(form) >= _SHORTEST_SECRET)


def _keep_name(found: re.Match[str]) -> str:
    return (found["name"] or "") + _REDACTED


def _unless_random(found: re.Match[str]) -> str:
    """Hide a long word whose letters and digits are mixed as only chance, or a key generator, mixes them."""
    word = found[0]
    mixed = any(char.isdigit() for char in word) and any(char.isalpha() for char in word)
    shares = [count / len(word) for count in Counter(word).values()]
    random = mixed and -sum(share * math.log2(share) for share in shares) >= _ENTROPY
    return _REDACTED if random else word


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
