from __future__ import annotations

import json
import threading
from dataclasses import FrozenInstanceError
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given

from nexofork.core.markers import Marked
from nexofork.core.query_source import QuerySource
from nexofork.core.replacement import ContentReplacementState
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams, CacheSafeSlot
from nexofork.errors import BadRequestBody
from tests.strategies import examples, request_bodies
from tests.unit.core.judge import parse

REQUEST: dict[str, Any] = {
    "model": "claude-opus-5",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
    "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "né", "cache_control": {"type": "ephemeral"}}]}],
}
BODY = json.dumps(REQUEST).encode()


def numbered(number: int) -> CacheSafeParams:
    """Return a snapshot that can be told from others."""
    return CacheSafeParams.from_parent_request({**REQUEST, "max_tokens": number})


@examples(100)
@given(body=request_bodies())
def test_bytes_are_kept_as_they_came(body: bytes) -> None:
    """A request given as bytes is exact and is the very same object; reading it agrees with a JSON reader."""
    params = CacheSafeParams.from_parent_request(body)

    assert params.body is body
    assert params.exact
    document = parse(body)
    assert (params.model, params.max_tokens) == (document["model"], document["max_tokens"])
    assert params.fork_context_messages == document["messages"]
    assert params.tools == document.get("tools", [])
    assert params.field("system") == document.get("system")


def test_mapping_is_serialised_like_the_sdk_does_and_flagged() -> None:
    """Compact, not escaped, in the caller's order, and not said to be exact."""
    params = CacheSafeParams.from_parent_request(REQUEST)

    assert params.body == json.dumps(REQUEST, ensure_ascii=False, separators=(",", ":")).encode()
    assert not params.exact


def test_any_mapping_will_do() -> None:
    """A read-only view is as good as a dict."""
    assert CacheSafeParams.from_parent_request(MappingProxyType(REQUEST)).model == "claude-opus-5"


class SdkBlock:
    """A block of a response, as an SDK object."""

    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, str]:
        """Return the block's fields."""
        assert (mode, exclude_unset) == ("json", True)
        return {"type": "text", "text": "from the SDK"}


def test_response_objects_echoed_in_a_mapping_are_understood() -> None:
    """A parent that puts response blocks back into its messages can be forked."""
    request = {**REQUEST, "messages": [{"role": "user", "content": [SdkBlock()]}]}

    params = CacheSafeParams.from_parent_request(request)

    assert params.fork_context_messages[0]["content"] == [{"type": "text", "text": "from the SDK"}]


LOOP: dict[str, Any] = {}
LOOP["self"] = LOOP
DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "request_",
    [
        {**REQUEST, "x": object()},
        {**REQUEST, "x": b"bytes"},
        {**REQUEST, "x": float("nan")},
        {**REQUEST, "x": LOOP},
        {**REQUEST, "x": DEEP},
        {**REQUEST, "x": "\ud800"},
        "a string",
        42,
    ],
)
def test_what_cannot_be_json_is_refused(request_: Any) -> None:
    """Each is the named error, before anything else happens."""
    with pytest.raises(BadRequestBody, match="cannot be serialised"):
        CacheSafeParams.from_parent_request(request_)


@pytest.mark.parametrize("body", [b"", b"{}", BODY[:-1], BODY + b"x"])
def test_unusable_body_is_refused_where_it_is_handed_in(body: bytes) -> None:
    """Nobody gets hold of a snapshot that cannot be forked, whichever way it came in."""
    with pytest.raises(BadRequestBody):
        CacheSafeParams(body=body)
    with pytest.raises(BadRequestBody):
        CacheSafeParams.from_parent_request(body)
    with pytest.raises(BadRequestBody):
        CacheSafeParams.captured(body, headers={}, reply=None, workspace_id=None, organization_id=None, sent_at=None)


def test_caller_may_say_that_bytes_are_not_what_was_sent() -> None:
    """A recomputed body is flagged inexact, and its query string is kept."""
    params = CacheSafeParams.from_parent_request(BODY, exact=False, query=(("beta", "true"),))

    assert not params.exact
    assert params.query == (("beta", "true"),)
    assert not CacheSafeParams.from_parent_request(REQUEST, exact=True).exact


