from __future__ import annotations

import json
from typing import Any

import pytest

from nexofork.core.boilerplate import BOILERPLATE, BOILERPLATE_TAG
from nexofork.core.prompt import ForkBase
from nexofork.core.query_source import QuerySource, refuse_if_fork, writes_snapshot
from nexofork.core.reply import Reply
from nexofork.core.snapshot import CacheSafeParams
from nexofork.errors import AlreadyAFork


def snapshot(*messages: tuple[str, Any], **fields: Any) -> CacheSafeParams:
    """Return a snapshot with these messages."""
    rows = [{"role": role, "content": content} for role, content in messages]
    return CacheSafeParams(body=json.dumps({"model": "m", "max_tokens": 1, "messages": rows, **fields}).encode())


def text(words: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": words}


PLAIN = snapshot(("user", "hi"))


def test_fork_source_is_refused_even_when_its_messages_were_compacted() -> None:
    """The first guard needs nothing of the conversation."""
    with pytest.raises(AlreadyAFork, match="its query source 'agent:builtin:fork'"):
        refuse_if_fork("agent:builtin:fork", PLAIN)


@pytest.mark.parametrize("source", [source for source in QuerySource if source is not QuerySource.FORK] + ["my_own"])
def test_other_sources_may_fork(source: str) -> None:
    """Neither the main loop, nor a sidecar, nor a caller's own name is a fork."""
    refuse_if_fork(source, PLAIN)


@pytest.mark.parametrize("reply", [None, Reply.from_response(b'[{"type":"tool_use","id":"t","name":"A","input":{}}]')])
def test_childs_own_request_is_recognised_by_the_boilerplate(reply: Reply | None) -> None:
    """A child's real body trips the second guard whatever source it claims, on its first turn and later."""
    base = ForkBase(CacheSafeParams(body=PLAIN.body, reply=reply))
    child = base.child("do it")
    first = CacheSafeParams(body=bytes(child.body()))
    child.extend(Reply.from_response([text("done")]), texts=["go on"])
    later = CacheSafeParams(body=bytes(child.body()))

    for body in (first, later):
        with pytest.raises(AlreadyAFork, match=r"the fork boilerplate in messages\.[12]"):
            refuse_if_fork(QuerySource.MAIN_LOOP, body)


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": BOILERPLATE}
NESTED = {"type": "tool_result", "tool_use_id": "t", "content": [text(BOILERPLATE)]}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": BOILERPLATE}}


@pytest.mark.parametrize(
    "message",
    [
        ("user", f"what does <{BOILERPLATE_TAG}> mean?"),
        ("user", BOILERPLATE),
        ("user", [text(f"<{BOILERPLATE_TAG}>")]),
        ("user", [text(f"I found this:\n{BOILERPLATE}")]),
        ("user", [text(f"> {BOILERPLATE}")]),
        ("user", [text(f"{BOILERPLATE}\n")]),
        ("user", [text(f"```\n{BOILERPLATE}\n```")]),
        ("user", [RESULT]),
        ("user", [NESTED]),
        ("user", [DOCUMENT]),
        ("assistant", [text(BOILERPLATE)]),
        ("assistant", BOILERPLATE),
        ("assistant", [{"type": "tool_use", "id": "t", "name": "Write", "input": {"text": BOILERPLATE}}]),
    ],
)
def test_text_that_only_mentions_or_quotes_the_tag_does_not_make_a_fork(message: tuple[str, Any]) -> None:
    """A file, a result, a question or a quotation never turns a parent into a fork."""
    refuse_if_fork(QuerySource.MAIN_LOOP, snapshot(("user", "hi"), message))


def test_boilerplate_in_system_or_tools_does_not_make_a_fork() -> None:
    """The runtime never puts it there."""
    tool = {"name": "t", "description": BOILERPLATE, "input_schema": {}}

    refuse_if_fork(QuerySource.SDK, snapshot(("user", "hi"), system=[text(BOILERPLATE)], tools=[tool]))


def test_guard_reads_a_body_with_a_very_long_integer() -> None:
    """Looking at the messages does not fail for a number that Python would not convert."""
    call = b'{"type":"tool_use","id":"t","name":"X","input":{"n":%s}}' % (b"9" * 5000)
    body = b'{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[%s]}]}' % call

    refuse_if_fork(QuerySource.MAIN_LOOP, CacheSafeParams(body=body))


def test_only_the_main_loop_and_the_sdks_caller_write_snapshots() -> None:
    """Every other source, known or not, leaves the parent's snapshot alone."""
    writers = {source for source in [*QuerySource, "", "SDK", "agent:builtin:fork:1"] if writes_snapshot(source)}

    assert writers == {"repl_main_thread", "sdk"}
