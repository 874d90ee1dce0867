"""The cache as a client meets it: what is read, what is written, when, and for whom."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.simulator.client import Answer, Usage, assistant, call, mark, post, request, sim, text, tool, user

if TYPE_CHECKING:
    from nexofork.simulator import Simulator


def row(count: int, *marked: int) -> dict[str, Any]:
    """A request of `count` blocks of 100 tokens, marked at these positions counted from one."""
    blocks = [text(100, f"{n}-", ttl="5m" if n in marked else None) for n in range(1, count + 1)]
    return request(user(*blocks))


async def test_the_official_lookback_vector_misses(provider: Simulator) -> None:
    """Writes at 10 and 15, then one breakpoint at 35: 35 to 16 are tried, nothing is found."""
    await post(provider, row(10, 10))
    await post(provider, row(15, 15))

    answer = await post(provider, row(35, 35))

    assert answer.usage == Usage(write_5m=3500)


async def test_the_official_lookback_vector_hits_with_a_second_breakpoint(provider: Simulator) -> None:
    """The same request with another breakpoint at 15 reads what was written there."""
    await post(provider, row(10, 10))
    await post(provider, row(15, 15))

    answer = await post(provider, row(35, 15, 35))

    assert answer.usage == Usage(read=1500, write_5m=2000)


@pytest.mark.parametrize(("last", "read"), [(34, 1500), (35, 0)])
async def test_lookback_counts_the_breakpoint_as_the_first_of_twenty(provider: Simulator, last: int, read: int) -> None:
    """An entry nineteen blocks before the breakpoint is found, one twenty before is not."""
    await post(provider, row(15, 15))

    answer = await post(provider, row(last, last))

    assert answer.usage.read == read


async def test_the_nearest_entry_wins(provider: Simulator) -> None:
    """Of several entries in reach the longest prefix is read."""
    await post(provider, row(10, 10))
    await post(provider, row(15, 15))

    assert (await post(provider, row(20, 20))).usage == Usage(read=1500, write_5m=500)


async def test_nothing_is_written_between_breakpoints(provider: Simulator) -> None:
    """A request that ends where no breakpoint was, in the middle of a written prefix, reads nothing."""
    await post(provider, row(15, 15))

    assert (await post(provider, row(12, 12))).usage == Usage(write_5m=1200)


async def test_tools_and_system_blocks_are_positions(provider: Simulator) -> None:
    """Lookback steps over tools and system blocks one by one, like over content."""
    tools = [mark(tool("First")), *(tool(f"Tool{n}") for n in range(18))]
    system = [text(600, "system")]
    await post(provider, request(tools=[mark({**tool("First"), "description": "d" * 4000})], system=system))
    tools[0] = {**tool("First"), "description": "d" * 4000}

    near = await post(provider, request(user(text(50)), tools=tools[:18], system=[mark(system[0])]))
    far = await post(provider, request(user(text(50)), tools=[*tools, tool("Last")], system=[mark(system[0])]))

    assert near.usage.read > 1000
    assert far.usage.read == 0


async def test_a_marker_is_not_part_of_the_key(provider: Simulator) -> None:
    """A prefix written with a marker is read by a request that has moved the marker on."""
    await post(provider, request(user(text(600, ttl="5m"))))

    answer = await post(provider, request(user(text(600)), assistant("ok"), user(text(100, ttl="5m"))))

    assert answer.usage.read == 600


async def test_without_a_breakpoint_nothing_is_read_or_written(provider: Simulator) -> None:
    """A cached prefix does not help a request that marks nothing."""
    await post(provider, request(user(text(600, ttl="5m"))))

    answer = await post(provider, request(user(text(600))))

    assert answer.usage == Usage(fresh=600)


@pytest.mark.parametrize(
    ("model", "minimum"),
    [
        ("claude-opus-5-5", 512),
        ("claude-fable-5", 512),
        ("claude-opus-4-8", 1024),
        ("claude-sonnet-5", 1024),
        ("claude-opus-4-7", 2048),
        ("claude-opus-4-6", 4096),
        ("claude-haiku-4-5-20251001", 4096),
    ],
)
async def test_below_the_minimum_a_prompt_is_silently_uncached(provider: Simulator, model: str, minimum: int) -> None:
    """One token short of the model's minimum nothing is written; at the minimum it is."""
    short = await post(provider, request(user(text(minimum - 1, ttl="5m")), model=model))
    enough = await post(provider, request(user(text(minimum, ttl="5m")), model=model))

    assert short.usage == Usage(fresh=minimum - 1)
    assert enough.usage == Usage(write_5m=minimum)


async def test_an_early_breakpoint_below_the_minimum_leaves_no_entry(provider: Simulator) -> None:
    """Of two breakpoints only the one over enough tokens is written."""
    early, late = text(100, "early", ttl="5m"), text(600, "late", ttl="5m")
    await post(provider, request(user(early, late)))

    answer = await post(provider, request(user(early, text(600, "other", ttl="5m"))))

    assert answer.usage == Usage(write_5m=700)


