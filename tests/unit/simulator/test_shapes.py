"""Refusals by shape: what is not the JSON of a Messages request."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulator.client import assistant, post, request, tool, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
async def test_required_fields_are_named(provider: Simulator, name: str) -> None:
    """Each missing field has its own text."""
    body = request()
    del body[name]

    answer = await post(provider, body)

    assert (answer.status, answer.error) == (400, f"{name}: Field required")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'"text"',
        b"\xff",
        b"",
        b'{"model": "claude-opus-5-5", "model": "claude-opus-5"}',
        b'{"model": NaN}',
        b'{"model": "\\ud83d"}',
    ],
)
async def test_what_is_not_json_is_refused(provider: Simulator, body: bytes) -> None:
    """Broken, doubled or lone-surrogate JSON is a 400, never a crash."""
    answer = await post(provider, body)

    assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")


async def test_a_key_given_twice_is_refused(provider: Simulator) -> None:
    """A body spliced together wrongly is not read in whichever way suits."""
    body = json.dumps(request()).encode()

    answer = await post(provider, body[:-1] + b', "messages": []}')

    assert "duplicate key 'messages'" in answer.error


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"model": 5}, "model"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages.0"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        ({"messages": [user({"type": "text"})]}, "messages.0.content.0.text.text"),
        ({"messages": [user({"type": "text", "text": "x", "id": 1})]}, "messages.0.content.0.text.id"),
        ({"messages": [user({"type": "poem", "text": "x"})]}, "messages.0.content.0"),
        ({"messages": [user({"text": "x"})]}, "messages.0.content.0.type"),
        ({"messages": [user({"type": "tool_use", "id": "a", "name": "b", "input": {}})]}, "messages.0.content.0"),
        (
            {"messages": [user("q"), assistant({"type": "tool_result", "tool_use_id": "a"})]},
            "messages.1.content.0",
        ),
        (
            {"messages": [user("q"), assistant({"type": "tool_use", "id": "a b", "name": "b", "input": {}})]},
            "messages.1.content.0.tool_use.id",
        ),
        (
            {"messages": [user("q"), assistant({"type": "tool_use", "id": "a", "name": "b", "input": "{}"})]},
            "messages.1.content.0.tool_use.input",
        ),
        (
            {"messages": [user({"type": "tool_result", "tool_use_id": "a", "content": 1})]},
            "messages.0.content.0.tool_result.content",
        ),
        ({"system": 5}, "system"),
        ({"system": ["text"]}, "system.0"),
        ({"system": [{"type": "image", "source": {}}]}, "system.0"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"name": "x"}]}, "tools.0.custom.input_schema"),
        ({"tools": [tool("bad name")]}, "tools.0.custom.name"),
        ({"tools": [{**tool(), "timeout": 5}]}, "tools.0.custom.timeout"),
        ({"tools": [{**tool(), "input_schema": {}}]}, "tools.0.custom.input_schema.type"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"stream": "yes"}, "stream"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.enabled.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.enabled.budget_tokens"),
        ({"tool_choice": {"type": "maybe"}, "tools": [tool()]}, "tool_choice.type"),
        ({"output_config": {"effort": "extreme"}}, "output_config.effort"),
        ({"diagnostics": {"previous": None}}, "diagnostics.previous"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
)
async def test_a_wrong_shape_is_refused_with_its_path(provider: Simulator, change: dict[str, Any], path: str) -> None:
    """The error begins with the place."""
    answer = await post(provider, request() | change)

    assert answer.status == 400
    assert answer.error.partition(": ")[0] == path


async def test_an_error_has_the_providers_body(provider: Simulator) -> None:
    """Type, error and the request id that is also in the headers."""
    answer = await post(provider, {})

    assert answer.json == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "model: Field required"},
        "request_id": answer.headers["request-id"],
    }


@pytest.mark.parametrize("counted", ["string", "blocks"])
async def test_count_tokens_counts_the_prompt_and_caches_nothing(provider: Simulator, counted: str) -> None:
    """The count is what the message is then charged; it takes no `max_tokens`."""
    body = request(system="be brief" if counted == "string" else [{"type": "text", "text": "be brief"}], tools=[tool()])
    counting = {name: value for name, value in body.items() if name != "max_tokens"}

    counted_tokens = (await post(provider, counting, path="/v1/messages/count_tokens")).json["input_tokens"]

    assert counted_tokens == (await post(provider, body)).usage.fresh
