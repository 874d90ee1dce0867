"""Judge a run of chaos from outside: raw streams, the provider's log, effect files, processes, folders, connections.

No code of the product is used. Each check returns sentences; an empty list means that the promise held.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.chaos.work import POOL
from tests.chaos.world import LEASE_S
from tests.support.run_model import Logged, RunModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.chaos.faults import Happened
    from tests.chaos.gate import Call
    from tests.chaos.work import Work
    from tests.chaos.world import Daemon, World

__all__ = ["History", "Judge", "Sampler", "read_histories", "read_stream"]

_SLACK_S = 1.5
"""What a busy machine may add to a lease."""
_PAGE = 500


@dataclass(kw_only=True)
class History:
    """One run's log."""

    run_id: str
    messages: list[tuple[Logged, float]] = field(default_factory=list)
    """Each with the time the server stored it at."""

    def of(self, kind: str) -> list[tuple[Logged, float]]:
        """The messages of one kind."""
        return [(message, at) for message, at in self.messages if message.kind == kind]

    @property
    def final(self) -> tuple[Logged, float] | None:
        """Its end."""
        found = self.of("final")
        return found[0] if found else None

    @property
    def status(self) -> str:
        """How it ended; empty where it did not."""
        return str(self.final[0].body.get("status", "")) if self.final else ""

    @property
    def claims(self) -> list[tuple[str, float]]:
        """Which daemons had it, and since when."""
        return [(message.body.get("daemon", {}).get("name", ""), at) for message, at in self.of("claimed")]

    @property
    def error(self) -> str:
        """What its result says went wrong."""
        if self.final is None:
            return ""
        with suppress(ValueError, AttributeError):
            return str(json.loads(self.final[0].body["result"].get("text") or "{}").get("error") or "")
        return ""


async def read_stream(world: World, stream: str) -> list[tuple[int, str, bytes, dict[str, str], float]]:
    """Return all messages of a stream."""
    js = world.client.jetstream(domain="fork")
    reader = await js.pull_subscribe("", stream=stream)
    info = await js.stream_info(stream)
    found, left = [], info.state.messages
    while left > 0:
        page = await reader.fetch(min(_PAGE, left), timeout=10)
        for message in page:
            meta = message.metadata
            found.append(
                (
                    meta.sequence.stream,
                    message.subject,
                    message.data,
                    dict(message.headers or {}),
                    meta.timestamp.timestamp(),
                )
            )
        left -= len(page)
    await reader.unsubscribe()
    return found


async def read_histories(world: World) -> dict[str, History]:
    """Return every run's log."""
    found: dict[str, History] = {}
    for seq, subject, data, headers, at in await read_stream(world, "FORK"):
        run_id = subject.split(".")[2]
        history = found.setdefault(run_id, History(run_id=run_id))
        history.messages.append((Logged.read(seq=seq, subject=subject, data=data, headers=headers), at))
    return found


class Sampler:
    """Looks, while it happens, for daemons that go on with a run that another one has."""

    def __init__(self, world: World, work: Work) -> None:
        self._world = world
        self._work = work
        self.found: dict[tuple[str, str, str], str] = {}

    def look(self) -> None:
        """Look once."""
        now = time.time()
        for call in self._world.gate.open_calls():
            self._check(call.daemon, call.run_id, "a model call", now)
        daemons = {daemon.pid: daemon.name for daemon in self._world.daemons if daemon.alive}
        for run_id, pid in _tools(self._work.asked):
            owner = _ancestor(pid, daemons)
            if owner:
                self._check(owner, run_id, "a command", now)

    def _check(self, name: str, run_id: str, what: str, now: float) -> None:
        _, owner, since = self._work.owners.get(run_id, (0, name, now))
        daemon = next(one for one in self._world.daemons if one.name == name)
        if run_id in self._work.over and owner == name:
            return  # its end is being reported
        if owner == name or daemon.fault:
            return
        late_s = now - max(since, daemon.well_since)
        if late_s > LEASE_S + _SLACK_S:
            self.found.setdefault(
                (name, run_id, what),
                f"{name} still has {what} of {run_id} {late_s:.1f} s after {owner} took it and {name} could hear",
            )


