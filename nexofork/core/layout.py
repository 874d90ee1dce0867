"""Where everything is in a Messages request body: its cacheable blocks, their markers, and the one place it may grow.

The provider caches by position: every tool, system block and content block is one, in the order tools, system,
messages, whatever order the body has. This module reads that order off the bytes in a single walk.

Invariant: ``body[layout.cut]`` is the bracket that closes ``messages``; all offsets are into the unchanged body.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from nexofork.core.spans import (
    Member,
    Span,
    end_of_value,
    read_json,
    readable,
    skip_space,
    value_at,
    walk_array,
    walk_object,
)
from nexofork.errors import BadJson, BadRequestBody

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Block", "Layout", "Message", "Section", "removal_spans", "scan_request", "takes_marker"]

_RECORD_WIRE = "Record it at the transport with capture(client), or pass the bytes of a whole Messages request."
_FIX_FIELD = "Pass the request as it was sent to /v1/messages."


class Section(StrEnum):
    """The three parts of a prompt, in cache order."""

    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One position of the provider's cache."""

    section: Section
    span: Span
    kind: str
    """The block's ``type``; ``string`` for content given as a plain string."""
    message: int
    """Index of the message it belongs to; -1 outside of messages."""
    ttl: str | None
    """``5m`` or ``1h`` where the block carries a marker."""
    markers: tuple[Span, ...]
    """What to delete to take its markers away, commas included."""
    insert_at: int | None
    """Where a marker may be inserted; None where the provider takes none (strings, thinking, empty text)."""
    call_id: str | None = None
    """The id of a ``tool_use``, or the one a ``tool_result`` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of ``messages``."""

    role: str
    span: Span
    content: Span
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The map of one request body."""

    model: str
    members: tuple[Member, ...]
    """The top-level members in byte order, duplicates included."""
    messages: tuple[Message, ...]
    tools: tuple[Block, ...]
    system: tuple[Block, ...]
    cut: int
    """Offset of the bracket that closes ``messages``: the one place where a body may grow."""
    automatic_ttl: str | None
    """TTL of a top-level ``cache_control`` (automatic caching)."""

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every cache position in the provider's order."""
        return (*self.tools, *self.system, *(block for message in self.messages for block in message.blocks))

    def member(self, key: str) -> Member | None:
        """Return the member that counts: the last of its name, as every JSON reader takes it."""
        found = [member for member in self.members if member.key == key]
        return found[-1] if found else None


def scan_request(body: bytes) -> Layout:
    """Map a request body.

    Raises:
        BadRequestBody: It is not JSON, or not a Messages request.
    """
    try:
        return _Scan(body).layout()
    except BadJson as exc:
        raise BadRequestBody(exc.problem, offset=exc.offset, fix=_RECORD_WIRE) from exc
    except RecursionError as exc:
        raise BadRequestBody("is nested too deeply to read", fix=_RECORD_WIRE) from exc


def removal_spans(members: list[Member] | tuple[Member, ...], keys: Iterable[str]) -> tuple[Span, ...]:
    """Return what to delete so that the members named `keys` are gone and the object stays valid."""
    names = frozenset(keys)
    spans: list[Span] = []
    i = 0
    while i < len(members):
        if members[i].key not in names:
            i += 1
            continue
        j = i
        while j + 1 < len(members) and members[j + 1].key in names:
            j += 1
        if i > 0:
            spans.append(Span(members[i - 1].value.end, members[j].value.end))
        elif j + 1 < len(members):
            spans.append(Span(members[0].key_start, members[j + 1].key_start))
        else:
            spans.append(Span(members[0].key_start, members[j].value.end))
        i = j + 1
    return tuple(spans)


@dataclass(slots=True)
class _Found:
    """What the walk of one block has seen so far."""

    members: list[Member] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    nested: list[Span] = field(default_factory=list)
    nested_ttl: str | None = None


