"""Fan-outs of known size and warmth over a fleet, and the bill of each beside the least it could have been."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from nexofork import CacheSafeParams, ForkParams, ForkStatus, Reply
from tests.support.conversation import AGENT, BASH, MARK, MARK_1H, agent_calls, call, says, text, tokens_of
from tests.support.ideal import Billed, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork import ForkHandle, ForkResult
    from nexofork.client.fleet import NatsForkSubagent
    from nexofork.simulator import RequestRecord, Simulator
    from tests.support.fleet import Fleet
    from tests.support.ideal import Verdict

__all__ = [
    "DONE",
    "Heat",
    "Outcome",
    "Row",
    "all_done",
    "billed",
    "child_records",
    "directives",
    "fan_out",
    "parent_of",
]

DONE = "Scope: all\nResult: done"
Heat: TypeAlias = Literal["warm", "file", "expired"]
_TTL_S = {"5m": 300.0, "1h": 3600.0}
_MESSAGES = 24
"""The history is so many messages long, more than a marker looks back."""
_SAYS_SHORTLY = {"text": "I look into it."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the cost table."""

    children: int
    warmth: Heat = "file"
    """Whether the parent just made its call, or its request is a file nobody sent, or its entry has expired."""
    ttl: str = "5m"
    tokens: int = 20_000
    """The parent's whole prompt."""
    model: str = "claude-sonnet-5"
    turns: int = 1
    reply: Literal["calls", "text"] = "calls"
    """Whether the parent's reply starts the children by Agent calls, or is a short text (a sidecar's parent)."""
    form: Literal["captured", "command"] = "captured"
    """Whether the parent's call was recorded at its transport, or goes as files and options as on the command line."""
    marks: Literal["blocks", "automatic", "none"] = "blocks"
    """How the parent marks what shall be cached."""
    slots: int = 64
    """How many children a daemon runs at once."""
    delay_s: float = 0.4
    """How long the model takes to begin."""

    def __str__(self) -> str:
        extra = [self.model.removeprefix("claude-")] if self.model != "claude-sonnet-5" else []
        extra += [f"{self.turns} turns"] if self.turns > 1 else []
        extra += [self.reply] if self.reply != "calls" else []
        extra += [self.form] if self.form != "captured" else []
        extra += [f"marks {self.marks}"] if self.marks != "blocks" else []
        extra += [f"{self.slots} slots"] if self.slots != 64 else []
        return " ".join([f"N={self.children} {self.warmth} {self.ttl} {self.tokens // 1000}K", *extra])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a fan-out."""

    verdict: Verdict
    results: list[ForkResult]
    seconds: float
    calls: int
    """How many requests there were, answered or not."""

    def line(self, row: Row, note: str = "") -> str:
        """One line of the table."""
        verdict = self.verdict
        plans = sorted({str((result.decision or {}).get("plan", "?")) for result in self.results})
        return (
            f"{f'{row} {note}'.strip():<46} billed/ideal {verdict.ratio:6.4f}   writes {verdict.writes}   "
            f"calls {self.calls:3}   {self.seconds:5.1f} s   {', '.join(plans)}"
        )


async def fan_out(
    fleet: Fleet, row: Row, snapshot: CacheSafeParams, forks: NatsForkSubagent, said: Sequence[str] | None = None
) -> Outcome:
    """Fork the row's children, wait for all, and judge the bill."""
    began, first = time.monotonic(), fleet.sim.request_count
    params = ForkParams(cache_safe=snapshot, prompt_messages="x")
    handles = await forks.fork_each(params, said or directives(row))
    return await all_done(fleet, row, handles, first=first, began=began)


async def all_done(fleet: Fleet, row: Row, handles: Sequence[ForkHandle], *, first: int, began: float) -> Outcome:
    """Wait for children, and judge the bill of the requests from the `first` on."""
    results = [await handle.result() for handle in handles]
    failed = [f"{result.status}: {result.error}" for result in results if result.status is not ForkStatus.COMPLETED]
    assert not failed, failed
    took = time.monotonic() - began
    records = fleet.sim.log
    verdict = judge(billed(fleet.sim, records[first:]), ttl=row.ttl, before=billed(fleet.sim, records[:first]))
    return Outcome(verdict=verdict, results=results, seconds=took, calls=len(records) - first)


