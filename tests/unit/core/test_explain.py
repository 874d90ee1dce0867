"""Two requests, one change: where it is, what it loses and what it is called."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.explain import Explanation, Sent, explain
from nexofork.core.layout import scan_request
from nexofork.core.likely_causes import LIKELY_CAUSES
from nexofork.core.prompt import ForkBase
from nexofork.core.snapshot import CacheSafeParams
from nexofork.core.spans import members_of, readable
from nexofork.core.splice import Edit, drop, set_member, splice
from nexofork.core.usage import Usage
from nexofork.errors import BadRequestBody
from tests.strategies import Forked, directives, examples, forks, request_bodies
from tests.support.conversation import AGENT, BASH, MARK, MARK_1H, request, text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

UUIDS = "4b1c0b5e-8d6a-4a6e-9d0d-2f6d5a3c1e77", "07d4e4f1-1c0e-4d0b-8a35-1f0c9d2b6f10"
LS: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls", "cwd": "/"}}
CAT: dict[str, Any] = {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {"command": "cat x"}}
REMINDER = text("<system-reminder>Be brief.</system-reminder>")


def wire(body: dict[str, Any], **style: Any) -> bytes:
    """A body as the SDK serialises it."""
    chosen: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")} | style
    return json.dumps(body, **chosen).encode()


def result(call_id: str, content: Any) -> dict[str, Any]:
    """A tool's answer."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def history() -> dict[str, Any]:
    """A request with a bit of everything."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    return request(
        thinking={"type": "enabled", "budget_tokens": 2048},
        output_config={"effort": "low"},
        messages=[
            {"role": "user", "content": [text("Begin."), REMINDER]},
            {"role": "assistant", "content": [thinking, LS, CAT]},
            {"role": "user", "content": [result("toolu_1", "a\nb\n" * 200), result("toolu_2", "naïve 日本")]},
            {"role": "assistant", "content": [text("I see.")]},
            {"role": "user", "content": [text("Go on."), text("Now.", mark=MARK)]},
        ],
    )


def changed(change: Callable[[dict[str, Any]], Any]) -> Explanation:
    """Explain the history against itself with one change."""
    body = json.loads(wire(history()))
    change(body)
    return explain(wire(history()), wire(body))


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that sets what is at a path of keys and indices."""

    def change(body: dict[str, Any]) -> None:
        *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        target: Any = body
        for key in keys:
            target = target[key]
        target[last] = value

    return change


def remove(path: str) -> Callable[[dict[str, Any]], None]:
    """A change that takes away what is at a path."""

    def change(body: dict[str, Any]) -> None:
        *keys, last = [int(key) if key.isdigit() else key for key in path.split(".")]
        target: Any = body
        for key in keys:
            target = target[key]
        del target[last]

    return change


def system(*texts: str) -> list[dict[str, Any]]:
    """System blocks."""
    return [text(words) for words in texts]


