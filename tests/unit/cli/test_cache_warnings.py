"""A person who forks sees why the cache was missed, and what to do, without asking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.cli.event_lines import event_object
from nexofork.cli.progress import LiveProgress, PlainProgress
from nexofork.run.cache_check import CacheCheck
from nexofork.run.events import CacheBreakDetected

if TYPE_CHECKING:
    import pytest

    from nexofork.cli.progress import Sink


def missed(run_id: str, cause: str = "expired", detail: str = "Fork sooner.") -> CacheBreakDetected:
    """A first call that read nothing."""
    check = CacheCheck(hit_ratio=0.0, read=0, written=5_000, fresh=10, expected_read=5_000, cause=cause, detail=detail)
    return CacheBreakDetected(run_id=run_id, check=check)


def told(capfd: pytest.CaptureFixture[str], sink: Sink, *events: CacheBreakDetected) -> str:
    """What is printed for these events."""
    for event in events:
        sink.event(event.run_id, event)
    return capfd.readouterr().err


def test_the_cause_and_the_remedy_are_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    """A hundred siblings miss for one reason; each says so in a few words, and one in full."""
    err = told(
        capfd, PlainProgress(), *(missed(f"run-{n}") for n in range(5)), missed("run-9", "workspace", "Use a key.")
    )

    assert err.count("cache missed (expired)") == 5
    assert err.count("Fork sooner.") == 1
    assert err.count("Use a key.") == 1
    assert "`nexofork explain run-0`" in err


def test_on_a_terminal_the_remedy_stays_above_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    """The child's own line moves on; what was told about the cache is not overwritten by it."""
    err = told(capfd, LiveProgress(), missed("run-1"), missed("run-1"))

    assert err.count("Cache missed (expired): Fork sooner.") == 1
    assert err.index("Fork sooner.") < err.index("cache missed (expired): read 0%")


def test_what_a_server_said_is_shown_without_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    """The detail holds names from the outside."""
    assert "\x1b" not in told(capfd, PlainProgress(), missed("run-1", detail="Model \x1b[31mevil answered."))


def test_programs_get_the_whole_verdict() -> None:
    """As an event of its own, before the turn's."""
    event = event_object(missed("run-1"))

    assert (event["event"], event["run_id"]) == ("cache_break_detected", "run-1")
    assert event["check"]["cause"] == "expired"
