"""Hypothesis strategies for what a parent may have sent and a model may have answered.

A request is made as a tree whose objects keep their members in a list, so that key order and duplicate keys are ours
to choose, and then rendered to bytes: compact as the SDK does it, or with white space, escapes and spelt-out
characters wherever JSON allows them. Sizes, texts and values are hypothesis's to draw and shrink; the many small
choices (key order, spelling, where a marker stands) come from one drawn seed, which keeps a case at a few milliseconds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nexofork.core.boilerplate import BOILERPLATE_TAG
from nexofork.core.prompt import ToolAnswer
from nexofork.core.reply import Reply

__all__ = [
    "AWKWARD",
    "Forked",
    "Obj",
    "Turn",
    "directives",
    "examples",
    "forks",
    "json_values",
    "render",
    "replies",
    "request_bodies",
    "turns",
]

AWKWARD = (
    '"messages":[',
    "]}]}",
    '{"role":"user","content":[',
    '","cache_control":{"type":"ephemeral"}',
    "ends with a backslash \\",
    '\\"',
    "half a pair: \ud83d",
    "\udc00 the other half",
    "whole pair: 😀",
    "naïve 日本語 \u2028\u0085\ufeff",
    "\x00\x1f\x7f\t\nx",
    f"<{BOILERPLATE_TAG}> is only mentioned",
    "</script> / \\u0041",
)
_SPACES = ("", "", "", " ", "\n", "\t", "\r\n", "  ")


class Obj(list[tuple[str, Any]]):
    """A JSON object as its members in order; the same key may come twice."""


# Built once: a strategy made anew for every draw costs more than what it draws.
_TEXTS = st.sampled_from(AWKWARD) | st.text(max_size=8).map(lambda text: text if text.strip() else f"x{text}")
_SENDABLE = [
    text for text in AWKWARD if BOILERPLATE_TAG not in text and text.encode("utf-8", "ignore").decode() == text
]
_DIRECTIVES = st.sampled_from(_SENDABLE) | st.text(min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(_TEXTS, inner), max_size=3).map(Obj),
    max_leaves=6,
)
_AT_MOST_ONE = st.lists(_DIRECTIVES, max_size=1)
_COUNTS, _CALLS, _COIN = st.integers(0, 4), st.sampled_from((0, 1, 2, 3, 4, 5, 40)), st.booleans()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What a parent hands over: its request and, where it does not end with it, the reply."""

    body: bytes
    reply: Reply | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One later turn of a child: the model's reply and what answers it."""

    reply: Reply
    answers: tuple[ToolAnswer, ...]
    texts: tuple[str, ...]