class _Scan:
    """One walk over one body."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._text = readable(body)
        self._tools: list[Block] = []
        self._system: list[Block] = []
        self._messages: list[Message] = []
        self._cut: int | None = None

    def layout(self) -> Layout:
        text = self._text
        start = skip_space(text, 0)
        if start == len(text):
            raise BadRequestBody("is empty", fix=_RECORD_WIRE)
        if text[start] != "{":
            raise BadRequestBody("is not a JSON object", offset=start, fix=_RECORD_WIRE)
        members: list[Member] = []

        def visit(key: str, key_start: int, at: int) -> int:
            end = self._top_level(key, at)
            members.append(Member(key, key_start, Span(at, end)))
            return end

        end = walk_object(text, start, visit)
        if skip_space(text, end) != len(text):
            raise BadRequestBody("has something behind its closing brace", offset=end, fix=_RECORD_WIRE)
        if self._cut is None:
            raise BadRequestBody("has no `messages`", fix=_RECORD_WIRE)
        if not self._messages:
            raise BadRequestBody("has no message in `messages`", fix="Fork from a request that was sent.")
        return self._finish(members)

    def _finish(self, members: list[Member]) -> Layout:
        assert self._cut is not None
        values = {member.key: member.value for member in members}
        model = self._value(values["model"]) if "model" in values else None
        if not isinstance(model, str) or not model:
            raise BadRequestBody("has no `model` string", fix=_FIX_FIELD)
        limit = self._value(values["max_tokens"]) if "max_tokens" in values else None
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise BadRequestBody("has no whole number as `max_tokens`", fix=_FIX_FIELD)
        automatic = self._value(values["cache_control"]) if "cache_control" in values else None
        return Layout(
            model=model,
            members=tuple(members),
            messages=tuple(self._messages),
            tools=tuple(self._tools),
            system=tuple(self._system),
            cut=self._cut,
            automatic_ttl=_ttl(automatic),
        )

    def _top_level(self, key: str, at: int) -> int:
        match key:
            case "messages":
                return self._read_messages(at)
            case "tools":
                self._tools = []
                return self._read_blocks(at, Section.TOOLS, self._tools, "tools")
            case "system":
                self._system = []
                if self._text.startswith('"', at):
                    end = end_of_value(self._text, at)
                    self._system.append(_string_block(Section.SYSTEM, Span(at, end), -1))
                    return end
                return self._read_blocks(at, Section.SYSTEM, self._system, "system")
        return end_of_value(self._text, at)

    def _read_messages(self, at: int) -> int:
        self._require(at, "[", "messages", "an array")
        self._messages = []
        end = walk_array(self._text, at, self._read_message)
        self._cut = end - 1
        return end

    def _read_message(self, at: int) -> int:
        index = len(self._messages)
        name = f"messages.{index}"
        self._require(at, "{", name, "an object")
        role: Any = None
        content: Span | None = None
        blocks: list[Block] = []

        def visit(key: str, _key_start: int, value: int) -> int:
            nonlocal role, content
            if key == "content":
                blocks.clear()
                end = self._read_content(value, index, blocks)
                content = Span(value, end)
                return end
            end = end_of_value(self._text, value)
            if key == "role":
                role = self._value(Span(value, end))
            return end

        end = walk_object(self._text, at, visit)
        if not isinstance(role, str):
            raise BadRequestBody(f"has {name} without a `role`", offset=at, fix=_FIX_FIELD)
        if content is None:
            raise BadRequestBody(f"has {name} without `content`", offset=at, fix=_FIX_FIELD)
        self._messages.append(Message(role=role, span=Span(at, end), content=content, blocks=tuple(blocks)))
        return end

    def _read_content(self, at: int, index: int, blocks: list[Block]) -> int:
        if self._text.startswith('"', at):
            end = end_of_value(self._text, at)
            blocks.append(_string_block(Section.MESSAGES, Span(at, end), index))
            return end
        return self._read_blocks(at, Section.MESSAGES, blocks, f"messages.{index}.content", index)

    def _read_blocks(self, at: int, section: Section, into: list[Block], name: str, message: int = -1) -> int:
        allowed = "an array" if section is Section.TOOLS else "a string or an array"
        self._require(at, "[", name, allowed)

        def visit(item: int) -> int:
            self._require(item, "{", f"{name}.{len(into)}", "an object")
            found = _Found()
            end = walk_object(self._text, item, partial(self._member, found))
            into.append(self._block(section, Span(item, end), message, found))
            return end

        return walk_array(self._text, at, visit)

    def _member(self, found: _Found, key: str, key_start: int, at: int) -> int:
        found.values[key], end = value_at(self._text, at)
        found.members.append(Member(key, key_start, Span(at, end)))
        if key == "content" and self._text[at] == "[" and self._may_hold_marker(at, end):
            walk_array(self._text, at, lambda item: self._nested(found, item))
        return end

    def _may_hold_marker(self, start: int, end: int) -> bool:
        # A second walk is only worth it where the key can be, spelt out or with escapes.
        return self._text.find('"cache_control"', start, end) >= 0 or self._text.find("\\u00", start, end) >= 0

    def _nested(self, found: _Found, at: int) -> int:
        """Walk a block inside a tool result: it may carry a marker, which counts as the result's."""
        if self._text[at] != "{":
            return end_of_value(self._text, at)
        members: list[Member] = []

        def visit(key: str, key_start: int, value: int) -> int:
            end = end_of_value(self._text, value)
            members.append(Member(key, key_start, Span(value, end)))
            return end

        end = walk_object(self._text, at, visit)
        found.nested.extend(removal_spans(members, ("cache_control",)))
        for member in members:
            if member.key == "cache_control":
                found.nested_ttl = _ttl(self._value(member.value)) or found.nested_ttl
        return end

    def _block(self, section: Section, span: Span, message: int, found: _Found) -> Block:
        values = found.values
        kind = values.get("type")
        kind = kind if isinstance(kind, str) else ("tool" if section is Section.TOOLS else "")
        return Block(
            section=section,
            span=span,
            kind=kind,
            message=message,
            ttl=_ttl(values.get("cache_control")) or found.nested_ttl,
            markers=(*removal_spans(found.members, ("cache_control",)), *found.nested)
            if "cache_control" in values or found.nested
            else (),
            insert_at=found.members[-1].value.end if takes_marker(kind, values) else None,
            call_id=self._call_id(kind, found),
        )

    def _call_id(self, kind: str, found: _Found) -> str | None:
        key = {"tool_use": "id", "tool_result": "tool_use_id"}.get(kind)
        if key is None or not isinstance(found.values.get(key), str):
            return None
        span = [member.value for member in found.members if member.key == key][-1]
        call_id: str = self._value(span)
        return call_id

    def _require(self, at: int, sign: str, name: str, what: str) -> None:
        if at == len(self._text):
            end_of_value(self._text, at)  # says that the JSON was truncated
        if not self._text.startswith(sign, at):
            raise BadRequestBody(f"has `{name}` that is not {what}", offset=at, fix=_FIX_FIELD)

    def _value(self, span: Span) -> Any:
        return read_json(self._body[span.start : span.end])


def _string_block(section: Section, span: Span, message: int) -> Block:
    return Block(section=section, span=span, kind="string", message=message, ttl=None, markers=(), insert_at=None)


def takes_marker(kind: str, values: Mapping[str, Any]) -> bool:
    """Whether the provider lets a block carry a marker: thinking and empty text may not."""
    if not values.keys() - {"cache_control"} or kind in ("thinking", "redacted_thinking"):
        return False
    if kind == "text":
        text = values.get("text")
        return isinstance(text, str) and bool(text.strip())
    return True


def _ttl(control: object) -> str | None:
    if not isinstance(control, dict):
        return None
    return "1h" if control.get("ttl") == "1h" else "5m"
