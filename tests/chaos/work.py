"""What the runs do while things fail, and the parents that ask for them.

Most requests are published as plain NATS messages, as a parent in another language would. Parents that are killed and
runs with a git workspace use the command line. Effects are lines in files that only the children's commands write.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nats.errors import Error as NatsError

from tests.chaos.gate import mark_of
from tests.chaos.world import PRODUCT

if TYPE_CHECKING:
    import random

    from nats.aio.msg import Msg

    from tests.chaos.world import World

__all__ = ["POOL", "Asked", "Work", "stored"]

POOL = "fork"
_NEXOFORK = str(PRODUCT / "nexofork")
_KINDS: dict[str, float] = {
    "plain": 46,
    "slow": 10,
    "long": 5,
    "effects": 20,
    "ask": 5,
    "timeout": 4,
    "git": 1,
    "parent": 2,
}
_FAMILY = 4
"""How many runs one command asks for."""
_BURST = 8
"""How many runs with a timeout begin together."""
_HERD = 30
_HERD_TIMEOUTS_S = (1.0, 2.0)
_UNREACHED = 3
"""How a command exits that finds no NATS server."""
_RETRY_S = 0.1
_PATIENCE_S = 150.0
"""How long a parent may wait for its children."""


@dataclass(slots=True, kw_only=True)
class Asked:
    """A run that was asked for."""

    run_id: str
    kind: str
    at: float
    steps: int = 0
    """How many effects it has when all goes well."""
    aborted: bool = False
    """Whether an abort was stored."""
    allowed: bool | None = None
    """What its question was answered with."""
    timeout_s: float | None = None


@dataclass(kw_only=True)
class Work:
    """Asks for runs, answers their questions, aborts some of them."""

    world: World
    random: random.Random
    outstanding: int = 10
    """How many runs are open at once."""
    kinds: dict[str, float] = field(default_factory=lambda: dict(_KINDS))
    """What runs do, each with its weight."""
    wanted: list[str] = field(default_factory=list)
    """What is asked for next, however many runs are open."""
    asked: dict[str, Asked] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    owners: dict[str, tuple[int, str, float]] = field(default_factory=dict)
    """The newest claim of each run as far as it was heard: epoch, daemon, when."""
    repeated: dict[str, float] = field(default_factory=dict)
    """When each daemon last announced that it repeats a call."""
    parents: list[tuple[subprocess.Popen[bytes], list[str]]] = field(default_factory=list)
    """Parents that wait for their children now."""
    problems: list[str] = field(default_factory=list)
    _body: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def open(self) -> None:
        """Listen to the reports, and write down what parents need."""
        self._body = json.dumps(_request(), separators=(",", ":"))
        folder = self.world.folder
        (folder / "REQUEST.json").write_text(self._body)
        _make_repository(folder / "repository")
        await self.world.client.subscribe(f"live.{POOL}.*.reports", cb=self._heard)

    async def run(self, until: float, most: float = math.inf) -> None:
        """Keep asking for runs until a time, or until there are so many, then return; what is open goes on."""
        kinds, weights = list(self.kinds), list(self.kinds.values())
        async with asyncio.TaskGroup() as tasks:
            while time.time() < until and len(self.asked) < most:
                if not self.wanted and len(self.asked) - len(self.over) >= self.outstanding:
                    self._changed.clear()
                    try:
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()
                    except TimeoutError:
                        await self._look_for_ends()
                    continue
                [kind] = [self.wanted.pop()] if self.wanted else self.random.choices(kinds, weights)
                for _ in range(_BURST if kind == "timeout" else 1):
                    await self._ask(kind, tasks)

    async def herd(self) -> None:
        """Ask for many runs that time out together, and wait for their ends; without a fault each needs one daemon."""
        runs = [self._new("timeout", round(self.random.uniform(*_HERD_TIMEOUTS_S), 2)) for _ in range(_HERD)]
        async with asyncio.TaskGroup() as tasks:
            for run in runs:
                tasks.create_task(self._published(run, self._requested(run)))
        await self.settle(_PATIENCE_S)

    def _new(self, kind: str, timeout_s: float | None = None) -> Asked:
        run_id = uuid.UUID(int=self.random.getrandbits(128)).hex[:20]
        self.asked[run_id] = Asked(run_id=run_id, kind=kind, at=time.time(), timeout_s=timeout_s)
        return self.asked[run_id]

    async def _ask(self, kind: str, tasks: asyncio.TaskGroup) -> None:
        if kind in ("git", "parent"):
            tasks.create_task(self._by_command(kind))
            await asyncio.sleep(0.3)
            return
        run = self._new(kind, round(self.random.uniform(0.3, 2.0), 2) if kind == "timeout" else None)
        await self._published(run, self._requested(run))
        if self.random.random() < (0.3 if run.kind in ("slow", "long") else 0.04):
            tasks.create_task(self._abort(run, self.random.uniform(0.0, 3.0)))

    def _requested(self, run: Asked) -> dict[str, Any]:
        request: dict[str, Any] = {
            "v": 1,
            "kind": "requested",
            "id": run.run_id,
            "headers": {"anthropic-version": "2023-06-01"},
            "snapshot": {"text": self._body},
            "label": run.kind,
        }
        turns: list[Any] = []
        match run.kind:
            case "slow":
                turns = [{"text": 40 * "slow words ", "deltas": 30, "delta_delay_s": self.random.uniform(0.02, 0.15)}]
            case "long" if self.random.random() < 0.5:
                turns = [{"text": 40 * "long words ", "deltas": 60, "delta_delay_s": 0.3}]
            case "long":
                run.steps = 1
                turns = [_effect(run, 1, 15)]
            case "timeout":
                request["timeout_s"] = run.timeout_s
                # Short turns without end, so that many timeouts fire while something is being written.
                turns = [{"tools": [{"name": "FileRead", "input": {"file_path": "/none"}}]} for _ in range(100)]
            case "effects":
                run.steps = self.random.randint(1, 4)
                turns = [_effect(run, step, self.random.choice((0, 0, 0.3, 1.5))) for step in range(1, run.steps + 1)]
            case "ask":
                run.steps, run.allowed = 1, self.random.random() < 0.7
                turns = [_effect(run, 1, 0)]
                request["permissions"] = {"mode": "bubble", "deadline_s": 30}
        if run.steps:
            request["workspace"] = {"kind": "path", "path": str(self.world.effects)}
        needs = [name for name in ("permissions", "workspace") if name in request]
        request |= {"v": 2, "needs": needs} if needs else {}
        turns.append({"text": "Scope: chaos\nResult: done"})
        request["directive"] = f"{mark_of(run.run_id)} {run.kind}\n@sim {json.dumps(turns)}"
        return request

    async def _published(self, run: Asked, request: dict[str, Any]) -> None:
        """Publish until the server confirms it; the compare-and-set makes a repetition harmless."""
        headers = {
            "Nats-Expected-Last-Subject-Sequence": "0",
            "Nats-Expected-Last-Subject-Sequence-Subject": f"agent.{POOL}.{run.run_id}.*",
        }
        await _stored_at_last(
            self.world, f"agent.{POOL}.{run.run_id}.events", json.dumps(request).encode(), headers, taken=(10071,)
        )

    async def _abort(self, run: Asked, after_s: float) -> None:
        await asyncio.sleep(after_s)
        event = {
            "v": 1,
            "kind": "abort",
            "id": f"abort-{run.run_id}",
            "at": time.time(),
            "note": "chaos",
            "by": "chaos",
        }
        data = json.dumps(event).encode()
        for attempt in range(50):
            tip = await stored(self.world, f"agent.{POOL}.{run.run_id}.*")
            if tip is None or _is_final(tip):
                return
            headers = {
                "Nats-Expected-Last-Subject-Sequence": str(tip["seq"]),
                "Nats-Expected-Last-Subject-Sequence-Subject": f"agent.{POOL}.{run.run_id}.*",
            }
            subject = f"agent.{POOL}.{run.run_id}.events"
            if await _stored_at_last(self.world, subject, data, headers, taken=(10071, 10164)):
                run.aborted = True
                return
            await asyncio.sleep(0.01 * attempt)

    async def _by_command(self, kind: str) -> None:
        """Let the command line fork: for a git workspace and leave, or as a parent that waits and may be killed."""
        runs = [self._new(kind) for _ in range(_FAMILY)]
        arguments = ["fork", "--request", str(self.world.folder / "REQUEST.json"), "--nats", self.world.urls, "--json"]
        for run in runs:
            run.steps = 1 if kind == "git" else 0
            command = f"echo {run.run_id} >> children.txt && git add -A && git commit -qm {run.run_id}"
            turns: list[Any] = [{"tools": [{"name": "Bash", "input": {"command": command}}]}] if kind == "git" else []
            turns.append({"text": "Scope: chaos\nResult: done", "deltas": 10, "delta_delay_s": 0.05})
            arguments += ["--run-id", run.run_id, "-d", f"{mark_of(run.run_id)} {kind}\n@sim {json.dumps(turns)}"]
        if kind == "git":
            arguments += ["--workspace", f"git:{self.world.folder / 'repository'}", "--detach"]
        log = self.world.folder / "logs" / f"parent-{runs[0].run_id}"
        with open(f"{log}.out", "wb") as out, open(f"{log}.err", "wb") as err:
            process = subprocess.Popen([_NEXOFORK, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        ids = [run.run_id for run in runs]
        self.parents.append((process, ids))
        give_up = time.time() + _PATIENCE_S
        while process.poll() is None and time.time() < give_up:
            await asyncio.sleep(0.05)
        self.parents.remove((process, ids))
        if process.poll() is None:
            process.kill()
            process.wait()
            self.problems.append(f"a parent of {ids} waited for {_PATIENCE_S:g} s")
            return
        if process.returncode in (-9, _UNREACHED):
            await self._attach(ids)  # what it had asked for before it was killed, or found no server
        elif process.returncode not in (0, 1):
            said = Path(f"{log}.err").read_text().strip()[-500:]
            self.problems.append(f"a parent ended with {process.returncode}: {said}")

    async def _attach(self, ids: list[str]) -> None:
        """Be the parent that comes back: every run it had asked for gives its result."""
        there = []
        for run_id in ids:
            if await stored(self.world, f"agent.{POOL}.{run_id}.*") is None:
                self.over.discard(run_id)
                del self.asked[run_id]  # killed before it had asked
            else:
                there.append(run_id)
        if not there:
            return
        while not self.world.client.is_connected:
            await asyncio.sleep(_RETRY_S)
        process = await asyncio.create_subprocess_exec(
            *(_NEXOFORK, "wait", *there, "--json", "--timeout", f"{_PATIENCE_S:g}", "--nats", self.world.urls),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await process.communicate()
        results = [json.loads(line) for line in out.splitlines()]
        if process.returncode == _UNREACHED:
            await self._attach(there)
        elif sorted(result["run_id"] for result in results) != sorted(there):
            self.problems.append(
                f"a parent that came back got {len(results)} of {len(there)} results: {err.decode()[-500:]}"
            )

    async def _heard(self, message: Msg) -> None:
        run_id = message.subject.split(".")[2]
        try:
            report = json.loads(message.data)
        except ValueError:
            return
        match report.get("kind"):
            case "claimed":
                if report["epoch"] > self.owners.get(run_id, (0, "", 0.0))[0]:
                    self.owners[run_id] = (report["epoch"], report.get("daemon", {}).get("name", ""), time.time())
            case "call_started" if report.get("attempt", 1) > 1:
                self.repeated[self.owners.get(run_id, (0, "", 0.0))[1]] = time.time()
            case "final":
                self._ended(run_id)
            case "asked" if report.get("what") == "permission" and run_id in self.asked:
                await self._answer(run_id, report["ask_id"])

    async def _answer(self, run_id: str, ask_id: str) -> None:
        answer = {
            "v": 1,
            "kind": "answer",
            "id": f"a-{ask_id}"[:120],
            "data": {"allow": self.asked[run_id].allowed, "by": "chaos"},
        }
        try:
            await self.world.client.publish(f"agent.{POOL}.{run_id}.inbox.{ask_id}", json.dumps(answer).encode())
        except NatsError:
            return  # its deadline denies it

    def _ended(self, run_id: str) -> None:
        if run_id in self.asked:
            self.over.add(run_id)
            self._changed.set()

    async def _look_for_ends(self) -> None:
        """Find the ends that were not heard while a server was away."""
        for run_id in [one for one in self.asked if one not in self.over][:64]:
            tip = await stored(self.world, f"agent.{POOL}.{run_id}.reports")
            if tip is not None and _is_final(tip):
                self._ended(run_id)

    async def settle(self, limit_s: float) -> None:
        """Wait until every run has ended, or the time is up."""
        give_up = time.time() + limit_s
        while len(self.over) < len(self.asked) and time.time() < give_up:
            await self._look_for_ends()
            await asyncio.sleep(0.5)


async def stored(world: World, filter_: str) -> dict[str, Any] | None:
    """Return the newest stored message of a filter, from the stream's leader."""
    query = json.dumps({"last_by_subj": filter_}).encode()
    while True:
        try:
            reply = await world.client.request(f"$JS.fork.API.STREAM.MSG.GET.{'FORK'}", query, timeout=5)
        except (NatsError, TimeoutError):
            await asyncio.sleep(_RETRY_S)
            continue
        answer = json.loads(reply.data)
        if "error" in answer:
            if answer["error"].get("err_code") == 10037:
                return None
            await asyncio.sleep(_RETRY_S)
            continue
        found: dict[str, Any] = answer["message"]
        return found


