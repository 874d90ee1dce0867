"""What can be seen in a difference: the tests that tell one cause of it from another."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nexofork.core.side_by_side import shared_length

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nexofork.core.divergence import Difference
    from nexofork.core.layout import Block, Message
    from nexofork.core.side_by_side import Side

__all__ = [
    "DATE",
    "DATED",
    "ID",
    "SURROUNDINGS",
    "TEMPORARY",
    "TIME",
    "Case",
    "about",
    "calls_dropped",
    "compacted",
    "duplicated",
    "in_text",
    "injected",
    "off",
    "one_sided",
    "reminds",
    "reshaped",
    "result_cut",
    "same_result",
    "sliced",
    "subset",
    "thinking_kind",
]

ID = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    r"|(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,64}|\b(?:sess|session|run|req|conv|thread|agent|task|id)[-_:/=][\w.-]*\d[\w.-]*"
)
TEMPORARY = re.compile(r"(?:/tmp|/var/tmp|/var/folders|/private/tmp|/scratch|[\\/]Temp|[\\/]te?mp)[\\/][^\s\"']*")
TIME = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?|\b1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?\b")
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? \d{1,2}\b"
    r"|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b"
)
SURROUNDINGS = re.compile(
    r"(?i)\b(?:cwd|pwd|working dir\w*|git|branch|commit|platform|os|uname|host(?:name)?|shell|container|user(?:name)?)"
    r"\b[^\n]{0,40}$"
)
_COMPACTED = re.compile(r"(?i)\b(?:summar(?:y|ised|ized)|compact(?:ed|ion)|conversation so far|earlier conversation)\b")
_REMINDER = re.compile(r"(?i)<system-reminder|<reminder|\breminder:")
_CUT = re.compile(r"(?i)truncat|omitted|cleared|elided|removed|replaced|too long|\.\.\.\s*$|…\s*$|\[\.\.\.")
DATED = re.compile(r"[-@](?:\d{8}|latest)$")
_TOOL_BLOCKS = ("tool_use", "tool_result", "server_tool_use")
_AROUND = 60


@dataclass(frozen=True, kw_only=True)
class Case:
    """A difference with what stands around it."""

    found: Difference
    a: Side
    b: Side

    @cached_property
    def words(self) -> tuple[str, str] | None:
        """Both sides, where both are text."""
        one, other = self.found.leaf_a, self.found.leaf_b
        return (one, other) if isinstance(one, str) and isinstance(other, str) else None

    @cached_property
    def changed(self) -> tuple[str, str, str]:
        """The line up to the difference, and what it says from the differing word on, on each side."""
        one, other = self.words or ("", "")
        at = shared_length(one, other)
        start = at
        while start and not one[start - 1].isspace():
            start -= 1
        lead = one[max(one.rfind("\n", 0, start) + 1, start - _AROUND) : start]
        return lead, one[start : start + _AROUND], other[start : start + _AROUND]

    def both(self, pattern: re.Pattern[str]) -> bool:
        """Whether the differing words are such a thing on both sides, and not the same one."""
        _, one, other = self.changed
        ours, theirs = pattern.search(_first_words(one)), pattern.search(_first_words(other))
        return ours is not None and theirs is not None and ours[0] != theirs[0]

    @cached_property
    def tools(self) -> tuple[list[str], list[str]]:
        """Both tool lists, each tool as text of its own, without markers."""
        return _bare(self.a, self.a.layout.tools), _bare(self.b, self.b.layout.tools)

    @cached_property
    def names(self) -> tuple[list[str], list[str]]:
        """The tools' names."""
        one, other = ([str(tool.get("name")) for tool in side.value.get("tools") or []] for side in (self.a, self.b))
        return one, other

    @cached_property
    def messages(self) -> tuple[list[str], list[str]]:
        """Both histories, each message as text of its own, without markers."""
        one, other = (
            [f"{message.role} {_bare(side, message.blocks)}" for message in side.layout.messages]
            for side in (self.a, self.b)
        )
        return one, other

    @property
    def message(self) -> int:
        """Which message the difference is in."""
        found = re.match(r"messages\[(\d+)\]", self.found.path)
        return int(found[1]) if found else -1

    @cached_property
    def blocks(self) -> tuple[Sequence[Block], Sequence[Block]]:
        """The blocks of the message, on both sides."""
        one, other = (
            side.layout.messages[self.message].blocks if 0 <= self.message < len(side.layout.messages) else ()
            for side in (self.a, self.b)
        )
        return one, other

    @property
    def block(self) -> tuple[Block | None, Block | None]:
        """The block, on both sides."""
        found = re.match(r"messages\[\d+\]\.content(?:\[(\d+)\])?", self.found.path)
        index = int(found[1] or 0) if found else -1
        one, other = (row[index] if 0 <= index < len(row) else None for row in self.blocks)
        return one, other

    @property
    def kinds(self) -> tuple[str, str]:
        """What the block is, on both sides; empty where there is none."""
        one, other = (block.kind if block else "" for block in self.block)
        return one, other

    @cached_property
    def bags(self) -> tuple[list[str], list[str]]:
        """The blocks of the message as sorted texts."""
        return sorted(_bare(self.a, self.blocks[0])), sorted(_bare(self.b, self.blocks[1]))


