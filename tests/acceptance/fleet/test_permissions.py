"""A fork on another host asks before it changes something; the answer finds it, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import ForkStatus, PermissionAnswer, PermissionAsk, Permissions
from nexofork.bus.jetstream import store
from nexofork.errors import BusError, ForkRefused
from nexofork.run.events import ForkAsked, ForkPermitted
from nexofork.wire import messages as wire
from nexofork.wire.permissions import PermissionPolicy, ask_id_of
from nexofork.wire.subjects import inbox
from tests.acceptance.fleet.test_metrics import port_of
from tests.support.conversation import call, declared, says
from tests.support.fleet import finals, lines_in, open_fleet
from tests.support.parents import results_in
from tests.support.scraping import get
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import ForkHandle, ForkParams
    from nexofork.simulator import Simulator
    from tests.support.fleet import Fleet, Nursery, RestartableServer

DONE = "Scope: all\nResult: done"
BUBBLE = Permissions(mode="bubble")


async def working(fleet: Fleet, *commands: str, **more: Any) -> ForkParams:
    """A fork that runs one command per turn."""
    turns = [{"tools": [call(command=command)]} for command in commands]
    more.setdefault("permissions", BUBBLE)
    return await fleet.params(says("Work.", *turns, DONE), **more)


async def asking(fleet: Fleet, policy: PermissionPolicy) -> wire.Requested:
    """The request of a fork that asks, to put on a log by hand."""
    snapshot = await fleet.snapshot()
    return wire.Requested(
        snapshot=wire.Payload(text=snapshot.body.decode()),
        headers=dict(snapshot.headers),
        directive="Work.",
        permissions=policy,
    )


def permission_asked(call_id: str, *, deadline_s: float) -> wire.Asked:
    """What a daemon wrote about a command of a run's first turn before it was lost."""
    return wire.Asked(
        epoch=1,
        ask_id=ask_id_of("permission", 1, call_id),
        what="permission",
        payload=wire.Payload(text="{}"),
        deadline_s=deadline_s,
        call_id=call_id,
        name="Bash",
    )


async def asked(handle: ForkHandle) -> ForkAsked:
    """The first question of a run."""
    async for event in handle.events():
        if isinstance(event, ForkAsked):
            return event
    raise AssertionError("it ended without asking")


async def questions(fleet: Fleet, handle: ForkHandle) -> list[wire.Asked]:
    """All questions on a run's log."""
    return [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Asked)]


async def until_asked(fleet: Fleet, handle: ForkHandle, epoch: int) -> wire.Asked:
    """The question of an epoch."""
    await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Asked) and report.epoch == epoch)
    return next(question for question in await questions(fleet, handle) if question.epoch == epoch)


async def test_the_parents_callback_decides(fleet: Fleet, tmp_path: Path) -> None:
    """It sees the arguments, large ones too; what it allows is announced only then, what it denies the model reads."""
    await fleet.daemon()
    target, seen = tmp_path / "large", list[PermissionAsk]()
    content = 40_000 * "x"
    fleet.captured = await fleet.agent.ask(max_tokens=20_000, tools=declared("FileWrite"))

    async def decide(ask: PermissionAsk) -> PermissionAnswer:
        seen.append(ask)
        return PermissionAnswer(allow=ask.name == "FileWrite", note="no shell")

    turns = [
        {"tools": [call(command="ls /")]},
        {"tools": [call("FileWrite", file_path=str(target), content=content)]},
        {"tools": [call(command=f"rm {target}")]},
    ]
    params = await fleet.params(says("Work.", *turns, DONE), permissions=BUBBLE, on_permission=decide)
    async with fleet.connect() as forks:
        handle = await forks.fork(params)
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert [ask.name for ask in seen] == ["FileWrite", "Bash"]
    assert seen[0].arguments == {"file_path": str(target), "content": content}
    assert seen[0].rules == (f"FileWrite({tmp_path}/*)",)
    assert target.read_text() == content
    assert "permission was denied: no shell." in results_in(fleet.sim, 4)[0]["content"]
    kinds = [report.kind for report in await fleet.reports(handle.run_id)]
    assert kinds[kinds.index("asked") :] == [
        *("asked", "permitted", "tool_started", "tool_finished", "call_started", "turn"),
        *("asked", "permitted", "tool_finished", "call_started", "turn", "final"),
    ]
    assert (await questions(fleet, handle))[0].payload.blob is not None


