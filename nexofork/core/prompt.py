"""A child's request: the parent's bytes, the shared tail, the directive, and the child's own turns behind it.

`ForkBase` is what all siblings of one parent turn share, up to and including the boilerplate; `ChildPrompt` is one
child's conversation on top of it. Everything that differs between siblings stands behind the last shared block.

Invariant: a later body of the same child extends the messages of the earlier one; nothing that was sent is rewritten.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nexofork.core.boilerplate import BOILERPLATE, check_directive, text_block
from nexofork.core.layout import removal_spans, takes_marker
from nexofork.core.markers import Marked, MarkerPlan, Markings, plan_markers
from nexofork.core.pairs import open_calls, placeholder
from nexofork.core.splice import Edit, drop, marker, set_member, splice
from nexofork.errors import BadReply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from nexofork.core.layout import Block
    from nexofork.core.reply import Reply
    from nexofork.core.rope import Rope
    from nexofork.core.snapshot import CacheSafeParams

__all__ = ["ChildPrompt", "ForkBase", "ToolAnswer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """The result of one tool call as it goes back to the model."""

    call_id: str
    content: str | list[dict[str, Any]]
    is_error: bool = False
    recorded: bytes | None = None
    """The block as it was sent before, where it was: what was sent once is sent again as it was."""

    def to_wire(self) -> bytes:
        """Return the ``tool_result`` block."""
        if self.recorded is not None:
            return self.recorded
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": self.call_id, "content": self.content}
        if self.is_error:
            block["is_error"] = True
        # A lone surrogate from a tool's output cannot be UTF-8; an escape keeps it readable and the body valid.
        return json.dumps(block, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TailBlock:
    wire: bytes
    takes_marker: bool = True
    call_id: str | None = None
    """The tool call it answers, where it is the child's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TailMessage:
    role: str
    blocks: tuple[_TailBlock, ...]