CASES: list[tuple[str, Callable[[dict[str, Any]], Any], str, str]] = [
    ("model_alias", put("model", "claude-opus-4-8-20260101"), "model", "model"),
    ("model_swapped", put("model", "claude-sonnet-5"), "model", "model"),
    ("mcp_servers", put("mcp_servers", [{"name": "x"}]), "mcp_servers", "mcp_servers"),
    (
        "budget_clamped",
        put("thinking", {"type": "enabled", "budget_tokens": 1024}),
        "thinking",
        "thinking.budget_tokens",
    ),
    ("thinking_dropped", remove("thinking"), "thinking", "thinking"),
    ("thinking_dropped", put("thinking", {"type": "disabled"}), "thinking", "thinking.type"),
    ("thinking_differs", put("thinking", {"type": "adaptive"}), "thinking", "thinking.type"),
    ("effort_differs", remove("output_config"), "effort", "output_config.effort"),
    ("effort_differs", put("output_config", {"effort": "medium"}), "effort", "output_config.effort"),
    ("tool_choice_differs", put("tool_choice", {"type": "any"}), "tool_choice", "tool_choice"),
    ("output_format_differs", put("output_config.format", {"type": "json"}), "output_format", "output_config.format"),
    ("speed_differs", put("speed", "fast"), "speed", "speed"),
    ("context_management", put("context_management", {"edits": [1]}), "context_management", "context_management"),
    ("tools_reordered", put("tools", [BASH, AGENT]), "tools", "tools[0].name"),
    ("tools_missing", put("tools", [AGENT]), "tools", "tools[1]"),
    ("tools_missing", put("tools", []), "tools", "tools[0]"),
    ("tools_added", put("tools", [AGENT, BASH, {"name": "Late", "input_schema": {}}]), "tools", "tools[2]"),
    ("tools_added", put("tools", [{"name": "Late", "input_schema": {}}, AGENT, BASH]), "tools", "tools[0].name"),
    ("tool_changed", put("tools.1", BASH | {"description": "New."}), "tools", "tools[1].description"),
    ("tool_keys_reordered", put("tools.1", dict(reversed(BASH.items()))), "tools", "tools[1]"),
    ("tools_replaced", put("tools.1", {"name": "Other", "input_schema": {}}), "tools", "tools[1].name"),
    ("system_missing", remove("system"), "system", "system[0]"),
    ("reshaped", put("system", "You are the agent of a long session."), "system", "system[0]"),
    ("reshaped", put("messages.3.content", "I see."), "messages", "messages[3].content[0]"),
    ("thinking_modified", put("messages.1.content.0.thinking", "Hm!"), "messages", "messages[1].content[0].thinking"),
    ("thinking_modified", remove("messages.1.content.0"), "messages", "messages[1].content[0].type"),
    (
        "input_keys_reordered",
        put("messages.1.content.1.input", {"cwd": "/", "command": "ls"}),
        "messages",
        "messages[1].content[1].input",
    ),
    ("block_keys_reordered", put("messages.3.content.0", {"text": "I see.", "type": "text"}), "messages", ""),
    ("tool_results_reordered", lambda body: body["messages"][2]["content"].reverse(), "messages", ""),
    ("tool_result_truncated", put("messages.2.content.0.content", "a\nb\n[truncated]"), "messages", ""),
    ("tool_result_replaced", put("messages.2.content.0.content", "(cleared)"), "messages", ""),
    ("context_duplicated", lambda body: body["messages"][0]["content"].insert(0, text("Begin.")), "messages", ""),
    ("reminder_scrubbed", remove("messages.0.content.1"), "messages", "messages[0].content[1]"),
    ("reminder_injected", lambda body: body["messages"][4]["content"].insert(0, REMINDER), "messages", ""),
    ("tool_calls_dropped", lambda body: body["messages"].__delitem__(slice(1, 3)), "messages", ""),
    ("tool_calls_dropped", remove("messages.1.content.2"), "messages", "messages[1].content[2]"),
    (
        "history_sliced",
        lambda body: body["messages"].__delitem__(slice(0, 2)),
        "messages",
        "messages[0].content[0].type",
    ),
    ("history_sliced", lambda body: body["messages"].__delitem__(slice(1, 4)), "messages", ""),
    (
        "reminder_injected",
        lambda body: body["messages"].insert(3, {"role": "user", "content": [REMINDER]}),
        "messages",
        "messages[3].role",
    ),
    (
        "history_compacted",
        lambda body: body["messages"].__setitem__(slice(0, 3), [{"role": "user", "content": "Summary: we began."}]),
        "messages",
        "messages[0].content[0]",
    ),
    (
        "message_injected",
        lambda body: body["messages"].insert(0, {"role": "user", "content": [text("A hint.")]}),
        "messages",
        "messages[0].content[0].text",
    ),
    ("history_rewritten", put("messages.3.content.0.text", "Quite another matter."), "messages", ""),
]