def examples(count: int) -> settings:
    """Return settings for a property; drawing whole requests is slow on a busy machine, which is no failure."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def render(value: Any, rng: Random | None = None) -> bytes:
    """Return the tree as JSON bytes: compact, or as wild as `rng` makes it."""
    return _render(value, rng).encode()


def json_values() -> st.SearchStrategy[Any]:
    """Draw any JSON value, objects as `Obj`."""
    return _VALUES


def directives() -> st.SearchStrategy[str]:
    """Draw directives that a child can be given."""
    return _DIRECTIVES


@st.composite
def request_bodies(
    draw: st.DrawFn, *, ends_with: str | None = None, dangling: bool = False, wild: bool = True
) -> bytes:
    """Draw a Messages request as bytes.

    Args:
        draw: Given by hypothesis.
        ends_with: The last message's role; either where it is None.
        dangling: Leave tool calls in mid-history without results.
        wild: Draw white space, escapes and duplicate keys too; without it, the compact form.
    """
    make = draw(_MAKERS)
    role = ends_with or make.rng.choice(["user", "user", "assistant"])
    messages = make.conversation(draw(_COUNTS), role, dangling=dangling)
    front, automatic = make.front(messages, markers=draw(_COUNTS))
    members = make.members(front, messages, automatic, extra=draw(_VALUES))
    if not wild:
        return render(members)
    make.shadow(members)
    rng = make.rng if draw(_COIN) else None
    return _space(rng).encode() + render(members, rng) + _space(rng).encode()


@st.composite
def replies(draw: st.DrawFn, *, start: int = 1000) -> Reply:
    """Draw an assistant reply from bytes: thinking, text and tool calls, keys in any order.

    Args:
        draw: Given by hypothesis.
        start: Number of the first tool call, so that ids stay unique in a conversation.
    """
    make = draw(_MAKERS)
    blocks = make.some(make.thinking, 2) + make.some(make.text_block, 2)
    count = draw(_CALLS)
    blocks += [make.tool_use(start + number) for number in range(count)]
    rng = make.rng if draw(_COIN) else None
    return Reply.from_response(render(blocks or [make.text_block()], rng))


@st.composite
def forks(draw: st.DrawFn) -> Forked:
    """Draw what children start from: a request with its reply, or a request alone."""
    if draw(_COIN):
        return Forked(body=draw(_BEFORE_A_REPLY), reply=draw(_REPLIES))
    return Forked(body=draw(_BODIES), reply=None)


_BODIES, _BEFORE_A_REPLY, _REPLIES = request_bodies(), request_bodies(ends_with="user"), replies()


@st.composite
def turns(draw: st.DrawFn, *, number: int) -> Turn:
    """Draw turn `number` of a child: a reply with every call answered."""
    reply = draw(replies(start=10_000 * number))
    shown = draw(_TEXTS)
    answers = tuple(
        ToolAnswer(call_id=call.id, content=shown, is_error=bool(len(shown) % 2)) for call in reply.tool_uses
    )
    texts = tuple(draw(_AT_MOST_ONE)) if answers else ("go on",)
    return Turn(reply=reply, answers=answers, texts=texts)


class _Maker:
    """Makes the parts of a request out of one seed and a few texts."""

    def __init__(self, seed: int, texts: list[str], value: Any) -> None:
        self.rng = Random(seed)
        self._texts = texts
        self._value = value

    def text(self) -> str:
        return self.rng.choice(self._texts)

    def obj(self, *members: tuple[str, Any]) -> Obj:
        return Obj(self.rng.sample(members, len(members)))

    def some(self, make: Any, most: int, least: int = 0) -> list[Any]:
        return [make() for _ in range(self.rng.randint(least, most))]

    def text_block(self) -> Obj:
        return self.obj(("type", "text"), ("text", self.text()))

    def image(self) -> Obj:
        source = Obj([("type", "base64"), ("media_type", "image/png"), ("data", "iVBORw0KGgo=")])
        return self.obj(("type", "image"), ("source", source))

    def shown(self) -> Obj:
        return self.text_block() if self.rng.random() < 0.7 else self.image()

    def thinking(self) -> Obj:
        if self.rng.random() < 0.2:
            return Obj([("type", "redacted_thinking"), ("data", "b3BhcXVl")])
        return self.obj(("type", "thinking"), ("thinking", self.text()), ("signature", "c2ln+/=="))

    def tool_use(self, number: int) -> Obj:
        # A tool's arguments may well look like a marker; they are not one.
        arguments = self.obj((self.text(), self._value), ("cache_control", Obj([("type", "ephemeral")])))
        # Unique, and not in order: sorting the ids would not go unnoticed.
        call_id = f"toolu_{number * 7919 % 99_991}" + self.rng.choice(["", "", "", "é", '"'])
        return self.obj(("type", "tool_use"), ("id", call_id), ("name", "Bash"), ("input", arguments))

    def tool_result(self, call_id: str) -> Obj:
        members: list[tuple[str, Any]] = [("type", "tool_result"), ("tool_use_id", call_id)]
        match self.rng.randrange(3):
            case 0:
                members.append(("content", self.text()))
            case 1:
                members.append(("content", self.some(self.shown, 2)))
        return self.obj(*members)

    def tool(self) -> Obj:
        properties = Obj([("cache_control", Obj([("type", "string")])), ("messages", Obj([("type", "array")]))])
        schema = Obj([("type", "object"), ("properties", properties)])
        return self.obj(("name", "Bash"), ("description", self.text()), ("input_schema", schema))

    def conversation(self, rounds: int, last_role: str, *, dangling: bool) -> list[Obj]:
        """Make messages that the API would take: roles in turn, calls answered in the next message, results first."""
        messages: list[Obj] = []
        calls: list[str] = []
        for index in range(2 * rounds + (1 if last_role == "user" else 2)):
            if index % 2:
                content = self._assistant_content(100 * index)
                calls = _call_ids(content)
            else:
                content = self._user_content([call for call in calls if not dangling or self.rng.random() < 0.5])
            messages.append(self.obj(("role", ("user", "assistant")[index % 2]), ("content", content)))
        return messages

    def _assistant_content(self, number: int) -> Any:
        if self.rng.random() < 0.3:
            return self.text()
        blocks = self.some(self.thinking, 1) + self.some(self.text_block, 2)
        blocks += [self.tool_use(number + offset) for offset in range(self.rng.randint(0, 3))]
        return blocks or [self.text_block()]

    def _user_content(self, calls: list[str]) -> Any:
        if calls:
            return [self.tool_result(call) for call in calls] + self.some(self.shown, 2)
        return self.text() if self.rng.random() < 0.4 else self.some(self.shown, 3, least=1)

    def front(self, messages: list[Obj], *, markers: int) -> tuple[Obj, Obj | None]:
        """Make tools and system, and put markers with valid TTLs everywhere; the automatic one takes a slot too."""
        front = Obj()
        if self.rng.random() < 0.6:
            front.append(("tools", self.some(self.tool, 3)))
        if self.rng.random() < 0.7:
            front.append(("system", self.text() if self.rng.random() < 0.3 else self.some(self.text_block, 3)))
        candidates = [block for _, value in front if isinstance(value, list) for block in value] + _markable(messages)
        automatic = markers > 0 and self.rng.random() < 0.3
        count = min(markers - automatic, len(candidates))
        chosen = sorted(self.rng.sample(range(len(candidates)), count))
        long_lived = self.rng.choice([0, self.rng.randint(0, count), count])
        for order, index in enumerate(chosen):
            self._insert(candidates[index], self._marker("1h" if order < long_lived else "5m"))
        for index, block in enumerate(candidates):
            if index not in chosen and self.rng.random() < 0.1:
                self._insert(block, None)
        if not automatic:
            return front, None
        return front, self._marker("5m" if long_lived < count else "1h" if count else self.rng.choice(["5m", "1h"]))

    def _insert(self, block: Obj, control: Obj | None) -> None:
        block.insert(self.rng.randint(0, len(block)), ("cache_control", control))

    def _marker(self, ttl: str) -> Obj:
        if ttl == "5m" and self.rng.random() < 0.5:
            return Obj([("type", "ephemeral")])
        return self.obj(("type", "ephemeral"), ("ttl", ttl))

    def members(self, front: Obj, messages: list[Obj], automatic: Obj | None, *, extra: Any) -> Obj:
        """Make the top level, in any order."""
        members: list[tuple[str, Any]] = [("model", "claude-opus-5"), ("max_tokens", 1024), ("messages", messages)]
        members += front
        if automatic is not None:
            members.append(("cache_control", automatic))
        if (stream := self.rng.choice([None, True, False])) is not None:
            members.append(("stream", stream))
        extras: list[tuple[str, Any]] = [
            ("diagnostics", Obj([("previous_message_id", None)])),
            ("metadata", Obj([("messages", [Obj([("cache_control", 1)])]), ("user_id", "u")])),
            ("thinking", Obj([("type", "adaptive")])),
            ("tool_choice", Obj([("type", "auto")])),
            ("clé", extra),
        ]
        return self.obj(*members, *self.rng.sample(extras, 2))

    def shadow(self, members: Obj) -> None:
        """Put an earlier member of the same name before some members; readers take the last."""
        values = {
            "model": "claude-shadow",
            "max_tokens": 1,
            "stream": False,
            "messages": [Obj([("role", "user"), ("content", "shadow")])],
            "system": [Obj([("type", "text"), ("text", "shadow")])],
            "tools": [],
        }
        for key in [key for key, _ in members if key in values and self.rng.random() < 0.15]:
            limit = next(index for index, member in enumerate(members) if member[0] == key)
            members.insert(self.rng.randint(0, limit), (key, values[key]))
        for message in dict(members)["messages"]:
            content = dict(message)["content"]
            if isinstance(content, list) and content and self.rng.random() < 0.2:
                content[0].insert(0, ("type", "shadow"))
                content[0].insert(0, ("cache_control", None))
            if self.rng.random() < 0.1:
                message.insert(0, ("content", self.rng.choice(["shadow", [self.text_block()]])))


_MAKERS = st.builds(_Maker, st.integers(0, 2**32), st.lists(_TEXTS, min_size=1, max_size=4), _VALUES)


def _call_ids(content: Any) -> list[str]:
    blocks = [dict(block) for block in content] if isinstance(content, list) else []
    return [block["id"] for block in blocks if block["type"] == "tool_use"]


def _markable(messages: list[Obj]) -> list[Obj]:
    """Return the content blocks that take a marker, those inside a tool result before the result itself."""
    found: list[Obj] = []
    for message in messages:
        content = dict(message)["content"]
        for block in content if isinstance(content, list) else []:
            value = dict(block)
            if value["type"] == "tool_result" and isinstance(value.get("content"), list):
                found += value["content"]
            if "thinking" not in value["type"]:
                found.append(block)
    return found


def _space(rng: Random | None) -> str:
    return rng.choice(_SPACES) if rng else ""


def _render(value: Any, rng: Random | None) -> str:
    if isinstance(value, str):
        return _string(value, rng)
    if isinstance(value, Obj):
        inner = [f"{_string(key, rng)}{_space(rng)}:{_space(rng)}{_render(item, rng)}" for key, item in value]
        return "{" + _joined(inner, rng) + "}"
    if isinstance(value, list):
        return "[" + _joined([_render(item, rng) for item in value], rng) + "]"
    return json.dumps(value, allow_nan=False)


def _joined(items: list[str], rng: Random | None) -> str:
    return ",".join(f"{_space(rng)}{item}{_space(rng)}" for item in items) or _space(rng)


def _string(text: str, rng: Random | None) -> str:
    if rng is None:
        return json.dumps(text, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return '"' + "".join(_character(char, rng) for char in text) + '"'


def _character(char: str, rng: Random) -> str:
    if char < " " or "\ud800" <= char <= "\udfff" or rng.random() < 0.08:
        units = char.encode("utf-16-be", "surrogatepass")
        digits = [units[at : at + 2].hex() for at in range(0, len(units), 2)]
        return "".join(f"\\u{rng.choice([pair, pair.upper()])}" for pair in digits)
    if char in '"\\' or (char == "/" and rng.random() < 0.5):
        return f"\\{char}"
    return char
