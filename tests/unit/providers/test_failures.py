from __future__ import annotations

import base64
import email.utils
import html
import json
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import anthropic
import httpx2
import pytest

from nexofork.providers.diagnosis import failure_of_event, failure_of_exception, failure_of_status, redacted, secrets_of
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
    from nexofork.errors import ProviderError

REQUEST = httpx2.Request("POST", "http://api.test/v1/messages")


@pytest.mark.parametrize(
    ("status", "named", "retryable", "advice"),
    [
        (400, BadRequest, False, "change the request."),
        (401, Unauthorized, False, "ANTHROPIC_API_KEY"),
        (402, Unauthorized, False, "ANTHROPIC_API_KEY"),
        (403, Unauthorized, False, "ANTHROPIC_API_KEY"),
        (404, BadRequest, False, "change the request."),
        (408, ServerFault, True, "Try again"),
        (409, ServerFault, True, "Try again"),
        (413, TooLarge, False, "fork from an earlier turn."),
        (500, ServerFault, True, "Try again"),
        (504, ServerFault, True, "Try again"),
        (529, Overloaded, True, "Try again"),
    ],
)
def test_every_status_has_a_name_and_advice(
    status: int, named: type[ProviderError], retryable: bool, advice: str
) -> None:
    """The class says what happened, the message repeats the API and ends with what to do."""
    error = failure_of_status(status, "Because of this", headers={"request-id": "req_9"})

    assert type(error) is named
    assert (error.status, error.retryable, error.request_id) == (status, retryable, "req_9")
    assert f"(HTTP {status}, request req_9): Because of this. " in str(error)
    assert advice in str(error)


@pytest.mark.parametrize(
    "said",
    ["prompt is too long: 213000 tokens > 200000 maximum", "input length and `max_tokens` exceed context limit: 1 + 2"],
)
def test_a_prompt_that_does_not_fit_has_its_own_name(said: str) -> None:
    """A full context window is told apart from other refusals, and is still a refusal."""
    error = failure_of_status(400, said, headers={})

    assert type(error) is ContextOverflow
    assert isinstance(error, BadRequest)
    assert "earlier turn" in str(error)


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [({"retry-after": "30"}, 30.0), ({"retry-after": "0"}, 0.0), ({"retry-after-ms": "250", "retry-after": "9"}, 0.25)],
)
def test_a_rate_limit_names_its_wait(headers: dict[str, str], wait_s: float) -> None:
    """The wait the API asks for is a fact of the error and part of its message."""
    error = failure_of_status(429, "Slow down", headers=headers)

    assert isinstance(error, RateLimited)
    assert error.retry_after_s == pytest.approx(wait_s)
    assert error.retryable
    assert f"wait {wait_s:g} s" in str(error)


def test_a_rate_limit_may_name_a_date() -> None:
    """The HTTP date form of retry-after is a wait from now."""
    then = email.utils.formatdate(time.time() + 40, usegmt=True)

    error = failure_of_status(429, "Slow down", headers={"retry-after": then})

    assert isinstance(error, RateLimited)
    assert error.retry_after_s is not None
    assert 35 < error.retry_after_s <= 40


def test_a_spend_cap_is_not_waited_for() -> None:
    """A 429 without a time to wait will not pass by itself."""
    error = failure_of_status(429, "You have reached your limit", headers={})

    assert isinstance(error, RateLimited)
    assert not error.retryable
    assert "raise the limit" in str(error)


@pytest.mark.parametrize("year", ["99999999", "9" * 40, "9" * 5000])
def test_a_date_that_no_calendar_has_is_no_wait(year: str) -> None:
    """The error is still a rate limit, and not whatever the calendar raises."""
    error = failure_of_status(429, "Slow down", headers={"retry-after": f"Mon, 01 Jan {year} 00:00:00 GMT"})

    assert isinstance(error, RateLimited)
    assert error.retry_after_s is None