def _bare(side: Side, blocks: Sequence[Block]) -> list[str]:
    return [side.bare(block).decode() for block in blocks]


def _first_words(text: str) -> str:
    """Return the differing word and its neighbours: a date is more than one."""
    return " ".join(text.split("\n", 1)[0].split(" ")[:4])


def _inserted(one: str, other: str) -> int | None:
    """Return where `other` has something more than `one`, which is otherwise the same; None where it is not."""
    if len(other) <= len(one):
        return None
    head = shared_length(one, other)
    tail = shared_length(one[::-1], other[::-1])
    return head if head + tail >= len(one) else None


def about(*dimensions: str) -> Callable[[Case], bool]:
    """Make a test for a difference in one of these dimensions."""
    return lambda case: case.found.dimension in dimensions


def in_text(test: Callable[[Case], bool]) -> Callable[[Case], bool]:
    """Make a test that is tried where both sides are text of the prompt."""
    return lambda case: (
        case.found.dimension in ("system", "messages")
        and case.words is not None
        and "tool_result" not in case.kinds
        and not {"thinking", "redacted_thinking"} & set(case.kinds)
        and test(case)
    )


def one_sided(*, added: bool, at_start: bool = False) -> Callable[[Case], bool]:
    """Make a test for text that only one side has: `added` to the later one, or missing from it."""

    def test(case: Case) -> bool:
        assert case.words is not None
        at = _inserted(*(case.words if added else case.words[::-1]))
        return at is not None and not (at_start and at)

    return in_text(test)


def sliced(case: Case) -> bool:
    """Whether the later history goes on with what came later in the earlier one."""
    ours, theirs = case.messages
    at = case.message
    rest = theirs[at : at + 2]
    return bool(rest) and any(ours[start : start + len(rest)] == rest for start in range(at + 1, len(ours)))


def _skipped(case: Case) -> Iterator[Message]:
    """Yield the messages of the earlier history that the later one left out."""
    ours, theirs = case.messages
    at = case.message
    for index in range(at, len(ours)):
        if at < len(theirs) and ours[index] == theirs[at]:
            return
        yield case.a.layout.messages[index]


def injected(case: Case) -> bool:
    """Whether the earlier history goes on behind something that only the later one has."""
    ours, theirs = case.messages
    at = case.message
    return 0 <= at < len(ours) and ours[at] in theirs[at + 1 :]


def duplicated(case: Case) -> bool:
    """Whether what the later history has more is something it already had."""
    _, theirs = case.messages
    at = case.message
    if 0 <= at < len(theirs) and injected(case) and theirs[at] in theirs[:at]:
        return True
    one, other = (_bare(side, row) for side, row in zip((case.a, case.b), case.blocks, strict=True))
    return len(other) > len(one) and set(one) == set(other) and bool(one)