async def test_an_answer_that_came_while_nobody_had_the_run_is_honoured_once(fleet: Fleet, tmp_path: Path) -> None:
    """A kill -9 while it asks: the next daemon finds the answer under the same id, and the command runs once."""
    tally = tmp_path / "tally"
    lost = await fleet.daemon("lost")
    async with fleet.connect() as forks:
        handle = await forks.fork(await working(fleet, f"echo ran >> {tally}"))
        question = await asked(handle)
        await lost.kill()
        await handle.answer(question.ask_id, True)
        assert lines_in(tally) == 0

        await fleet.daemon("heir")
        result = await handle.result()
        with pytest.raises(ForkRefused, match="is over"):
            await handle.answer(question.ask_id, True)

    assert (result.status, result.daemon, lines_in(tally)) == (ForkStatus.COMPLETED, "heir", 1)
    assert [one.ask_id for one in await questions(fleet, handle)] == [question.ask_id]
    decided = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Permitted)]
    assert [(report.epoch, report.ask_id, report.allowed) for report in decided] == [(2, question.ask_id, True)]
    assert "interrupted" not in results_in(fleet.sim, 2)[0]["content"]


async def test_whoever_takes_over_asks_again_with_what_is_left_of_the_deadline(fleet: Fleet, tmp_path: Path) -> None:
    """The same question, less time; the callback that thinks about it is not called twice."""
    lost = await fleet.daemon("lost")
    called = []

    async def think(ask: PermissionAsk) -> PermissionAnswer:
        called.append(ask.ask_id)
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    params = await working(
        fleet, f"touch {tmp_path}/x", permissions=Permissions(mode="bubble", deadline_s=600.0), on_permission=think
    )
    async with fleet.connect() as forks:
        handle = await forks.fork(params)
        first = await until_asked(fleet, handle, 1)
        await lost.kill()
        await fleet.daemon("heir")
        second = await until_asked(fleet, handle, 2)
        await handle.answer(second.ask_id, False, note="too late")
        result = await handle.result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir")
    assert (first.ask_id, first.deadline_s) == (second.ask_id, 600.0)
    assert second.deadline_s < 599.9
    assert called == [first.ask_id]
    assert "permission was denied: too late" in results_in(fleet.sim, 2)[0]["content"]
    assert not (tmp_path / "x").exists()


@pytest.mark.breaks_prefix("its first turn is on the log alone and was never sent")
async def test_a_deadline_counts_from_the_first_question_whoever_asked_it(fleet: Fleet, tmp_path: Path) -> None:
    """Whether or not some of it is left for the daemon that takes over: nobody answered within the whole of it."""
    fleet.forged = True
    run_id, target = wire.new_run_id(), tmp_path / "x"
    touch = {"type": "tool_use", "id": "toolu_x", "name": "Bash", "input": {"command": f"touch {target}"}}
    seq = await fleet.log(run_id).request(await asking(fleet, PermissionPolicy(mode="bubble", deadline_s=1.0)))
    for report in (
        wire.Claimed(epoch=1, daemon=wire.Daemon(name="lost")),
        wire.Turn(epoch=1, turn=1, content=wire.Payload(text=json.dumps([touch])), stop_reason="tool_use"),
        permission_asked("toolu_x", deadline_s=1.0),
    ):
        seq = await fleet.log(run_id).append(report, after=seq)

    await fleet.daemon("heir")
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Final))

    (decided,) = [report for report in await fleet.reports(run_id) if isinstance(report, wire.Permitted)]
    assert (decided.epoch, decided.allowed, decided.how) == (2, False, "deadline")
    assert "nobody answered within 1 s" in results_in(fleet.sim, 1)[0]["content"]
    assert not target.exists()


