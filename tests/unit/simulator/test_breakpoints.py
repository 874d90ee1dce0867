"""How many markers, which TTLs, and what automatic caching does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulator.client import Usage, assistant, mark, post, request, text, tool, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator

AUTO = {"type": "ephemeral"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}


def result(*content: Any) -> dict[str, Any]:
    """A tool result with a list of blocks."""
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": list(content)}


async def test_a_fifth_marker_is_refused_with_the_providers_words(provider: Simulator) -> None:
    """Five markers, wherever they are, give the documented text."""
    blocks = [text(100, f"{n}", ttl="5m") for n in range(3)]

    answer = await post(provider, request(user(*blocks), tools=[mark(tool())], system=[text(100, "s", ttl="5m")]))

    assert answer.status == 400
    assert answer.error == "A maximum of 4 blocks with cache_control may be provided. Found 5."


async def test_four_markers_are_fine(provider: Simulator) -> None:
    """The limit itself is allowed."""
    answer = await post(provider, request(user(*(text(200, f"{n}", ttl="5m") for n in range(4)))))

    assert answer.usage == Usage(write_5m=800)


async def test_markers_inside_a_tool_result_count(provider: Simulator) -> None:
    """Four outside and one within are five."""
    inner = mark({"type": "text", "text": "inner"})
    messages = [user(*(text(100, f"{n}", ttl="5m") for n in range(4))), assistant(CALL), user(result(inner))]

    answer = await post(provider, request(*messages))

    assert answer.error == "A maximum of 4 blocks with cache_control may be provided. Found 5."


async def test_a_marker_inside_a_tool_result_writes_an_entry(provider: Simulator) -> None:
    """The enclosing block becomes the breakpoint, and the marker is not part of the key."""
    inner = {"type": "text", "text": "inner"}
    opening = [user(text(600)), assistant(CALL)]
    await post(provider, request(*opening, user(result(mark(inner)))))

    answer = await post(provider, request(*opening, user(result(inner), mark({"type": "text", "text": "more"}))))

    assert answer.usage.read > 600


async def test_an_hour_after_five_minutes_is_refused(provider: Simulator) -> None:
    """In the order tools, system, messages a 1h marker must not follow a 5m one."""
    answer = await post(provider, request(user(text(600, ttl="1h")), system=[text(600, "s", ttl="5m")]))

    assert answer.status == 400
    assert answer.error.startswith("messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not")


async def test_an_hour_before_five_minutes_is_fine(provider: Simulator) -> None:
    """The allowed order."""
    answer = await post(provider, request(user(text(600, ttl="5m")), system=[text(600, "s", ttl="1h")]))

    assert answer.usage == Usage(write_1h=600, write_5m=600)


async def test_automatic_caching_marks_the_last_block(provider: Simulator) -> None:
    """A top-level marker writes the whole prompt and reads it when the conversation has grown."""
    await post(provider, request(user(text(600, "a"), text(100, "b")), cache_control=AUTO))

    answer = await post(
        provider, request(user(text(600, "a"), text(100, "b")), assistant("ok"), user(text(50)), cache_control=AUTO)
    )

    assert answer.usage.read == 700
    assert answer.usage.fresh == 0


async def test_automatic_caching_takes_a_slot(provider: Simulator) -> None:
    """Three explicit markers and the automatic one are four; four and the automatic one are refused."""
    three = await post(
        provider, request(user(*(text(200, f"{n}", ttl="5m") for n in range(3)), "tail"), cache_control=AUTO)
    )
    four = await post(
        provider, request(user(*(text(200, f"{n}", ttl="5m") for n in range(4)), "tail"), cache_control=AUTO)
    )

    assert three.status == 200
    assert four.error == "A maximum of 4 blocks with cache_control may be provided. Found 5."


async def test_automatic_caching_on_a_marked_block_is_a_no_op(provider: Simulator) -> None:
    """The last block's own marker with the same TTL is enough; no slot is taken twice."""
    answer = await post(provider, request(user(*(text(200, f"{n}", ttl="5m") for n in range(3))), cache_control=AUTO))

    assert answer.usage == Usage(write_5m=600)
    assert len(provider.log[0].breakpoints) == 3


async def test_automatic_caching_with_another_ttl_is_refused(provider: Simulator) -> None:
    """The last block is marked 5m and the request says 1h."""
    answer = await post(provider, request(user(text(600, ttl="5m")), cache_control={"type": "ephemeral", "ttl": "1h"}))

    assert answer.status == 400
    assert "differs" in answer.error


async def test_automatic_caching_keeps_the_ttl_order(provider: Simulator) -> None:
    """An automatic 1h marker after an explicit 5m one is out of order like any other."""
    answer = await post(
        provider,
        request(user(text(600, ttl="5m"), "tail"), cache_control={"type": "ephemeral", "ttl": "1h"}),
    )

    assert "must not come after" in answer.error


async def test_four_markers_leave_no_slot_for_the_automatic_one(provider: Simulator) -> None:
    """Not even when the last block is among the four."""
    answer = await post(provider, request(user(*(text(200, f"{n}", ttl="5m") for n in range(4))), cache_control=AUTO))

    assert answer.error == "A maximum of 4 blocks with cache_control may be provided. Found 5."


async def test_automatic_caching_passes_over_thinking(provider: Simulator) -> None:
    """A conversation that ends in thinking is marked at the last block that can be."""
    model = "claude-opus-4-5"
    script = user(text(5000), '@sim {"thinking": "t", "text": "a"}')
    thinking = (await post(provider, request(script, model=model))).json["content"][0]

    await post(provider, request(script, assistant(thinking), model=model, cache_control=AUTO))

    assert provider.log[-1].status == 200
    assert provider.log[-1].breakpoints == [1]


@pytest.mark.parametrize(
    "control", [{"type": "persistent"}, {"type": "ephemeral", "ttl": "2h"}, {"type": "ephemeral", "scope": "x"}, "yes"]
)
async def test_other_kinds_of_marker_are_refused(provider: Simulator, control: Any) -> None:
    """Only ephemeral markers of five minutes or one hour exist."""
    answer = await post(provider, request(user({**text(600), "cache_control": control})))

    assert answer.status == 400
    assert "cache_control" in answer.error


async def test_a_null_marker_is_no_marker(provider: Simulator) -> None:
    """`cache_control: null` is the same as none."""
    answer = await post(provider, request(user({**text(600), "cache_control": None})))

    assert answer.usage == Usage(fresh=600)


async def test_a_marker_on_a_thinking_block_is_refused(provider: Simulator) -> None:
    """Thinking blocks take no marker."""
    thinking = {"type": "thinking", "thinking": "t", "signature": "s", "cache_control": {"type": "ephemeral"}}

    answer = await post(provider, request(user("q"), assistant(thinking, "a"), user("q2")))

    assert answer.error == "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"


@pytest.mark.parametrize("blank", ["", "  \n"])
async def test_a_marker_on_a_blank_text_is_refused(provider: Simulator, blank: str) -> None:
    """The provider has words of its own for it."""
    answer = await post(provider, request(user("q", mark({"type": "text", "text": blank}))))

    assert answer.error == "messages.0.content.1.text: cache_control cannot be set for empty text blocks"
