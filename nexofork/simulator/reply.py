"""Turn a scripted turn into the content of a message: ids, signatures, token counts, and the cut at `max_tokens`.

Output tokens are counted like input: four bytes of what was said are one token. Invariant: `output_tokens` never
exceeds the request's `max_tokens`, and a reply that had to be cut says so in its stop reason.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from nexofork.simulator.canon import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nexofork.simulator.signatures import Binding, Signer
    from nexofork.simulator.turns import Turn

__all__ = ["Reply", "TextBlock", "ThinkingBlock", "ToolBlock", "compose", "count_text_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBlock:
    """Something said."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBlock:
    """Something thought, with its signature."""

    text: str
    signature: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBlock:
    """A tool call."""

    id: str
    name: str
    text: str
    """The input as JSON, or only its beginning."""
    cut: bool = False

    @property
    def input(self) -> Any:
        """The input as a value; empty when it was cut."""
        return {} if self.cut else json.loads(self.text)


ReplyBlock = TextBlock | ThinkingBlock | ToolBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole answer."""

    blocks: tuple[ReplyBlock, ...]
    stop_reason: str
    stop_sequence: str | None
    output_tokens: int

    def content(self) -> list[dict[str, Any]]:
        """The blocks as the API writes them."""
        return [_as_json(block) for block in self.blocks]


def count_text_tokens(text: str) -> int:
    """How many output tokens a piece of output costs."""
    return ceil(len(text.encode()) / BYTES_PER_TOKEN)


def compose(
    turn: Turn, *, max_tokens: int, bind: Callable[[], Binding], signer: Signer, escape: bool, omit: bool
) -> Reply:
    """The reply a turn stands for.

    Args:
        turn: what to say.
        max_tokens: where to stop.
        bind: gives the prefix the reply follows; called only when there is thinking to sign.
        signer: signs thinking.
        escape: write non-ASCII in tool inputs as escapes.
        omit: leave the thinking text out and send only its signature.
    """
    blocks = list(_named(turn, escape=escape, omit=omit))
    cut = turn.stop_reason == "max_tokens" and _cut_last_tool(blocks)
    fitted = _fit(blocks, max_tokens)
    cut = cut or fitted != blocks
    signed = tuple(_signed(fitted, bind, signer))
    calls = any(isinstance(block, ToolBlock) for block in signed)
    reason = "max_tokens" if cut else turn.stop_reason or ("tool_use" if calls else "end_turn")
    return Reply(
        blocks=signed,
        stop_reason=reason,
        stop_sequence=turn.stop_sequence if reason == "stop_sequence" else None,
        output_tokens=sum(count_text_tokens(block.text) for block in signed),
    )


def _named(turn: Turn, *, escape: bool, omit: bool) -> Iterator[ReplyBlock]:
    for block in turn.blocks:
        match block["type"]:
            case "thinking":
                yield ThinkingBlock(text="" if omit else block["thinking"], signature="")
            case "tool_use":
                text = json.dumps(block.get("input", {}), ensure_ascii=escape)
                yield ToolBlock(id=block.get("id") or f"toolu_{uuid.uuid4().hex[:24]}", name=block["name"], text=text)
            case _:
                yield TextBlock(text=block["text"])


def _cut_last_tool(blocks: list[ReplyBlock]) -> bool:
    if not blocks or not isinstance(last := blocks[-1], ToolBlock):
        return False
    blocks[-1] = replace(last, text=last.text[: len(last.text) // 2], cut=True)
    return True


def _fit(blocks: list[ReplyBlock], max_tokens: int) -> list[ReplyBlock]:
    """The blocks that fit, the last of them cut short where it must be."""
    fitted: list[ReplyBlock] = []
    left = max_tokens
    for block in blocks:
        size = count_text_tokens(block.text)
        if size <= left:
            fitted.append(block)
            left -= size
            continue
        if left:
            text = block.text.encode()[: left * BYTES_PER_TOKEN].decode(errors="ignore")
            fitted.append(
                replace(block, text=text, cut=True) if isinstance(block, ToolBlock) else replace(block, text=text)
            )
        break
    return fitted


def _signed(blocks: list[ReplyBlock], bind: Callable[[], Binding], signer: Signer) -> Iterator[ReplyBlock]:
    if not any(isinstance(block, ThinkingBlock) for block in blocks):
        yield from blocks
        return
    binding = bind()
    for block in blocks:
        if isinstance(block, ThinkingBlock):
            block = replace(block, signature=signer.sign(block.text, binding))
        binding = binding.after("assistant", _as_json(block))
        yield block


def _as_json(block: ReplyBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "text": block.text}
        case ThinkingBlock():
            return {"type": "thinking", "thinking": block.text, "signature": block.signature}
        case ToolBlock():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": block.input}
