"""Explain a run's first call from its log: what its parent sent, what it sent itself, and what it was billed for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from nexofork.bus.blobs import BlobStore
from nexofork.bus.run_log import RunLog
from nexofork.core.explain import Explanation, Sent, explain
from nexofork.core.usage import Usage
from nexofork.economics.prices import model_facts
from nexofork.errors import ForkRefused, NexoforkError
from nexofork.policy.filters import AllowAllFilter
from nexofork.run.cache_check import CacheCheck
from nexofork.run.params import answers_of, fork_of, prepare, snapshot_of
from nexofork.run.result import ForkResult
from nexofork.wire import messages as wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.bus.connection import Bus
    from nexofork.core.snapshot import CacheSafeParams

__all__ = ["ExplainedRun", "explain_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRun:
    """What is known about a run's first call."""

    run_id: str
    check: CacheCheck | None
    """What the run itself found; None where its first call was not answered."""
    ended: str | None
    """How the run ended, where it has."""
    comparison: Explanation
    """Its first request against its parent's."""
    decision: dict[str, Any] | None
    """How its fan-out was started."""
    daemon: str
    against_file: bool
    """Whether the parent's request was given as a file, and not taken from the log."""

    @property
    def cause(self) -> str | None:
        """The run's own verdict, which knows the most; else the comparison's."""
        if self.check is not None and (self.check.cause or not self.comparison.divergence):
            return self.check.cause
        return self.comparison.cause if self.comparison.loses else None

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return {
            "run_id": self.run_id,
            "cause": self.cause,
            "detail": self.check.detail if self.check else "",
            "daemon": self.daemon,
            "cache": asdict(self.check) if self.check else None,
            "decision": self.decision,
            "comparison": self.comparison.to_json(),
        }


async def explain_run(bus: Bus, run_id: str, *, pool: str, parent: bytes | None = None) -> ExplainedRun:
    """Explain a run's first call.

    Args:
        bus: Where the log is.
        run_id: Which run.
        pool: Whose.
        parent: What the parent really sent, where that is known otherwise than from the run's own request.

    Raises:
        ForkRefused: There is no such run, or what it refers to is not a request.
        BusError: NATS did not answer, or what the run refers to has expired.
    """
    blobs = BlobStore(bus, "parent")
    found = [entry.message for entry in await RunLog(bus, run_id, pool=pool).entries()]
    request = next((message for message in found if isinstance(message, wire.Requested)), None)
    if request is None:
        raise ForkRefused(
            f"There is no run {run_id!r} in pool {pool!r}; it may have expired. To compare requests, give two files."
        )
    snapshot = await snapshot_of(request, blobs.resolve)
    turn = next((message for message in found if isinstance(message, wire.Turn) and message.turn == 1), None)
    calls = [call for message in found if (call := wire.announced_call(message)) is not None and call.turn == 1]
    claims = [message for message in found if isinstance(message, wire.Claimed)]
    decisions = [call.decision for call in calls if call.decision]
    claim = claims[-1] if claims else None
    child = Sent(
        body=_first_body(request, snapshot, await answers_of(request, blobs.resolve), turn),
        headers=dict(snapshot.headers),
        workspace_id=claim.workspace_id if claim else None,
        sent_at=calls[-1].at if calls and calls[-1].at else None,
        usage=Usage.from_wire(turn.usage) if turn else None,
    )
    facts = model_facts(snapshot.model)
    minimum = facts.minimum_tokens if facts else None
    return ExplainedRun(
        run_id=run_id,
        check=await _told_at_the_end(found, blobs)
        if turn is None or turn.cache is None
        else CacheCheck.from_wire(turn.cache, Usage.from_wire(turn.usage)),
        comparison=explain(snapshot if parent is None else parent, child, minimum_tokens=minimum),
        ended=next((message.status for message in found if isinstance(message, wire.Final)), None),
        decision=decisions[-1] if decisions else None,
        daemon=claim.daemon.name if claim else "",
        against_file=parent is not None,
    )


def _first_body(
    request: wire.Requested, snapshot: CacheSafeParams, answers: Mapping[str, bytes], turn: wire.Turn | None
) -> bytes:
    """Return the run's first request, as a daemon builds it."""
    asked = fork_of(
        request, snapshot, tool_filter=AllowAllFilter(), answers=answers, notes=turn.notes if turn is not None else ()
    )
    _, prompt = prepare(replace(asked, allow_cache_break=True))
    return bytes(prompt.body())


async def _told_at_the_end(found: list[Any], blobs: BlobStore) -> CacheCheck | None:
    """Return the verdict in the result: a run without a transcript has it nowhere else."""
    final = next((message for message in found if isinstance(message, wire.Final)), None)
    if final is None:
        return None
    try:
        return ForkResult.from_wire(await blobs.resolve(final.result)).cache
    except NexoforkError:
        return None  # it has expired, and the comparison can still be made
