"""What may stand on a run's log, and who may write it when.

This is the specification of a history, written without any code of the product. A history is the messages of both
subjects of a run in the order of the stream. ``check_history`` returns one sentence per rule that a history breaks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Logged", "RunModel", "check_history"]

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
ENDS = ("completed", "failed", "aborted", "timed_out", "max_turns", "over_budget", "refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One message of a log, as the stream has it."""

    seq: int
    side: str
    """``events`` or ``reports``."""
    body: dict[str, Any]
    expected: int | None = None
    """The sequence after which its writer wanted it; None where it did not say."""

    @classmethod
    def read(cls, *, seq: int, subject: str, data: bytes, headers: Mapping[str, str]) -> Logged:
        """Read a stored message."""
        try:
            body = json.loads(data)
        except ValueError:
            body = {}
        expected = headers.get(EXPECTED_LAST)
        return cls(
            seq=seq,
            side=subject.rpartition(".")[2],
            body=body if isinstance(body, dict) else {},
            expected=None if expected is None else int(expected),
        )

    @property
    def kind(self) -> str:
        """What it says it is."""
        return str(self.body.get("kind", ""))


@dataclass(slots=True)
class RunModel:
    """The state of a run after the messages it has taken."""

    requested: bool = False
    keeps_turns: bool = True
    """Whether its turns are recorded; the life cycle always is."""
    aborted: bool = False
    """By an abort that no report can have passed on its way."""
    aborting: bool = False
    """By any abort."""
    epoch: int = 0
    owner: str = ""
    """The instance that made the newest claim."""
    handed_over: bool = False
    final: str = ""
    turns: int = 0
    """The newest recorded turn."""
    tip: int = 0
    _announced: set[tuple[int, int]] = field(default_factory=set)
    """Epoch and turn of every announced call."""
    _open_tools: dict[str, bool] = field(default_factory=dict)
    """Announced and not finished: call id, and whether it changes nothing."""
    _changing_tools: set[str] = field(default_factory=set)
    """Every announced call that may change something."""
    _asked: set[str] = field(default_factory=set)

    def take(self, message: Logged) -> list[str]:
        """Advance by one message and return the rules that it breaks."""
        broken = []
        if message.expected is not None and message.expected != self.tip:
            broken.append(f"it was written after {message.expected} and stands after {self.tip}")
        if message.seq <= self.tip:
            broken.append(f"sequence {message.seq} follows {self.tip}")
        broken += self._event(message) if message.side == "events" else self._report(message)
        self.tip = message.seq
        return [f"{message.kind or 'unreadable'} at {message.seq}: {what}" for what in broken]

    def may_start(self) -> bool:
        """Whether a daemon may claim the run now."""
        return self.requested and not self.aborting and not self.final

    def _event(self, message: Logged) -> list[str]:
        match message.kind:
            case "requested":
                self.requested = True
                self.keeps_turns = not message.body.get("skip_transcript")
            case "abort":
                self.aborting = True
                self.aborted = self.aborted or message.expected is not None
            case _:
                return ["a parent writes requests and aborts only"]
        return []

    def _report(self, message: Logged) -> list[str]:
        body, broken = message.body, list[str]()
        if message.expected is None:
            broken.append("a report is a compare-and-set")
        if self.final:
            broken.append(f"the run had ended as {self.final}")
        if not self.requested and not self.aborting:
            broken.append("there is no request before it")
        epoch = body.get("epoch")
        if not isinstance(epoch, int):
            return [*broken, "it has no epoch"]
        if message.kind == "claimed":
            return broken + self._claimed(body, epoch)
        if message.kind == "final":
            return broken + self._ended(body, epoch)
        if self.aborted:
            broken.append("only an end follows an abort")
        if epoch != self.epoch:
            broken.append(f"epoch {epoch} writes and {self.epoch} has the run")
        if self.handed_over:
            broken.append("its epoch had handed the run over")
        return broken + self._step(message.kind, body, epoch)

    def _claimed(self, body: dict[str, Any], epoch: int) -> list[str]:
        broken = []
        if epoch != self.epoch + 1:
            broken.append(f"epoch {epoch} follows {self.epoch}")
        if self.aborted:
            broken.append("an aborted run is not claimed")
        self.epoch, self.handed_over = epoch, False
        self.owner = str((body.get("daemon") or {}).get("instance", ""))
        if body.get("call"):
            self._announced.add((epoch, 1))
        return broken

    def _ended(self, body: dict[str, Any], epoch: int) -> list[str]:
        broken = []
        # A run that ends before it begins, or that no daemon may take any more, is ended without a claim.
        if epoch not in (self.epoch, self.epoch + 1):
            broken.append(f"epoch {epoch} ends a run of epoch {self.epoch}")
        status = str(body.get("status", ""))
        if status not in ENDS:
            broken.append(f"{status!r} is no end")
        if self.aborted and status != "aborted":
            broken.append(f"an aborted run ended as {status}")
        self.final = status or "unreadable"
        return broken

    def _step(self, kind: str, body: dict[str, Any], epoch: int) -> list[str]:
        turn, call_id = body.get("turn", 0), str(body.get("call_id", ""))
        match kind:
            case "call_started":
                self._announced.add((epoch, turn))
                if self.keeps_turns and turn not in (0, self.turns + 1):
                    return [f"a call for turn {turn} after turn {self.turns} was recorded"]
            case "turn":
                expected, self.turns = self.turns + 1, turn
                problems = [] if turn == expected else [f"turn {turn} follows {expected - 1}"]
                return problems + ([] if (epoch, turn) in self._announced else ["its call was not announced"])
            case "tool_started":
                changes = not body.get("read_only") and not body.get("bubbled")
                self._open_tools[call_id] = not changes
                if changes and call_id in self._changing_tools:
                    return [f"{call_id} was announced before, and may have changed something"]
                if changes:
                    self._changing_tools.add(call_id)
            case "tool_finished":
                self._open_tools.pop(call_id, None)
            case "asked":
                self._asked.add(str(body.get("ask_id", "")))
            case "permitted":
                return [] if body.get("ask_id") in self._asked else ["its question was not asked"]
            case "handed_over":
                self.handed_over = True
            case "delivered" | "compacted" | "workspace" | "checkpoint":
                pass
            case _:
                return ["no such report"]
        return []


def check_history(messages: Iterable[Logged]) -> list[str]:
    """Return one sentence per rule that a history breaks."""
    model = RunModel()
    return [broken for message in messages for broken in model.take(message)]
