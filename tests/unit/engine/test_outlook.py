"""What is expected of a fan-out before it starts."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nexofork import CacheSafeParams, Reply
from nexofork.core.usage import Usage
from nexofork.run.prefix_gate import FirstByteTimes, warm_tokens
from tests.support.conversation import request

MODEL = "claude-sonnet-5"


def test_the_time_of_a_call_is_learnt_from_calls_like_it() -> None:
    """A few of about the same size are followed, and the newest do not outweigh the rest."""
    times = FirstByteTimes()
    for _ in range(10):
        times.saw(MODEL, 150_000, 20.0)
    times.saw(MODEL, 150_000, 40.0)

    assert 20 < times.expected_s(MODEL, 150_000) < 30


@pytest.mark.parametrize("seconds", [0.01, 6.0], ids=["quick", "slow"])
def test_reads_say_nothing_about_writes(seconds: float) -> None:
    """However soon cached prefixes are answered, the first write of a long one is expected to take what it would."""
    times = FirstByteTimes()
    untaught = times.expected_s(MODEL, 150_000)
    for _ in range(10):
        times.saw(MODEL, 250, seconds)

    assert times.expected_s(MODEL, 150_000) == untaught
    assert times.expected_s(MODEL, 250) == pytest.approx(seconds)


def test_a_pre_warm_is_another_kind_of_call() -> None:
    """What it takes is learnt apart from calls that are answered, and so is another model."""
    times = FirstByteTimes()
    times.saw(MODEL, 20_000, 9.0, prewarm=True)

    assert times.expected_s(MODEL, 20_000) == times.expected_s("claude-opus-5", 20_000, prewarm=True) < 9


def test_a_call_that_is_yet_to_be_sent_left_nothing() -> None:
    """A parent's time far in the future is no reason to count on its cache; a little is a clock that is off."""
    known = replace(
        CacheSafeParams.from_parent_request(json.dumps(request()).encode(), sent_at=1_000.0),
        reply=replace(
            Reply.from_response(b'[{"type":"text","text":"I fork."}]'), usage=Usage(cache_write_5m_tokens=5_000)
        ),
    )

    assert warm_tokens(known, now=1_000.0 - 30) == 5_000
    assert warm_tokens(known, now=1_000.0 - 86_400) == 0
