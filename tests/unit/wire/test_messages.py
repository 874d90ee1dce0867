from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nexofork.errors import BadMessage
from nexofork.wire.messages import (
    AbortEvent,
    Answer,
    Asked,
    BlobRef,
    Claimed,
    Compacted,
    Daemon,
    Delivered,
    Delta,
    Final,
    HandedOver,
    Parent,
    Payload,
    PermissionPolicy,
    Permitted,
    Presence,
    Requested,
    ToolFinished,
    ToolStarted,
    Turn,
    decode_event,
    decode_report,
    encode,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

SHA = "ab" * 32
REF = BlobRef(owner="parent", name="n1", sha256=SHA, size=5, chunks=1)
DAEMON = Daemon(nkey="UABC", instance="i1", host="h1", name="d1")

EVENTS: dict[str, tuple[Requested | AbortEvent, str]] = {
    "the smallest request": (
        Requested(id="m1", snapshot=Payload(text="{}"), directive="look"),
        '{"id":"m1","snapshot":{"text":"{}"},"directive":"look","v":1,"kind":"requested"}',
    ),
    "a request that maps tools": (
        Requested(
            id="m0",
            snapshot=Payload(text="{}"),
            directive="look",
            tool_names={"sh": "Bash"},
            file_state=Payload(text="{}"),
        ),
        '{"id":"m0","snapshot":{"text":"{}"},"directive":"look","tool_names":{"sh":"Bash"},'
        '"file_state":{"text":"{}"},"v":1,"kind":"requested"}',
    ),
    "a request with a policy": (
        Requested(
            id="m6",
            snapshot=Payload(text="{}"),
            directive="look",
            permissions=PermissionPolicy(mode="bubble", allow=["Bash(git commit *)"], deadline_s=9.0),
        ),
        '{"id":"m6","snapshot":{"text":"{}"},"directive":"look","permissions":{"mode":"bubble",'
        '"allow":["Bash(git commit *)"],"deadline_s":9.0},"v":1,"kind":"requested"}',
    ),
    "a request that goes on": (
        Requested(
            id="m9",
            snapshot=Payload(text="{}"),
            directive="more",
            continues="run-1",
            answers=Payload(text="[]"),
            compaction=False,
        ),
        '{"id":"m9","snapshot":{"text":"{}"},"directive":"more","continues":"run-1","answers":{"text":"[]"},'
        '"compaction":false,"v":1,"kind":"requested"}',
    ),
    "a request by reference": (
        Requested(
            id="m2",
            at=12.5,
            snapshot=Payload(blob=REF),
            reply=Payload(text='["é"]'),
            directive="do",
            headers={"anthropic-version": "2023-06-01"},
            query=[("beta", "true")],
            parent=Parent(id="p1", host="h0"),
            group="g1",
            max_turns=3,
            timeout_s=1.5,
        ),
        '{"id":"m2","at":12.5,"snapshot":{"blob":{"owner":"parent","name":"n1","sha256":"<sha>","size":5,"chunks":1}},'
        '"directive":"do","reply":{"text":"[\\"é\\"]"},"headers":{"anthropic-version":"2023-06-01"},'
        '"query":[["beta","true"]],"parent":{"id":"p1","host":"h0"},"group":"g1","max_turns":3,"timeout_s":1.5,'
        '"v":1,"kind":"requested"}',
    ),
    "a request that grew": (
        Requested(
            id="m3",
            snapshot=Payload(delta=Delta(base=REF, prefix=4, suffix=1, middle="ab", sha256=SHA, size=7)),
            directive="do",
        ),
        '{"id":"m3","snapshot":{"delta":{"base":{"owner":"parent","name":"n1","sha256":"<sha>","size":5,"chunks":1},'
        '"prefix":4,"suffix":1,"middle":"ab","sha256":"<sha>","size":7}},"directive":"do","v":1,"kind":"requested"}',
    ),
    "an abort": (
        AbortEvent(id="m4", note="enough", by="me"),
        '{"id":"m4","note":"enough","by":"me","v":1,"kind":"abort"}',
    ),
}
REPORTS: dict[str, tuple[Any, str]] = {
    "claimed": (
        Claimed(id="m1", epoch=2, daemon=DAEMON, workspace_id="w1"),
        '{"id":"m1","epoch":2,"daemon":{"nkey":"UABC","instance":"i1","host":"h1","name":"d1"},"workspace_id":"w1",'
        '"v":1,"kind":"claimed"}',
    ),
    "turn": (
        Turn(id="m2", epoch=1, turn=1, content=Payload(text="[]"), stop_reason="end_turn", usage={"input_tokens": 3}),
        '{"id":"m2","epoch":1,"turn":1,"content":{"text":"[]"},"stop_reason":"end_turn","usage":{"input_tokens":3},'
        '"v":1,"kind":"turn"}',
    ),
    "tool started": (
        ToolStarted(id="m3", epoch=1, turn=1, call_id="c1", name="Bash"),
        '{"id":"m3","epoch":1,"turn":1,"call_id":"c1","name":"Bash","v":1,"kind":"tool_started"}',
    ),
    "tool finished": (
        ToolFinished(id="m4", epoch=1, turn=1, call_id="c1", block=Payload(text="{}"), is_error=True),
        '{"id":"m4","epoch":1,"turn":1,"call_id":"c1","block":{"text":"{}"},"is_error":true,"v":1,"kind":"tool_finished"}',
    ),
    "delivered": (
        Delivered(id="m8", epoch=1, turn=2, ids=["a"], texts=["also look there"]),
        '{"id":"m8","epoch":1,"turn":2,"ids":["a"],"texts":["also look there"],"v":1,"kind":"delivered"}',
    ),
    "compacted": (
        Compacted(id="m9", epoch=1, turn=3, note=Payload(text="so far"), left_out=1, attempt=2, usage={"input": 3}),
        '{"id":"m9","epoch":1,"turn":3,"note":{"text":"so far"},"left_out":1,"attempt":2,"usage":{"input":3},'
        '"v":1,"kind":"compacted"}',
    ),
    "asked": (
        Asked(id="m5", epoch=1, ask_id="q1", payload=Payload(blob=REF), deadline_s=5.0),
        '{"id":"m5","epoch":1,"ask_id":"q1","payload":{"blob":{"owner":"parent","name":"n1","sha256":"<sha>","size":5,'
        '"chunks":1}},"deadline_s":5.0,"v":1,"kind":"asked"}',
    ),
    "asked for a permission": (
        Asked(
            id="m9",
            epoch=1,
            ask_id="permission-1-0",
            what="permission",
            payload=Payload(text="{}"),
            deadline_s=5.0,
            turn=1,
            call_id="c1",
            name="Bash",
            rules=["Bash(ls)"],
        ),
        '{"id":"m9","epoch":1,"ask_id":"permission-1-0","what":"permission","payload":{"text":"{}"},"deadline_s":5.0,'
        '"turn":1,"call_id":"c1","name":"Bash","rules":["Bash(ls)"],"v":1,"kind":"asked"}',
    ),
    "permitted": (
        Permitted(id="m10", epoch=1, ask_id="permission-1-0", name="Bash", allowed=True, rules=["Bash(ls)"]),
        '{"id":"m10","epoch":1,"ask_id":"permission-1-0","name":"Bash","allowed":true,"rules":["Bash(ls)"],'
        '"v":1,"kind":"permitted"}',
    ),
    "handed over": (
        HandedOver(id="m6", epoch=1, reason="drain"),
        '{"id":"m6","epoch":1,"reason":"drain","v":1,"kind":"handed_over"}',
    ),
    "final": (
        Final(id="m7", epoch=1, status="completed", result=Payload(blob=REF)),
        '{"id":"m7","epoch":1,"status":"completed","result":{"blob":{"owner":"parent","name":"n1","sha256":"<sha>","size":5,'
        '"chunks":1}},"v":1,"kind":"final"}',
    ),
}
OTHERS: dict[str, tuple[BaseModel, str]] = {
    "answer": (
        Answer(id="m1", kind="answer", text="yes", data={"a": 1}),
        '{"id":"m1","kind":"answer","text":"yes","data":{"a":1},"v":1}',
    ),
    "presence": (
        Presence(id="m2", daemon=DAEMON, version="1", slots=4, running=1),
        '{"id":"m2","daemon":{"nkey":"UABC","instance":"i1","host":"h1","name":"d1"},"version":"1","slots":4,"running":1,'
        '"v":1,"kind":"presence"}',
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_an_event_has_exactly_these_bytes(name: str) -> None:
    """Other languages write and read them, so they change on purpose only."""
    message, golden = EVENTS[name][0], EVENTS[name][1].replace("<sha>", SHA)

    assert encode(message).decode() == golden
    assert decode_event(golden.encode()) == message


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_has_exactly_these_bytes(name: str) -> None:
    """A daemon of another version reads them."""
    message, golden = REPORTS[name][0], REPORTS[name][1].replace("<sha>", SHA)

    assert encode(message).decode() == golden
    assert decode_report(golden.encode()) == message


@pytest.mark.parametrize("name", OTHERS)
def test_other_messages_have_exactly_these_bytes(name: str) -> None:
    """What goes beside the log is as stable as what is on it."""
    message, golden = OTHERS[name]

    assert encode(message).decode() == golden
    assert type(message).model_validate_json(golden) == message


@pytest.mark.parametrize("golden", [golden for _, golden in REPORTS.values()])
def test_unknown_fields_are_ignored(golden: str) -> None:
    """A newer daemon may say more, also inside."""
    plain = json.loads(golden.replace("<sha>", SHA))
    plain["new"] = {"of": "the future"}
    for value in list(plain.values()):
        if isinstance(value, dict):
            value["more"] = [1]

    assert decode_report(json.dumps({**plain, "usage": {}}).encode()).id == plain["id"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"kind":"requested_v2"}', "requested_v2"),
        (b'{"kind":"final","epoch":1,"status":"x","result":{"text":""}}', "final"),
        (b'{"kind":"abort","v":2}', "v: "),
        (b'{"kind":"requested","directive":"x"}', "snapshot"),
        (b'{"kind":"requested","snapshot":{"text":"{}"},"directive":""}', "directive"),
        (b'{"kind":"requested","snapshot":{},"directive":"x"}', "exactly one of"),
        (b'{"kind":"requested","snapshot":{"text":"","blob":null},"directive":"x","max_turns":0}', "max_turns"),
        (b'{"kind":"abort"', "JSON"),
        (b"\xff", "JSON"),
        (b"", "JSON"),
        (b"null", "event"),
        (b"[]", "event"),
        (b"[" * 100_000, "event"),
        (b'{"a":' * 100_000, "event"),
    ],
)
def test_what_is_not_an_event_is_refused_with_a_reason(data: bytes, reason: str) -> None:
    """The error says what is wrong and is short, however long the message."""
    with pytest.raises(BadMessage, match=reason) as caught:
        decode_event(data)

    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("kind", ["requested", "abort", "presence", "nonsense"])
def test_an_event_is_not_a_report(kind: str) -> None:
    """A daemon cannot abort: there is no such report."""
    with pytest.raises(BadMessage):
        decode_report(json.dumps({"kind": kind, "epoch": 1, "note": "x"}).encode())


@pytest.mark.parametrize(
    "wrong",
    [{"name": "a.b"}, {"name": ""}, {"sha256": "x"}, {"size": -1}, {"chunks": 0}, {"owner": "me"}, {"chunks": 10**9}],
)
def test_a_reference_that_could_be_something_else_is_refused(wrong: dict[str, Any]) -> None:
    """A blob's name is one token of a subject."""
    with pytest.raises(ValidationError):
        BlobRef.model_validate({**REF.model_dump(), **wrong})


def test_two_messages_have_two_ids() -> None:
    """An id tells a lost answer from a lost message."""
    assert AbortEvent().id != AbortEvent().id


@given(text=st.text())
def test_text_keeps_its_bytes(text: str) -> None:
    """Any text comes back as it went in, whatever JSON does to it on the way."""
    message = Requested(snapshot=Payload(text=text), directive="x")

    assert decode_event(encode(message)).snapshot.text == text  # type: ignore[union-attr]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
FIELDS = sorted(
    {name for model in (Requested, AbortEvent, Claimed, Turn, ToolStarted, Asked, Final) for name in model.model_fields}
)
KINDS = [
    "requested",
    "abort",
    "claimed",
    "turn",
    "tool_started",
    "tool_finished",
    "compacted",
    "asked",
    "handed_over",
    "final",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=8), st.sampled_from(KINDS))
