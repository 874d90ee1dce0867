from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import NoAnswer, PayloadTooLarge, RunAborted, RunExists, StoreFull
from nexofork.bus.jetstream import call, store
from nexofork.bus.provisioning import provision
from nexofork.bus.run_log import AbortOutcome, RunLog
from nexofork.errors import BadMessage, BusError, RunLost
from nexofork.wire.messages import AbortEvent, Claimed, Payload, Requested, encode
from nexofork.wire.subjects import events, reports
from tests.support.nats import Proxy, a_claim, a_final, a_request, a_turn, connected

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer


@pytest.fixture
async def log(bus: Bus, run_id: str) -> RunLog:
    """The log of a run that nobody asked for yet."""
    return RunLog(bus, run_id)


async def kinds(log: RunLog) -> list[str]:
    """What the log says, one word each."""
    return ["bad" if isinstance(entry.message, BadMessage) else entry.message.kind for entry in await log.entries()]


async def test_asking_twice_is_asking_once(log: RunLog) -> None:
    """The same request gets the same sequence and stands on the log once."""
    request = a_request()

    assert await log.request(request) == await log.request(request)
    assert await kinds(log) == ["requested"]


async def test_a_run_id_means_one_request(log: RunLog) -> None:
    """Another request under the same run id is refused by name."""
    await log.request(a_request())

    with pytest.raises(RunExists, match=log.run_id):
        await log.request(a_request("something else"))


async def test_asking_again_after_the_run_has_begun_changes_nothing(log: RunLog) -> None:
    """A parent that repeats its request late gets the first sequence."""
    request = a_request()
    seq = await log.request(request)
    await log.append(a_claim(), after=seq)

    assert await log.request(request) == seq


async def test_a_request_that_does_not_fit_is_not_sent(log: RunLog) -> None:
    """Too much for one message is refused here, with its size."""
    with pytest.raises(PayloadTooLarge) as caught:
        await log.request(Requested(snapshot=Payload(text="x" * (1 << 20)), directive="d"))

    assert caught.value.size > caught.value.limit
    assert await log.tip() is None


async def test_a_run_that_was_never_asked_for_has_no_stream_to_find(bus: Bus, run_id: str, pool: str) -> None:
    """Asking in a pool that does not exist fails at once."""
    with pytest.raises(BusError, match="stream not found"):
        await RunLog(bus, run_id, pool=pool).request(a_request())


async def test_twenty_claims_have_one_winner(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """However many claim at once, one gets the run and the others learn that it is lost."""
    seq = await RunLog(bus, run_id).request(a_request())
    outcomes: list[int | BusError] = []

    async def claim(number: int) -> None:
        async with connected(nats_server.url) as own:
            try:
                outcomes.append(await RunLog(own, run_id).append(a_claim(instance=f"d{number}"), after=seq))
            except BusError as exc:
                outcomes.append(exc)

    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(claim(number))

    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, RunLost) for outcome in outcomes) == 19
    assert await kinds(RunLog(bus, run_id)) == ["requested", "claimed"]


async def test_an_abort_before_the_claim_prevents_it(log: RunLog) -> None:
    """The claim is refused with who and why."""
    seq = await log.request(a_request())
    outcome = await log.abort(AbortEvent(note="not needed", by="me"))

    with pytest.raises(RunAborted, match="by me: not needed") as caught:
        await log.append(a_claim(), after=seq)

    assert caught.value.seq == outcome.seq
    assert await kinds(log) == ["requested", "abort"]


async def test_an_abort_after_the_claim_stops_the_next_report(log: RunLog) -> None:
    """A daemon that missed the abort learns of it by its next write."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    await log.abort(AbortEvent(note="enough"))

    with pytest.raises(RunAborted, match="enough"):
        await log.append(a_turn(), after=claimed)
    assert await kinds(log) == ["requested", "claimed", "abort"]


async def test_an_aborted_run_can_be_ended(log: RunLog) -> None:
    """The final report goes behind the abort."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    abort = await log.abort(AbortEvent())
    with pytest.raises(RunAborted):
        await log.append(a_turn(), after=claimed)

    await log.append(a_final(), after=abort.seq)

    assert await kinds(log) == ["requested", "claimed", "abort", "final"]


async def test_aborting_twice_is_aborting_once(log: RunLog) -> None:
    """The second abort writes nothing and says where the first one is."""
    await log.request(a_request())

    first = await log.abort(AbortEvent())
    second = await log.abort(AbortEvent())

    assert (first.how, second) == ("logged", AbortOutcome(how="already", seq=first.seq))
    assert await kinds(log) == ["requested", "abort"]


