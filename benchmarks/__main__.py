"""``make bench``: every claim, one after the other; the exit code says whether all bars were kept."""

from __future__ import annotations

import sys

from benchmarks import body, fanout, memory, transport

CLAIMS = (
    ("Building a child's body", body.main),
    ("Sending and streaming", transport.main),
    ("Fanning out", fanout.main),
    ("Memory of a daemon", memory.main),
)


def main() -> int:
    """Run all benchmarks."""
    missed = 0
    for title, run in CLAIMS:
        print(f"== {title}", flush=True)
        missed += run()
        print(flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
