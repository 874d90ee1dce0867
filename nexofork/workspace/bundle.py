"""Bundles: a header that says what it builds on and what it brings, and a pack.

The form is git's own (``git bundle verify`` reads them), but the pack is taken apart here, because git checks the
objects of a bundle only in later versions than many hosts have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nexofork.errors import NexoforkError

__all__ = ["BadBundle", "Bundle", "decode_bundle", "encode_bundle"]

_MAGIC = b"# v2 git bundle\n"
_LINE = re.compile(rb"(-?)([0-9a-f]{40})(?: (.*))?")
_MAX_LINES = 100_000


class BadBundle(NexoforkError):
    """Bytes that should be a bundle and are not."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"The bundle cannot be used: {problem}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle, taken apart."""

    pack: bytes
    refs: dict[str, str]
    """Name to object."""
    needs: tuple[str, ...] = field(default=())
    """Commits that whoever takes it must have."""


def encode_bundle(bundle: Bundle) -> bytes:
    """Return a bundle as git reads it."""
    needs = b"".join(b"-%b \n" % commit.encode() for commit in bundle.needs)
    refs = b"".join(b"%b %b\n" % (oid.encode(), name.encode()) for name, oid in bundle.refs.items())
    return _MAGIC + needs + refs + b"\n" + bundle.pack


def decode_bundle(data: bytes) -> Bundle:
    """Take a bundle apart.

    Raises:
        BadBundle: It is none of version 2.
    """
    if not data.startswith(_MAGIC):
        raise BadBundle("it does not begin like one")
    refs: dict[str, str] = {}
    needs: list[str] = []
    at = len(_MAGIC)
    for _ in range(_MAX_LINES):
        end = data.find(b"\n", at)
        if end < 0:
            raise BadBundle("its header has no end")
        line, at = data[at:end], end + 1
        if not line:
            break
        found = _LINE.fullmatch(line)
        if found is None:
            raise BadBundle(f"its header has the line {line[:80]!r}")
        if found[1]:
            needs.append(found[2].decode())
        else:
            refs[(found[3] or b"").decode("utf-8", "surrogateescape")] = found[2].decode()
    else:
        raise BadBundle("its header is too long")
    if data[at : at + 4] != b"PACK":
        raise BadBundle("it holds no pack")
    return Bundle(pack=data[at:], refs=refs, needs=tuple(needs))
