"""How long ``nexofork --help`` takes, beside an interpreter that does nothing and one that only imports click.

Rounds alternate between the contenders, so that a busy moment meets all of them; the bar is on the median.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["main"]

ROUNDS = 15
BAR_S = 0.150
_CONTENDERS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import click'": [sys.executable, "-c", "import click"],
    "nexofork --help": [str(Path(sys.executable).with_name("nexofork")), "--help"],
}


def main() -> int:
    """Measure and judge; returns how many bars were missed."""
    times: dict[str, list[float]] = {name: [] for name in _CONTENDERS}
    for _ in range(ROUNDS):
        for name, command in _CONTENDERS.items():
            began = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(found) for name, found in times.items()}
    bare = medians["python -c pass"]
    for name, median in medians.items():
        print(f"{name:<26} {median * 1000:7.1f} ms  {median / bare:5.2f} times a bare start")
    kept = medians["nexofork --help"] < BAR_S
    print(f"Bar: under {BAR_S * 1000:.0f} ms: {'kept' if kept else 'MISSED'}")
    return 0 if kept else 1
