"""The constant words of a fork, and nothing that differs between siblings.

Everything here is part of the shared prefix: a changed character makes every child of every running fleet write it
anew.
"""

from __future__ import annotations

import json

from nexofork.errors import BadDirective

__all__ = [
    "BOILERPLATE",
    "BOILERPLATE_TAG",
    "PLACEHOLDER_RESULT",
    "check_directive",
    "json_string",
    "reminder",
    "text_block",
    "worktree_notice",
]

BOILERPLATE_TAG = "fork-boilerplate"

BOILERPLATE = f"""<{BOILERPLATE_TAG}>
From here on you are a fork: a copy of the agent above, made for one directive. Whatever it was told about forking or \
delegating was meant for it, not for you.
- Start no other agent; the Agent tool will refuse you.
- Hold no conversation: no questions, no proposals, no prose between tool calls.
- Do the work yourself with the tools you have. Stay within the directive.
- Commit what you changed before you report.
- End with one report of under 500 words that begins with "Scope:" and has these lines:
Scope: the directive as you took it
Result: what you did or found
Key files: the paths that matter
Files changed: paths and commit, or none
Issues: what is left open, or none
The directive follows.
</{BOILERPLATE_TAG}>"""

PLACEHOLDER_RESULT = "A fork is working on this in the background."
"""Answers every open tool call of the parent, the same for all siblings."""


def text_block(text: str) -> bytes:
    """Return a text content block as wire bytes."""
    return b'{"type":"text","text":' + json_string(text) + b"}"


def json_string(text: str) -> bytes:
    """Return the text as JSON in UTF-8; half a surrogate pair, which UTF-8 cannot hold, stays as its escape."""
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace")


def check_directive(directive: str) -> None:
    """Refuse a directive that no child could be given.

    Raises:
        BadDirective: It is empty, carries the boilerplate tag, or cannot be sent as UTF-8.
    """
    if not directive.strip():
        raise BadDirective("is empty", fix="Say what the child should do.")
    if f"<{BOILERPLATE_TAG}" in directive or f"</{BOILERPLATE_TAG}" in directive:
        raise BadDirective(
            f"contains the tag <{BOILERPLATE_TAG}>, by which a fork is recognised",
            fix="Leave the tag out; the runtime adds it where it belongs.",
        )
    try:
        directive.encode()
    except UnicodeEncodeError as exc:
        raise BadDirective(
            f"has half of a surrogate pair at character {exc.start}", fix="Pass text that can be encoded as UTF-8."
        ) from exc


def worktree_notice(parent_root: str, child_root: str | None) -> str:
    """Return what a child in its own worktree has to know; it follows the directive.

    Args:
        parent_root: The parent's root.
        child_root: Where the child has it; None where that is the parent's own path.
    """
    if child_root is None:
        return (
            f"You work in a checkout of your own of the repository in {parent_root}, at the same path: every path "
            f"above is right as it stands. Read a file again before you edit it; it may differ from what was shown "
            f"above. Only what is under {parent_root} is returned; files elsewhere are scratch."
        )
    return (
        f"The conversation above took place in {parent_root}. You work in {child_root}: another checkout of the same "
        f"repository with the same layout. Read every path under {parent_root} as the same path under {child_root}, "
        "and read a file again before you edit it; it may differ from what was shown above."
    )


def reminder(text: str) -> str:
    """Return a critical reminder as it is given to a child, behind everything that is shared."""
    return f"<system-reminder>\n{text}\n</system-reminder>"