@pytest.mark.breaks_prefix("its first turn is on the log alone and was never sent")
async def test_what_was_decided_is_not_asked_again(fleet: Fleet, tmp_path: Path) -> None:
    """A daemon that was lost between the decision and the call: the next one goes by what the log says."""
    fleet.forged = True
    run_id = wire.new_run_id()
    log = fleet.log(run_id)
    calls = [
        {"type": "tool_use", "id": f"toolu_{name}", "name": "Bash", "input": {"command": f"touch {tmp_path}/{name}"}}
        for name in "ab"
    ]
    seq = await log.request(await asking(fleet, PermissionPolicy(mode="bubble")))
    lost: list[Any] = [wire.Claimed(epoch=1, daemon=wire.Daemon(name="lost"))]
    lost.append(wire.Turn(epoch=1, turn=1, content=wire.Payload(text=json.dumps(calls)), stop_reason="tool_use"))
    for call_id, allowed in (("toolu_a", True), ("toolu_b", False)):
        question = permission_asked(call_id, deadline_s=300.0)
        lost.append(question)
        lost.append(wire.Permitted(epoch=1, ask_id=question.ask_id, call_id=call_id, name="Bash", allowed=allowed))
    for report in lost:
        seq = await log.append(report, after=seq)

    await fleet.daemon("heir")
    await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Final))

    reports = await fleet.reports(run_id)
    assert finals(reports)[0].status == "completed"
    assert [report.epoch for report in reports if isinstance(report, (wire.Asked, wire.Permitted))] == [1, 1, 1, 1]
    assert ((tmp_path / "a").exists(), (tmp_path / "b").exists()) == (True, False)
    assert "permission was denied" in results_in(fleet.sim, 1)[1]["content"]


async def test_what_is_remembered_survives_a_take_over(fleet: Fleet, tmp_path: Path) -> None:
    """An answer for always given to one daemon spares the question on the next."""
    lost = await fleet.daemon("lost")
    script: list[dict[str, Any]] = [
        {"tools": [call(command=f"touch {tmp_path}/a")]},
        {"tools": [call(command=f"touch {tmp_path}/b")], "hold": "second"},
    ]
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("Work.", *script, DONE), permissions=BUBBLE))
        question = await asked(handle)
        await handle.answer(question.ask_id, True, rule="Bash(touch *)")
        await fleet.sim.received(3)
        await lost.kill()
        await fleet.daemon("heir")
        fleet.sim.release("second")
        result = await handle.result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir")
    assert len(await questions(fleet, handle)) == 1
    assert (tmp_path / "b").exists()


async def test_the_first_answer_stands(fleet: Fleet, tmp_path: Path) -> None:
    """Another process's answer settles it: the parent's callback is told to stop, a second answer is refused."""
    await fleet.daemon()
    thinking, stopped = asyncio.Event(), asyncio.Event()

    async def think(ask: PermissionAsk) -> PermissionAnswer:
        thinking.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError("unreachable")

    params = await working(fleet, f"touch {tmp_path}/x", f"touch {tmp_path}/y", on_permission=think)
    async with fleet.connect() as forks, fleet.connect() as others:
        handle = await forks.fork(params)
        await thinking.wait()
        thinking.clear()
        elsewhere = await others.attach(handle.run_id)
        question = await asked(elsewhere)
        await elsewhere.answer(question.ask_id, True, note="fine")
        await stopped.wait()
        with pytest.raises(ForkRefused, match=r"answered before|was allowed before"):
            await handle.answer(question.ask_id, False)
        with pytest.raises(ForkRefused, match="no open ask 'permission-7-x'"):
            await handle.answer("permission-7-x", True)

        await thinking.wait()  # the next question reaches the callback again
        second = (await questions(fleet, handle))[1]
        assert (question.name, question.arguments) == ("Bash", {"command": f"touch {tmp_path}/x"})
        await elsewhere.answer(second.ask_id, True)
        result = await handle.result()
        decided = [event async for event in elsewhere.events() if isinstance(event, ForkPermitted)]

    assert result.status is ForkStatus.COMPLETED
    assert [(event.allowed, event.how, event.note) for event in decided] == [
        (True, "answer", "fine"),
        (True, "answer", ""),
    ]
    assert (tmp_path / "x").exists()