def test_dangling_calls_are_answered_and_named() -> None:
    """A repaired body is not what was sent, and says so."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    request = {**REQUEST, "messages": [{"role": "assistant", "content": [call]}, {"role": "user", "content": "x"}]}

    params = CacheSafeParams.from_parent_request(json.dumps(request).encode())

    assert params.answered == ("toolu_1",)
    assert not params.exact


def test_captured_request_is_not_touched() -> None:
    """What the API took is kept as it was, headers in lower case and only those the cache depends on."""
    reply = Reply.from_response(b"[]")

    params = CacheSafeParams.captured(
        BODY,
        headers={"Anthropic-Beta": "b,a", "X-Api-Key": "secret", "anthropic-version": "2026-10-21"},
        query=(("beta", "true"),),
        reply=reply,
        workspace_id="wrk",
        organization_id="org",
        sent_at=1.5,
    )

    assert params.body is BODY
    assert params.headers == (("anthropic-version", "2026-10-21"), ("anthropic-beta", "b,a"))
    assert (params.query, params.reply, params.sent_at, params.exact) == ((("beta", "true"),), reply, 1.5, True)
    assert (params.workspace_id, params.organization_id) == ("wrk", "org")


def test_snapshot_shows_no_content_in_its_repr() -> None:
    """A log line with a snapshot in it gives no prompt away."""
    assert "two" not in repr(CacheSafeParams.from_parent_request(BODY))


def test_snapshot_is_immutable_and_so_is_what_travels_with_it() -> None:
    """The parent goes on deciding about results without changing a snapshot that was taken."""
    state = ContentReplacementState()
    params = CacheSafeParams.from_parent_request(BODY, replacements=state)

    state.apply("toolu_1", "x" * 10)

    assert params.replacements == ContentReplacementState()
    with pytest.raises(FrozenInstanceError):
        params.body = b""  # type: ignore[misc]


def test_views_for_looking() -> None:
    """System, tools and the newest write are read off the bytes."""
    params = CacheSafeParams.from_parent_request(BODY)

    assert params.system_prompt == "one\ntwo"
    assert params.system_blocks == REQUEST["system"]
    assert params.tools == REQUEST["tools"]
    assert params.write == Marked(position=3, ttl="5m")
    assert params.field("nothing") is None


def test_system_given_as_a_string_or_not_at_all() -> None:
    """Both are a prompt without blocks."""
    text = CacheSafeParams.from_parent_request({**REQUEST, "system": "brief"})
    none = CacheSafeParams.from_parent_request({key: REQUEST[key] for key in ("model", "max_tokens", "messages")})

    assert (text.system_prompt, text.system_blocks) == ("brief", [])
    assert (none.system_prompt, none.system_blocks, none.tools) == ("", [], [])


@pytest.mark.parametrize("source", [QuerySource.MAIN_LOOP, QuerySource.SDK])
def test_parents_own_turn_is_kept(source: str) -> None:
    """The main loop and the SDK's caller write the slot; the newest wins."""
    slot = CacheSafeSlot()

    assert slot.get() is None
    assert slot.save(numbered(1), source)
    newest = numbered(2)
    assert slot.save(newest, source)

    assert slot.get() is newest


@pytest.mark.parametrize("source", [QuerySource.FORK, QuerySource.AUTO_DREAM, QuerySource.EVAL, "somebody"])
def test_turn_of_a_child_never_overwrites_the_parents(source: str) -> None:
    """A fork's or sidecar's request leaves the slot as it was, full or empty."""
    slot = CacheSafeSlot()
    assert not slot.save(numbered(1), source)
    assert slot.get() is None
    parents = numbered(2)
    slot.save(parents, QuerySource.SDK)

    assert not slot.save(numbered(3), source)

    assert slot.get() is parents


def test_cleared_slot_is_empty() -> None:
    """What was forgotten is gone."""
    slot = CacheSafeSlot()
    slot.save(numbered(1), QuerySource.SDK)

    slot.clear()

    assert slot.get() is None


def test_slot_holds_a_whole_parents_snapshot_whatever_the_threads_do() -> None:
    """Children and parents writing at once: only a parent's snapshot is ever seen."""
    slot, seen = CacheSafeSlot(), list[CacheSafeParams | None]()
    parents = [numbered(number) for number in range(4)]
    child = numbered(99)
    start = threading.Barrier(8)

    def write(params: CacheSafeParams, source: str) -> None:
        start.wait()
        for _ in range(200):
            slot.save(params, source)
            seen.append(slot.get())

    workers = [threading.Thread(target=write, args=(params, QuerySource.SDK)) for params in parents]
    workers += [threading.Thread(target=write, args=(child, QuerySource.FORK)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert {id(params) for params in seen if params is not None} <= {id(params) for params in parents}
    assert slot.get() in parents


def test_arguments_of_the_sdk_that_are_not_body_fields_stay_out_of_it() -> None:
    """Betas and extra headers become headers, an extra query the query, and a timeout is nobody's business."""
    arguments = {
        **REQUEST,
        "betas": ["one", "two"],
        "timeout": 5,
        "extra_headers": {"anthropic-version": "2026-10-21"},
        "extra_query": {"beta": "true"},
        "extra_body": {"speed": "fast"},
    }
    snapshot = CacheSafeParams.from_parent_request(arguments)

    assert json.loads(snapshot.body) == {**REQUEST, "speed": "fast"}
    assert dict(snapshot.headers) == {"anthropic-version": "2026-10-21", "anthropic-beta": "one,two"}
    assert snapshot.query == (("beta", "true"),)