@pytest.mark.parametrize(
    ("likely", "change", "dimension", "path"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_a_change_is_named_and_located(
    likely: str, change: Callable[[dict[str, Any]], Any], dimension: str, path: str
) -> None:
    """One change of each kind has its own name, dimension and path."""
    explanation = changed(change)

    found = explanation.divergence
    assert found is not None
    assert found.likely_cause == likely
    assert found.dimension == dimension
    assert not path or found.path == path
    assert explanation.loses
    assert explanation.findings[0].todo


@pytest.mark.parametrize(
    ("likely", "one", "other"),
    [
        ("session_id", f"You are it. Session: {UUIDS[0]}. Go.", f"You are it. Session: {UUIDS[1]}. Go."),
        ("session_id", "Logs are in session-41f0 here.", "Logs are in session-9c3e here."),
        ("temporary_path", f"Scratch: /tmp/{UUIDS[0]}/x", f"Scratch: /tmp/{UUIDS[1]}/x"),
        ("temporary_path", "Use /var/folders/ab/T/x1.", "Use /var/folders/cd/T/x2."),
        ("timestamp", "It is 2026-05-04T10:00:01Z now.", "It is 2026-05-04T10:07:09Z now."),
        ("date", "Today is 2026-05-04.", "Today is 2026-05-05."),
        ("date", "Today is Monday, May 4.", "Today is Tuesday, May 5."),
        ("environment", "Working directory: /srv/parent", "Working directory: /home/child"),
        ("environment", "Rules.\ngit branch: main\nMore.", "Rules.\ngit branch: topic\nMore."),
        ("text_in_front", "You are an agent.", "[agent: explorer] You are an agent."),
        ("text_added", "One. Three.", "One. Two. Three."),
        ("text_missing", "One. Two. Three.", "One. Three."),
        ("prompt_rebuilt", "You are an agent of a long session.", "As a helpful assistant, do what is asked."),
    ],
)
def test_text_that_differs_is_named_by_what_it_is(likely: str, one: str, other: str) -> None:
    """Ids, paths, times and environments are told from prompts that were composed otherwise."""
    found = explain(
        wire(request(system=system("Fixed.", one))), wire(request(system=system("Fixed.", other)))
    ).divergence

    assert found is not None
    assert (found.likely_cause, found.dimension, found.path) == (likely, "system", "system[1].text")
    assert found.loses == ("system", "messages")


def test_every_cause_of_the_table_is_tested() -> None:
    """No entry of the table is there without a case."""
    named = {case[0] for case in CASES} | {"respelt", "version_header", "beta_header", "images_toggled"}
    named |= {"citations_toggled", "session_id", "temporary_path", "timestamp", "date", "environment"}
    named |= {"text_in_front", "text_added", "text_missing", "prompt_rebuilt"}

    assert named == {entry.name for entry in LIKELY_CAUSES}


def test_both_sides_are_shown_with_what_leads_up_to_them() -> None:
    """Excerpts are short, begin with what is common, show their cuts and hold no control characters."""
    bodies = [wire(request(system=system(f"{'x' * 200} Session {uuid}.\n{'y' * 200}\x7f"))) for uuid in UUIDS]

    found = explain(*bodies).divergence

    assert found is not None
    assert found.offset_a == found.offset_b == bodies[0].index(UUIDS[0].encode())
    assert found.shown_a.startswith("…x")
    assert f"Session {UUIDS[0]}." in found.shown_a
    assert f"Session {UUIDS[1]}." in found.shown_b
    assert found.shown_a.endswith("…")
    assert (found.shown_a + found.shown_b).isprintable()


def test_all_differing_dimensions_are_listed_and_the_first_is_the_cause() -> None:
    """In the order in which they lose the cache, not in that of the body."""
    body = request(system=system("Other."), tools=[BASH, AGENT], tool_choice={"type": "any"})

    explanation = explain(wire(request()), wire(body))

    assert explanation.differing == ("tools", "system", "tool_choice", "messages")
    assert explanation.cause == "tools_changed"


@pytest.mark.parametrize(
    ("name", "likely", "dimension"),
    [("anthropic-version", "version_header", "version"), ("Anthropic-Beta", "beta_header", "betas")],
)
def test_headers_are_compared_where_both_are_known(name: str, likely: str, dimension: str) -> None:
    """A version or beta that differs loses everything; one side's silence says nothing."""
    body = wire(request())

    found = explain(body, body, headers_a={name: "one"}, headers_b={name: "two"}).divergence

    assert found is not None
    assert (found.likely_cause, found.dimension, found.offset_a) == (likely, dimension, None)
    assert (found.shown_a, found.shown_b) == ("one", "two")
    assert explain(body, body, headers_a={name: "one"}).divergence is None
    assert explain(body, body, headers_a={"anthropic-beta": "a, b"}, headers_b={"anthropic-beta": "b,a"}).cause is None


@pytest.mark.parametrize(
    ("block", "likely", "loses"),
    [
        ({"type": "image", "source": {"type": "base64", "data": ""}}, "images_toggled", ("messages",)),
        (
            {"type": "document", "source": {}, "citations": {"enabled": True}},
            "citations_toggled",
            ("system", "messages"),
        ),
    ],
)
def test_a_first_image_or_citation_behind_the_parent_is_a_divergence(
    block: dict[str, Any], likely: str, loses: tuple[str, ...]
) -> None:
    """Though it only appends, it loses what came before."""
    body = request()
    body["messages"] = [*body["messages"], {"role": "user", "content": [block]}]

    found = explain(wire(request()), wire(body)).divergence

    assert found is not None
    assert (found.likely_cause, found.loses) == (likely, loses)
    assert found.path == "messages[1].content[0]"


@pytest.mark.parametrize(
    "style", [{"separators": (", ", ": ")}, {"indent": 1}, {"ensure_ascii": True}], ids=["spaces", "indent", "escapes"]
)
def test_the_same_json_in_other_bytes_is_called_so(style: dict[str, Any]) -> None:
    """It is told from a real change, and a real change behind it is found all the same."""
    body = history()

    explanation = explain(wire(body), wire(body, **style))
    body["messages"][3]["content"][0]["text"] = "I do not see."
    other = explain(wire(history()), wire(body, **style)).divergence

    assert explanation.divergence is not None
    assert (explanation.cause, explanation.divergence.likely_cause) == ("respelt", "respelt")
    assert other is not None
    assert other.path == "messages[3].content[0].text"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tool_choice", {"type": "auto"}),
        ("speed", "standard"),
        ("output_config", {"effort": "high"}),
        ("thinking", {"type": "disabled"}),
        ("metadata", {"user_id": "u"}),
        ("max_tokens", 1),
    ],
)
def test_a_default_that_is_spelt_out_is_none(field: str, value: Any) -> None:
    """What the provider takes for the same, and what is no part of the prompt, are no difference."""
    assert explain(wire(request()), wire(request() | {field: value})).cause is None


