"""Bad input is refused by name, with what to do, before any request is sent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import (
    CacheSafeParams,
    DelegateMode,
    ForkOverrides,
    ForkResult,
    ParentContext,
    QuerySource,
    Reply,
)
from nexofork.agents.evaluation.json_path import parse_answer
from nexofork.core.boilerplate import BOILERPLATE, BOILERPLATE_TAG
from nexofork.core.explain import explain
from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.errors import (
    AlreadyAFork,
    BadDirective,
    BadMessage,
    BadReply,
    BadRequestBody,
    CacheBreak,
    ForkRefused,
    NexoforkError,
    UnknownModelPrice,
    WorkspaceMismatch,
)
from nexofork.run.params import decode_file_state
from nexofork.tools.parent_tools import decode_arguments, decode_outcome
from nexofork.wire.budget import decode_account
from nexofork.wire.ledger import decode_calls
from nexofork.wire.messages import decode_event, decode_report
from tests.support.conversation import MARK, agent_calls, request, says, text
from tests.support.parents import Parent, fork, open_llm

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator

WHOLE = json.dumps(request()).encode()
USE = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}


@pytest.mark.parametrize("cut", [0, 1, 20, len(WHOLE) // 2, len(WHOLE) - 1])
async def test_truncated_json_is_refused(cut: int) -> None:
    """Wherever the bytes end, the refusal says that they do and how to get them whole."""
    with pytest.raises(BadRequestBody, match=r"capture\(client\)") as refused:
        CacheSafeParams.from_parent_request(WHOLE[:cut])

    assert "truncated" in str(refused.value) or "is empty" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"messages": {}}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, r"messages\.0"),
        ({"messages": [{"role": "user"}]}, "content"),
        ({"messages": [{"content": "hi"}]}, "role"),
        ({"messages": [{"role": "user", "content": 7}]}, r"messages\.0\.content"),
        ({"messages": [{"role": "user", "content": ["hi"]}]}, r"messages\.0\.content\.0"),
        ({"model": 7}, "model"),
        ({"model": None}, "model"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"tools": "Bash"}, "tools"),
        ({"system": 7}, "system"),
    ],
)
@pytest.mark.parametrize("as_bytes", [True, False], ids=["bytes", "mapping"])
async def test_a_wrong_type_is_refused_by_the_fields_name(change: dict[str, Any], named: str, as_bytes: bool) -> None:
    """The refusal names the field and what to pass."""
    body = request() | change

    with pytest.raises(BadRequestBody, match=named) as refused:
        CacheSafeParams.from_parent_request(json.dumps(body).encode() if as_bytes else body)

    assert refused.value.fix in str(refused.value)


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b'"text"', b"{}", WHOLE + b"x", b"\xff\xfe{}", b'{"messages":[{"role":"user"'], ids=repr
)
async def test_bytes_that_are_no_request_are_refused(body: bytes) -> None:
    """Other JSON, no JSON and no text are each a `BadRequestBody`."""
    with pytest.raises(BadRequestBody):
        CacheSafeParams.from_parent_request(body)


async def test_a_mapping_that_is_not_json_is_refused() -> None:
    """An object no JSON can hold is named by its type."""
    with pytest.raises(BadRequestBody, match="holds a object"):
        CacheSafeParams.from_parent_request(request(metadata={"user_id": object()}))


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (b'{"content":[', "truncated"),
        ("no json", "has 'n'"),
        (7, "is neither"),
        ({"role": "assistant"}, "no `content`"),
        ({"role": "user", "content": []}, "role"),
        ([{"text": "hi"}], "without a `type`"),
        (["hi"], "without a `type`"),
    ],
)
async def test_a_reply_that_is_none_is_refused(response: Any, named: str) -> None:
    """The refusal says what is wrong with it and what to pass."""
    with pytest.raises(BadReply, match=named):
        Reply.from_response(b"7" if response == 7 else response)


async def test_a_claimed_tool_call_that_the_reply_does_not_have_is_refused(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The refusal lists the calls there are."""
    talking = await parent.ask(answer={"text": "Nothing to call."})
    calling = await parent.ask()
    assert calling.reply is not None
    known = calling.reply.tool_uses[0].id

    for snapshot, named in ((talking, "it has: none"), (calling, known)):
        with pytest.raises(BadReply, match=named):
            await forks.fork(fork(snapshot, llm, tool_use_id="toolu_elsewhere"))

    assert (await (await forks.fork(fork(calling, llm, tool_use_id=known))).result()).ok
    assert sim.request_count == 3


