from __future__ import annotations

import email.utils
import time
from typing import TYPE_CHECKING

import anthropic
import httpx2
import pytest

from nexofork.providers.diagnosis import failure_of_event, failure_of_exception, failure_of_status
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