def _extra_block(case: Case, *, added: bool) -> Block | None:
    """Return the block that only one side's message has, in front of what the other goes on with."""
    one, other = (_bare(side, row) for side, row in zip((case.a, case.b), case.blocks, strict=True))
    mine, longer, row = (one, other, case.blocks[1]) if added else (other, one, case.blocks[0])
    at = shared_length(mine, longer)
    if len(longer) <= len(mine) or longer[at + 1 : at + 2] != mine[at : at + 1]:
        return None
    return row[at]


def reminds(case: Case, *, added: bool) -> bool:
    """Whether what only one side has is a reminder: `added` to the later one, or missing from it."""
    side = case.b if added else case.a
    if injected(case) if added else sliced(case):
        extra = [side.layout.messages[case.message]] if added else list(_skipped(case))
        return all(_REMINDER.search(words) for message in extra for words in _bare(side, message.blocks))
    block = _extra_block(case, added=added)
    if block is not None:
        return bool(_REMINDER.search(side.bare(block).decode()))
    if case.words is None:
        return False
    one, more = case.words if added else case.words[::-1]
    at = _inserted(one, more)
    return at is not None and bool(_REMINDER.search(more[max(0, at - 20) : at + len(more) - len(one)]))


def calls_dropped(case: Case) -> bool:
    """Whether what the later history lacks are tool calls or their results."""
    if sliced(case):
        # Where messages without a call are gone as well, it is not the calls that were meant.
        return case.message > 0 and all(
            any(block.kind in _TOOL_BLOCKS for block in message.blocks) for message in _skipped(case)
        )
    gone = _extra_block(case, added=False)
    if gone is not None:
        return gone.kind in _TOOL_BLOCKS
    one, other = case.kinds
    return one in _TOOL_BLOCKS and other not in _TOOL_BLOCKS and len(case.blocks[1]) < len(case.blocks[0])


def _result_text(leaf: Any) -> str:
    return leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)


def same_result(case: Case) -> bool:
    """Whether both sides answer one tool call, differently."""
    one, other = case.block
    return (
        one is not None
        and other is not None
        and one.kind == other.kind == "tool_result"
        and one.call_id == other.call_id
    )


def result_cut(case: Case) -> bool:
    """Whether a tool result is shorter in the later history, and otherwise the same."""
    if not same_result(case):
        return False
    one, other = (_result_text(leaf) for leaf in (case.found.leaf_a, case.found.leaf_b))
    at = shared_length(one, other)
    return len(other) < len(one) and (at >= len(other) // 2 or (bool(_CUT.search(other[-80:])) and at > 0))


def compacted(case: Case) -> bool:
    """Whether the later history has a summary in this place and the earlier one has none."""
    ours, theirs = case.messages
    at = case.message
    if not 0 <= at < len(theirs) or ours[at] in theirs:
        return False
    said = case.b.raw(case.b.layout.messages[at].span).decode()
    return bool(_COMPACTED.search(said)) and not _COMPACTED.search(case.a.raw(case.a.layout.messages[at].span).decode())


def thinking_kind(case: Case) -> bool:
    """Whether the earlier history has a thinking block in this place."""
    return bool({"thinking", "redacted_thinking"} & set(case.kinds[:1]))


def reshaped(case: Case) -> bool:
    """Whether the same text is a plain string on one side and a block on the other."""
    match case.found.leaf_a, case.found.leaf_b:
        case (str(words), {"text": str(shown)}) | ({"text": str(shown)}, str(words)):
            return words == shown
    return False


def off(thinking: Any) -> bool:
    """Whether a thinking setting means none."""
    return thinking is None or (isinstance(thinking, dict) and thinking.get("type") == "disabled")


def subset(few: list[str], many: list[str]) -> bool:
    """Whether one list of names lacks some of the other and adds none."""
    return len(few) < len(many) and set(few) <= set(many)