async def test_aborting_what_is_over_is_nothing(log: RunLog) -> None:
    """After the final report an abort writes nothing."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    final = await log.append(a_final(), after=claimed)

    assert await log.abort(AbortEvent()) == AbortOutcome(how="ended", seq=final)
    assert await kinds(log) == ["requested", "claimed", "final"]


async def test_aborting_an_unknown_run_is_said(log: RunLog) -> None:
    """No log is begun for a run that nobody asked for."""
    outcome = await log.abort(AbortEvent())

    assert (outcome.how, outcome.stands) == ("unknown", False)
    assert await log.entries() == []


async def test_an_abort_that_a_report_passed_is_repeated(bus: Bus, log: RunLog) -> None:
    """A writer whose report passed a plain abort would never notice; the next abort makes sure that it does."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    await store(bus, events(log.run_id), encode(AbortEvent(note="passed")))
    passed = await store(bus, reports(log.run_id), encode(a_turn()))
    unaware = await log.append(a_turn(2), after=passed)

    outcome = await log.abort(AbortEvent(note="once more"))

    assert outcome.how == "logged"
    with pytest.raises(RunAborted, match="once more"):
        await log.append(a_turn(3), after=unaware)
    assert claimed < passed < unaware < outcome.seq


async def test_an_aborted_end_goes_behind_any_number_of_aborts(bus: Bus, log: RunLog) -> None:
    """The answer to an abort is not stopped by the next one, whether it came before or after the first was seen."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    for note in ("first", "second"):
        await store(bus, events(log.run_id), encode(AbortEvent(note=note)))
    with pytest.raises(RunAborted, match="first") as caught:
        await log.append(a_turn(), after=claimed)
    await store(bus, events(log.run_id), encode(AbortEvent(note="third")))

    final = a_final().model_copy(update={"status": "aborted"})
    await log.append(final, after=caught.value.seq)

    assert await kinds(log) == ["requested", "claimed", "abort", "abort", "abort", "final"]


async def test_a_completed_end_does_not_go_behind_an_abort(log: RunLog) -> None:
    """The abort came first, so the run did not complete."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    await log.abort(AbortEvent(note="too late to complete"))

    with pytest.raises(RunAborted, match="too late"):
        await log.append(a_final(), after=claimed)


