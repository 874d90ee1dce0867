"""Faults at random on real processes, for as long as a test may take; ``make chaos`` takes longer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.chaos.__main__ import chaos

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.ops

MINUTES = 0.9
"""With the start, the last runs and the checks it is about 90 seconds."""


@pytest.mark.parametrize("servers", [1, 3])
async def test_no_promise_is_broken_by_faults_at_random(servers: int, tmp_path: Path) -> None:
    """No run is lost, ended twice, paid twice or done twice, and nothing is left when all have ended."""
    outcome = await chaos(tmp_path, seed=20 + servers, minutes=MINUTES, servers=servers, judged_by_time=False)

    assert outcome.violations == []
    assert outcome.figures["runs"] > 0
    assert outcome.figures["faults"]