def _tools(runs: Iterable[str]) -> list[tuple[str, int]]:
    """The running commands of runs, by what their command lines say."""
    wanted, found = set(runs), list[tuple[str, int]]()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            line = (folder / "cmdline").read_bytes()
            if b">> " in line:
                words = line.rstrip(b"\0").rpartition(b">> ")[2].split(b" ")[0].rstrip(b"\0").decode("ascii", "replace")
                if words in wanted:
                    found.append((words, int(folder.name)))
    return found


def _ancestor(pid: int, daemons: dict[int, str]) -> str:
    while pid > 1:
        if pid in daemons:
            return daemons[pid]
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return ""
    return ""


@dataclass(kw_only=True)
class Judge:
    """Everything that is known when it is over."""

    world: World
    work: Work
    happened: Sequence[Happened]
    kills: Sequence[tuple[str, float]]
    histories: dict[str, History]
    ledger: list[tuple[int, str, bytes, dict[str, str], float]]
    figures: dict[str, Any] = field(default_factory=dict)

    def violations(self) -> list[str]:
        """Return every broken promise."""
        by_run: dict[str, list[Call]] = defaultdict(list)
        for call in self.world.gate.calls:
            by_run[call.run_id].append(call)
        found = list(self.work.problems)
        for run_id, asked in self.work.asked.items():
            history = self.histories.get(run_id, History(run_id=run_id))
            calls = by_run.get(run_id, [])
            found += [f"{run_id} ({asked.kind}): {what}" for what in self._run(history, calls)]
        found += self._effects() + self._bill(by_run) + self._faults() + self._timings(by_run)
        return found

    def _run(self, history: History, calls: list[Call]) -> list[str]:
        model, found = RunModel(), list[str]()
        for message, _ in history.messages:
            found += model.take(message)
        if history.final is None:
            return [*found, f"it has no end; its log has {len(history.messages)} messages"]
        asked, (_, ended_at) = self.work.asked[history.run_id], history.final
        found += self._end(history, calls)
        turns = {message.body.get("turn"): at for message, at in history.of("turn")}
        for call in calls:
            if call.received_at > ended_at:
                found.append(f"{call.daemon} called the model {call.received_at - ended_at:.2f} s after the end")
            elif (recorded := turns.get(call.turn)) is not None and call.received_at > recorded:
                found.append(
                    f"{call.daemon} paid for turn {call.turn} again, {call.received_at - recorded:.2f} s later"
                )
        complete = sum(call.end == "complete" for call in calls)
        spare = len(history.claims) - 1 + (history.status in ("aborted", "timed_out", "failed"))
        if complete - len(turns) > max(spare, 0):
            found.append(f"{complete} answers were paid for {len(turns)} turns over {len(history.claims)} daemons")
        if len(history.claims) > 1 and not self._disturbed(history.claims[0][1] - LEASE_S, ended_at):
            found.append(f"it had {len(history.claims)} daemons although none failed")
        if asked.aborted and history.status not in ("aborted", "completed", "timed_out", "failed"):
            found.append(f"it was aborted and ended as {history.status}")
        return found

    def _end(self, history: History, calls: list[Call]) -> list[str]:
        asked, status = self.work.asked[history.run_id], history.status
        assert history.final is not None
        if "daemons were lost" in history.error:
            return [f"it ended as {status}: {history.error}"]
        if status == "completed":
            return []
        if status == "aborted":
            return [] if asked.aborted or asked.kind == "parent" else ["it was aborted by no parent"]
        if status == "timed_out":
            if asked.timeout_s is None:
                return ["it timed out without a timeout"]
            late = history.final[1] - (history.claims[0][1] + asked.timeout_s)
            disturbed = self._disturbed(history.claims[0][1] - LEASE_S, history.final[1])
            return [] if disturbed or late < LEASE_S else [f"its timeout came {late:.1f} s late"]
        if status in ("failed", "refused") and any(call.end in ("cut", "refused", "left") for call in calls):
            return []
        if status in ("failed", "refused") and self._was("full_disk", history):
            return []
        return [f"it ended as {status}: {history.error}"]

    def _was(self, kind: str, history: History) -> bool:
        assert history.final is not None
        began = history.messages[0][1]
        return any(one.kind == kind and one.began <= history.final[1] and one.ended >= began for one in self.happened)

    def _disturbed(self, since: float, until: float) -> bool:
        """Whether a daemon or NATS had a fault in a time."""
        return any(
            one.target not in ("provider", "parent") and one.began <= until and one.ended + 2 * LEASE_S >= since
            for one in self.happened
        )

    def _effects(self) -> list[str]:
        found, counted = list[str](), 0
        for run_id, asked in self.work.asked.items():
            path, history = self.world.effects / run_id, self.histories.get(run_id)
            lines = path.read_text().splitlines() if path.exists() else []
            counted += len(lines)
            steps = Counter(line.split()[0] for line in lines)
            found += [f"{run_id}: step {step} was done {count} times" for step, count in steps.items() if count > 1]
            if history is None or history.final is None:
                continue
            for line in lines:
                if float(line.split()[1]) > history.final[1]:
                    late = float(line.split()[1]) - history.final[1]
                    found.append(f"{run_id}: step {line.split()[0]} was done {late:.2f} s after the end")
            if asked.allowed is False and lines:
                found.append(f"{run_id}: a denied command ran")
            quiet = history.status == "completed" and len(history.claims) == 1 and asked.kind == "effects"
            if quiet and len(lines) != asked.steps:
                found.append(f"{run_id}: {len(lines)} of {asked.steps} steps were done")
        self.figures["effects"] = counted
        return found

    def _bill(self, by_run: dict[str, list[Call]]) -> list[str]:
        bill, found = self.world.provider.bill(), list[str]()
        booked: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
        for _, _, data, _, _ in self.ledger:
            message = json.loads(data)
            for rest in message.get("calls", []):
                call = {**message.get("shared", {}), **rest}
                name = tuple(call.get(key, 1) for key in ("epoch", "turn", "attempt"))
                before = booked[call["run_id"]].get(name)
                if before is None or _knows(call) > _knows(before):
                    booked[call["run_id"]][name] = call
        for run_id in self.work.asked:
            entries = list(booked[run_id].values())
            answered = {call.message_id for call in by_run.get(run_id, []) if call.message_id in bill}
            named = {entry.get("message_id") for entry in entries if entry.get("message_id")}
            blank = sum(
                entry.get("outcome", "confirmed") == "unconfirmed" and not entry.get("message_id") for entry in entries
            )
            missing = answered - named
            if len(missing) > blank:
                found.append(f"{run_id}: the provider billed {len(missing)} calls that the ledger does not have")
            for entry in entries:
                if entry.get("outcome", "confirmed") == "confirmed":
                    found += _compared(run_id, entry, bill.get(entry.get("message_id", "")))
        self.figures["billed calls"] = len(bill)
        return found

    def _faults(self) -> list[str]:
        self.figures["faults"] = dict(Counter(one.kind for one in self.happened))
        return [
            f"the fault {one.kind} on {one.target} did not take effect" for one in self.happened if not one.evidence
        ]

    def _timings(self, by_run: dict[str, list[Call]]) -> list[str]:
        overs, aborts = list[float](), list[float]()
        for name, at in self.kills:
            for history in self.histories.values():
                overs += self._taken_over(history, name, at)
        for run_id in self.work.asked:
            for _, at in self.histories.get(run_id, History(run_id=run_id)).of("abort"):
                for call in by_run.get(run_id, []):
                    if call.received_at < at < (call.ended_at or at) and self._connected(call.daemon, at):
                        aborts.append(call.ended_at - at)
        self.figures["take-over after kill -9, in leases"] = _spread([took / LEASE_S for took in overs])
        self.figures["abort stored to socket closed, in ms"] = _spread([took * 1000 for took in aborts])
        if overs and _quantile(overs, 0.99) > 2 * LEASE_S:
            return [f"take-over after kill -9: p99 {_quantile(overs, 0.99) / LEASE_S:.2f} leases"]
        return []

    def _taken_over(self, history: History, name: str, at: float) -> list[float]:
        before = [claim for claim in history.claims if claim[1] < at]
        if (
            not before
            or before[-1][0] != name
            or any(t < at for _, t in history.of("final") + history.of("handed_over"))
        ):
            return []
        after = [t for message, t in history.messages if t > at and message.kind in ("claimed", "final")]
        until = at + 2 * LEASE_S
        others = [
            one
            for one in self.happened
            if one.began <= until and one.ended >= at and not (one.began - 0.5 <= at <= one.began + 0.5)
        ]
        # With NATS or every other daemon away too, the time says nothing about the take-over.
        faulted = {one.target for one in others} - {"provider", "parent"}
        if "nats" in faulted or len(faulted - {name}) >= len(self.world.daemons) - 1:
            return []
        return [after[0] - at] if after else []

    def _connected(self, daemon: str, at: float) -> bool:
        return not any(
            one.target in (daemon, "nats") and one.began - 1 <= at <= one.ended + 2 * LEASE_S for one in self.happened
        )


