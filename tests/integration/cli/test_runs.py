"""The commands for runs that somebody started: wait, ps, logs, attach, abort, answer."""

from __future__ import annotations

import asyncio
import signal
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.jetstream import store
from nexofork.bus.presence import PresenceBoard
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import RunLog
from nexofork.wire.messages import Asked, Claimed, Daemon, Payload, Presence, Requested
from tests.integration.cli.conftest import objects, until
from tests.support.conversation import call, says
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.integration.cli.conftest import World

SLEEPS = says("Sleep.", {"tools": [call(command="sleep 60")]})
ECHOES = says("Echo.", {"tools": [call(command="echo hello")]}, "Scope: echo\nResult: it said hello")


def listed(world: World, *arguments: str) -> dict[str, dict[str, Any]]:
    """The runs that `ps` shows, by id."""
    done = world.ask("ps", "--json", *world.at, *arguments)
    assert done.returncode == 0, done.stderr
    (shown,) = objects(done.stdout)
    return {run["run_id"]: run for run in shown["runs"]}


@pytest.mark.parametrize(
    "arguments", [("wait",), ("attach",), ("logs",), ("abort",), ("answer",)], ids=lambda arguments: arguments[0]
)
def test_an_unknown_run_is_bad_input_and_named(world: World, arguments: tuple[str, ...]) -> None:
    """Every command that takes a run id says which one it does not know."""
    more = ["ask1", "yes"] if arguments == ("answer",) else []
    done = world.ask(*arguments, "no-such-run", *more)

    assert done.returncode == 2
    assert "no-such-run" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_wait_can_be_given_up(world: World) -> None:
    """After the timeout the wait ends with 1 and names the run, which goes on."""
    (run_id,) = world.detached(SLEEPS)

    done = world.ask("wait", run_id, "--timeout", "0.3", "--json")

    assert (done.returncode, done.stdout) == (1, "")
    assert run_id in done.stderr
    assert listed(world)[run_id]["status"] == "running"
    world.ask("abort", run_id)


def test_a_replayed_event_has_the_time_it_had(world: World) -> None:
    """``attach --json`` to a run that is over dates what it shows as ``logs --json`` does."""
    (run_id,) = world.detached(ECHOES)
    world.ask("wait", run_id)

    logged, attached = (objects(world.ask(command, run_id, "--json").stdout) for command in ("logs", "attach"))

    times = {(entry["event"], entry["at"]) for entry in logged}
    shown = [one for one in attached if one["event"] in ("requested", "claimed", "turn", "tool_finished", "final")]
    assert len(shown) == 6
    assert {(one["event"], one["at"]) for one in shown} <= times


def test_ps_shows_runs_and_daemons(world: World) -> None:
    """What each run is at, who has it, and what the daemons have room for."""
    (over,) = world.detached("Look around.", group="ps")
    (busy,) = world.detached(SLEEPS)
    world.ask("wait", over)
    world.until_logged(busy, "tool_started")

    runs = listed(world)
    (shown,) = objects(world.ask("ps", "--json").stdout)
    text = world.ask("ps").stdout
    world.ask("abort", busy)

    assert (
        runs[over].items()
        >= {"status": "completed", "last": "final", "daemon": "d1", "turns": 1, "group": "ps"}.items()
    )
    assert runs[busy].items() >= {"status": "running", "last": "tool_started", "daemon": "d1", "epoch": 1}.items()
    assert 0 <= runs[busy]["age_s"] < 60
    (daemon,) = [one for one in shown["daemons"] if one["name"] == "d1"]
    assert daemon.items() >= {"pool": "fork", "slots": 64, "draining": False}.items()
    assert busy in text
    assert "d1" in text.splitlines()[1]


def test_ps_hides_runs_without_transcript(own_pool: World) -> None:
    """``--all`` shows them."""
    run_id = uuid.uuid4().hex
    _request(own_pool, run_id, Requested(snapshot=Payload(text="{}"), directive="quiet", skip_transcript=True))

    assert run_id not in listed(own_pool)
    assert listed(own_pool, "--all")[run_id]["status"] == "queued"


def test_ps_can_require_a_daemon(own_pool: World) -> None:
    """With ``--require-daemon`` a pool where none takes work is exit code 1, with a reason; else it is 0."""

    def asked(*more: str) -> tuple[int, str]:
        done = own_pool.ask("ps", "--require-daemon", *more, *own_pool.at)
        return done.returncode, done.stderr

    own_pool.detached("Wait for a daemon.")
    without = own_pool.ask("ps", *own_pool.at)
    assert (without.returncode, "No daemons." in without.stdout) == (0, True)
    missing = (1, f"No daemon of pool {own_pool.pool} takes work.\n")
    assert asked() == asked("--json") == missing
    leaving = Daemon(instance=f"{own_pool.pool}-1", name="leaving")
    asyncio.run(_announce(own_pool, Presence(daemon=leaving, pool=own_pool.pool, running=1, draining=True)))
    assert asked() == missing
    with own_pool.daemon():
        assert asked() == (0, "")
    code, said = asked("--watch")
    assert (code, "--require-daemon" in said) == (2, True)