class ForkBase:
    """What the children of one parent turn have in common."""

    def __init__(
        self,
        snapshot: CacheSafeParams,
        *,
        boilerplate: bool = True,
        overrides: Mapping[str, Any] | None = None,
        answers: Mapping[str, bytes] | None = None,
    ) -> None:
        """Prepare a fan-out from a snapshot.

        Args:
            snapshot: The parent's request and the reply to it.
            boilerplate: Whether children are told that they are forks; a sidecar with its own prompt leaves it out.
            overrides: Top-level fields to replace; whoever passes any has accepted that the cache is lost.
            answers: By tool call of the reply, the block that answers it; the placeholder answers the others.

        Raises:
            BadReply: The reply cannot be continued: it is empty, was cut off inside a tool call, or the body already
                ends with an assistant message.
        """
        self.snapshot = snapshot
        self._overrides = dict(overrides or {})
        self.markings = _remaining(snapshot.markings, self._overrides)
        messages, user_blocks = _shared_tail(snapshot, boilerplate=boilerplate, answers=answers or {})
        self.assistant = messages
        self.user_blocks = user_blocks

    @cached_property
    def shared_end(self) -> int | None:
        """Cache position of the last shared block of the tail that takes a marker."""
        shared = [block for message in self.assistant for block in message.blocks] + list(self.user_blocks)
        count = len(self.snapshot.layout.blocks)
        for index in range(len(shared) - 1, -1, -1):
            if shared[index].takes_marker:
                return count + index
        return None

    @cached_property
    def tail_bytes(self) -> int:
        """How long the shared part behind the parent's own bytes is."""
        blocks = [block for message in self.assistant for block in message.blocks] + list(self.user_blocks)
        return sum(len(block.wire) for block in blocks)

    @cached_property
    def allows_prewarm(self) -> bool:
        """Whether the provider takes this prefix with ``max_tokens: 0``: it refuses some parameters with it."""
        snapshot = self.snapshot
        fields = {name: snapshot.field(name) or {} for name in ("thinking", "output_config", "tool_choice")}
        fields |= {name: value or {} for name, value in self._overrides.items() if name in fields}
        return bool(
            self.user_blocks
            and self.shared_end is not None
            and fields["thinking"].get("type") != "enabled"
            and fields["output_config"].get("format") is None
            and fields["tool_choice"].get("type") not in ("any", "tool")
        )

    def prewarm_body(self) -> Rope:
        """Return the request that writes the shared prefix and asks for no answer; see `allows_prewarm`."""
        return ChildPrompt(self, ()).body(answered=False)

    @cached_property
    def digest(self) -> str:
        """Names the shared prefix: equal for siblings on every host, different whenever a cache would miss."""
        digest = hashlib.sha256(json.dumps(self.snapshot.dimensions, sort_keys=True).encode())
        for message in self.assistant:
            digest.update(_render(message, {}, 0))
        for block in self.user_blocks:
            digest.update(block.wire)
        digest.update(json.dumps(self._overrides, sort_keys=True).encode())
        return digest.hexdigest()

    @cached_property
    def fixed_edits(self) -> tuple[Edit, ...]:
        """The edits every child needs: streaming on, automatic caching spelt out as markers, overrides in place."""
        layout = self.snapshot.layout
        edits = [] if "stream" in self._overrides else set_member(layout, "stream", b"true")
        if layout.automatic_ttl is not None:
            edits += drop(removal_spans(layout.members, ("cache_control",)))
        for key, value in self._overrides.items():
            edits += set_member(layout, key, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
        return tuple(edits)

    def child(self, directive: str, notes: Iterable[str] = ()) -> ChildPrompt:
        """Start a child.

        Args:
            directive: What this child shall do.
            notes: Further text for this child alone (a worktree notice, a reminder); goes behind the directive.

        Raises:
            BadDirective: The directive is empty, or would pass for the runtime's own words.
        """
        check_directive(directive)
        return ChildPrompt(self, (directive, *notes))


class ChildPrompt:
    """One child's conversation; grows by one assistant and one user message per turn."""

    def __init__(self, base: ForkBase, texts: Sequence[str]) -> None:
        self._base = base
        self._first = _TailMessage(role="user", blocks=(*base.user_blocks, *_own_texts(texts)))
        self._tail = [*base.assistant, self._first]
        self._ends: list[int] = []
        """Where each of the turns that are still in the tail ends in it."""
        self._own_write: int | None = None
        self.ttl: str | None = None
        """How long this child's entries shall live; None is as long as the parent's."""
        self.writes_tail = True
        """Whether the first call writes what siblings share behind the parent's entry."""
        self.turns = 0
        """How many replies were added."""

    def extend(self, reply: Reply, answers: Sequence[ToolAnswer] = (), texts: Iterable[str] = ()) -> None:
        """Add the model's reply and what answers it; without answers or texts the reply alone (a paused turn)."""
        count = len(self._base.snapshot.layout.blocks)
        self._own_write = max((position for position in self.plan.markers if position >= count), default=None)
        said = _assistant(reply)
        if said.blocks:
            self._tail.append(said)
        user = [_TailBlock(wire=answer.to_wire(), call_id=answer.call_id) for answer in answers]
        user += _own_texts(texts)
        if user:
            self._tail.append(_TailMessage(role="user", blocks=tuple(user)))
        self.turns += 1
        self._ends.append(len(self._tail))

    @property
    def held_turns(self) -> int:
        """How many of the child's turns the next request carries; all of them, unless they were compacted."""
        return len(self._ends)

    def compact(self, texts: Iterable[str]) -> None:
        """Leave the child's own turns out from here on; the texts stand in their place, behind the directive.

        What the siblings share stays as it is, and so does the directive: the next request begins like the first one.
        """
        self._tail = [*self._base.assistant, replace(self._first, blocks=(*self._first.blocks, *_own_texts(texts)))]
        self._ends = []
        self._own_write = None

    def asking(self, text: str, *, turns: int, left_out: str | None = None) -> ChildPrompt | None:
        """Return a prompt that asks something about the first of the child's turns, and reads what they left cached.

        Args:
            text: The question; it is never part of a later request.
            turns: How many turns to show.
            left_out: What to say in place of each tool result of the last of them; None shows them.

        Returns:
            None where nothing can be asked there: the turn was paused, so the model has the word.
        """
        shown = self._tail[: self._ends[turns - 1]]
        if shown[-1].role != "user":
            return None
        question = _TailBlock(wire=text_block(text), takes_marker=False)
        blocks = shown[-1].blocks
        if left_out is not None:
            # Behind what was cached nothing is worth an entry: no later request has it.
            shown[-2] = _unmarkable(shown[-2])
            blocks = _unmarkable(_without_results(shown[-1], left_out)).blocks
        prompt = ChildPrompt(self._base, ())
        prompt._tail = [*shown[:-1], replace(shown[-1], blocks=(*blocks, question))]
        prompt.ttl, prompt.turns = self.ttl, self.turns
        return prompt

    @property
    def plan(self) -> MarkerPlan:
        """Where the markers of the next request go."""
        plan = plan_markers(
            self._base.markings,
            tail=[block.takes_marker for message in self._tail for block in message.blocks],
            shared_end=self._base.shared_end if self.writes_tail or self.turns else None,
            own_write=self._own_write,
            growing=self.turns > 0,
        )
        return plan if self.ttl is None else replace(plan, markers=dict.fromkeys(plan.markers, self.ttl))

    def body(self, *, previous_message_id: str | None = None, answered: bool = True) -> Rope:
        """Return the request body for the next call, sharing the parent's bytes.

        Args:
            previous_message_id: An earlier answer; the API is asked to say what changed since the request for it.
            answered: False asks for no answer: the request only writes the cache.
        """
        snapshot = self._base.snapshot
        parent, plan = self._base.markings, self.plan
        edits = list(self._base.fixed_edits)
        if not answered:
            streams = set(set_member(snapshot.layout, "stream", b"true"))
            edits = [edit for edit in edits if edit not in streams]
            edits += set_member(snapshot.layout, "stream", b"false") + set_member(snapshot.layout, "max_tokens", b"0")
        if previous_message_id is not None:
            asked = json.dumps({"previous_message_id": previous_message_id}, separators=(",", ":")).encode()
            edits += set_member(snapshot.layout, "diagnostics", asked)
        for position in (*parent.held, *(extra for extra in plan.markers if extra not in parent.held)):
            if position < len(parent.blocks):
                edits += _marker_edits(parent.blocks[position], plan.markers.get(position))
        cut = snapshot.layout.cut
        edits.append(Edit(cut, cut, self._tail_bytes(plan, len(parent.blocks))))
        return splice(snapshot.body, edits)

    def _tail_bytes(self, plan: MarkerPlan, position: int) -> bytes:
        pieces: list[bytes] = []
        for message in self._tail:
            pieces.append(_render(message, plan.markers, position))
            position += len(message.blocks)
        return b"," + b",".join(pieces)


def _remaining(parent: Markings, overrides: Mapping[str, Any]) -> Markings:
    """Return the parent's markers without those of sections that an override replaces."""
    held = {position: ttl for position, ttl in parent.held.items() if parent.blocks[position].section not in overrides}
    write = parent.write
    if write is not None and parent.blocks[write.position].section in overrides:
        write = Marked(position=max(held), ttl=held[max(held)]) if held else None
    return Markings(blocks=parent.blocks, held=held, write=write)


def _own_texts(texts: Iterable[str]) -> list[_TailBlock]:
    """Return text blocks for one child; what is blank is left out, since the API refuses empty text."""
    return [_TailBlock(wire=text_block(text)) for text in texts if text.strip()]


def _unmarkable(message: _TailMessage) -> _TailMessage:
    return replace(message, blocks=tuple(replace(block, takes_marker=False) for block in message.blocks))


def _without_results(message: _TailMessage, words: str) -> _TailMessage:
    """Return the message with these words as the result of every tool call it answers."""
    blocks = tuple(
        block if block.call_id is None else _TailBlock(wire=ToolAnswer(call_id=block.call_id, content=words).to_wire())
        for block in message.blocks
    )
    return replace(message, blocks=blocks)


def _marker_edits(block: Block, ttl: str | None) -> list[Edit]:
    """Return what gives a block of the parent's exactly this marker, or none."""
    if ttl is not None and block.ttl == ttl and len(block.markers) == 1:
        return []
    edits = drop(block.markers)
    if ttl is not None:
        assert block.insert_at is not None, "planned a marker where none can go"
        edits.append(Edit(block.insert_at, block.insert_at, marker(ttl)))
    return edits


def _shared_tail(
    snapshot: CacheSafeParams, *, boilerplate: bool, answers: Mapping[str, bytes]
) -> tuple[tuple[_TailMessage, ...], tuple[_TailBlock, ...]]:
    calls = open_calls(snapshot.layout)
    messages: tuple[_TailMessage, ...] = ()
    if snapshot.reply is not None:
        messages = (_continuable(snapshot, snapshot.reply),)
        calls = tuple(call.id for call in snapshot.reply.tool_uses)
    blocks = [_TailBlock(wire=answers.get(call_id) or placeholder(call_id)) for call_id in calls]
    if boilerplate:
        blocks.append(_TailBlock(wire=text_block(BOILERPLATE)))
    return messages, tuple(blocks)


def _continuable(snapshot: CacheSafeParams, reply: Reply) -> _TailMessage:
    if snapshot.layout.messages[-1].role == "assistant":
        raise BadReply(
            "was given for a body that already ends with an assistant message",
            fix="Pass the request as it was sent, with the reply beside it, or leave the reply out.",
        )
    if reply.truncated_tool_use is not None:
        raise BadReply(
            f"was cut off inside the tool call {reply.truncated_tool_use.name!r}",
            fix="Fork from a complete reply, or leave the reply out to fork from the request alone.",
        )
    said = _assistant(reply)
    if not said.blocks:
        raise BadReply("is empty", fix="Leave the reply out to fork from the request alone.")
    return said


def _assistant(reply: Reply) -> _TailMessage:
    """Return the reply as it is sent again; a blank text block, which the API gives but does not take, is left out."""
    blocks = tuple(
        _TailBlock(wire=block.wire, takes_marker=takes_marker(block.kind, block.value))
        for block in reply.blocks
        if block.kind != "text" or str(block.value.get("text", "")).strip()
    )
    return _TailMessage(role="assistant", blocks=blocks)


def _render(message: _TailMessage, markers: Mapping[int, str], position: int) -> bytes:
    rendered = []
    for offset, block in enumerate(message.blocks):
        ttl = markers.get(position + offset)
        rendered.append(block.wire if ttl is None else block.wire[:-1] + marker(ttl) + b"}")
    return b'{"role":"' + message.role.encode() + b'","content":[' + b",".join(rendered) + b"]}"
