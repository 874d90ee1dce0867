"""Each row of the provider's table: what a change loses and what it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulator.client import assistant, mark, post, request, sim, text, tool, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator

TOOLS = 1000
SYSTEM = 2000
MESSAGES = 3000
PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}


def sized_tool(name: str = "Bash") -> dict[str, Any]:
    """A tool of exactly `TOOLS` tokens."""
    bare = {**tool(name), "description": ""}
    overhead = len(str(bare).replace("'", '"').replace(": ", ":").replace(", ", ","))
    return {**bare, "description": "d" * (TOOLS * 4 - overhead)}


def base(**changes: Any) -> dict[str, Any]:
    """A request with a breakpoint at the end of each level, each level 1000 tokens."""
    fields: dict[str, Any] = {
        "model": "claude-opus-5",
        "tools": [mark(sized_tool())],
        "system": [text(1000, "system", ttl="5m")],
    }
    return request(user(text(1000, "message", ttl="5m")), **(fields | changes))


async def test_an_unchanged_request_reads_all_three_levels(provider: Simulator) -> None:
    """The baseline of this table."""
    await post(provider, base())

    assert (await post(provider, base())).usage.read == MESSAGES


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"model": "claude-opus-4-8"}, 0),
        ({"model": "claude-opus-5-20260101"}, 0),
        ({"tools": [mark(sized_tool("Shell"))]}, 0),
        ({"tools": [tool("Extra"), mark(sized_tool())]}, 0),
        ({"tools": [mark(dict(reversed(sized_tool().items())))]}, 0),
        ({"mcp_servers": [{"type": "url", "name": "m", "url": "https://m.example"}]}, 0),
        ({"tools": [mark(sized_tool()), {"type": "web_search_20250305", "name": "web_search"}]}, TOOLS),
        ({"system": [text(1000, "other", ttl="5m")]}, TOOLS),
        ({"system": "string instead"}, TOOLS),
        ({"speed": "fast"}, TOOLS),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, TOOLS),
        ({"tool_choice": {"type": "none"}}, SYSTEM),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, SYSTEM),
        ({"thinking": {"type": "disabled"}}, SYSTEM),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, SYSTEM),
        ({"output_config": {"effort": "low"}}, SYSTEM),
        ({"context_management": {"edits": []}}, SYSTEM),
    ],
)
async def test_a_change_loses_its_level_and_what_follows(
    provider: Simulator, change: dict[str, Any], kept: int
) -> None:
    """Levels before the changed one are still read, the changed one and those after it are not."""
    await post(provider, base())

    assert (await post(provider, base(**change))).usage.read == kept


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 7},
        {"stream": False},
        {"metadata": {"user_id": "someone"}},
        {"stop_sequences": ["END"]},
        {"service_tier": "auto"},
        {"diagnostics": {"previous_message_id": None}},
    ],
)
async def test_parameters_that_do_not_reach_the_prompt_lose_nothing(
    provider: Simulator, change: dict[str, Any]
) -> None:
    """Output limits, metadata and the like leave every level alone."""
    await post(provider, base())

    assert (await post(provider, base(**change))).usage.read == MESSAGES


@pytest.mark.parametrize(
    "default",
    [
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"effort": "high"}},
        {"output_config": {}},
        {"tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
        {"speed": "standard"},
    ],
)
async def test_an_explicit_default_is_the_same_as_nothing(provider: Simulator, default: dict[str, Any]) -> None:
    """Writing a default out does not change the prefix."""
    await post(provider, base())

    assert (await post(provider, base(**default))).usage.read == MESSAGES


async def test_disabled_thinking_is_the_default_of_older_models(provider: Simulator) -> None:
    """Before 5.x an omitted `thinking` means none, and adaptive is a change."""
    await post(provider, base(model="claude-opus-4-8"))

    disabled = await post(provider, base(model="claude-opus-4-8", thinking={"type": "disabled"}))
    adaptive = await post(provider, base(model="claude-opus-4-8", thinking={"type": "adaptive"}))

    assert (disabled.usage.read, adaptive.usage.read) == (MESSAGES, SYSTEM)


async def test_the_first_image_loses_the_messages(provider: Simulator) -> None:
    """An appended image changes what came before it; a second one does not."""
    await post(provider, base())
    picture = {"type": "image", "source": PIXEL}
    with_image = base(messages=[user(text(1000, "message", ttl="5m"), picture)])

    first = await post(provider, with_image)
    second = await post(provider, base(messages=[user(text(1000, "message", ttl="5m"), picture, picture)]))

    assert (first.usage.read, second.usage.read) == (SYSTEM, MESSAGES)


async def test_an_image_inside_a_tool_result_counts(provider: Simulator) -> None:
    """Images are looked for in tool results too."""
    call_block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "image", "source": PIXEL}]}
    await post(provider, base())

    answer = await post(
        provider, base(messages=[user(text(1000, "message", ttl="5m")), assistant(call_block), user(result)])
    )

    assert answer.usage.read == SYSTEM


async def test_citations_lose_system_and_messages(provider: Simulator) -> None:
    """Turning citations on in a document loses everything after the tools."""
    source = {"type": "text", "media_type": "text/plain", "data": "a document"}
    document = {"type": "document", "source": source, "citations": {"enabled": True}}
    await post(provider, base())

    answer = await post(provider, base(messages=[user(text(1000, "message", ttl="5m"), document)]))

    assert answer.usage.read == TOOLS


@pytest.mark.parametrize(
    ("header", "value"), [("anthropic-beta", "some-beta-2026-01-01"), ("anthropic-version", "2023-06-01")]
)
async def test_headers_that_shape_the_prompt_lose_everything(provider: Simulator, header: str, value: str) -> None:
    """Another beta or version is another prefix from the root."""
    await post(provider, base())

    assert (await post(provider, base(), headers={header: value})).usage.read == 0


async def test_the_order_of_betas_does_not_matter(provider: Simulator) -> None:
    """Betas are a set."""
    await post(provider, base(), headers={"anthropic-beta": "b-2026,a-2026"})

    assert (await post(provider, base(), headers={"anthropic-beta": "a-2026, b-2026"})).usage.read == MESSAGES


@pytest.mark.parametrize(
    ("model", "kept"),
    [("claude-haiku-4-5", False), ("claude-sonnet-4-5", False), ("claude-sonnet-4-6", True), ("claude-opus-4-5", True)],
)
async def test_a_plain_user_turn_after_thinking(provider: Simulator, model: str, kept: bool) -> None:
    """Old models lose the message cache when the user speaks after thinking, newer ones keep it."""
    opening = [user(text(5000, ttl="5m")), sim({"thinking": "let me see", "text": "seen"})]
    reply = await post(provider, request(*opening, model=model))
    said = {"role": "assistant", "content": reply.json["content"]}

    answer = await post(provider, request(*opening, said, user("and now?"), model=model))

    assert answer.usage.read == (5000 if kept else 0)


async def test_a_tool_result_after_thinking_keeps_the_cache_on_old_models(provider: Simulator) -> None:
    """The rule is about user turns that are no tool results."""
    model = "claude-haiku-4-5"
    opening = [user(text(5000, ttl="5m")), sim({"thinking": "let me see", "tools": [{"name": "Bash", "input": {}}]})]
    reply = (await post(provider, request(*opening, model=model))).json["content"]
    result = {"type": "tool_result", "tool_use_id": reply[-1]["id"], "content": "ok"}

    answer = await post(provider, request(*opening, {"role": "assistant", "content": reply}, user(result), model=model))

    assert answer.usage.read == 5000
