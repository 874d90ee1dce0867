"""``make bench``: every claim, one after the other; the exit code says whether all bars were kept.

``python -m benchmarks --short`` goes through the same motions with the smallest numbers and judges nothing: it shows
that the benchmarks still run.
"""

from __future__ import annotations

import sys

from benchmarks import body, economics, fanout, memory, sandbox, startup, transport, workspace

CLAIMS = (
    ("Building a child's body", body.main),
    ("Sending and streaming", transport.main),
    ("Fanning out", fanout.main),
    ("What a fan-out costs", economics.main),
    ("Memory of a daemon", memory.main),
    ("Workspaces", workspace.main),
    ("Commands in the sandbox", sandbox.main),
    ("Starting the command line", startup.main),
)


def shorten() -> None:
    """Make every number as small as it can be."""
    body.ROUNDS, body.CALLS, body.CHILDREN = 1, 1, 2
    transport.ROUNDS = fanout.ROUNDS = 1
    transport.SEQUENTIAL_CALLS, transport.CONCURRENT_CALLS = 1, 2
    fanout.CHILDREN, fanout.MANY = 4, 8
    economics.CHILDREN, economics.DAEMONS, economics.FIRST_BYTE_S = 3, 1, 0.1
    memory.FORKS = 4
    workspace.FILES, workspace.ROUNDS = 50, 1
    sandbox.ROUNDS = startup.ROUNDS = 1


def main(*, short: bool) -> int:
    """Run all benchmarks."""
    if short:
        shorten()
    missed = 0
    for title, run in CLAIMS:
        print(f"== {title}", flush=True)
        missed += run()
        print(flush=True)
    return 1 if missed and not short else 0


if __name__ == "__main__":
    sys.exit(main(short="--short" in sys.argv[1:]))