def billed(sim: Simulator, records: Sequence[RequestRecord]) -> list[Billed]:
    """The requests that were answered, as the judge takes them."""
    found = []
    for record in records:
        body = sim.body(record.index)
        if record.prompt_tokens:
            assert body is not None, "the simulator dropped a body; let it keep more"
            found.append(
                Billed(
                    body=body,
                    received_at=record.received_at,
                    read=record.read,
                    write_5m=record.write_5m,
                    write_1h=record.write_1h,
                    fresh=record.fresh,
                )
            )
    return found


def child_records(sim: Simulator, *, first: int) -> list[RequestRecord]:
    """The first request of each child, in order of arrival; retries left out."""
    found: dict[str, RequestRecord] = {}
    for record in sim.log[first:]:
        found.setdefault(record.body_sha256, record)
    return list(found.values())


def directives(row: Row, *, after: int = 0, **first_turn: Any) -> list[str]:
    """One directive per child, with what the model answers to it.

    Args:
        row: The row.
        after: How many directives were given out before; each is another one.
        first_turn: Added to the first answer.
    """
    turns: list[dict[str, Any]] = [{"text": DONE, "delay_s": row.delay_s}]
    if row.turns > 1:
        turns = [{"tools": [call(command="true")], "delay_s": row.delay_s}] * (row.turns - 1) + turns
    turns[0] = turns[0] | first_turn
    return [says(f"Look into part {number:03}.", *turns) for number in range(after, after + row.children)]


async def parent_of(fleet: Fleet, row: Row) -> CacheSafeParams:
    """The snapshot of the row's parent, as warm as the row says."""
    answer = _SAYS_SHORTLY if row.reply == "text" else agent_calls(row.children)
    body = _request(row, answer)
    if row.warmth == "file":
        raw = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return CacheSafeParams.from_parent_request(raw, reply=Reply.from_response(_response(answer)))
    snapshot = await fleet.agent.ask(body)
    if row.form == "command":
        assert snapshot.reply is not None
        snapshot = CacheSafeParams.from_parent_request(
            snapshot.body,
            reply=Reply.from_response(snapshot.reply.to_wire()),
            headers=dict(snapshot.headers),
            workspace_id=snapshot.workspace_id,
            sent_at=snapshot.sent_at,
        )
    if row.warmth == "expired":
        age_s = _TTL_S[row.ttl] + 60
        fleet.sim.clock.advance(age_s)
        assert snapshot.sent_at is not None
        snapshot = replace(snapshot, sent_at=snapshot.sent_at - age_s)
    return snapshot


def _request(row: Row, answer: dict[str, Any]) -> dict[str, Any]:
    """A long conversation, marked on its system prompt and on its last block."""
    control = MARK_1H if row.ttl == "1h" else MARK
    mark = control if row.marks == "blocks" else None
    each = (row.tokens - 4_000) // _MESSAGES
    history: list[dict[str, Any]] = [
        {"role": ("user", "assistant")[number % 2], "content": [text(f"Message {number}.", tokens=each)]}
        for number in range(_MESSAGES)
    ]
    body: dict[str, Any] = {
        "model": row.model,
        "max_tokens": 4_000,
        # Of its own in every test: what one test's provider has cached is not in the cache of the next one's.
        "system": [text(f"You are the agent of session {secrets.token_hex(8)}.", tokens=1_200, mark=mark)],
        "tools": [AGENT, BASH],
        "messages": history,
        **({"cache_control": control} if row.marks == "automatic" else {}),
    }
    last = text(says("Go on.", answer), tokens=row.tokens - tokens_of(body), mark=mark)
    return body | {"messages": [*history, {"role": "user", "content": [last]}]}


def _response(answer: dict[str, Any]) -> bytes:
    """The content array that a file has for the model's answer; it says nothing about what was billed."""
    content = [{"type": "text", "text": answer["text"]}]
    content += [
        {"type": "tool_use", "id": f"toolu_{number:024}", **use} for number, use in enumerate(answer.get("tools", ()))
    ]
    return json.dumps(content).encode()
