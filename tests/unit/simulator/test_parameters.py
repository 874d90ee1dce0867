"""Refusals by model, version and combination of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nexofork.simulator import Simulator, SimulatorConfig
from tests.unit.simulator.client import post, request, text, tool, user

if TYPE_CHECKING:
    from typing import Any

SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k"])
async def test_sampling_parameters_depend_on_the_version(provider: Simulator, name: str) -> None:
    """The newest version refuses them, an older one takes them."""
    body = request(**{name: 1})

    new = await post(provider, body)
    old = await post(provider, body, headers={"anthropic-version": "2023-06-01"})

    assert (new.status, old.status) == (400, 200)
    assert name in new.error


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "Bash"}])
@pytest.mark.parametrize(
    ("model", "status"), [("claude-opus-5-5", 400), ("claude-haiku-5-5", 400), ("claude-opus-5", 200)]
)
async def test_forced_tool_choice_is_refused_on_5_5(
    provider: Simulator, choice: dict[str, str], model: str, status: int
) -> None:
    """Forcing a tool works on older models only."""
    answer = await post(provider, request(model=model, tools=[tool()], tool_choice=choice))

    assert answer.status == status


async def test_tool_choice_needs_tools(provider: Simulator) -> None:
    """A choice among nothing is refused."""
    assert (await post(provider, request(tool_choice={"type": "auto"}))).status == 400


async def test_tool_choice_names_a_tool_that_exists(provider: Simulator) -> None:
    """A tool that is not offered cannot be forced."""
    answer = await post(
        provider, request(model="claude-opus-5", tools=[tool()], tool_choice={"type": "tool", "name": "Other"})
    )

    assert "'Other' not found" in answer.error


@pytest.mark.parametrize(
    "conflict",
    [
        {"stream": True},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"format": SCHEMA}},
        {"tools": [tool()], "tool_choice": {"type": "any"}},
    ],
)
async def test_what_a_prewarm_refuses(provider: Simulator, conflict: dict[str, Any]) -> None:
    """The documented combinations are 400s and write nothing."""
    body = request(user(text(600, ttl="5m")), model="claude-opus-5", max_tokens=0, **conflict)

    answer = await post(provider, body)

    assert answer.status == 400
    assert (await post(provider, body | {"max_tokens": 2000, "stream": False})).usage.read == 0


@pytest.mark.parametrize("allowed", [{"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "low"}}])
async def test_what_a_prewarm_allows(provider: Simulator, allowed: dict[str, Any]) -> None:
    """Thinking and effort stay as in the real request."""
    assert (await post(provider, request(max_tokens=0, **allowed))).status == 200


async def test_a_thinking_budget_fits_into_max_tokens(provider: Simulator) -> None:
    """The budget must be smaller than the output limit."""
    answer = await post(provider, request(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1024))

    assert "`max_tokens` must be greater than" in answer.error


@pytest.mark.parametrize("version", [None, "2031-01-01"])
async def test_the_version_is_checked(provider: Simulator, version: str | None) -> None:
    """A missing or unknown version is refused."""
    answer = await post(provider, request(), headers={"anthropic-version": version or ""})

    assert answer.status == 400
    assert answer.error.startswith("anthropic-version:")


@pytest.mark.parametrize("model", ["claude-opus-9", "gpt-5", "claude-opus-5-5-2026", "claude-opus-5-5-latest"])
async def test_an_unknown_model_is_not_found(provider: Simulator, model: str) -> None:
    """A model id that means nothing is a 404."""
    answer = await post(provider, request(model=model))

    assert (answer.status, answer.json["error"]["type"]) == (404, "not_found_error")


async def test_a_prompt_larger_than_the_window_is_refused(provider: Simulator) -> None:
    """The error names both numbers."""
    answer = await post(provider, request(user(text(200_001)), model="claude-haiku-4-5"))

    assert (answer.status, answer.error) == (400, "prompt is too long: 200001 tokens > 200000 maximum")


async def test_the_window_can_be_narrowed_for_all_models() -> None:
    """A longer prompt is a 400; an answer that the window cuts off says so by its stop_reason."""
    async with Simulator(SimulatorConfig(context_tokens=1_000)) as provider:
        provider.script({"turns": [{"text": "word ", "repeat": 500}]})

        over = await post(provider, request(user(text(1_001)), model="claude-haiku-4-5"))
        cut = await post(provider, request(user(text(900)), max_tokens=4_000))
        short = await post(provider, request(user(text(900)), max_tokens=50))

    assert (over.status, over.error) == (400, "prompt is too long: 1001 tokens > 1000 maximum")
    assert (cut.json["stop_reason"], cut.json["usage"]["output_tokens"]) == ("model_context_window_exceeded", 100)
    assert (short.json["stop_reason"], short.json["usage"]["output_tokens"]) == ("max_tokens", 50)
