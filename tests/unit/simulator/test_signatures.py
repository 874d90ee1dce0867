"""Thinking blocks are what was sent, and on newer models where it was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nexofork.simulator import Simulator, SimulatorConfig
from tests.unit.simulator.client import mark, post, request, sim, text, tool, user

if TYPE_CHECKING:
    from tests.unit.simulator.client import Answer

BOUND = "Invalid `signature` in `thinking` block. The block is bound to a different conversation."
OPENING = [
    user(text(50, "context")),
    sim({"thinking": "let me look", "tools": [{"name": "Bash", "input": {"b": 1, "a": 2}}]}),
]
SYSTEM = [text(50, "system")]


async def reply(provider: Simulator, **fields: Any) -> list[Any]:
    """The blocks of a scripted reply with thinking and a tool call."""
    answer = await post(provider, request(*OPENING, **({"system": SYSTEM, "tools": [tool()]} | fields)))
    assert answer.status == 200, answer.body
    return list(answer.json["content"])


def follow(blocks: list[Any], *opening: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The next request, with every call answered."""
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "ok"}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    said = {"role": "assistant", "content": blocks}
    return request(
        *(opening or OPENING), said, user(*results, "go on"), **({"system": SYSTEM, "tools": [tool()]} | fields)
    )


async def test_an_append_only_continuation_is_accepted(provider: Simulator) -> None:
    """The block comes back where it was, with more after it."""
    assert (await post(provider, follow(await reply(provider)))).status == 200


async def test_markers_and_the_order_of_a_blocks_keys_do_not_unbind(provider: Simulator) -> None:
    """What clients do to a prefix without meaning to change it is no change of conversation."""
    thinking, call = await reply(provider)
    reordered = [dict(reversed(thinking.items())), {**dict(reversed(call.items())), "caller": {"type": "direct"}}]
    opening = [user(mark(text(50, "context"))), OPENING[1]]

    answer = await post(provider, follow(reordered, *opening, system=[mark(SYSTEM[0])]))

    assert answer.status == 200


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"system": [text(50, "edited")]}, "`system` prompt differs"),
        ({"tools": [tool(), tool("More")]}, "`tools` differ"),
        ({"model": "claude-sonnet-5-5"}, "`model` differs"),
    ],
)
async def test_an_edited_prefix_is_refused(provider: Simulator, change: dict[str, Any], cause: str) -> None:
    """A changed system prompt, tool list or model unbinds the block, and the error says which."""
    blocks = await reply(provider)

    answer = await post(provider, follow(blocks, **change))

    assert answer.status == 400
    assert answer.error.startswith(f"messages.2.content.0: {BOUND}")
    assert cause in answer.error


async def test_an_edited_history_is_refused(provider: Simulator) -> None:
    """Another text before the block unbinds it."""
    blocks = await reply(provider)

    answer = await post(provider, follow(blocks, user(text(50, "rewritten")), OPENING[1]))

    assert BOUND in answer.error


async def test_a_dropped_thinking_block_unbinds_the_next(provider: Simulator) -> None:
    """A block thought after another is bound to it too."""
    script = sim(
        {
            "blocks": [
                {"type": "thinking", "thinking": "first"},
                {"type": "text", "text": "and"},
                {"type": "thinking", "thinking": "second"},
                {"type": "text", "text": "done"},
            ]
        }
    )
    blocks = (await post(provider, request(script))).json["content"]
    whole = request(script, {"role": "assistant", "content": blocks}, user("go on"))
    dropped = request(script, {"role": "assistant", "content": blocks[1:]}, user("go on"))

    kept, refused = await post(provider, whole), await post(provider, dropped)

    assert kept.status == 200
    assert refused.error.startswith(f"messages.1.content.1: {BOUND}")


async def test_reordered_keys_and_nulls_between_two_thinking_blocks(provider: Simulator) -> None:
    """What an SDK does to the block between them when it echoes objects does not unbind the second."""
    script = sim(
        {
            "blocks": [
                {"type": "thinking", "thinking": "first"},
                {"type": "text", "text": "and"},
                {"type": "thinking", "thinking": "second"},
            ]
        }
    )
    first, said, second = (await post(provider, request(script))).json["content"]
    echoed = [first, {"citations": None, **dict(reversed(said.items()))}, second]

    answer = await post(provider, request(script, {"role": "assistant", "content": echoed}, user("go on")))

    assert answer.status == 200


async def test_models_without_preserved_thinking_take_an_edited_prefix(provider: Simulator) -> None:
    """Before 5.1 and 5.5 a block is not tied to its place."""
    blocks = await reply(provider, model="claude-opus-5")

    answer = await post(provider, follow(blocks, system=[text(50, "edited")], model="claude-opus-5"))

    assert answer.status == 200


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-opus-4-6"])
async def test_thinking_of_the_latest_turn_cannot_be_modified(provider: Simulator, model: str) -> None:
    """Changed text under a genuine signature is refused on every model."""
    thinking, call = await reply(provider, model=model)

    answer = await post(provider, follow([{**thinking, "thinking": "something else"}, call], model=model))

    assert answer.status == 400
    assert "blocks in the latest assistant message cannot be modified" in answer.error


@pytest.mark.parametrize("signature", ["", "bm9uc2Vuc2U=", "not base64!"])
async def test_a_signature_of_nobodys_is_refused(provider: Simulator, signature: str) -> None:
    """Made-up signatures do not pass."""
    thinking, call = await reply(provider)

    answer = await post(provider, follow([{**thinking, "signature": signature}, call]))

    assert answer.error == "messages.2.content.0: Invalid `signature` in `thinking` block"


async def test_another_simulator_with_the_same_secret_accepts_the_block(provider: Simulator) -> None:
    """Signatures need no memory; one with another secret refuses."""
    blocks = await reply(provider)

    async def answer_of(config: SimulatorConfig) -> Answer:
        async with Simulator(config) as other:
            return await post(other, follow(blocks))

    assert (await answer_of(SimulatorConfig())).status == 200
    assert (await answer_of(SimulatorConfig(signing_secret="other"))).status == 400


async def test_omitted_thinking_still_has_a_signature(provider: Simulator) -> None:
    """With `display: omitted` the text is empty and the block can be sent back."""
    fields = {"thinking": {"type": "adaptive", "display": "omitted"}}
    blocks = await reply(provider, **fields)

    answer = await post(provider, follow(blocks, **fields))

    assert blocks[0]["thinking"] == ""
    assert answer.status == 200