@pytest.mark.parametrize(("verdict", "retryable"), [("true", True), ("false", False)])
def test_a_server_that_says_whether_to_retry_is_believed(verdict: str, retryable: bool) -> None:
    """`x-should-retry` overrules what the status would mean."""
    for status in (429, 500):
        assert failure_of_status(status, "x", headers={"x-should-retry": verdict}).retryable is retryable


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [("overloaded_error", True), ("api_error", True), ("rate_limit_error", True), ("invalid_request_error", False)],
)
def test_an_error_event_is_judged_by_its_type(kind: str, retryable: bool) -> None:
    """Inside a stream the type decides, as there is no status to go by."""
    event = {"type": "error", "error": {"type": kind, "message": "It broke"}, "request_id": "req_2"}

    error = failure_of_event(event)

    assert isinstance(error, StreamFailed)
    assert (error.type, error.retryable, error.request_id) == (kind, retryable, "req_2")


def test_an_empty_error_event_is_still_an_error() -> None:
    """A server that gives no reason gets a readable message."""
    assert "no reason given" in str(failure_of_event({"type": "error"}, request_id="req_3"))


def test_a_status_error_of_the_sdk_keeps_the_words_of_the_api() -> None:
    """The message is the API's, not the repr of a dict."""
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": "max_tokens: required"}}
    response = httpx2.Response(400, request=REQUEST, headers={"request-id": "req_4"})
    exc = anthropic.BadRequestError("Error code: 400", response=response, body=body)

    error = failure_of_exception(exc)

    assert type(error) is BadRequest
    assert error.said == "max_tokens: required"
    assert error.request_id == "req_4"


def test_a_lost_connection_is_described_by_its_first_cause() -> None:
    """The wrappers of SDK and HTTP client do not hide what happened."""
    wrapped = anthropic.APIConnectionError(request=REQUEST)
    wrapped.__cause__ = httpx2.ConnectError("All connection attempts failed")
    wrapped.__cause__.__cause__ = ConnectionRefusedError(111, "Connection refused")

    error = failure_of_exception(wrapped)

    assert isinstance(error, ConnectionLost)
    assert error.retryable
    assert "ConnectionRefusedError: [Errno 111] Connection refused" in str(error)
    assert "ANTHROPIC_BASE_URL" in str(error)


def test_a_disconnect_dressed_as_a_timeout_is_undressed() -> None:
    """A transport that maps a disconnect to a connect timeout does not make us say timeout."""
    wrapped = anthropic.APITimeoutError(request=REQUEST)
    wrapped.__cause__ = httpx2.ConnectTimeout("Server disconnected")
    wrapped.__cause__.__cause__ = ConnectionResetError("peer reset")

    assert "ConnectionResetError: peer reset" in str(failure_of_exception(wrapped))


def test_a_real_timeout_says_what_was_waited_for() -> None:
    """Connecting and reading are told apart."""
    for inner, words in ((httpx2.ConnectTimeout(""), "no connection"), (httpx2.ReadTimeout(""), "nothing came")):
        wrapped = anthropic.APITimeoutError(request=REQUEST)
        wrapped.__cause__ = inner
        inner.__cause__ = TimeoutError()

        assert words in str(failure_of_exception(wrapped))


def test_a_closed_client_is_not_tried_again() -> None:
    """A client that refuses to work is a mistake in the program, not a lost connection."""
    wrapped = anthropic.APIConnectionError(request=REQUEST)
    wrapped.__cause__ = RuntimeError("Cannot send a request, as the client has been closed.")

    error = failure_of_exception(wrapped)

    assert not error.retryable
    assert "has been closed" in str(error)


SECRET = "sk-ant-api03-Zk29fjQ0aLw8xTnB-4vR7yHcE1s/dMu+qXoJbW5=="


def parts_of(secret: str, text: str) -> list[str]:
    """The parts of a secret, nine characters long, that a text gives away."""
    parts = (secret[at : at + 9] for at in range(len(secret) - 8))
    return [part for part in parts if part.lower() in text.lower()]


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        SECRET.upper(),
        SECRET[:20],
        SECRET[-12:],
        SECRET[10:30],
        quote(SECRET, safe=""),
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
        base64.b64encode(b"user:" + SECRET.encode()).decode(),
        base64.b64encode(b"x" + SECRET.encode() + b"tail").decode(),
        SECRET.encode().hex(),
        json.dumps(SECRET),
    ],
)
def test_the_key_that_was_sent_is_repeated_in_no_form(form: str) -> None:
    """Whole, in part or encoded, what was sent in a header is not in the error; the words around it are."""
    request = httpx2.Request("POST", "http://x/v1/messages", headers={"authorization": f"Bearer {SECRET}"})

    said = str(failure_of_status(401, f"no such key: {form} here", headers={}, secrets=secrets_of(request)))

    assert "no such key: " in said
    assert " here" in said
    assert parts_of(SECRET, said) + parts_of(form, said) == []