def test_tokens_are_counted_by_the_bill_where_there_is_one() -> None:
    """A change of the messages leaves what was marked before them; usage sets the scale."""
    body = request(system=[text("Shared.", tokens=2_000, mark=MARK)])
    other = request(system=[text("Shared.", tokens=2_000, mark=MARK)])
    other["messages"][0]["content"][0]["text"] = "!" + other["messages"][0]["content"][0]["text"]
    usage = Usage(cache_write_5m_tokens=10_000)

    guessed = explain(wire(body), wire(other))
    billed = explain(Sent(body=wire(body), usage=usage), wire(other))

    assert (guessed.estimated, billed.estimated) == (True, False)
    assert guessed.tokens_cached == pytest.approx(5_000, abs=3)
    assert guessed.tokens_kept == pytest.approx(2_020, abs=10)
    assert billed.tokens_cached == 10_000
    assert billed.tokens_kept == pytest.approx(2 * guessed.tokens_kept, abs=3)
    assert billed.tokens_lost == billed.tokens_cached - billed.tokens_kept


def test_an_older_entry_counts_only_where_a_marker_finds_it() -> None:
    """What stands before the divergence is kept if the later request looks there; its bill settles it."""
    body = request(system=[text("Shared.", tokens=2_000, mark=MARK)])
    other = request(system=[text("Shared.", tokens=2_000)])
    other["messages"] = [{"role": "user", "content": [text(f"{n}") for n in range(25)] + [text("end", mark=MARK)]}]
    billed = Sent(body=wire(other), usage=Usage(cache_read_tokens=77, cache_write_5m_tokens=5_000))

    assert explain(wire(body), wire(other)).tokens_kept == 0
    assert explain(wire(body), billed).tokens_kept == 77


