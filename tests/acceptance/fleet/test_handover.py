"""A daemon is paused, told to stop, or replaced: its runs go on elsewhere, and it does no harm afterwards."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from nexofork import ForkStatus
from nexofork.bus.jetstream import call as call_jetstream
from nexofork.bus.presence import PresenceBoard
from nexofork.wire import messages as wire
from nexofork.wire.streams import CONSUMER, log_stream
from tests.support.conversation import call, says
from tests.support.fleet import epochs, finals, lines_in
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import ForkHandle
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"


async def claimed(fleet: Fleet, handle: ForkHandle, epoch: int) -> None:
    """Return when somebody claimed the run as this epoch."""
    await fleet.until_logged(handle.run_id, lambda report: isinstance(report, wire.Claimed) and report.epoch == epoch)


async def test_a_daemon_paused_beyond_its_lease_writes_nothing_when_it_wakes(fleet: Fleet) -> None:
    """The run is taken over; the zombie finds out, closes its stream, adds nothing to the log and takes new work."""
    zombie = await fleet.daemon("zombie")
    async with fleet.connect() as forks:
        turn = {"text": DONE, "hold": {"gate": "slow", "after_events": 3}}
        handle = await forks.fork(await fleet.params(says("apple", turn)))
        await fleet.sim.begun(2)
        zombie.signal(signal.SIGSTOP)
        await fleet.daemon("heir")
        await claimed(fleet, handle, 2)
        await fleet.sim.begun(3)

        zombie.signal(signal.SIGCONT)
        await fleet.sim.closed_early(1)
        fleet.sim.release("slow")
        result = await handle.result()

        assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, "heir", 2)
        reports = await fleet.reports(handle.run_id)
        assert epochs(reports) == [1, 1, 2, 2, 2, 2]
        await fleet.owner("heir").kill()
        later = await (await forks.fork(await fleet.params("work for the one that woke"))).result()
    assert (later.status, later.daemon) == (ForkStatus.COMPLETED, "zombie")


async def test_a_paused_daemon_that_wakes_to_a_full_answer_does_not_record_it(fleet: Fleet, tmp_path: Path) -> None:
    """The answer that waited in the zombie's socket becomes no turn, and its tool is run by the heir alone."""
    tally = tmp_path / "tally"
    zombie = await fleet.daemon("zombie")
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command=f"echo ran >> {tally}")], "hold": "answer"}, DONE)
        handle = await forks.fork(await fleet.params(says("birch", *turns)))
        await fleet.sim.received(2)
        zombie.signal(signal.SIGSTOP)
        fleet.sim.release("answer")  # the whole turn now waits in the socket of the paused daemon
        await fleet.daemon("heir")
        result = await handle.result()

        zombie.signal(signal.SIGCONT)
        await eventually(lambda: "let go" in zombie.log or "is lost" in zombie.log)

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir")
    reports = await fleet.reports(handle.run_id)
    assert epochs(reports) == sorted(epochs(reports))
    assert [report.epoch for report in reports if isinstance(report, wire.Turn)] == [2, 2]
    assert lines_in(tally) == 1
    assert len(finals(reports)) == 1


async def test_a_daemon_told_to_stop_finishes_what_it_runs(fleet: Fleet) -> None:
    """SIGTERM: no new work, the running fork is finished, the process ends with 0."""
    leaving = await fleet.daemon("leaving", drain_s=15)
    async with fleet.connect() as forks:
        turn = {"text": DONE, "hold": {"gate": "end", "after_events": 3}}
        handle = await forks.fork(await fleet.params(says("cedar", turn)))
        await fleet.sim.begun(2)

        leaving.signal(signal.SIGTERM)
        await fleet.until_present(lambda daemon: daemon.draining and daemon.running == 1)
        late = await forks.fork(await fleet.params("for the next one"))
        await fleet.daemon("next")
        assert (await late.result()).daemon == "next"
        fleet.sim.release("end")
        result = await handle.result()
        code = await leaving.gone()

    assert (result.status, result.daemon, result.attempts, code) == (ForkStatus.COMPLETED, "leaving", 1, 0)


async def test_a_daemon_told_to_stop_hands_over_at_its_limit(fleet: Fleet) -> None:
    """What is not finished within the drain limit goes to another daemon at once, not after the lease."""
    leaving = await fleet.daemon("leaving", drain_s=0.2, lease_s=10 * PATIENCE_S)
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("drum", {"text": DONE, "hold": "end"})))
        await fleet.sim.received(2)
        await fleet.daemon("heir", lease_s=10 * PATIENCE_S)

        leaving.signal(signal.SIGTERM)
        code = await leaving.gone()
        await claimed(fleet, handle, 2)
        fleet.sim.release("end")
        result = await handle.result()

    assert (result.status, result.daemon, code) == (ForkStatus.COMPLETED, "heir", 0)
    kinds = [report.kind for report in await fleet.reports(handle.run_id)]
    assert kinds == ["claimed", "call_started", "handed_over", "claimed", "call_started", "turn", "final"]


