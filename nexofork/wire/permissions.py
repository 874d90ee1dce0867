"""What travels about permissions: a run's policy, and the answer to what it asks for."""

from __future__ import annotations

import hashlib
from typing import Literal

from pydantic import Field, StrictBool

from nexofork.wire.contents import WireModel

__all__ = ["LONGEST_NOTE", "PermissionPolicy", "PermissionReply", "ask_id_of"]

LONGEST_NOTE = 2_000
"""Characters of a note that a model is shown."""


class PermissionPolicy(WireModel):
    """Which tool calls run, which are asked for, which are denied. A daemon refuses a run whose policy it cannot read.

    Nothing here is judged but its types: what the texts mean is the engine's business.
    """

    mode: str = "allow"
    """`allow`, `bubble` (ask the parent) or `deny` what no rule decides."""
    allow: list[str] = Field(default_factory=list)
    """Rules of calls that run."""
    deny: list[str] = Field(default_factory=list)
    """Rules of calls that do not; they come first."""
    deadline_s: float = 300.0
    """How long an answer is waited for; then it is a denial."""


class PermissionReply(WireModel):
    """The ``data`` of the answer to a permission that was asked for; its ``text`` is a note for the model."""

    allow: StrictBool
    """Whether the call may run; what cannot be read denies."""
    remember: StrictBool = False
    """Whether the same goes for the rest of the run, by ``rule`` or else by the rules that the question names."""
    rule: str = Field(default="", max_length=1_000)
    """What is remembered instead of the question's own rules; it has to cover the call."""
    by: str = Field(default="", max_length=256)
    """Who answers."""


def ask_id_of(what: Literal["tool", "permission"], turn: int, call_id: str) -> str:
    """Return the id under which a tool call is asked about, the same on every daemon.

    >>> ask_id_of("tool", 3, "toolu_1")
    'tool-3-4838a0c252e24a61'
    """
    digest = hashlib.sha256(call_id.encode("utf-8", "backslashreplace")).hexdigest()
    return f"{what}-{turn}-{digest[:16]}"
