"""The benchmarks, gone through with the smallest numbers: what they measure is for `make bench` to judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sandboxes import BWRAP

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)  # it only ends a hang
def test_every_benchmark_still_runs() -> None:
    """Each claim is measured to its verdict; a contender that breaks would end it."""
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--short"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert [line for line in shown.stdout.splitlines() if line.startswith("== ")] == [
        "== Building a child's body",
        "== Sending and streaming",
        "== Fanning out",
        "== What a fan-out costs",
        "== Memory of a daemon",
        "== Workspaces",
        "== Commands in the sandbox",
        "== Starting the command line",
    ]
    assert sum(line.startswith("Bar") for line in shown.stdout.splitlines()) == (8 if BWRAP else 7)
