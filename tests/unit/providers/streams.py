"""Messages as the server-sent events the API would stream them in; written apart from the code that reads them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

__all__ = ["chunkings", "event", "json_values", "messages", "script_of"]


def event(value: dict[str, Any], *, ensure_ascii: bool = False, spaced: bool = False) -> bytes:
    """One event's data."""
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps(value, ensure_ascii=ensure_ascii, separators=separators).encode()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
inputs = st.dictionaries(texts, json_values, max_size=4)


def _blocks() -> st.SearchStrategy[dict[str, Any]]:
    names = st.text("abcdefgh_", min_size=1, max_size=8)
    return st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, texts),
        st.builds(
            lambda text, cites: {"citations": cites, "type": "text", "text": text},
            texts,
            st.lists(st.dictionaries(texts, json_values, max_size=2), max_size=3),
        ),
        st.builds(
            lambda thinking, signature: {"type": "thinking", "thinking": thinking, "signature": signature},
            texts,
            st.text("ABCDabcd0189+/=", min_size=4),
        ),
        st.builds(lambda data: {"type": "redacted_thinking", "data": data}, texts),
        st.builds(
            lambda kind, name, input_: {"type": kind, "id": f"toolu_{name}", "name": name, "input": input_},
            st.sampled_from(["tool_use", "server_tool_use"]),
            names,
            inputs,
        ),
        st.builds(lambda value: {"type": "something_new", "payload": value}, json_values),
    )


messages = st.lists(_blocks(), max_size=5)


def _pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


def script_of(
    blocks: list[dict[str, Any]], *, cuts: list[int], spaced_input: bool = False, **form: bool
) -> tuple[list[bytes], list[str]]:
    """Return the events that stream these blocks, and for every block the JSON text of its input ("" for none)."""
    out = [
        event({"type": "message_start", "message": {"id": "msg_1", "model": "m", "usage": {"input_tokens": 7}}}, **form)
    ]
    sent_inputs: list[str] = []
    for index, block in enumerate(blocks):
        start, deltas, sent = _start_and_deltas(block, cuts, spaced=spaced_input)
        sent_inputs.append(sent)
        out.append(event({"type": "content_block_start", "index": index, "content_block": start}, **form))
        out.extend(event({"type": "content_block_delta", "index": index, "delta": delta}, **form) for delta in deltas)
        out.append(event({"type": "ping"}, **form))
        out.append(event({"type": "content_block_stop", "index": index}, **form))
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}}
    return [*out, event(end, **form), event({"type": "message_stop"}, **form)], sent_inputs


def _start_and_deltas(
    block: dict[str, Any], cuts: list[int], *, spaced: bool
) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    match block["type"]:
        case "text":
            start = block | {"text": ""} | ({"citations": []} if "citations" in block else {})
            cites = [{"type": "citations_delta", "citation": cite} for cite in block.get("citations", ())]
            return start, [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"], cuts)] + cites, ""
        case "thinking":
            parts = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"], cuts)]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*parts, signature], ""
        case "tool_use" | "server_tool_use":
            separators = (" , ", " : ") if spaced else (",", ":")
            text = json.dumps(block["input"], ensure_ascii=False, separators=separators)
            parts = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(text, cuts)]
            return block | {"input": {}}, parts, text
    return block, [], ""


def chunkings(stream: bytes) -> st.SearchStrategy[list[bytes]]:
    """Every way to cut a stream into chunks."""

    def cut(places: list[int]) -> list[bytes]:
        edges = [0, *sorted(places), len(stream)]
        return [stream[start:end] for start, end in pairwise(edges)]

    return st.lists(st.integers(0, len(stream)), max_size=30).map(cut)
