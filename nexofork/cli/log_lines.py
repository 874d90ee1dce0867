"""Say what a run's log holds, entry by entry: as an object for programs, as a line for people.

Contents that travel as blobs are fetched. Where that is not permitted or they have expired, the entry is shown without
its content and says why.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nexofork.cli.event_lines import call_phrase, decision_phrase, permitted_phrase
from nexofork.cli.output import brief
from nexofork.core.reply import Reply
from nexofork.core.usage import Usage
from nexofork.errors import BadMessage, BusError, NexoforkError
from nexofork.run.result import ForkResult
from nexofork.wire import messages as wire

if TYPE_CHECKING:
    from nexofork.bus.blobs import BlobStore
    from nexofork.bus.run_log import Entry

__all__ = ["entry_line", "entry_object"]

_LATEST = 1e11
_RETRY_S = 0.5
_PLAIN = (
    *("epoch", "turn", "attempt", "call_id", "name", "is_error", "read_only"),
    *("ask_id", "what", "deadline_s", "reason", "allowed", "how", "note", "rules", "by"),
)
_REQUEST = (
    "directive",
    "label",
    "group",
    "max_turns",
    "timeout_s",
    "on_parent_gone",
    "skip_transcript",
    "sent_at",
    *("continues", "compaction"),
)


async def entry_object(entry: Entry, blobs: BlobStore, *, patient: bool = False) -> dict[str, Any]:
    """Return an entry as JSON values.

    Args:
        entry: What the log has.
        blobs: Where long contents are.
        patient: Try again for as long as NATS is out of reach, instead of showing the entry without its content.
    """
    run_id = entry.raw.subject.split(".")[2]
    message = entry.message
    if isinstance(message, BadMessage):
        return {"event": "unreadable", "run_id": run_id, "seq": entry.seq, "problem": str(message)}
    known = {key: getattr(message, key) for key in _PLAIN if hasattr(message, key)}
    shown = {"event": message.kind, "run_id": run_id, "seq": entry.seq, "at": _time(message.at), **known}
    while True:
        try:
            return shown | await _content(message, blobs)
        except NexoforkError as exc:
            if not (patient and isinstance(exc, BusError) and exc.retryable):
                return shown | {"content_error": str(exc)}
            await asyncio.sleep(_RETRY_S)


async def _content(message: wire.Requested | wire.AbortEvent | wire.Report, blobs: BlobStore) -> dict[str, Any]:
    match message:
        case wire.Requested():
            fields = {key: getattr(message, key) for key in _REQUEST}
            return {**fields, "parent": message.parent.model_dump(mode="json")}
        case wire.AbortEvent():
            return {"note": message.note, "by": message.by}
        case wire.Claimed():
            told = {"daemon": message.daemon.name, "host": message.daemon.host, "workspace_id": message.workspace_id}
            return told if message.call is None else {**told, "call": message.call.model_dump(mode="json")}
        case wire.CallStarted():
            return {"model": message.model, "prefix": message.prefix, "decision": message.decision}
        case wire.Turn():
            usage = Usage.from_wire(message.usage).to_wire()
            reply = Reply.from_response(await blobs.resolve(message.content))
            names = [use.name for use in reply.tool_uses]
            return {"text": reply.text, "stop_reason": message.stop_reason, "tool_names": names, "usage": usage}
        case wire.Asked(what="tool" | "permission"):
            return {"arguments": _parsed(await blobs.resolve(message.payload))}
        case wire.Delivered():
            return {"ids": message.ids, "texts": message.texts}
        case wire.Compacted():
            note = (await blobs.resolve(message.note)).decode("utf-8", "replace")
            usage = Usage.from_wire(message.usage).to_wire()
            return {"note": note, "left_out": message.left_out, "usage": usage}
        case wire.ToolFinished():
            return {"block": _parsed(await blobs.resolve(message.block))}
        case wire.WorkspaceReady():
            return {"root": message.root, "mounted": message.mounted, "notice": message.notice}
        case wire.Checkpoint():
            bundle = message.bundle.model_dump(mode="json") if message.bundle else None
            return {"state": message.state.model_dump(mode="json"), "bundle": bundle}
        case wire.Final():
            return ForkResult.from_wire(await blobs.resolve(message.result)).to_json()
        case _:
            return {}


def _time(at: float) -> float | None:
    """What the sender's clock said, if it can have said so."""
    return at if 0 < at < _LATEST else None


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")


def entry_line(shown: dict[str, Any], *, width: int = 160) -> str:
    """Return what `entry_object` made as a line of text."""
    at = datetime.fromtimestamp(shown["at"], UTC).strftime("%H:%M:%S") if shown.get("at") else "--:--:--"
    return f"{shown['seq']:>8}  {at}  {shown['event']:<13}  {brief(_words(shown), width)}".rstrip()


def _calling(call: dict[str, Any]) -> str:
    again = f", attempt {call['attempt']}" if call["attempt"] > 1 else ""
    decision = f", {decision_phrase(call['decision'])}" if call["decision"] else ""
    which = f"turn {call['turn']}" if call["turn"] else "pre-warm"
    return f"{which} by {call['model'] or 'an unnamed model'}{again}{decision}"


def _words(shown: dict[str, Any]) -> str:
    """The part of an entry that a reader looks for first."""
    if "content_error" in shown:
        return str(shown["content_error"])
    match shown["event"]:
        case "requested":
            return str(shown["directive"])
        case "claimed":
            calling = f", {_calling({'turn': 1, 'attempt': 1, **shown['call']})}" if "call" in shown else ""
            return f"{shown['daemon']} on {shown['host']}, epoch {shown['epoch']}{calling}"
        case "call_started":
            return _calling(shown)
        case "turn":
            tools = "".join(f" [{name}]" for name in shown["tool_names"])
            return f"{shown['turn']}:{tools} {shown['text']}"
        case "tool_started":
            return f"{shown['name']} ({shown['call_id']})"
        case "tool_finished":
            return f"{shown['call_id']} {'failed' if shown['is_error'] else 'answered'}"
        case "asked" if shown["what"] == "permission":
            arguments = shown["arguments"]
            called = call_phrase(shown["name"], arguments if isinstance(arguments, dict) else None)
            return f"permission {shown['ask_id']}: {called}"
        case "permitted":
            told = permitted_phrase(shown["name"], allowed=shown["allowed"], how=shown["how"], note=shown["note"])
            return f"{shown['ask_id']}: {told}"
        case "delivered":
            return " | ".join(shown["texts"] or shown["ids"])
        case "compacted":
            return f"turns 1 to {shown['turn']}: {shown['note']}"
        case "workspace":
            return str(shown["root"])
        case "checkpoint":
            size = f"{shown['bundle']['size']} bytes" if shown["bundle"] else "unchanged"
            return f"turn {shown['turn']}: {shown['state']['head'][:12]}, {size}"
        case "abort":
            before = "aborted before a daemon took it: " if shown.get("status") else ""
            return f"{before}{shown['note']} (by {shown['by'] or 'unknown'})"
        case "final":
            return f"{shown['status']} {shown['error'] or shown['final_text']}"
        case _:
            return str(shown.get("problem") or shown.get("reason") or shown.get("what") or "")
