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

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.chaos.faults import DELAY_S
from tests.chaos.work import POOL
from tests.chaos.world import LEASE_S
from tests.support.run_model import Logged, RunModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.faults import Happened
    from tests.chaos.gate import Call
    from tests.chaos.work import Work
    from tests.chaos.world import Daemon, World

__all__ = ["History", "Judge", "Sampler", "read_histories", "read_stream"]

_SLACK_S = 1.0
"""What looking, scheduling and ending a process may add to a lease."""
_SEEN_S = 0.25
"""How much later than it was sent a call may be seen."""
_ABORT_S = 0.05
"""The bar from a stored abort to the closed socket of the call."""
_MESSAGES_OF_ABORT = 3
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
    # Without acknowledgements, or the server stops after the first thousand.
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE, inactive_threshold=60)
    reader = await js.pull_subscribe("", stream=stream, config=config)
    found, left = [], (await js.stream_info(stream)).state.messages
    while left > 0:
        page = await reader.fetch(min(_PAGE, left), timeout=10)
        for message in page:
            meta = message.metadata
            headers = dict(message.headers or {})
            found.append((meta.sequence.stream, message.subject, message.data, headers, meta.timestamp.timestamp()))
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
        self._known: dict[int, str] = {}
        self.late: dict[tuple[str, str, str], tuple[float, str]] = {}
        """How long what was not released could have been, and the daemon that had it by then."""
        self.stalls: list[tuple[float, float]] = []
        """When this program itself did not get the processor."""

    @property
    def found(self) -> list[str]:
        """What was kept for longer than a lease."""
        return [
            f"{name} still had {what} of {run_id} {late_s:.1f} s after {owner} took it and {name} could hear"
            for (name, run_id, what), (late_s, owner) in self.late.items()
            if late_s > LEASE_S + _SLACK_S
        ]

    def look(self) -> None:
        """Look once."""
        now = time.time()
        for call in self._world.gate.open_calls():
            self._check(call.daemon, call.run_id, "a model call", now)
        daemons = {daemon.pid: daemon.name for daemon in self._world.daemons if daemon.alive}
        for run_id, pid in self._tools():
            owner = _ancestor(pid, daemons)
            if owner:
                self._check(owner, run_id, "a command", now)

    def _check(self, name: str, run_id: str, what: str, now: float) -> None:
        _, owner, since = self._work.owners.get(run_id, (0, name, now))
        daemon = next(one for one in self._world.daemons if one.name == name)
        hears = daemon.hears_since()
        if owner == name or hears is None:
            return
        late_s = now - max(since, hears, *(ended for _, ended in self.stalls[-1:]))
        if late_s > self.late.get((name, run_id, what), (0.0, ""))[0]:
            self.late[name, run_id, what] = (late_s, owner)

    def _tools(self) -> list[tuple[str, int]]:
        """The running commands of runs, by what their command lines say; each process is read once."""
        seen, found = dict[int, str](), list[tuple[str, int]]()
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            pid = int(name)
            run_id = self._known.get(pid)
            if not run_id:
                # One that is being started still has its parent's command line: it is read again.
                run_id = _run_of(pid)
                run_id = run_id if run_id in self._work.asked else ""
            if run_id:
                seen[pid] = run_id
                found.append((run_id, pid))
        self._known = seen
        return found


