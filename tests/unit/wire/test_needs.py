"""A request names what must not be ignored, and takes the lowest version that can say so."""

from __future__ import annotations

from typing import Any

import pytest

from nexofork.errors import NewerMessage
from nexofork.wire.messages import Payload, Requested, decode_event, decode_report, encode
from nexofork.wire.needs import KNOWN_NEEDS, stating_needs, unknown_needs

_REQUEST = {"kind": "requested", "snapshot": {"text": "{}"}, "directive": "look"}
SAYING: dict[str, Any] = {
    "continues": "run-1",
    "filters": [{"name": "readonly"}],
    "parent_tools": {},
    "permissions": {},
    "tool_names": {"run": "Bash"},
    "workspace": {"kind": "path", "path": "/srv"},
}


def a_request(**fields: Any) -> Requested:
    """A request with these fields."""
    return Requested.model_validate({**_REQUEST, **fields})


@pytest.mark.parametrize("need", KNOWN_NEEDS)
def test_each_need_is_stated_where_its_field_says_something(need: str) -> None:
    """Also an empty policy or offer says something: a daemon that ignores it does something else."""
    stated = stating_needs(a_request(**{need: SAYING[need]}))

    assert (stated.v, stated.needs) == (2, [need])
    assert decode_event(encode(stated)) == stated
    assert unknown_needs(stated) == ()


def test_a_request_that_needs_nothing_is_what_it_was() -> None:
    """Its bytes are those that earlier daemons read."""
    plain = a_request(id="m1", label="l", budget={"usd": 1}, compaction=False)

    assert stating_needs(plain) == plain
    assert b'"v":1' in encode(plain)
    assert b"needs" not in encode(plain)


def test_unknown_needs_are_told_from_known_ones() -> None:
    """One unknown need is enough for a daemon to leave the run."""
    assert unknown_needs(a_request(v=2, needs=["filters", "holograms"])) == ("holograms",)


@pytest.mark.parametrize("data", [b'{"v":3,"kind":"requested"}', b'{"kind":"wished","v":12}'])
def test_a_later_version_is_told_from_a_broken_message(data: bytes) -> None:
    """Whoever reads it knows that an upgrade would help."""
    with pytest.raises(NewerMessage, match="Upgrade"):
        decode_event(data)


def test_a_report_of_a_later_version_is_one() -> None:
    """Reports have one version."""
    with pytest.raises(NewerMessage, match="1 is the newest"):
        decode_report(b'{"v":2,"kind":"final","epoch":1,"status":"x","result":{"text":""}}')


def test_a_payload_is_not_part_of_what_is_needed() -> None:
    """What the parent has seen of files is a help, and no condition."""
    request = a_request().model_copy(update={"file_state": Payload(text="{}")})

    assert stating_needs(request).v == 1
