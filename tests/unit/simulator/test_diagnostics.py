"""What `diagnostics` says changed between two requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulator.client import assistant, mark, post, request, stream, text, tool, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator

FIRST = user(text(1000, "first", ttl="5m"))


def base(*messages: dict[str, Any], previous: str | None = None, **fields: Any) -> dict[str, Any]:
    """A request that asks for diagnostics."""
    known = {"tools": [tool()], "system": "be brief", "diagnostics": {"previous_message_id": previous}}
    return request(*(messages or (FIRST,)), **(known | fields))


async def test_a_first_request_has_nothing_to_compare(provider: Simulator) -> None:
    """With a null id the answer carries a null."""
    assert (await post(provider, base())).json["diagnostics"] is None


async def test_an_answer_without_the_question_has_no_diagnostics(provider: Simulator) -> None:
    """The field appears only when it was asked for."""
    assert "diagnostics" not in (await post(provider, request())).json


async def test_appended_messages_are_no_change(provider: Simulator) -> None:
    """A conversation that only grew reports nothing, moved markers included."""
    first = (await post(provider, base())).json["id"]
    grown = base(
        user(text(1000, "first")), assistant("ok"), user(mark({"type": "text", "text": "more"})), previous=first
    )

    assert (await post(provider, grown)).json["diagnostics"] is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "claude-sonnet-5-5"}, "model_changed"),
        ({"speed": "fast"}, "model_changed"),
        ({"tools": [tool("Other")]}, "tools_changed"),
        ({"system": "be long"}, "system_changed"),
        ({"messages": [user(text(1000, "rewritten", ttl="5m"))]}, "messages_changed"),
    ],
)
async def test_a_change_is_named_with_what_it_cost(provider: Simulator, change: dict[str, Any], reason: str) -> None:
    """The part that changed, and how many tokens would have been read without it."""
    first = await post(provider, base())
    written = first.usage.write_5m

    answer = await post(provider, base(previous=first.json["id"]) | change)

    assert answer.json["diagnostics"]["cache_miss_reason"] == {"type": reason, "cache_missed_input_tokens": written}


async def test_a_shortened_history_is_a_change(provider: Simulator) -> None:
    """The earlier messages must be a prefix of the later ones, not the other way round."""
    first = (await post(provider, base(FIRST, assistant("ok"), user("more")))).json["id"]

    answer = await post(provider, base(FIRST, previous=first))

    assert answer.json["diagnostics"]["cache_miss_reason"]["type"] == "messages_changed"


async def test_other_parameters_are_unavailable(provider: Simulator) -> None:
    """A changed effort is a difference the diagnosis does not name."""
    first = (await post(provider, base())).json["id"]

    answer = await post(provider, base(previous=first, output_config={"effort": "low"}))

    assert answer.json["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}


@pytest.mark.parametrize("case", ["unknown id", "another workspace"])
async def test_a_request_that_is_not_known(provider: Simulator, case: str) -> None:
    """An id nobody gave out, or one of another workspace, is not found."""
    first = (await post(provider, base(), key="sk-sim-alpha")).json["id"]
    previous = first if case == "another workspace" else "msg_unknown"

    answer = await post(provider, base(previous=previous), key="sk-sim-beta")

    assert answer.json["diagnostics"] == {"cache_miss_reason": {"type": "previous_message_not_found"}}


async def test_a_stream_carries_it_on_message_start(provider: Simulator) -> None:
    """The first event has the diagnosis."""
    first = (await post(provider, base())).json["id"]

    events = await stream(provider, base(previous=first, system="other"))

    assert events[0]["message"]["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