async def _announce(world: World, presence: Presence) -> None:
    async with open_bus(BusSettings(urls=(world.nats,))) as bus:
        await PresenceBoard(bus).announce(presence)


def test_ps_lists_more_runs_than_the_server_answers_for_at_once(own_pool: World) -> None:
    """Hundreds of runs are all there, queued, with their directives."""
    for start in range(0, 600, 200):
        own_pool.detached(*(f"Part {number}." for number in range(start, start + 200)))

    runs = listed(own_pool)
    assert len(runs) == 600
    assert {run["status"] for run in runs.values()} == {"queued"}
    assert {run["directive"] for run in runs.values()} == {f"Part {number}." for number in range(600)}


def test_logs_show_the_run_from_request_to_end(world: World) -> None:
    """In order, each with its place in the log, contents included."""
    (run_id,) = world.detached(ECHOES)
    world.ask("wait", run_id)

    entries = objects(world.ask("logs", run_id, "--json").stdout)
    text = world.ask("logs", run_id).stdout

    # A claim announces the first call itself where nothing stands between them.
    first = [] if "call" in entries[1] else ["call_started"]
    tool = ["tool_started", "tool_finished"]
    names = ["requested", "claimed", *first, "turn", *tool, "call_started", "turn", "final"]
    assert [entry["event"] for entry in entries] == names
    assert [entry["seq"] for entry in entries] == sorted(entry["seq"] for entry in entries)
    assert "hello" in str(entries[-4]["block"])
    assert entries[-1]["status"] == "completed"
    assert [line.split()[2] for line in text.splitlines()] == names


def test_logs_follow_a_run_to_its_end(world: World) -> None:
    """What was there is shown first, then what happens, once each."""
    (run_id,) = world.detached(SLEEPS)
    with world.start("logs", "-f", run_id, "--json") as process:
        seen = until(process, "tool_started")
        world.ask("abort", run_id, "--note", "enough")
        seen += until(process, "final")
        assert process.wait(PATIENCE_S) == 0

    assert [entry["event"] for entry in seen][-2:] == ["abort", "final"]
    assert len({entry["seq"] for entry in seen}) == len(seen)
    assert seen[-1]["status"] == "aborted"
    assert seen[-1]["abort"]["note"] == "enough"


def test_attach_watches_from_the_beginning_to_the_end(world: World) -> None:
    """Also when the run was over before."""
    (run_id,) = world.detached(ECHOES)
    world.ask("wait", run_id)

    done = world.ask("attach", run_id, "--json")
    text = world.ask("attach", run_id)

    names = ["requested", "claimed", "fan_out_decided", "turn", "tool_started", "tool_finished", "turn", "final"]
    assert [event["event"] for event in objects(done.stdout)] == names
    assert (done.returncode, text.returncode) == (0, 0)
    assert "Result: it said hello" in text.stdout
    assert "Directive: Echo." in text.stderr


def test_ctrl_c_stops_the_watching_not_the_run(world: World) -> None:
    """The run is still at work after its watcher left."""
    (run_id,) = world.detached(SLEEPS)
    with world.start("attach", run_id, "--json") as process:
        until(process, "tool_started")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130

    assert listed(world)[run_id]["status"] == "running"
    assert "aborted" in world.ask("abort", run_id).stdout


def test_an_abort_is_once_and_for_all(world: World) -> None:
    """Ended runs stay as they are, a second abort changes nothing, and an unknown id does not save the others."""
    over, busy = (*world.detached("Look around."), *world.detached(SLEEPS))
    world.ask("wait", over)

    first = world.ask("abort", busy, over, "no-such-run", "--note", "enough", "--json")
    ended = objects(world.ask("wait", busy, "--json").stdout)[0]
    second = world.ask("abort", busy, over)

    outcomes = {one["run_id"]: one["outcome"] for one in objects(first.stdout)}
    assert outcomes == {busy: "aborted", over: "already_over", "no-such-run": "unknown"}
    assert (first.returncode, second.returncode) == (2, 0)
    assert "no-such-run" in first.stderr
    assert (ended["status"], ended["abort"]["note"]) == ("aborted", "enough")


def test_a_group_is_aborted_together(world: World) -> None:
    """All its open runs and no other."""
    group = uuid.uuid4().hex
    members = world.detached(SLEEPS, SLEEPS, "Look around.", group=group)
    world.ask("wait", members[2])
    (other,) = world.detached(SLEEPS)

    done = world.ask("abort", "--group", group, "--json")
    unknown = world.ask("abort", "--group", "nobody")

    assert {one["run_id"] for one in objects(done.stdout)} == set(members[:2])
    assert listed(world)[other]["status"] == "running"
    assert (unknown.returncode, "nobody" in unknown.stderr) == (2, True)
    world.ask("abort", other)