async def test_an_entry_expires_five_minutes_after_its_request_started(provider: Simulator) -> None:
    """Up to the TTL an entry is read, from then on it is not."""
    body = request(user(text(600, ttl="5m")))
    await post(provider, body)
    provider.clock.advance(290)
    assert (await post(provider, body)).usage.read == 600

    provider.clock.advance(301)

    assert (await post(provider, body)).usage == Usage(write_5m=600)


async def test_a_read_prolongs_an_entry(provider: Simulator) -> None:
    """Three reads four minutes apart keep a five-minute entry alive for twelve."""
    body = request(user(text(600, ttl="5m")))
    await post(provider, body)

    for _ in range(3):
        provider.clock.advance(240)
        assert (await post(provider, body)).usage == Usage(read=600)


async def test_an_hour_entry_outlives_five_minutes(provider: Simulator) -> None:
    """An entry written with a TTL of one hour is read after fifty minutes and gone after the hour."""
    body = request(user(text(600, ttl="1h")))
    await post(provider, body)
    provider.clock.advance(3000)
    assert (await post(provider, body)).usage == Usage(read=600)

    provider.clock.advance(3601)

    assert (await post(provider, body)).usage == Usage(write_1h=600)


async def test_the_ttl_runs_from_the_start_of_the_writing_request(provider: Simulator) -> None:
    """A response that begins four minutes late leaves an entry with one minute to live."""
    slow = request(user(text(600, ttl="5m")), sim({"text": "late", "hold": "gate"}))
    async with call(provider, slow) as under_way:
        await provider.received(1)
        provider.clock.advance(240)
        provider.release("gate")
        await under_way.answer()
    provider.clock.advance(61)

    assert (await post(provider, request(user(text(600, ttl="5m"))))).usage == Usage(write_5m=600)


async def test_simultaneous_cold_starts_each_pay_a_write(provider: Simulator) -> None:
    """Eight cold requests at once write eight times; none sees another's entry."""
    body = request(user(text(600, ttl="5m")), sim({"text": "held", "hold": "gate"}))

    async def one() -> Answer:
        return await post(provider, body)

    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(one()) for _ in range(8)]
        await provider.received(8)
        provider.release("gate")

    assert [answer.result().usage.write_5m for answer in calls] == [600] * 8


async def test_an_entry_is_readable_with_the_first_byte(provider: Simulator) -> None:
    """While the first response is still being streamed, a sibling already reads what it wrote."""
    shared = text(600, ttl="5m")
    script = sim({"text": "a long answer", "hold": {"gate": "rest", "after_events": 1}})
    async with call(provider, request(user(shared), script, stream=True)) as under_way:
        await under_way.head()

        sibling = await post(provider, request(user(shared, "sibling")))

        assert provider.log[0].finished_at is None
        assert sibling.usage.read == 600


async def test_before_the_first_byte_a_sibling_reads_nothing(provider: Simulator) -> None:
    """While the first response is held back, a sibling pays the write again."""
    shared = text(600, ttl="5m")
    async with call(provider, request(user(shared), sim({"text": "held", "hold": "never"}), stream=True)):
        await provider.received(1)

        sibling = await post(provider, request(user(shared, "sibling")))

    assert sibling.usage.write_5m == 600


async def test_a_request_that_came_before_the_first_byte_does_not_read(provider: Simulator) -> None:
    """What counts is the arrival: an entry that becomes readable while a request waits is not seen by it."""
    early = request(user(text(600, ttl="5m")), sim({"text": "waits", "hold": "gate"}))
    async with call(provider, early) as waiting:
        await provider.received(1)
        await post(provider, request(user(text(600, ttl="5m"))))
        provider.release("gate")

        answer = await waiting.answer()

    assert answer.usage == Usage(write_5m=600, fresh=answer.usage.fresh)


@pytest.mark.parametrize("key", ["sk-sim-beta", "sk-other"])
async def test_workspaces_share_nothing(provider: Simulator, key: str) -> None:
    """The same bytes under a key of another workspace are a miss."""
    body = request(user(text(600, ttl="5m")))
    await post(provider, body, key="sk-sim-alpha")

    answer = await post(provider, body, key=key)

    assert answer.usage == Usage(write_5m=600)


async def test_two_keys_of_one_workspace_share_the_cache(provider: Simulator) -> None:
    """The workspace isolates, not the key; both answers name it."""
    body = request(user(text(600, ttl="5m")))
    first = await post(provider, body, key="sk-sim-alpha-parent")

    second = await post(provider, body, key="sk-sim-alpha-child")

    assert second.usage == Usage(read=600)
    assert first.headers["anthropic-workspace-id"] == second.headers["anthropic-workspace-id"] == "wrkspc_alpha"