async def _stored_at_last(
    world: World, subject: str, data: bytes, headers: dict[str, str], *, taken: tuple[int, ...]
) -> bool:
    """Store a message however long it takes; False where the compare-and-set lost, or a repetition of it had landed."""
    while True:
        try:
            reply = await world.client.request(subject, data, headers=headers, timeout=5)
        except (NatsError, TimeoutError):
            await asyncio.sleep(_RETRY_S)
            continue
        error = json.loads(reply.data).get("error")
        if not error:
            return True
        if error.get("err_code") in taken:
            return False
        await asyncio.sleep(_RETRY_S)


def _is_final(message: dict[str, Any]) -> bool:
    return bool(json.loads(base64.b64decode(message.get("data", ""))).get("kind") == "final")


def _effect(run: Asked, step: int, pause_s: float) -> dict[str, Any]:
    wait = f"sleep {pause_s}; " if pause_s else ""
    return {"tools": [{"name": "Bash", "input": {"command": f'{wait}echo "{step} $(date +%s.%N)" >> {run.run_id}'}}]}


def _request() -> dict[str, Any]:
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("Bash", "FileRead")]
    history = "A long story. " * 450
    return {
        "model": "claude-opus-4-8",
        "max_tokens": 1000,
        "system": [{"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}],
        "tools": tools,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": history, "cache_control": {"type": "ephemeral"}}]}
        ],
    }


def _make_repository(folder: Path) -> None:
    folder.mkdir()
    (folder / "README").write_text("chaos\n")
    git = ["git", "-C", str(folder), "-c", "user.name=chaos", "-c", "user.email=chaos@example.invalid"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
