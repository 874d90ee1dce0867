from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.errors import BadMessage
from nexofork.wire import streams, subjects
from nexofork.wire.streams import consumer_settings, inbox_stream, log_stream, stream_settings

tokens = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)


@pytest.mark.parametrize("module", [subjects, streams])
def test_the_examples_hold(module: object) -> None:
    """Every subject is spelt as its documentation says."""
    results = doctest.testmod(module)  # type: ignore[arg-type]

    assert results.attempted > 0
    assert results.failed == 0


@given(run_id=tokens, ask_id=tokens, pool=tokens)
def test_a_run_id_is_found_again(run_id: str, ask_id: str, pool: str) -> None:
    """Every subject of a run names it in the same place."""
    for subject in (
        subjects.events(run_id, pool),
        subjects.reports(run_id, pool),
        subjects.inbox(run_id, ask_id, pool),
        subjects.live_reports(run_id, pool),
    ):
        assert subjects.run_of(subject) == run_id


@pytest.mark.parametrize("bad", ["", ".", "a.b", "*", ">", "a b", "a\n", "\x0b", "é", "a" * 129, "$JS"])
def test_what_could_be_another_subject_is_refused(bad: str) -> None:
    """No name from outside can add a token, a wildcard or a line."""
    for build in (
        subjects.events,
        subjects.reports,
        subjects.run_filter,
        subjects.live_reports,
        subjects.delta,
        subjects.parent_alive,
        lambda name: subjects.inbox("r1", name),
        lambda name: subjects.events("r1", name),
        lambda name: subjects.blob("parent", name, 0),
        lambda name: subjects.blob(name, "n", 0),
        lambda name: subjects.presence("local", name),
        lambda name: subjects.presence(name, "i"),
    ):
        with pytest.raises(BadMessage, match="cannot be used in a subject"):
            build(bad)
    if bad:
        with pytest.raises(BadMessage):
            log_stream(bad)


def test_no_stream_lets_anybody_delete() -> None:
    """Deleting, purging and rolling up are off everywhere, and nothing is spelt twice."""
    settings = [*stream_settings(), *stream_settings("gpu")[:2]]
    for stream in settings:
        assert (stream["deny_delete"], stream["deny_purge"], stream["allow_rollup_hdrs"]) == (True, True, False)
        assert stream["retention"] == "limits"
    listed = [subject for stream in settings for subject in stream["subjects"]]
    assert len(listed) == len(set(listed))


def test_write_once_streams_take_one_message_per_subject() -> None:
    """Inbox and blobs refuse a second message under a name; presence and warmth replace it."""
    by_name = {stream["name"]: stream for stream in stream_settings()}

    for name in (inbox_stream(), streams.BLOBS):
        assert by_name[name]["max_msgs_per_subject"] == 1
        assert by_name[name]["discard"] == "new"
        assert by_name[name]["discard_new_per_subject"]
    for name in (streams.PRESENCE, streams.WARM):
        assert (by_name[name]["max_msgs_per_subject"], by_name[name]["discard"]) == (1, "old")


def test_the_consumer_hands_out_events_of_its_pool() -> None:
    """Reports are not handed out, and a request is never given up."""
    settings = consumer_settings("gpu", lease_s=1.5)

    assert settings["filter_subject"] == "agent.gpu.*.events"
    assert (settings["ack_wait"], settings["max_deliver"]) == (1_500_000_000, -1)
