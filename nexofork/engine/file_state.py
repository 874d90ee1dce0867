"""What an agent has seen of files, path to SHA-256, and how it travels.

A child that knows what its parent had seen may edit a file without reading it again, if it is the same where the child
runs. It is a hint that is always checked against the file, so it can do no harm where it is wrong.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_FILES", "check_file_state", "decode_file_state", "encode_file_state"]

MAX_FILES = 20_000
_MAX_PATH = 4_096
_DIGEST = re.compile(r"[0-9a-f]{64}")


def check_file_state(state: Mapping[Any, Any]) -> None:
    """Refuse what cannot be a file state.

    Raises:
        ForkRefused: It is too large, or holds something other than paths and digests.
    """
    if len(state) > MAX_FILES:
        raise ForkRefused(f"file_state has {len(state)} files; give at most {MAX_FILES}, those seen last.")
    for path, digest in state.items():
        if not isinstance(path, str) or not 0 < len(path) <= _MAX_PATH:
            raise ForkRefused(f"file_state has a path that is none: {str(path)[:100]!r}; give absolute paths.")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ForkRefused(f"file_state of {path!r} is no SHA-256; give it as 64 lower-case hex digits.")


def encode_file_state(state: Mapping[str, str]) -> bytes:
    """Return a state as it travels; equal states are equal bytes."""
    return json.dumps(dict(state), sort_keys=True, separators=(",", ":")).encode()


def decode_file_state(data: bytes) -> dict[str, str]:
    """Read a state that travelled.

    Raises:
        ForkRefused: It is none.
    """
    try:
        state: Any = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ForkRefused("The request's file_state is not JSON; send an object, path to SHA-256.") from exc
    if not isinstance(state, dict):
        raise ForkRefused("The request's file_state is no JSON object; send one, path to SHA-256.")
    check_file_state(state)
    return state