def _knows(call: dict[str, Any]) -> int:
    rank = {"confirmed": 4, "unconfirmed": 1, "failed": 2}[call.get("outcome", "confirmed")]
    return rank + bool(call.get("billed")) + bool(call.get("message_id"))


def _compared(run_id: str, entry: dict[str, Any], billed: dict[str, Any] | None) -> list[str]:
    if billed is None:
        return []  # the provider was killed before it wrote its log
    tokens = [billed[key] for key in ("fresh", "read", "write_5m", "write_1h", "output")]
    if list(entry.get("billed") or ()) != tokens:
        return [f"{run_id}: the ledger has {entry.get('billed')} and the provider billed {tokens}"]
    return []


def leftovers(world: World, daemons: Sequence[Daemon]) -> list[str]:
    """What is left on the host when every run is over and the daemons are idle."""
    found = []
    for daemon in daemons:
        runs = [path.name for path in (daemon.state / "runs").glob("*") if path.is_dir()]
        if runs:
            found.append(f"{daemon.name}: folders of {len(runs)} runs are left in its state folder")
        homes = list(daemon.temporary.glob("nexofork-*"))
        if len(homes) > 1:
            found.append(f"{daemon.name}: {len(homes)} temporary folders are left of {daemon.starts} starts")
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"n": 0}
    return {
        "n": len(values),
        "p50": round(statistics.median(values), 2),
        "p99": round(_quantile(values, 0.99), 2),
        "max": round(max(values), 2),
    }


async def consumers_left(world: World) -> list[str]:
    """What the server still keeps for runs that are over."""
    reply = await world.client.request(f"$JS.fork.API.CONSUMER.INFO.{'FORK'}.pickup", b"", timeout=5)
    info = json.loads(reply.data)
    found = []
    for key in ("num_ack_pending", "num_pending"):
        if info.get(key):
            found.append(f"the consumer of pool {POOL} still has {key} {info[key]}")
    return found


def use_of(daemon: Daemon) -> dict[str, int]:
    """What a daemon uses now."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{daemon.pid}/status").read_text().splitlines() if ":" in line
    )
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(f"/proc/{daemon.pid}/fd")),
    }