def test_fields_of_any_kind_are_taken_or_refused(fields: dict[str, Any], kind: str) -> None:
    """Well-formed JSON with any values never raises anything but BadMessage."""
    data = json.dumps({**fields, "kind": kind}).encode()
    for decode in (decode_event, decode_report):
        try:
            decode(data)
        except BadMessage as refused:
            assert str(refused)  # noqa: PT017 - most are refused, some are not


def test_ten_thousand_broken_messages_are_refused_by_name() -> None:
    """Cut, flipped, repeated and random bytes never raise anything but BadMessage."""
    dice = random.Random(1)
    valid = [golden.replace("<sha>", SHA).encode() for _, golden in (*EVENTS.values(), *REPORTS.values())]
    refused = 0
    for _ in range(10_000):
        data = bytearray(dice.choice(valid))
        match dice.randrange(5):
            case 0:
                data = data[: dice.randrange(len(data))]
            case 1:
                for _ in range(dice.randint(1, 5)):
                    data[dice.randrange(len(data))] = dice.randrange(256)
            case 2:
                data = bytearray(dice.randbytes(dice.randrange(200)))
            case 3:
                at = dice.randrange(len(data))
                data[at:at] = data[: dice.randrange(len(data))]
            case _:
                data[dice.randrange(len(data)) :] = b'"\\ud800"}'
        for decode in (decode_event, decode_report):
            try:
                decode(bytes(data))
            except BadMessage:
                refused += 1

    assert refused > 10_000


def test_what_nobody_could_read_is_not_written() -> None:
    """Half a pair of surrogates, as names of files have them, is an error of the writer and not of every reader."""
    with pytest.raises(BadMessage, match="not Unicode"):
        encode(AbortEvent(note="caf\udce9"))