def test_only_what_is_asked_is_answered(own_pool: World) -> None:
    """An open question takes one answer; others are refused by name, and so is an answer that does not fit."""
    run_id = uuid.uuid4().hex
    request = Requested(snapshot=Payload(text="{}"), directive="ask")
    ask = Asked(epoch=1, ask_id="q1", payload=Payload(text="x"), deadline_s=60)
    _request(own_pool, run_id, request, Claimed(epoch=1, daemon=Daemon(name="d9")), ask)

    wrong = own_pool.ask("answer", run_id, "q2", "yes", *own_pool.at)
    unfit = own_pool.ask("answer", run_id, "q1", "yes", *own_pool.at)
    right = own_pool.ask("answer", run_id, "q1", "--data", '{"payload": {"text": "x"}}', "--json", *own_pool.at)
    again = own_pool.ask("answer", run_id, "q1", "--data", '{"payload": {"text": "y"}}', *own_pool.at)

    assert (wrong.returncode, "no open ask 'q2'" in wrong.stderr) == (2, True)
    assert (unfit.returncode, "only its parent has" in unfit.stderr) == (2, True)
    assert (right.returncode, objects(right.stdout)[0]["outcome"]) == (0, "answered")
    assert (again.returncode, "answered before" in again.stderr) == (2, True)


def _request(world: World, run_id: str, request: Requested, *reports: Any) -> None:
    """Put a request and reports on a log, as a parent and a daemon of another kind would."""
    asyncio.run(_publish(world, run_id, request, *reports))


async def _publish(world: World, run_id: str, request: Requested, *reports: Any) -> None:
    async with open_bus(BusSettings(urls=(world.nats,))) as bus:
        await provision(bus, pool=world.pool, lease_s=None)
        log = RunLog(bus, run_id, pool=world.pool)
        seq = await log.request(request)
        for report in reports:
            seq = await log.append(report, after=seq)


def test_strange_messages_do_not_hide_the_others(own_pool: World) -> None:
    """Names that are no run id, requests that are none and times that never were: the rest is shown."""
    run_id, odd = uuid.uuid4().hex, uuid.uuid4().hex
    _request(own_pool, run_id, Requested(snapshot=Payload(text="{}"), directive="right"))
    asyncio.run(
        _store(
            own_pool,
            (f"agent.{own_pool.pool}.\x1b[31m.events", b"{}"),
            (f"agent.{own_pool.pool}.{odd}.events", b"not even JSON \xff"),
            (f"agent.{own_pool.pool}.{odd}.reports", b'{"v":1,"kind":"final","status":7}'),
            (f"agent.{own_pool.pool}.{run_id}.reports", _HANDED_OVER),
        )
    )

    runs = listed(own_pool)
    logs = [own_pool.ask("logs", one, *own_pool.at) for one in (run_id, odd)]
    text = own_pool.ask("ps", *own_pool.at)

    assert set(runs) == {run_id, odd}
    assert (runs[run_id]["status"], runs[run_id]["directive"]) == ("queued", "right")
    assert [done.returncode for done in (*logs, text)] == [0, 0, 0]
    assert "unreadable" in logs[1].stdout
    assert "\x1b" not in text.stdout + logs[0].stdout


_HANDED_OVER = b'{"v":1,"id":"x","kind":"handed_over","epoch":1,"at":1e300,"reason":"\\u001b[31m"}'


async def _store(world: World, *messages: tuple[str, bytes]) -> None:
    async with open_bus(BusSettings(urls=(world.nats,))) as bus:
        for subject, data in messages:
            await store(bus, subject, data)


def test_a_run_aborted_before_any_claim_is_over_for_every_command(empty_pool: World) -> None:
    """No daemon is there; ps, wait, attach and logs -f say aborted and end."""
    (run_id,) = empty_pool.detached("Look.")
    aborted = empty_pool.ask("abort", run_id, "--note", "not needed", *empty_pool.at)
    assert aborted.returncode == 0, aborted.stderr

    (state,) = objects(empty_pool.ask("ps", "--json", *empty_pool.at).stdout)
    waited = empty_pool.ask("wait", run_id, "--json", *empty_pool.at)
    attached = empty_pool.ask("attach", run_id, "--json", *empty_pool.at)
    logged = empty_pool.ask("logs", "-f", run_id, "--json", *empty_pool.at)
    read = empty_pool.ask("logs", run_id, *empty_pool.at)

    assert [(run["status"], run["last"]) for run in state["runs"]] == [("aborted", "abort")]
    assert [(one["status"], one["error"]) for one in objects(waited.stdout)] == [("aborted", "not needed")]
    assert (waited.returncode, attached.returncode, logged.returncode) == (1, 1, 0)
    assert objects(attached.stdout)[-1]["status"] == "aborted"
    assert objects(logged.stdout)[-1]["status"] == "aborted"
    assert "aborted before a daemon took it: not needed" in read.stdout