def grown(body: dict[str, Any], blocks: int, *, mark: dict[str, str] | None = MARK) -> dict[str, Any]:
    """The body with a message of so many blocks behind it, marked at its end alone."""
    more = [text(f"{n}") for n in range(blocks - 1)] + [text("end", mark=mark)]
    return body | {"messages": [*body["messages"], {"role": "user", "content": more}]}


def bare(body: dict[str, Any]) -> dict[str, Any]:
    """The body without its markers."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    for message in copy["messages"]:
        for block in message["content"]:
            block.pop("cache_control", None)
    return copy


def test_markers_that_cannot_find_the_entry_are_named() -> None:
    """Beyond 20 blocks the lookback misses; at 19 it still hits, and a kept marker always does."""
    parent = wire(request())

    causes = [explain(parent, wire(grown(bare(request()), blocks))).cause for blocks in (19, 20, 40)]

    assert causes == [None, "lookback", "lookback"]
    assert explain(parent, wire(grown(request(), 40))).cause is None


def test_markers_in_the_wrong_number_are_named() -> None:
    """None at the parent's, none at the child's, and more than four."""
    parent = request()
    many = [text(f"{n}", mark=MARK) for n in range(4)]
    over = parent | {"messages": [*parent["messages"], {"role": "user", "content": many}]}

    assert explain(wire(bare(parent)), wire(parent)).cause == "unmarked"
    assert explain(wire(parent), wire(bare(parent))).cause == "unmarked"
    assert explain(wire(parent), wire(bare(parent))).loses
    assert not explain(wire(bare(parent)), wire(parent)).loses
    assert explain(wire(parent), wire(over)).cause == "too_many_markers"
    assert not explain(wire(bare(parent)), wire(bare(parent))).loses


def test_another_ttl_is_named() -> None:
    """A child that writes for five minutes under an hour's parent."""
    parent = request(mark=MARK_1H)

    explanation = explain(wire(parent), wire(grown(parent, 2)))

    assert (explanation.cause, explanation.divergence, explanation.differing) == ("ttl_differs", None, ("ttl",))


def test_a_short_prefix_is_named() -> None:
    """Where the model's minimum is known."""
    body = wire(request(tokens=600))

    assert explain(body, body, minimum_tokens=1024).cause == "below_minimum"
    assert explain(body, body, minimum_tokens=512).cause is None


READ = Usage(cache_read_tokens=5_000, input_tokens=10)
MISSED = Usage(cache_write_5m_tokens=5_000, input_tokens=10)


@pytest.mark.parametrize(
    ("cause", "a", "b"),
    [
        ("workspace", {"workspace_id": "one"}, {"workspace_id": "two"}),
        ("expired", {"sent_at": 1000.0}, {"sent_at": 1301.0}),
        (None, {"sent_at": 1000.0}, {"sent_at": 1299.0}),
        (None, {"sent_at": 1000.0}, {"sent_at": 1301.0, "usage": READ}),
        ("not_yet_visible", {"sent_at": 1000.0}, {"sent_at": 1001.0, "usage": MISSED}),
        ("not_yet_visible", {"sent_at": 1000.0}, {"sent_at": 999.0}),
        ("not_yet_visible", {"answered": False}, {"usage": MISSED}),
        ("unexplained", {"sent_at": 1000.0}, {"sent_at": 1100.0, "usage": MISSED}),
        ("unexplained", {}, {"usage": MISSED}),
        (None, {}, {"usage": READ}),
        (None, {}, {"usage": Usage()}),
    ],
)
def test_equal_bytes_are_explained_by_what_else_is_known(
    cause: str | None, a: dict[str, Any], b: dict[str, Any]
) -> None:
    """Workspace and time are looked at where nothing differs; a bill that shows a hit ends the search."""
    body = Sent(body=wire(request()))

    assert explain(replace(body, **a), replace(body, **b)).cause == cause