async def test_a_tool_that_was_cut_off_by_a_hand_over_is_not_repeated(fleet: Fleet, tmp_path: Path) -> None:
    """A drain that ends in the middle of a tool kills it; the heir does not run it again."""
    tally = tmp_path / "tally"
    leaving = await fleet.daemon("leaving", drain_s=0.1)
    async with fleet.connect() as forks:
        long = call(command=f"echo ran >> {tally}; exec sleep 60")
        handle = await forks.fork(await fleet.params(says("ebony", {"tools": [long]}, DONE)))
        await eventually(lambda: lines_in(tally) == 1)
        await fleet.daemon("heir")

        leaving.signal(signal.SIGTERM)
        result = await handle.result()

    assert (result.status, result.daemon) == (ForkStatus.COMPLETED, "heir")
    assert lines_in(tally) == 1


async def test_orderly_hand_overs_do_not_count_against_a_run(fleet: Fleet) -> None:
    """A run that outlives more daemons than the epoch limit completes, as long as none of them was lost."""
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("fern", {"text": DONE, "hold": "end"})))
        for number in range(3):
            leaving = await fleet.daemon(drain_s=0, epoch_limit=2)
            await claimed(fleet, handle, number + 1)
            leaving.signal(signal.SIGTERM)
            await leaving.gone()

        fleet.sim.release("end")
        await fleet.daemon("last", epoch_limit=2)
        result = await handle.result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 4), await fleet.reports(handle.run_id)


async def test_an_idle_daemon_told_to_stop_ends_at_once(fleet: Fleet) -> None:
    """Nothing to drain: the process ends with 0, and nobody counts on it any more."""
    idle = await fleet.daemon("idle", drain_s=60)

    idle.signal(signal.SIGTERM)

    assert await idle.gone() == 0
    assert await PresenceBoard(fleet.bus).daemons(fleet.pool) == []


async def queue_of(fleet: Fleet) -> tuple[int, int]:
    """Return how many pulls wait at the server, and how many requests daemons hold."""
    info = await call_jetstream(fleet.bus, f"CONSUMER.INFO.{log_stream(fleet.pool)}.{CONSUMER}")
    return int(info["num_waiting"]), int(info["num_ack_pending"])


async def take_over_s(fleet: Fleet, word: str, *, frozen: int) -> float:
    """Return how long a run waits for its next daemon after the first was killed, with idle frozen ones in the pool."""
    owner = await fleet.daemon(f"{word}-owner")
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says(word, {"text": DONE, "hold": word})))
        await claimed(fleet, handle, 1)
        for number in range(frozen):
            idle = await fleet.daemon(f"{word}-idle{number}")
            while (await queue_of(fleet))[0] < number + 2:
                pass
            idle.signal(signal.SIGSTOP)
        heir = await fleet.daemon(f"{word}-heir")
        killed_at = time.monotonic()
        await owner.kill()
        await claimed(fleet, handle, 2)
        took_s = time.monotonic() - killed_at
        fleet.sim.release(word)
        assert (await handle.result()).daemon == heir.name
    await heir.kill()
    return took_s


async def test_frozen_daemons_do_not_hold_up_a_take_over(fleet: Fleet) -> None:
    """Idle ones that stopped with open pulls cost a crashed run less than one more lease, however many they are."""
    plain_s = await take_over_s(fleet, "gorse", frozen=0)

    assert await take_over_s(fleet, "hawthorn", frozen=2) < plain_s + fleet.lease_s


async def test_a_daemon_that_wakes_does_not_run_what_it_was_handed_while_frozen(fleet: Fleet) -> None:
    """Another daemon has the run by then, and keeps it."""
    sleeper = await fleet.daemon("sleeper")
    await fleet.snapshot()
    async with fleet.connect() as forks:
        for number in range(100):
            held = (await queue_of(fleet))[1]
            sleeper.signal(signal.SIGSTOP)
            turn = {"text": DONE, "hold": {"gate": "end", "after_events": 3}}
            handle = await forks.fork(await fleet.params(says(f"iris{number}", turn)))
            while (queue := await queue_of(fleet)) == (1, held):
                pass
            if queue[1] > held:
                break
            sleeper.signal(signal.SIGCONT)  # its pull had expired
            await claimed(fleet, handle, 1)
        await fleet.daemon("heir")
        await claimed(fleet, handle, 1)

        sleeper.signal(signal.SIGCONT)
        await eventually(lambda: f"run {handle.run_id} came more than a lease" in sleeper.log)
        fleet.sim.release("end")
        result = await handle.result()

    assert (result.status, result.daemon, result.attempts) == (ForkStatus.COMPLETED, "heir", 1)
    assert set(epochs(await fleet.reports(handle.run_id))) == {1}
