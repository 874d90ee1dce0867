"""Whatever stands around a command that a rule covers, nothing else that changes something runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexofork import Permissions
from nexofork.policy.gate import Judge
from tests.unit.engine.shell.scratch import listing, make, run
from tests.unit.engine.shell.test_fuzz import FRAGMENTS, JOINS, disguised

COVERED = st.sampled_from(["touch allowed", "touch 'allowed'", "touch allowed >/dev/null", "ls && touch allowed"])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(covered=COVERED, join=JOINS, harmful=disguised(), first=st.booleans())
def test_a_covered_command_carries_no_other_along(covered: str, join: str, harmful: str, first: bool) -> None:
    """A harmful command in any disguise, before or behind it."""
    check(covered + join + harmful if first else harmful + join + covered)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pieces=st.lists(FRAGMENTS, min_size=1, max_size=5), data=st.data())
def test_what_is_pushed_into_a_covered_command_is_seen(pieces: list[str], data: st.DataObject) -> None:
    """Pieces of shell inserted anywhere: what still runs changes nothing but what the rule says."""
    command = data.draw(COVERED)
    for piece in pieces:
        place = data.draw(st.integers(0, len(command)))
        command = command[:place] + piece + command[place:]
    check(command)


def check(command: str) -> None:
    """Run the command if it may run, and look at what has changed."""
    judge = Judge(Permissions(mode="deny", allow=["Bash(touch allowed)"]))
    if judge.judge("Bash", {"command": command}, read_only=False).kind != "run":
        return
    with tempfile.TemporaryDirectory() as name:
        folder = make(Path(name))
        before = listing(folder)
        run(command, folder)
        after = listing(folder)
        after.pop("allowed", None)
        assert after == before, command