def test_a_stripped_ttl_is_seen_in_the_bill() -> None:
    """An hour was asked for, five minutes were billed, and ten have passed."""
    body = wire(request(mark=MARK_1H))

    explanation = explain(Sent(body=body, sent_at=1000.0, usage=MISSED), Sent(body=body, sent_at=1600.0))

    assert explanation.cause == "ttl_stripped"


def test_what_is_no_request_is_refused() -> None:
    """As everywhere, with the place."""
    with pytest.raises(BadRequestBody, match="truncated"):
        explain(wire(request()), wire(request())[:-3])


@examples(60)
@given(body=request_bodies(), wanted=st.sampled_from(["5m", "1h", None]), data=st.randoms(use_true_random=False))
def test_editable_spans_are_no_divergence(body: bytes, wanted: str | None, data: Random) -> None:
    """Markers, stream, limit and diagnostics may come, go and change anywhere."""
    layout = scan_request(body)
    edits: list[Edit] = []
    for key, value in (("stream", b"true"), ("max_tokens", b"7"), ("diagnostics", b"null")):
        edits += set_member(layout, key, value) if data.random() < 0.5 else []
    ends = {edit.start for edit in edits}
    for block in layout.blocks:
        if data.random() < 0.5 and not block.markers and block.insert_at is not None and block.insert_at not in ends:
            ttl = b',"ttl":"1h"' if wanted == "1h" else b""
            edits.append(Edit(block.insert_at, block.insert_at, b',"cache_control":{"type":"ephemeral"' + ttl + b"}"))
        elif data.random() < 0.5:
            edits += drop(block.markers)

    assert explain(body, body).divergence is None
    assert explain(body, bytes(splice(body, edits))).divergence is None


@examples(60)
@given(forked=forks(), directive=directives(), boilerplate=st.booleans())
def test_a_fork_is_no_divergence(forked: Forked, directive: str, boilerplate: bool) -> None:
    """Whatever the parent sent and the model answered."""
    snapshot = CacheSafeParams.from_parent_request(forked.body, reply=forked.reply)
    child = ForkBase(snapshot, boilerplate=boilerplate).child(directive)

    explanation = explain(snapshot, bytes(child.body()))

    assert explanation.divergence is None
    assert explanation.cause not in ("too_many_markers", "ttl_differs")


@examples(80)
@given(body=request_bodies(), data=st.data())
def test_a_changed_byte_is_located_exactly(body: bytes, data: st.DataObject) -> None:
    """Any letter of any text of the prompt."""
    layout = scan_request(body)
    spans = []
    for block in layout.blocks:
        if block.kind == "string":
            spans.append(block.span)
            continue
        members = members_of(readable(body), block.span.start)
        last = {member.key: member.value for member in members}
        spans += [last[key] for key in ("text", "thinking", "description") if key in last]
    places = [
        at
        for span in spans
        for at in range(span.start + 1, span.end - 1)
        if chr(body[at]).isalpha() and chr(body[at]).isascii() and b"\\" not in body[max(0, at - 6) : at]
    ]
    if not places:
        return
    at = data.draw(st.sampled_from(places))
    other = body[:at] + (b"Q" if body[at : at + 1] != b"Q" else b"Z") + body[at + 1 :]

    found = explain(body, other).divergence

    assert found is not None
    assert (found.offset_a, found.offset_b) == (at, at)


@examples(60)
@given(a=request_bodies(), b=request_bodies())
def test_any_two_requests_can_be_explained(a: bytes, b: bytes) -> None:
    """Whatever they are, what is said is printable, fits into JSON and points into the bodies."""
    explanation = explain(a, b)

    assert json.loads(json.dumps(explanation.to_json()))["cause"] == explanation.cause
    assert 0 <= explanation.tokens_kept <= explanation.tokens_cached
    if (found := explanation.divergence) is not None:
        assert (found.shown_a + found.shown_b).isprintable()
        assert found.offset_a is None or 0 <= found.offset_a <= len(a)
        assert found.offset_b is None or 0 <= found.offset_b <= len(b)