@pytest.mark.parametrize("form", ["%{:02x}", "&#{};", "&#x{:x};", "\\u{:04x}", "\\x{:02x}"])
@pytest.mark.parametrize("every", [1, 4])
def test_a_key_in_escapes_is_not_repeated(form: str, every: int) -> None:
    """However many of its characters are escaped, and also where they are kept apart by what has no width."""
    written = [form.format(ord(char)) if at % every == 0 else char for at, char in enumerate(SECRET)]

    for said in ("".join(written), "\u200b".join(SECRET), "\x1b".join(written)):
        kept = redacted(f"no such key: {said} here", [SECRET])

        assert "no such key: " in kept
        assert " here" in kept
        read = html.unescape(unquote(re.sub(r"\\[ux]0*(..)", r"%\1", kept)))
        assert parts_of(SECRET, read) == []


def test_an_error_holds_only_what_can_be_printed() -> None:
    """A server's words drive no terminal, and half a surrogate pair does not keep the error from being sent."""
    error = failure_of_event(
        {
            "error": {"type": "a\x1b]52;c;eA==\x07b", "message": "c\ud800\u202e\x9b31m\nd"},
            "request_id": "r\ud800\x1b[1m",
        }
    )

    assert "a]52;c;eA==b: c31m\nd" in str(error)
    assert error.request_id == "r[1m"
    assert all(char.isprintable() or char == "\n" for char in str(error))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("invalid x-api-key: sk-ant-api03-abcdefgh", "invalid x-api-key: [redacted]"),
        ("Authorization: Bearer abc.def-123 refused", "Authorization: Bearer [redacted] refused"),
        ('{"api_key": "abc123xyz"}', '{"api_key": "[redacted]"}'),
        ("got password=hunter22, sorry", "got password=[redacted], sorry"),
        ("key AKIAIOSFODNN7EXAMPLE unknown", "key [redacted] unknown"),
        ("key AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY unknown", "key [redacted] unknown"),
        ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc unknown", "token [redacted] unknown"),
        ("got d41d8cd98f00b204e9800998ecf8427e", "got [redacted]"),
        ("got q9Xv2LbT7mRz4KwP1sYd8NcH5jGf3AeU6oQi", "got [redacted]"),
    ],
)
def test_what_looks_like_a_credential_is_taken_out(text: str, kept: str) -> None:
    """Of any kind and of any owner: a proxy may repeat its own."""
    assert redacted(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 213000 tokens > 200000 maximum",
        "max_tokens: 5000000 > 128000, which is the maximum for claude-opus-4-5-20251101",
        "messages.3.content.0.thinking: each block must contain thinking",
        "no such model: us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "tool_use ids without tool_result: toolu_01A09q90qw90lq917835lq9",
        "invalid x-api-key",
    ],
)
def test_what_the_api_says_in_earnest_is_kept(text: str) -> None:
    """An error is of no use without its words."""
    assert redacted(text, ("sk-ant-api03-something-else",)) == text


def test_a_long_error_is_cut_and_takes_no_time() -> None:
    """Neither length nor repetition makes the work grow beyond what is looked at."""
    for text in ("sk-" * 10**6, "a" * 10**7, "bearer " * 10**6, "key=" * 10**6, SECRET[:8] * 10**5, "=" * 10**7):
        assert len(redacted(text, (SECRET,))) < 1100


def test_an_exception_of_the_transport_does_not_show_the_key() -> None:
    """Some name the header they could not send."""
    request = httpx2.Request("POST", "http://x", headers={"x-api-key": SECRET})
    wrapped = anthropic.APIConnectionError(request=request)
    wrapped.__cause__ = httpx2.LocalProtocolError(f"Illegal header value b'{SECRET}'", request=request)

    assert parts_of(SECRET, str(failure_of_exception(wrapped))) == []


def test_a_redirect_is_named_by_its_server_alone() -> None:
    """Path, query and user of an address may hold secrets."""
    error = failure_of_status(307, "x", headers={"location": "https://u:p4ss@h.example:8443/a?key=b#c"})

    assert "https://h.example:8443" in str(error)
    assert not error.retryable
    assert "p4ss" not in str(error)
    assert "key=b" not in str(error)
