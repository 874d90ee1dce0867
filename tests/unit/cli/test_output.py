"""What people and programs are shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import BusDenied, BusUnreachable, RunExists, StoreFull
from nexofork.cli import COMMANDS
from nexofork.cli.event_lines import event_object, event_phrase
from nexofork.cli.exit_codes import code_of, expected_error
from nexofork.cli.options import header, rfc3339, seconds_or_zero
from nexofork.cli.output import brief, counted, plain, print_json, print_results, print_table
from nexofork.cli.progress import EventLines, PlainProgress, ResultLines
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage, BusError, ForkRefused
from nexofork.run.events import (
    FanOutDecided,
    ForkClaimed,
    ForkEnded,
    ForkStarted,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from nexofork.run.result import ForkResult, ForkStatus

if TYPE_CHECKING:
    from nexofork.run.events import ForkEvent

RESULT = ForkResult(
    run_id="r1", label="fork", directive="Look.", model="m", status=ForkStatus.FAILED, end="x", error="No \x1b[31mway."
)
EVENTS: list[ForkEvent] = [
    ForkStarted(run_id="r1", label="fork", directive="Look.", cache_key_hash=7),
    ForkClaimed(run_id="r1", epoch=2, daemon="d1", host="h1"),
    TurnFinished(run_id="r1", turn=1, text="t", stop_reason=None, tool_names=("Bash",), usage=Usage(input_tokens=3)),
    ToolStarted(run_id="r1", call_id="c1", name="Bash"),
    ToolFinished(run_id="r1", call_id="c1", name="Bash", is_error=True),
    ForkEnded(result=RESULT),
]


def test_events_have_the_logs_names() -> None:
    """And each names its run."""
    shown = [event_object(event) for event in EVENTS]

    assert [one["event"] for one in shown] == ["requested", "claimed", "turn", "tool_started", "tool_finished", "final"]
    assert {one["run_id"] for one in shown} == {"r1"}
    assert shown[2]["usage"]["input_tokens"] == 3
    assert shown[-1].items() >= {"status": "failed", "directive": "Look."}.items()


def test_how_a_fan_out_started_is_said_where_somebody_waits() -> None:
    """Programs get every number; people read of it only if it holds a child up."""
    waits = FanOutDecided(run_id="r1", decision={"plan": "leader_first", "why": "it pays", "siblings": 3})
    at_once = FanOutDecided(run_id="r1", decision={"plan": "all_at_once"})

    assert event_object(waits)["event"] == "fan_out_decided"
    assert event_object(waits)["decision"]["siblings"] == 3
    assert event_phrase(waits) == "leader first: it pays"
    assert event_phrase(at_once) == ""


def test_a_cache_key_hash_is_shown_in_hex() -> None:
    """A reader with floating-point numbers would round 64 bits."""
    assert event_object(EVENTS[0])["cache_key_hash"] == "0000000000000007"


def test_one_of_a_thing_is_not_a_plural() -> None:
    """Any other number is, none too."""
    assert [counted(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
    assert event_phrase(EVENTS[-1]).startswith("failed after 0 turns, ")


def test_errors_name_only_commands_that_exist() -> None:
    """Whoever follows the advice finds it."""
    errors = [BusDenied("no"), StoreFull("FORK", "90% used"), RunExists("r1"), BusUnreachable(("nats://x",), "refused")]
    named = {name for error in errors for name in re.findall(r"`nexofork (\w+)", str(error))}

    assert named == {"provision", "wait", "serve"}
    assert named <= set(COMMANDS)


def test_a_final_event_is_the_result_with_its_name() -> None:
    """So one reader serves both forms."""
    shown = event_object(EVENTS[-1])
    assert {key: value for key, value in shown.items() if key not in ("event", "at")} == RESULT.to_json()


def test_events_have_words_for_people() -> None:
    """Short, and with what changes."""
    assert [event_phrase(event) for event in EVENTS[:5]] == [
        "requested",
        "claimed by d1 on h1 (attempt 2)",
        "turn 1: read 0, wrote 0, calls Bash",
        "Bash runs",
        "Bash failed",
    ]


def test_sinks_print_what_they_are_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Results: the end alone; events: everything; progress: stderr only."""
    for sink in (ResultLines(), EventLines(), PlainProgress()):
        for event in EVENTS:
            sink.event("r1", event)
        sink.tick()
        sink.note("note")
    shown = capsys.readouterr()

    assert [json.loads(line)["run_id"] for line in shown.out.splitlines()] == ["r1"] * 7
    assert shown.err.count("note\n") == 3
    assert "Look." in shown.err


def test_control_characters_do_not_reach_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither from a model's text nor in an error."""
    print_results([RESULT])

    assert plain("a\x1b]0;x\x07b\n") == "a?]0;x?b\n"
    assert "\x1b[31m" not in capsys.readouterr().err


def test_an_unknown_price_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens are shown, dollars are not: a sum of nothing would pass for a price."""
    unknown = replace(RESULT, status=ForkStatus.COMPLETED, error=None, cost_usd=None, cost_note="No price.")
    print_results([unknown, unknown])
    shown = capsys.readouterr()

    assert shown.out.endswith("2 of 2 completed\n")
    assert shown.err == "No price.\n"


def test_half_a_surrogate_pair_is_printable_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """It stays as its escape, and other text as itself."""
    print_json({"text": "\ud800 ä"})
    assert capfdbinary.readouterr().out == b'{"text":"\\ud800 \xc3\xa4"}\n'


def test_a_brief_text_is_one_line_of_that_width() -> None:
    """With the cut shown."""
    assert brief("a\n b", 10) == "a b"
    assert brief("a" * 20, 10) == "a" * 7 + "..."
    assert brief("abc", 0) == "..."


def test_a_table_is_as_wide_as_it_needs_to_be(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers stand right."""
    print_table(("a", "b"), [("xx", "1"), ("y", "100")], right=frozenset({1}))
    assert capsys.readouterr().out == "a     b\nxx    1\ny   100\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ForkRefused("no"), 2),
        (BadMessage("no", fix="Do."), 2),
        (RunExists("r1"), 2),
        (BusError("no", retryable=True), 3),
        (BusUnreachable(("nats://x",), "refused"), 3),
    ],
)
def test_an_error_has_its_exit_code(error: Exception, code: int) -> None:
    """Also from inside a group."""
    assert code_of(error) == code
    assert expected_error(ExceptionGroup("", [ExceptionGroup("", [error]), error])) is error


def test_a_defect_is_not_taken_for_bad_input() -> None:
    """It keeps its traceback."""
    assert expected_error(ExceptionGroup("", [ForkRefused("no"), KeyError("x")])) is None


def test_values_of_options_are_read() -> None:
    """Spaces, case and zones as their formats have them."""
    assert header("Anthropic-Beta: a,b") == ("anthropic-beta", "a,b")
    assert rfc3339("1970-01-01T01:00:00.5+01:00") == 0.5
    assert rfc3339("1970-01-01t00:00:01z") == 1.0
    assert seconds_or_zero("0") == 0.0
