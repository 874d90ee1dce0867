"""Sign thinking blocks, and refuse those that were changed or moved.

A signature covers the thinking text and, on models with preserved thinking, everything before the block: model, tools,
system and messages. Markers are left out, and so is the order of a block's own keys, because clients that echo parsed
objects reorder them. Invariant: a block is accepted exactly when it is sent back after the prefix it was made for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from nexofork.simulator.canon import canonical, without_markers
from nexofork.simulator.errors import invalid
from nexofork.simulator.prompt import content_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nexofork.simulator.catalog import Model

__all__ = ["Binding", "Signer", "bind"]

NONCE_BYTES = 9
MAC_BYTES = 9
BOUND = "Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block."
CAUSES = {
    "model": "The `model` differs from the one this block was created with.",
    "tools": "The `tools` differ from the ones this block was created with.",
    "system": "The `system` prompt differs from the one this block was created with.",
    "messages": "The messages before this block differ from the ones it was created with.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """A digest of each part of the prefix before a block."""

    model: bytes
    tools: bytes
    system: bytes
    messages: bytes

    def after(self, role: str, block: object) -> Binding:
        """The binding one block further."""
        return replace(self, messages=_extend(self.messages, role, block))


def bind(request: dict[str, Any]) -> Binding:
    """The binding of whatever comes after the whole request."""
    binding = _opening(request)
    for message in request["messages"]:
        for block in content_blocks(message["content"]):
            binding = binding.after(message["role"], block)
    return binding


class Signer:
    """Makes and checks signatures; stateless, so any simulator with the same secret can check."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def sign(self, thinking: str, binding: Binding) -> str:
        """A signature for a thinking block that follows the bound prefix."""
        nonce = os.urandom(NONCE_BYTES)
        macs = [self._mac(nonce, b"nonce"), self._mac(nonce, thinking.encode())]
        macs += [self._mac(nonce, getattr(binding, part)) for part in CAUSES]
        return base64.b64encode(nonce + b"".join(macs)).decode()

    def check(self, request: dict[str, Any], model: Model) -> None:
        """Refuse a thinking block that is not what this provider once sent, or not where it was.

        Raises:
            ApiError: naming the block.
        """
        if not any(_thinks(message) for message in request["messages"]):
            return
        latest = max((i for i, message in enumerate(request["messages"]) if message["role"] == "assistant"), default=-1)
        for index, path, block, binding in _thinking_blocks(request):
            self._check_block(block, binding if model.bound_thinking else None, path, latest=index == latest)

    def _check_block(self, block: dict[str, Any], binding: Binding | None, path: str, *, latest: bool) -> None:
        nonce, macs = _unpack(block["signature"])
        if not macs or not hmac.compare_digest(macs[0], self._mac(nonce, b"nonce")):
            raise invalid(f"{path}: Invalid `signature` in `thinking` block")
        if not hmac.compare_digest(macs[1], self._mac(nonce, block["thinking"].encode())):
            if latest:
                raise invalid(
                    f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                    "modified. These blocks must remain as they were in the original response."
                )
            raise invalid(f"{path}: Invalid `signature` in `thinking` block")
        if binding is None:
            return
        for part, mac in zip(CAUSES, macs[2:], strict=True):
            if not hmac.compare_digest(mac, self._mac(nonce, getattr(binding, part))):
                raise invalid(f"{path}: {BOUND} {CAUSES[part]}")

    def _mac(self, nonce: bytes, content: bytes) -> bytes:
        return hmac.digest(self._secret, nonce + content, "sha256")[:MAC_BYTES]


def _thinks(message: dict[str, Any]) -> bool:
    content = message["content"]
    return not isinstance(content, str) and any(block["type"] == "thinking" for block in content)


def _unpack(signature: str) -> tuple[bytes, Sequence[bytes]]:
    """The nonce and the codes of a signature; no codes when it is none of ours."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except ValueError:
        return b"", ()
    count = 2 + len(fields(Binding))
    if len(raw) != NONCE_BYTES + count * MAC_BYTES:
        return b"", ()
    starts = range(NONCE_BYTES, len(raw), MAC_BYTES)
    return raw[:NONCE_BYTES], [raw[start : start + MAC_BYTES] for start in starts]


def _thinking_blocks(request: dict[str, Any]) -> Iterator[tuple[int, str, dict[str, Any], Binding]]:
    """Each thinking block with its message index, its path and the binding before it."""
    binding = _opening(request)
    for index, message in enumerate(request["messages"]):
        for number, block in enumerate(content_blocks(message["content"])):
            if isinstance(block, dict) and block["type"] == "thinking":
                yield index, f"messages.{index}.content.{number}", block, binding
            binding = binding.after(message["role"], block)


def _opening(request: dict[str, Any]) -> Binding:
    system = b""
    for block in content_blocks(request.get("system") or []):
        system = _extend(system, "system", block)
    tools = canonical([without_markers(tool) for tool in request.get("tools") or []])
    return Binding(model=request["model"].encode(), tools=hashlib.sha256(tools).digest(), system=system, messages=b"")


def _extend(before: bytes, role: str, block: object) -> bytes:
    plain = without_markers({"type": "text", "text": block} if isinstance(block, str) else block)
    if isinstance(plain, dict):
        plain = {key: plain[key] for key in sorted(plain) if plain[key] is not None}
    return hashlib.sha256(before + role.encode() + b"\0" + canonical(plain)).digest()