def _run_of(pid: int) -> str:
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b">> " in line:
            return line.rpartition(b">> ")[2].split(b" ")[0].split(b"\0")[0].decode("ascii", "replace")
    return ""


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
    stalls: Sequence[tuple[float, float]] = ()
    """When the machine had no time for this program, and so perhaps for none."""
    judged_by_time: bool = True
    """Whether what comes late is a violation, or a figure only."""
    timeouts: list[float] = field(default_factory=list)
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
        found += self._end(history, calls) + self._lost(history) + self._paid(history, calls)
        asked = self.work.asked[history.run_id]
        if asked.aborted and not history.of("abort"):
            found.append("its abort was stored and is not on the log")
        return found

    def _paid(self, history: History, calls: list[Call]) -> list[str]:
        """Calls after the end, calls for a turn that was recorded, and more wasted calls than lost daemons."""
        assert history.final is not None
        found, ended_at = list[str](), history.final[1]
        turns = {message.body.get("turn"): at for message, at in history.of("turn")}
        for call in calls:
            if self._was_sent_asleep(history, call):
                continue
            if (recorded := turns.get(call.turn)) is not None and call.received_at > recorded + _SEEN_S:
                late_s = call.received_at - recorded
                found.append(f"{call.daemon} called for turn {call.turn} {late_s:.2f} s after it was recorded")
            elif call.received_at > ended_at + _SEEN_S:
                found.append(f"{call.daemon} called the model {call.received_at - ended_at:.2f} s after the end")
        complete = sum(call.end == "complete" for call in calls)
        spare = len(history.claims) - 1 + (history.status in ("aborted", "timed_out", "failed"))
        if complete - len(turns) > max(spare, 0):
            found.append(f"{complete} answers were paid for {len(turns)} turns over {len(history.claims)} daemons")
        return found

    def _was_sent_asleep(self, history: History, call: Call) -> bool:
        """Whether a daemon was stopped between the announcement of a call and the call: no program can prevent it."""
        announced = [at for message, at in history.of("call_started") + history.of("claimed") if at < call.received_at]
        stops = [(one.began, one.ended) for one in self.happened if one.target == call.daemon and one.kind == "stop"]
        return any(
            ended <= call.received_at + 1 and any(began - _SEEN_S <= at <= began + _SEEN_S for at in announced)
            for began, ended in (*stops, *self.stalls)
        )

    def _lost(self, history: History) -> list[str]:
        """Every daemon that lost a run had a fault while it had the run, or handed it over."""
        found, claims = list[str](), history.claims
        given = [at for _, at in history.of("handed_over")]
        ends = [at for _, at in claims[1:]]
        if history.final is not None and "daemons were lost" in history.error:
            ends.append(history.final[1])
        for (name, since), until in zip(claims, ends, strict=False):
            if any(since <= at <= until for at in given) or self._parted(name, since, until):
                continue
            if self.judged_by_time or "daemons were lost" in history.error:
                found.append(f"{name} lost it {until - since:.1f} s after its claim although {name} had no fault")
        return found

    def _parted(self, name: str, since: float, until: float) -> bool:
        """Whether something kept a daemon from NATS in a time."""
        return any(
            one.target in (name, "nats") and one.parts and one.began <= until and one.ended + 1 >= since
            for one in self.happened
        ) or any(began <= until and ended >= since for began, ended in self.stalls)

    def _end(self, history: History, calls: list[Call]) -> list[str]:
        asked, status = self.work.asked[history.run_id], history.status
        assert history.final is not None
        if "daemons were lost" in history.error:
            return [] if len(history.claims) >= 5 else [f"it ended as {status}: {history.error}"]
        if status == "completed":
            return []
        if status == "aborted":
            return [] if asked.aborted or asked.kind == "parent" else ["it was aborted by no parent"]
        if status == "timed_out":
            if asked.timeout_s is None:
                return ["it timed out without a timeout"]
            return self._timeout(history, asked.timeout_s)
        if status in ("failed", "refused") and any(call.end in ("cut", "refused") for call in calls):
            return []
        if status in ("failed", "refused") and (self._was("phang", history) or self._was("full_disk", history)):
            return []
        return [f"it ended as {status}: {history.error}"]

    def _timeout(self, history: History, limit_s: float) -> list[str]:
        assert history.final is not None
        late = history.final[1] - (history.claims[0][1] + limit_s) if history.claims else 0.0
        if any(self._parted(name, since, history.final[1]) for name, since in history.claims):
            return []
        self.timeouts.append(late)
        return [f"its timeout came {late:.1f} s late"] if late > LEASE_S and self.judged_by_time else []

    def _was(self, kind: str, history: History) -> bool:
        assert history.final is not None
        began = history.messages[0][1]
        return any(one.kind == kind and one.began <= history.final[1] and one.ended >= began for one in self.happened)

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
                step, done_at = line.split()[0], float(line.split()[1])
                if done_at > history.final[1] + _SEEN_S and not self._excused(history, done_at):
                    late_s = done_at - history.final[1]
                    found.append(f"{run_id}: step {step} was done {late_s:.2f} s after the end")
            if asked.allowed is False and lines:
                found.append(f"{run_id}: a denied command ran")
            quiet = history.status == "completed" and len(history.claims) == 1 and asked.kind == "effects"
            if quiet and len(lines) != asked.steps:
                found.append(f"{run_id}: {len(lines)} of {asked.steps} steps were done")
        self.figures["effects"] = counted
        return found

    def _excused(self, history: History, done_at: float) -> bool:
        """Whether a daemon that had a run could not hear until a lease before something was done."""
        assert history.final is not None
        return any(
            one.target in (name, "nats")
            and one.parts
            and one.kind not in ("kill", "delay")
            and since < one.began < history.final[1]
            and one.ended + LEASE_S + _SLACK_S >= done_at
            for name, since in history.claims
            for one in self.happened
        )

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
            found += self._never_sent(run_id, entries, by_run.get(run_id, []))
            for entry in entries:
                if entry.get("outcome", "confirmed") == "confirmed":
                    found += _compared(run_id, entry, bill.get(entry.get("message_id", "")))
        self.figures["billed calls"] = len(bill)
        return found

    def _never_sent(self, run_id: str, entries: list[dict[str, Any]], calls: list[Call]) -> list[str]:
        """More calls in the ledger than the provider saw; a daemon that is lost may have been about to send one."""
        counted = [entry for entry in entries if entry.get("outcome", "confirmed") != "failed"]
        history = self.histories.get(run_id, History(run_id=run_id))
        # Who ends a run of a lost daemon may do so without a claim.
        epochs = max([len(history.claims), *(int(message.body.get("epoch", 0)) for message, _ in history.of("final"))])
        lost = max(epochs - 1 - len(history.of("handed_over")), 0)
        extra = len(counted) - len(calls) - lost - (history.status == "failed")
        return [f"{run_id}: the ledger has {len(counted)} calls and {len(calls)} were sent"] if extra > 0 else []

    def _faults(self) -> list[str]:
        self.figures["faults"] = dict(Counter(one.kind for one in self.happened))
        return [
            f"the fault {one.kind} on {one.target} did not take effect" for one in self.happened if not one.evidence
        ]

    def _timings(self, by_run: dict[str, list[Call]]) -> list[str]:
        overs, aborts, slow = list[float](), list[float](), list[str]()
        for name, at in self.kills:
            for history in self.histories.values():
                overs += self._taken_over(history, name, at)
        for run_id in self.work.asked:
            for _, at in self.histories.get(run_id, History(run_id=run_id)).of("abort"):
                for call in by_run.get(run_id, []):
                    if call.received_at < at < (call.ended_at or at) and self._connected(call.daemon, at):
                        aborts.append(call.ended_at - at - self._on_the_wire(call.daemon, at))
        self.figures["take-over after kill -9, in leases"] = spread([took / LEASE_S for took in overs])
        self.figures["abort stored to socket closed, in ms"] = spread([took * 1000 for took in aborts])
        self.figures["timeout late, in ms"] = spread([late * 1000 for late in self.timeouts])
        if overs and _quantile(overs, 0.99) > 2 * LEASE_S:
            slow.append(f"take-over after kill -9: p99 {_quantile(overs, 0.99) / LEASE_S:.2f} leases")
        if aborts and _quantile(aborts, 0.99) > _ABORT_S:
            slow.append(f"abort stored to socket closed: p99 {_quantile(aborts, 0.99) * 1000:.0f} ms")
        return slow if self.judged_by_time else []

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

    def _on_the_wire(self, daemon: str, at: float) -> float:
        """How long a fault held up an abort: the news of it, the daemon's look at the log, and the answer."""
        slow = any(
            one.kind == "delay" and one.target == daemon and one.began <= at <= one.ended + 1 for one in self.happened
        )
        return _MESSAGES_OF_ABORT * DELAY_S if slow else 0.0

    def _connected(self, daemon: str, at: float) -> bool:
        near = [one for one in self.happened if one.target in (daemon, "nats") and one.parts]
        return not any(one.began - 1 <= at <= one.ended + LEASE_S for one in near) and not any(
            began - 1 <= at <= ended + 1 for began, ended in self.stalls
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


def leftovers(world: World) -> list[str]:
    """What is left on the host when every run is over and the daemons are idle."""
    found = []
    for daemon in world.daemons:
        runs = [path.name for path in (daemon.state / "runs").glob("*") if path.is_dir()]
        if runs:
            found.append(f"{daemon.name}: folders of {len(runs)} runs are left in its state folder: {runs[:3]}")
        homes = [path.name for path in daemon.temporary.iterdir()]
        if homes:
            found.append(
                f"{daemon.name}: {len(homes)} temporary folders are left of {daemon.starts} starts: {homes[:5]}"
            )
    mine = {os.getpid(), world.provider.pid, *(one.pid for one in (*world.servers, *world.daemons))}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in mine:
            with suppress(OSError):
                line = Path(f"/proc/{name}/cmdline").read_bytes()
                if os.fsencode(world.folder) in line:
                    said = line.replace(b"\0", b" ").decode(errors="replace")
                    found.append(f"process {name} is left: {said[:200]}")
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Describe a set of figures."""
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
    found = []
    for stream in ("FORK", "FORK_LEDGER"):
        reply = await world.client.request(f"$JS.fork.API.CONSUMER.LIST.{stream}", b"", timeout=5)
        for info in json.loads(reply.data).get("consumers") or ():
            if info["name"] != "pickup":
                found.append(f"the consumer {info['name']} is left on {stream}")
            for key in ("num_ack_pending", "num_pending"):
                if info.get(key) and info["name"] == "pickup":
                    found.append(f"the consumer of pool {POOL} still has {key} {info[key]}")
    return found


def subscriptions(world: World) -> dict[str, int]:
    """How many subscriptions each daemon has, over all servers."""
    found: dict[str, int] = {}
    for server in world.servers:
        for one in server.ask("connz?limit=2048")["connections"]:
            name = next((daemon.name for daemon in world.daemons if daemon.name in one.get("name", "")), "")
            if name:
                found[name] = found.get(name, 0) + int(one["subscriptions"])
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