async def test_who_attaches_is_asked_only_what_is_open(fleet: Fleet, tmp_path: Path) -> None:
    """Not what was decided before."""
    await fleet.daemon()
    seen: list[PermissionAsk] = []

    async def allow(ask: PermissionAsk) -> PermissionAnswer:
        seen.append(ask)
        return PermissionAnswer(allow=True)

    async with fleet.connect() as forks, fleet.connect() as others:
        handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x", f"touch {tmp_path}/y"))
        await handle.answer((await asked(handle)).ask_id, True)
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Asked) and report.turn == 2)
        await others.attach(handle.run_id, on_permission=allow)
        assert (await handle.result()).status is ForkStatus.COMPLETED

    assert [ask.turn for ask in seen] == [2]
    assert (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff not even JSON",
        b'{"v":1,"kind":"answer","data":{}}',
        b'{"v":1,"kind":"answer","data":{"allow":"yes"}}',
        b'{"v":1,"kind":"answer","data":{"allow":1}}',
        b'{"v":1,"kind":"message","text":"do it","data":{"allow":true}}',
        b'{"v":1,"kind":"answer","data":{"allow":true,"remember":"always"}}',
    ],
)
async def test_an_answer_that_cannot_be_read_denies(fleet: Fleet, tmp_path: Path, data: bytes) -> None:
    """At once and readably: the inbox takes no other. An answer to another question changes nothing."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x"))
        question = await asked(handle)
        yes = wire.encode(wire.Answer(kind="answer", data={"allow": True}))
        await store(fleet.bus, inbox(handle.run_id, "permission-1-0", fleet.pool), yes)
        await store(fleet.bus, inbox(handle.run_id, question.ask_id, fleet.pool), data)
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert "the answer that came cannot be read" in results_in(fleet.sim, 2)[0]["content"]
    assert not (tmp_path / "x").exists()


async def test_an_answer_may_widen_only_what_was_asked(fleet: Fleet, tmp_path: Path) -> None:
    """A rule for everything in an answer about a command: the call is decided, the next is asked for again."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x", f"rm {tmp_path}/x"))
        question = await asked(handle)
        hostile = wire.Answer(kind="answer", data={"allow": True, "remember": True, "rule": "FileWrite"})
        await store(fleet.bus, inbox(handle.run_id, question.ask_id, fleet.pool), wire.encode(hostile))
        await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Asked) and report.turn == 2)
        await handle.abort("seen enough")
        result = await handle.result()

    assert result.status is ForkStatus.ABORTED
    (decided,) = [report for report in await fleet.reports(handle.run_id) if isinstance(report, wire.Permitted)]
    assert (decided.allowed, decided.rules) == (True, [])


async def test_an_abort_ends_a_run_that_asks(fleet: Fleet, tmp_path: Path) -> None:
    """At once, not at the deadline; a late answer is refused."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x"))
        question = await asked(handle)
        await handle.abort("enough")
        async with asyncio.timeout(PATIENCE_S):  # the deadline is minutes away
            result = await handle.result()
        with pytest.raises((ForkRefused, BusError), match="is over"):
            await handle.answer(question.ask_id, True)

    assert result.status is ForkStatus.ABORTED
    assert not any(isinstance(report, wire.ToolStarted) for report in await fleet.reports(handle.run_id))


async def test_a_run_without_transcript_asks_too(fleet: Fleet, tmp_path: Path) -> None:
    """Its questions are part of its life cycle: in the handle's events and on the log."""
    await fleet.daemon()
    async with fleet.connect() as forks:
        handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x", skip_transcript=True))
        question = await asked(handle)
        await handle.answer(question.ask_id, True)
        result = await handle.result()

    assert result.status is ForkStatus.COMPLETED
    assert (tmp_path / "x").exists()
    kinds = [report.kind for report in await fleet.reports(handle.run_id)]
    assert [kind for kind in kinds if kind in ("asked", "permitted", "turn")] == ["asked", "permitted"]