async def test_an_abort_gets_in_between_busy_writers(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """While a daemon reports as fast as it can, the abort lands, and no report follows it."""
    log, begun = RunLog(bus, run_id), asyncio.Event()
    seq = await log.append(a_claim(), after=await log.request(a_request()))

    async def report() -> int:
        async with connected(nats_server.url) as own:
            mine, tip = RunLog(own, run_id), seq
            for number in range(1, 5000):
                try:
                    tip = await mine.append(a_turn(number), after=tip)
                except RunAborted:
                    return number
                begun.set()
        raise AssertionError("the abort never came")

    async with asyncio.TaskGroup() as tasks:
        busy = tasks.create_task(report())
        await begun.wait()
        outcome = await log.abort(AbortEvent(note="stop"))

    assert outcome.how == "logged"
    assert busy.result() > 1
    entries = await log.entries()
    assert entries[-1].seq == outcome.seq


async def test_a_zombie_learns_that_it_lost_the_run(bus: Bus, log: RunLog) -> None:
    """A daemon of a lower epoch writes nothing and is told who has the run."""
    claimed = await log.append(a_claim(1), after=await log.request(a_request()))
    taken = await RunLog(bus, log.run_id).append(a_claim(2, "d2"), after=claimed)

    with pytest.raises(RunLost, match="epoch 2 wrote"):
        await log.append(a_turn(epoch=1), after=claimed)

    tip = await log.tip()
    assert tip is not None
    assert tip.seq == taken


async def test_nothing_follows_a_final_report(log: RunLog) -> None:
    """A daemon that did not notice the end is told of it."""
    claimed = await log.append(a_claim(1), after=await log.request(a_request()))
    await log.append(a_final(1), after=claimed)

    with pytest.raises(RunLost, match="ended as completed"):
        await log.append(a_turn(epoch=1), after=claimed)
    assert await kinds(log) == ["requested", "claimed", "final"]


async def test_what_does_not_count_does_not_stop_a_writer(bus: Bus, log: RunLog) -> None:
    """Rubbish and a repeated request in between are stepped over; the order stays."""
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    await store(bus, events(log.run_id), b"rubbish")
    await store(bus, reports(log.run_id), b"\xff\xfe")
    await store(bus, events(log.run_id), encode(a_request("again")))

    await log.append(a_turn(), after=claimed)

    assert await kinds(log) == ["requested", "claimed", "bad", "bad", "requested", "turn"]


async def test_an_answer_that_is_lost_does_not_make_two_reports(
    nats_server: EmbeddedServer, bus: Bus, run_id: str
) -> None:
    """The report landed, the wire broke before the answer: the writer finds its own message and goes on."""
    log = RunLog(bus, run_id)
    seq = await log.request(a_request())
    claim = a_claim()
    async with Proxy(nats_server.url) as wire, connected(wire.url, request_timeout_s=30) as own:
        mine = RunLog(own, run_id)
        wire.hold_answers()
        async with asyncio.TaskGroup() as tasks:
            claiming = tasks.create_task(mine.append(claim, after=seq))
            await wire.withheld.wait()
            assert await kinds(log) == ["requested", "claimed"]
            wire.cut()
        turned = await mine.append(a_turn(), after=claiming.result())

    assert [entry.seq for entry in await log.entries()] == [seq, claiming.result(), turned]
    assert await kinds(log) == ["requested", "claimed", "turn"]


async def test_a_lost_answer_and_an_abort_behind_it(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """The report that landed before the abort counts as landed; the next one learns of the abort."""
    log = RunLog(bus, run_id)
    seq = await log.request(a_request())
    async with Proxy(nats_server.url) as wire, connected(wire.url, request_timeout_s=30) as own:
        mine = RunLog(own, run_id)
        wire.hold_answers()
        async with asyncio.TaskGroup() as tasks:
            claiming = tasks.create_task(mine.append(a_claim(), after=seq))
            await wire.withheld.wait()
            await log.abort(AbortEvent(note="meanwhile"))
            wire.cut()
        with pytest.raises(RunAborted, match="meanwhile"):
            await mine.append(a_turn(), after=claiming.result())

    assert await kinds(log) == ["requested", "claimed", "abort"]


async def test_a_lost_answer_and_a_takeover_behind_it(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """A daemon that was away too long finds its report in place and the run in other hands."""
    log = RunLog(bus, run_id)
    seq = await log.request(a_request())
    async with Proxy(nats_server.url) as wire, connected(wire.url, request_timeout_s=30) as own:
        mine = RunLog(own, run_id)
        wire.hold_answers()
        async with asyncio.TaskGroup() as tasks:
            claiming = tasks.create_task(mine.append(a_claim(), after=seq))
            await wire.withheld.wait()
            tip = await log.tip()
            assert tip is not None
            await log.append(a_claim(2, "d2"), after=tip.seq)
            wire.cut()
        with pytest.raises(RunLost, match="epoch 2"):
            await mine.append(a_turn(), after=claiming.result())

    assert await kinds(log) == ["requested", "claimed", "claimed"]


@pytest.mark.parametrize("message", ["request", "abort"])
async def test_a_parents_lost_answer_does_not_make_two_events(
    nats_server: EmbeddedServer, bus: Bus, run_id: str, message: str
) -> None:
    """Request and abort are on the log once after the wire broke before the answer."""
    log = RunLog(bus, run_id)
    expected = ["requested"]
    if message == "abort":
        await log.request(a_request())
        expected.append("abort")
    async with Proxy(nats_server.url) as wire, connected(wire.url, request_timeout_s=30) as own:
        mine = RunLog(own, run_id)
        await own.stream_fill("FORK")
        wire.hold_answers_to(b'"kind":"abort"' if message == "abort" else b'"kind":"requested"')
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(mine.request(a_request()) if message == "request" else mine.abort(AbortEvent()))
            await wire.withheld.wait()
            assert await kinds(log) == expected
            wire.cut()

    assert await kinds(log) == expected


async def test_an_unknown_outcome_ends_at_the_deadline(nats_server: EmbeddedServer, bus: Bus, run_id: str) -> None:
    """With a server that never answers the writer gives up in time and says why."""
    seq = await RunLog(bus, run_id).request(a_request())
    async with Proxy(nats_server.url) as wire, connected(wire.url, request_timeout_s=0.1) as own:
        wire.hold_answers()
        with pytest.raises(NoAnswer):
            await RunLog(own, run_id, deadline_s=0.3).append(a_claim(), after=seq)


async def test_a_log_that_lost_its_end_is_not_written_to(log: RunLog) -> None:
    """A sequence that the log does not have means that it is not the log we knew."""
    await log.request(a_request())

    with pytest.raises(RunLost, match="no longer holds sequence 999999999"):
        await log.append(a_claim(), after=999_999_999)


async def test_rubbish_on_the_log_is_shown_in_its_place(bus: Bus, log: RunLog) -> None:
    """An entry that cannot be read says why, and the others can be read."""
    await log.request(a_request())
    await store(bus, reports(log.run_id), b"{}")
    await store(bus, reports(log.run_id), encode(a_claim()))

    first, second, third = await log.entries()

    assert isinstance(first.message, Requested)
    assert isinstance(second.message, BadMessage)
    assert isinstance(third.message, Claimed)
    assert second.raw.data == b"{}"


async def test_a_long_log_is_complete(log: RunLog) -> None:
    """More than a thousand entries come in order, and from any sequence on."""
    seq = await log.append(a_claim(), after=await log.request(a_request()))
    for number in range(1, 1100):
        seq = await log.append(a_turn(number), after=seq)

    entries = await log.entries()

    assert len(entries) == 1101
    assert entries[-1].seq == seq
    later = await log.entries(start_seq=entries[1000].seq)
    assert [entry.message for entry in later] == [entry.message for entry in entries[1000:]]


async def test_trace_headers_travel(log: RunLog) -> None:
    """Headers given to a request or a report are stored with it."""
    seq = await log.request(a_request(), headers={"traceparent": "00-a-b-01"})
    await log.append(a_claim(), after=seq, headers={"traceparent": "00-a-c-01"})

    assert [entry.raw.headers["traceparent"] for entry in await log.entries()] == ["00-a-b-01", "00-a-c-01"]


async def test_a_full_store_refuses_requests_and_takes_aborts_and_reports(bus: Bus, pool: str) -> None:
    """From 80% on no run begins; what runs can be aborted and ended."""
    await provision(bus, pool=pool, max_bytes=1 << 20)
    log = RunLog(bus, "running", pool=pool)
    claimed = await log.append(a_claim(), after=await log.request(a_request()))
    await store(bus, reports("filler", pool), b"x" * 860_000)
    bus._fill.clear()

    with pytest.raises(StoreFull, match="82% used"):
        await RunLog(bus, "late", pool=pool).request(a_request())
    outcome = await log.abort(AbortEvent())
    with pytest.raises(RunAborted):
        await log.append(a_turn(), after=claimed)
    await log.append(a_final(), after=outcome.seq)

    assert outcome.how == "logged"
    assert await kinds(log) == ["requested", "claimed", "abort", "final"]


async def test_an_abort_goes_by_the_inbox_when_the_log_takes_nothing(bus: Bus, pool: str) -> None:
    """With no byte left the abort is in the inbox, once, with who and why."""
    await provision(bus, pool=pool, max_bytes=1 << 20)
    log = RunLog(bus, "running", pool=pool)
    await log.request(a_request())
    used = (await call(bus, f"STREAM.INFO.FORK_POOL_{pool}"))["state"]["bytes"]
    subject = reports("filler", pool)
    await store(bus, subject, b"x" * ((1 << 20) - used - len(subject) - 40))

    event = AbortEvent(note="full", by="me")
    first, second = await log.abort(event), await log.abort(AbortEvent())

    assert (first.how, second.how) == ("inbox", "already")
    assert await log.inbox_abort() == event
    assert await RunLog(bus, "other", pool=pool).inbox_abort() is None


async def test_a_flood_of_empty_messages_leaves_the_log_as_a_full_one_does(bus: Bus, pool: str) -> None:
    """Their number has a limit too: new requests are refused by it, and an abort goes by the inbox."""
    await provision(bus, pool=pool, max_bytes=1 << 20)
    log = RunLog(bus, "running", pool=pool)
    await log.request(a_request())
    limit = (await call(bus, f"STREAM.INFO.FORK_POOL_{pool}"))["config"]["max_msgs"]
    for number in range(limit - 2):
        await bus.publish(reports(f"r{number}", pool), b"")
    await store(bus, reports("last", pool), b"")
    bus._fill.clear()

    with pytest.raises(StoreFull, match="maximum messages exceeded"):
        await store(bus, reports("more", pool), b"")
    with pytest.raises(StoreFull, match="100% used"):
        await RunLog(bus, "late", pool=pool).request(a_request())
    assert (await log.abort(AbortEvent())).how == "inbox"


@pytest.mark.parametrize("run_id", ["", "a.b", "a b", "*", ">", "a" * 129, "é"])
async def test_a_run_id_that_is_no_token_is_refused(bus: Bus, run_id: str) -> None:
    """Nothing that could be another subject gets near the server."""
    with pytest.raises(BadMessage, match="run id"):
        RunLog(bus, run_id)