@pytest.mark.parametrize(
    ("reply", "body", "named"),
    [
        ([], {}, "is empty"),
        ([{"type": "tool_use", "id": "toolu_1", "name": "Bash"}], {}, "without id, name or input"),
        (
            [USE],
            {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [USE]}]},
            "already ends with an assistant message",
        ),
    ],
)
async def test_a_reply_that_cannot_be_continued_is_refused(
    sim: Simulator,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    reply: list[Any],
    body: dict[str, Any],
    named: str,
) -> None:
    """An empty one, a malformed call, and a reply to a body that has it already."""
    snapshot = CacheSafeParams.from_parent_request(request() | body, reply=Reply.from_response(reply))

    with pytest.raises(BadReply, match=named):
        await forks.fork(fork(snapshot, llm))

    assert sim.request_count == 0


async def test_a_reply_that_was_cut_off_inside_a_call_is_refused(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A captured stream that ended inside a tool call cannot be forked from, and says so."""
    cut = {"text": "I call", "tools": [{"name": "Agent", "input": {"prompt": "long"}}], "stop_reason": "max_tokens"}
    async for _ in await parent.client.messages.create(**request(answer=cut), stream=True):
        pass

    with pytest.raises(BadReply, match="cut off inside the tool call 'Agent'"):
        await forks.fork(fork(parent.capture.snapshot(), llm))

    assert sim.request_count == 1


@pytest.mark.parametrize(
    ("field", "value", "loses"),
    [
        ("model", "claude-haiku-4-5", "tools, system prompt and messages"),
        ("tools", [], "tools, system prompt and messages"),
        ("system", "You are somebody else.", "system prompt and messages"),
        ("speed", "fast", "system prompt and messages"),
        ("thinking", {"type": "disabled"}, "messages"),
        ("output_config", {"effort": "low"}, "messages"),
        ("tool_choice", {"type": "none"}, "messages"),
        ("temperature", 1, "exact prefix bytes"),
    ],
)
async def test_an_override_that_breaks_the_cache_is_refused(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    field: str,
    value: Any,
    loses: str,
) -> None:
    """The refusal names the field, what it would lose, and how to insist."""
    snapshot = await parent.ask()

    with pytest.raises(CacheBreak, match="allow_cache_break=True") as refused:
        await forks.fork(fork(snapshot, llm, overrides=ForkOverrides(request={field: value})))

    assert (refused.value.fields, refused.value.loses) == ((field,), loses)
    assert sim.request_count == 1


async def test_dollars_for_an_unknown_model_are_refused_with_the_known_ones() -> None:
    """Tokens can always be counted; a price that is not known is not made up."""
    with pytest.raises(UnknownModelPrice, match="Count tokens instead") as refused:
        cost_usd(Usage(input_tokens=1), "claude-novel-9")

    assert "claude-opus-4-8" in refused.value.known


@pytest.mark.parametrize(
    ("directive", "named"),
    [
        ("", "is empty"),
        (" \n\t", "is empty"),
        ([], "is empty"),
        (["", "A note."], "is empty"),
        (f"Say <{BOILERPLATE_TAG}> twice.", BOILERPLATE_TAG),
        (f"End with </{BOILERPLATE_TAG}>.", BOILERPLATE_TAG),
        (BOILERPLATE, BOILERPLATE_TAG),
        ("half a pair \ud83d", "surrogate"),
    ],
)
@pytest.mark.parametrize("mode", list(DelegateMode))
async def test_a_directive_no_child_can_be_given_is_refused(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    directive: Any,
    named: str,
    mode: DelegateMode,
) -> None:
    """Empty, or passing for the runtime's own words, or not to be sent at all."""
    snapshot = await parent.ask()

    with pytest.raises(BadDirective, match=named) as refused:
        await forks.fork(fork(snapshot, llm, directive, mode=mode))

    assert refused.value.fix in str(refused.value)
    assert sim.request_count == 1


async def test_a_note_that_passes_for_the_runtimes_words_is_refused(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """What is said behind the directive is judged like the directive."""
    snapshot = await parent.ask()

    with pytest.raises(BadDirective, match=BOILERPLATE_TAG):
        await forks.fork(fork(snapshot, llm, ["Look.", BOILERPLATE]))

    assert sim.request_count == 1


async def test_file_content_that_mentions_the_tag_does_not_trip_the_guard(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A parent that read this project's own source is still a parent."""
    history: list[dict[str, Any]] = [
        {"role": "user", "content": [text("Read it.", tokens=2_000)]},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": BOILERPLATE}]},
    ]
    history[-1]["content"].append(text(says("Go on.", agent_calls(1)), mark=MARK))
    snapshot = await parent.ask(request(messages=history))

    assert (await (await forks.fork(fork(snapshot, llm))).result()).ok


async def test_a_snapshot_from_another_workspace_is_refused(
    sim: Simulator, parent: Parent, forks: DefaultForkSubagent
) -> None:
    """Once a provider is known to bill elsewhere, it gets no fork of this parent."""
    snapshot = await parent.ask()
    async with Parent(sim.url, key="sk-sim-strangers") as other, open_llm(sim.url, key="sk-sim-strangers") as stranger:
        own = await other.ask()
        assert (await (await forks.fork(fork(own, stranger))).result()).ok
        before = sim.request_count

        with pytest.raises(WorkspaceMismatch, match="Use a key of the parent's workspace") as refused:
            await forks.fork(fork(snapshot, stranger))

        assert (refused.value.snapshot, refused.value.provider) == ("wrkspc_team", "wrkspc_strangers")
        assert sim.request_count == before


async def test_a_fork_that_forks_is_refused_by_its_query_source(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The source outlives any compaction of the messages, so it is looked at first."""
    snapshot = await parent.ask()

    with pytest.raises(AlreadyAFork, match="query source"):
        await forks.fork(fork(snapshot, llm, parent_ctx=ParentContext(query_source=QuerySource.FORK)))

    assert sim.request_count == 1


@pytest.mark.parametrize(
    ("limit", "named"), [({"max_turns": 0}, "max_turns"), ({"timeout": 0}, "timeout"), ({"timeout": -1.0}, "timeout")]
)
async def test_a_limit_that_allows_nothing_is_refused(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    limit: dict[str, Any],
    named: str,
) -> None:
    """No turn and no time are mistakes, not limits."""
    snapshot = await parent.ask()

    with pytest.raises(ForkRefused, match=named):
        await forks.fork(fork(snapshot, llm, **limit))

    assert sim.request_count == 1


@pytest.mark.breaks_prefix("nothing is sent")
async def test_an_allowed_override_that_is_not_json_is_refused_before_the_start(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """A value no JSON can hold is the caller's mistake, told where the call is."""
    snapshot = await parent.ask()
    overrides = ForkOverrides(request={"metadata": {"user_id": object()}})

    with pytest.raises(ForkRefused, match="metadata"):
        await forks.fork(fork(snapshot, llm, overrides=overrides, allow_cache_break=True))

    assert sim.request_count == 1


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":['], ids=["lists", "objects", "both"])
@pytest.mark.parametrize(
    ("read", "refusal"),
    [
        (CacheSafeParams.from_parent_request, BadRequestBody),
        (Reply.from_response, BadReply),
        (ForkResult.from_wire, BadMessage),
        (decode_report, BadMessage),
        (decode_event, BadMessage),
        (decode_calls, BadMessage),
        (decode_account, BadMessage),
        (decode_arguments, BadMessage),
        (decode_outcome, BadMessage),
        (decode_file_state, NexoforkError),
        (lambda data: parse_answer(data.decode()), ValueError),
        (lambda data: explain(data, data), BadRequestBody),
    ],
)
def test_json_that_nests_without_end_is_refused(
    read: Callable[[bytes], object], refusal: type[Exception], opening: str
) -> None:
    """Whatever reads it gives its usual refusal, be the nesting closed or not."""
    closing = "".join({"[": "]", "{": "}"}.get(char, "") for char in reversed(opening))
    for count in (1_000, 100_000):
        for data in (opening * count, opening * count + "1" + closing * count):
            with pytest.raises(refusal):
                read(data.encode())