async def test_a_policy_travels_and_one_that_cannot_be_meant_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    """A headless fork does what its rules allow; a daemon that gets a bad mode, rule or deadline refuses the run."""
    await fleet.daemon()
    policy = Permissions(mode="deny", allow=["Bash(touch *)"], deny=[f"Bash(touch {tmp_path}/b)"])
    params = await working(fleet, f"touch {tmp_path}/a", f"touch {tmp_path}/b", permissions=policy)
    async with fleet.connect() as forks:
        result = await (await forks.fork(params)).result()
    assert (result.status, (tmp_path / "a").exists()) == (ForkStatus.COMPLETED, True)
    assert f"the rule Bash(touch {tmp_path}/b) of this fork denies it" in results_in(fleet.sim, 3)[0]["content"]
    sent = fleet.sim.request_count

    good = wire.Requested(snapshot=wire.Payload(text=params.cache_safe.body.decode()), directive="Look.")
    for bad in (
        PermissionPolicy(mode="maybe"),
        PermissionPolicy(mode="deny", allow=["Bash(rm; ls)"]),
        PermissionPolicy(mode="bubble", deadline_s=-1.0),
    ):
        run_id = wire.new_run_id()
        await fleet.log(run_id).request(good.model_copy(update={"permissions": bad}))
        await fleet.until_logged(run_id, lambda report: isinstance(report, wire.Final))
        (final,) = finals(await fleet.reports(run_id))
        assert (final.status, "BadPermissions" in str(final.result.text)) == ("refused", True)
    assert fleet.sim.request_count == sent


async def test_a_hand_over_takes_the_question_along(fleet: Fleet, tmp_path: Path) -> None:
    """A daemon told to stop while its run asks: the next one asks the same at once, and the answer reaches it."""
    leaving = await fleet.daemon("leaving", drain_s=0)
    async with fleet.connect() as forks:
        handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x"))
        first = await until_asked(fleet, handle, 1)
        leaving.signal(signal.SIGTERM)
        await leaving.gone()
        await fleet.daemon("heir")
        second = await until_asked(fleet, handle, 2)
        await handle.answer(second.ask_id, True)
        result = await handle.result()

    assert (result.status, result.daemon, first.ask_id) == (ForkStatus.COMPLETED, "heir", second.ask_id)
    assert (tmp_path / "x").exists()


async def test_a_question_outlives_a_restart_of_nats(
    restartable: RestartableServer, sim: Simulator, nursery: Nursery, tmp_path: Path
) -> None:
    """The answer that is given when the server is back reaches the daemon."""
    async with open_fleet((restartable.url,), sim=sim, nursery=nursery, folder=tmp_path, lease_s=10.0) as fleet:
        await fleet.daemon()
        async with fleet.connect() as forks:
            handle = await forks.fork(await working(fleet, f"touch {tmp_path}/x"))
            question = await asked(handle)
            await restartable.restart()
            await until_answered(handle, question)
            result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 1)
    assert (tmp_path / "x").exists()


async def until_answered(handle: ForkHandle, question: ForkAsked) -> None:
    """Answer as soon as NATS takes it."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await handle.answer(question.ask_id, True)
            except BusError:
                continue
            return


async def longest_wait(port: int, until: asyncio.Task[None]) -> float:
    """How long the health port kept a request waiting at most until a task was done, as a part of that time."""
    longest, begun = 0.0, time.perf_counter()
    while not until.done():
        asked_at = time.perf_counter()
        assert (await get(port, "/healthz"))[0] == 200
        longest = max(longest, time.perf_counter() - asked_at)
    return longest / (time.perf_counter() - begun)


async def test_a_daemon_answers_while_it_judges_a_hostile_command(fleet: Fleet) -> None:
    """A health request never waits for the whole judgement, although a thousand rules are compared with a long text."""
    command = "env " + "a " * 4_900
    deny = [f"Bash(a a a a a{number} *)" for number in range(1_000)]
    rounds = 5
    port = await port_of(await fleet.daemon(health_port=0))
    turns = [{"tools": [call(command=command)], "hold": f"door{number}"} for number in range(rounds)]
    waits: list[float] = []
    async with fleet.connect() as forks, asyncio.TaskGroup() as tasks:
        params = await fleet.params(says("Judge.", *turns, DONE), permissions=Permissions(deny=deny))
        before = fleet.sim.request_count
        handle = await forks.fork(params)
        for number in range(rounds):
            await fleet.sim.received(before + number + 1)
            fleet.sim.release(f"door{number}")
            judged = tasks.create_task(fleet.sim.received(before + number + 2))
            waits.append(await longest_wait(port, judged))
        result = await handle.result()

    # A busy machine may keep a request waiting as well; one quiet round is enough.
    assert min(waits) < 0.5, waits
    assert result.ok, result.error
    answers = [answer for number in range(rounds) for answer in results_in(fleet.sim, before + number + 1)]
    assert len(answers) >= rounds
    assert all("was not run" in answer["content"] for answer in answers)