async def test_mixed_ttls_are_billed_in_three_parts(provider: Simulator) -> None:
    """Read up to the hit, one hour up to the last such block, five minutes up to the last breakpoint, rest fresh."""
    await post(provider, request(user(text(600, "a", ttl="1h"))))

    answer = await post(
        provider,
        request(
            user(text(600, "a", ttl="1h"), text(200, "b", ttl="1h"), text(100, "c", ttl="5m"), text(50, "d")),
        ),
    )

    assert answer.usage == Usage(read=600, write_1h=200, write_5m=100, fresh=50)


async def test_mixed_ttls_on_a_cold_start_write_both(provider: Simulator) -> None:
    """Without a hit the one-hour part begins at zero."""
    answer = await post(provider, request(user(text(600, "a", ttl="1h"), text(100, "c", ttl="5m"))))

    assert answer.usage == Usage(write_1h=600, write_5m=100)


async def test_the_highest_hour_breakpoint_decides(provider: Simulator) -> None:
    """Two one-hour blocks and a five-minute one: one hour reaches up to the second."""
    blocks = [text(600, "a", ttl="1h"), text(200, "b", ttl="1h"), text(100, "c", ttl="5m")]

    assert (await post(provider, request(user(*blocks)))).usage == Usage(write_1h=800, write_5m=100)


async def test_a_read_does_not_turn_five_minutes_into_an_hour(provider: Simulator) -> None:
    """A one-hour marker where a five-minute entry is found reads it, writes nothing and keeps its TTL."""
    await post(provider, request(user(text(600, ttl="5m"))))
    hour = request(user(text(600, ttl="1h")))
    assert (await post(provider, hour)).usage == Usage(read=600)

    provider.clock.advance(301)

    assert (await post(provider, hour)).usage == Usage(write_1h=600)


async def test_every_breakpoint_leaves_an_entry_of_its_own_ttl(provider: Simulator) -> None:
    """Ten minutes later the five-minute part is gone and the one-hour part is read."""
    body = request(user(text(600, "a", ttl="1h"), text(100, "c", ttl="5m")))
    await post(provider, body)
    provider.clock.advance(600)

    assert (await post(provider, body)).usage == Usage(read=600, write_5m=100)


async def test_a_prewarm_writes_and_says_nothing(provider: Simulator) -> None:
    """`max_tokens: 0` returns no content and no output tokens, and the next request reads what it wrote."""
    warm = await post(provider, request(user(text(600, ttl="5m"), "anything"), max_tokens=0))

    follow = await post(provider, request(user(text(600, ttl="5m"), "question")))

    assert warm.json["content"] == []
    assert warm.json["stop_reason"] == "max_tokens"
    assert warm.json["usage"]["output_tokens"] == 0
    assert warm.usage.write_5m == 600
    assert follow.usage.read == 600


async def test_a_refused_request_writes_nothing(provider: Simulator) -> None:
    """Neither a validation error nor an injected 529 leaves an entry behind."""
    body = request(user(text(600, ttl="5m")))
    refused = await post(provider, {**body, "temperature": 1})
    provider.script({"fault": {"status": 529, "times": 1}})
    overloaded = await post(provider, body)

    answer = await post(provider, body)

    assert (refused.status, overloaded.status) == (400, 529)
    assert answer.usage == Usage(write_5m=600)


async def test_a_stream_cut_after_it_began_has_written(provider: Simulator) -> None:
    """Once the first event is out the entry stays, however the response ends."""
    provider.script({"fault": {"error_event_after": 1, "times": 1}})
    async with call(provider, request(user(text(600, ttl="5m")), stream=True)) as under_way:
        await under_way.answer()

    assert (await post(provider, request(user(text(600, ttl="5m"))))).usage == Usage(read=600)


async def test_key_order_inside_a_tool_input_matters(provider: Simulator) -> None:
    """The same input with its keys in another order is another prefix."""

    def body(tool_input: dict[str, Any]) -> dict[str, Any]:
        call_block = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": tool_input}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
        return request(user(text(600)), assistant(call_block), user(mark(result)))

    await post(provider, body({"a": 1, "b": 2}))

    same = await post(provider, body({"a": 1, "b": 2}))
    other = await post(provider, body({"b": 2, "a": 1}))

    assert same.usage.read > 600
    assert other.usage.read == 0


async def test_a_string_is_not_the_same_prefix_as_one_text_block(provider: Simulator) -> None:
    """Rewriting a string as a block list is a change of the prefix."""
    long = "word " * 600
    await post(provider, request({"role": "user", "content": long}, cache_control={"type": "ephemeral"}))

    answer = await post(provider, request(user(mark({"type": "text", "text": long}))))

    assert answer.usage.read == 0


async def test_message_boundaries_matter(provider: Simulator) -> None:
    """Two user messages are another prefix than one with both blocks."""
    await post(provider, request(user(text(600, "a"), text(100, "b", ttl="5m"))))

    answer = await post(provider, request(user(text(600, "a")), user(text(100, "b", ttl="5m"))))

    assert answer.usage.read == 0
