"""Input that nobody can run is reported once and goes away; it disturbs neither daemons nor other runs."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import nats
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from nexofork import ForkStatus
from nexofork.bus.blobs import BlobStore
from nexofork.bus.jetstream import call as api
from nexofork.bus.run_log import RunLog
from nexofork.wire import messages as wire
from nexofork.wire.streams import CONSUMER, log_stream
from nexofork.wire.subjects import events, reports
from tests.support.conversation import call, says
from tests.support.fleet import asked, epochs, finals
from tests.support.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.client import Client

    from nexofork import ForkResult
    from tests.support.fleet import Fleet

DONE = "Scope: all\nResult: done"
HELD = {"text": DONE, "hold": {"gate": "held", "after_events": 3}}


@pytest.fixture
async def bare(fleet: Fleet) -> AsyncIterator[Client]:
    """A plain NATS client, as any language has one."""
    client = await nats.connect(fleet.url)
    yield client
    await client.close()


async def plain_request(fleet: Fleet, directive: str = "do it", **more: Any) -> dict[str, Any]:
    """The smallest request there is, with the snapshot inside."""
    snapshot = await fleet.snapshot()
    assert snapshot.reply is not None
    return {
        "v": 1,
        "kind": "requested",
        "snapshot": {"text": snapshot.body.decode()},
        "reply": {"text": snapshot.reply.to_wire().decode()},
        "directive": directive,
        **more,
    }


async def ended(fleet: Fleet, run_id: str) -> ForkResult:
    """How the run ended, for whoever attaches."""
    async with fleet.connect() as forks:
        return await (await forks.attach(run_id)).result()


async def settled(fleet: Fleet) -> None:
    """Return when no request waits or is out."""
    stream = log_stream(fleet.pool)
    done = False
    while not done:
        info = await api(fleet.bus, f"CONSUMER.INFO.{stream}.{CONSUMER}")
        done = not info["num_pending"] and not info["num_ack_pending"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b'{"v":1,"kind":"requested"',
        b'{"v":0,"kind":"requested","snapshot":{"text":"{}"},"directive":"x"}',
        b'{"v":1,"kind":"surprise"}',
        b'{"v":1,"kind":"requested","snapshot":{"text":"{}"},"directive":""}',
        b'{"v":1,"kind":"requested","snapshot":{},"directive":"x"}',
        b"[" * 5000,
        b'{"v":1,"kind":"requested","snapshot":{"text":"\xff"},"directive":"x"}',
    ],
    ids=["empty", "no json", "cut", "version", "kind", "no directive", "no snapshot", "deep", "no utf-8"],
)
async def test_a_message_that_is_no_request_is_refused_once(fleet: Fleet, bare: Client, data: bytes) -> None:
    """Its log gets one final report that says what is wrong, and it is not delivered again."""
    fleet.forged = True
    await fleet.daemon()

    await bare.request(events("poison", fleet.pool), data, timeout=10)
    result = await ended(fleet, "poison")
    await settled(fleet)

    assert result.status is ForkStatus.REFUSED
    assert "The message is not a valid event" in (result.error or "")
    assert len(finals(await fleet.reports("poison"))) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"snapshot": {"text": "not a request"}},
        {"snapshot": {"text": "\ud800"}},
        {"snapshot": {"text": "[" * 20_000}},
        {"reply": {"text": "not a reply"}},
        {"reply": {"text": '{"content":[{"type":"tool_use"}]}'}},
        {"replacements": {"decisions": 7}},
        {"replacements": {"max_chars": "many"}},
        {"overrides": {"model": "another"}},
        {"overrides": {"messages": []}, "allow_cache_break": True},
        {"notes": ["\x00", "\ud800"]},
        {"query_source": ""},
        {"snapshot": {"blob": {"owner": "daemon", "name": "x", "sha256": "0" * 64, "size": 10**12, "chunks": 9}}},
        {"snapshot": {"text": '{"model":"m","max_tokens":1,"messages":[],"tools":["Bash",{"name":7}]}'}},
        {"workspace": {"kind": "path", "path": "/" + "a" * 300}},
        {"workspace": {"kind": "path", "path": "/a" * 2048}},
        {"workspace": {"kind": "path", "path": "/\x00"}},
        {"filters": [{"name": "automem", "args": ["/\x00"]}]},
        {"filters": [{"name": "automem", "args": ["/" + "a" * 300]}]},
        {"siblings": 10**400},
        {"max_turns": 10**400},
        {"timeout_s": 1e308, "at": 1e308, "sent_at": -1e308},
        {"parent": {"id": "p", "heartbeat_s": -1e308}, "on_parent_gone": "abort"},
        {"group": "a b.*.>\x00", "group_budget": {"tokens": 10**400}},
        {"budget": {"usd": 1e308, "tokens": 10**400}},
        {"label": "x" * 500_000},
        {"headers": {"anthropic-beta": "a\r\nb", "a b": "\x00"}},
        {"query": [["\x00", "\n"]]},
    ],
    ids=lambda change: "-".join(change) + str(len(str(change))),
)
async def test_a_request_that_cannot_be_run_ends_at_the_first_daemon(
    fleet: Fleet, bare: Client, change: dict[str, Any]
) -> None:
    """Whatever its parts hold, it has one end after one attempt, with a reason, and the daemon goes on."""
    daemon = await fleet.daemon(ask_s=0.2)

    data = json.dumps(await plain_request(fleet, **change)).encode()
    await bare.request(events("odd", fleet.pool), data, timeout=10)  # answered when it is stored
    result = await ended(fleet, "odd")
    await settled(fleet)

    assert result.status is not ForkStatus.RUNNING
    assert result.attempts == 1
    assert result.status is ForkStatus.COMPLETED or result.error
    assert len(finals(await fleet.reports("odd"))) == 1
    assert daemon.exit_code is None


async def test_two_malformed_requests_under_one_id_are_reported_once(fleet: Fleet, bare: Client) -> None:
    """The run gets one end, not none and not two."""
    fleet.forged = True
    for data in (b"first", b"second"):
        await bare.request(events("twice", fleet.pool), data, timeout=10)
    await bare.flush()
    await fleet.daemons(2)

    result = await ended(fleet, "twice")
    await settled(fleet)

    assert result.status is ForkStatus.REFUSED
    assert len(finals(await fleet.reports("twice"))) == 1


async def test_a_request_published_twice_is_run_once(fleet: Fleet, bare: Client) -> None:
    """A bare client that repeats itself does not make two daemons fight over the run."""
    await fleet.daemons(2)
    data = json.dumps(await plain_request(fleet, says("apple", HELD))).encode()

    for _ in range(3):
        await bare.publish(events("again", fleet.pool), data)
    await fleet.sim.begun(2)
    async with fleet.connect() as forks:
        later = await (await forks.fork(await fleet.params(says("pause", {"text": DONE, "delay_s": 2.5})))).result()
    fleet.sim.release("held")
    result = await ended(fleet, "again")
    await settled(fleet)

    assert later.status is ForkStatus.COMPLETED
    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 1)
    assert asked(fleet.sim, "apple") == [1]
    assert epochs(await fleet.reports("again")) == [1, 1, 1, 1]


async def test_garbage_on_the_subjects_of_a_running_run_does_not_disturb_it(fleet: Fleet, bare: Client) -> None:
    """Neither the daemon that runs it nor the parent that watches it loses its place."""
    fleet.forged = True
    await fleet.daemon()
    async with fleet.connect() as forks:
        turns = ({"tools": [call(command="true")], "hold": {"gate": "held", "after_events": 2}}, DONE)
        handle = await forks.fork(await fleet.params(says("birch", *turns)))
        await fleet.sim.begun(2)
        live = f"live.{fleet.pool}.{handle.run_id}.reports"
        forged = {"Nats-Subject": reports(handle.run_id, fleet.pool), "Nats-Sequence": str(10**12)}

        for data in (b"", b"junk", b'{"v":9}', b"\xff\xfe", b"[" * 5000):
            await bare.publish(events(handle.run_id, fleet.pool), data)
            await bare.publish(reports(handle.run_id, fleet.pool), data)
            await bare.publish(f"agent.{fleet.pool}.{handle.run_id}.inbox.x", data)
            await bare.publish(live, data)
            await bare.publish(live, data, headers=forged)
            await bare.publish(f"delta.{fleet.pool}.{handle.run_id}", data)
        await bare.flush()
        fleet.sim.release("held")
        result = await handle.result()

    assert (result.status, result.attempts, result.turns) == (ForkStatus.COMPLETED, 1, 2)
    await settled(fleet)


@pytest.mark.parametrize(
    "turn",
    [
        {"content": {"blob": {"owner": "daemon", "name": "gone", "sha256": "0" * 64, "size": 5, "chunks": 1}}},
        {"content": {"text": "not a reply"}},
        {"content": {"text": "\ud800"}},
        {"content": {"text": "[]"}, "cache": {"surprise": 1}},
        {"content": {"text": "[]"}, "usage": {"input_tokens": "many"}, "stop_reason": "end_turn"},
    ],
    ids=["blob gone", "no reply", "surrogate", "cache", "usage"],
)
async def test_a_run_whose_recorded_turn_cannot_be_read_ends(fleet: Fleet, bare: Client, turn: dict[str, Any]) -> None:
    """A log that cannot be continued is an end with a reason, not a request that comes round for ever."""
    fleet.forged = True
    async with fleet.connect() as forks:
        handle = await forks.fork(await fleet.params(says("cedar", DONE)))
        log = RunLog(fleet.bus, handle.run_id, pool=fleet.pool)
        tip = await log.tip()
        assert tip is not None
        await log.append(wire.Claimed(epoch=1, daemon=wire.Daemon(name="lost")), after=tip.seq)
        odd = {"v": 1, "kind": "turn", "epoch": 1, "turn": 1, "id": "odd", **turn}
        await bare.request(reports(handle.run_id, fleet.pool), json.dumps(odd).encode(), timeout=10)

        await fleet.daemon()
        result = await handle.result()
        await settled(fleet)

    assert result.status in (ForkStatus.FAILED, ForkStatus.COMPLETED)
    assert result.status is ForkStatus.COMPLETED or result.error
    assert len(finals(await fleet.reports(handle.run_id))) == 1


async def test_numbers_that_are_none_do_not_upset_a_daemons_clock(fleet: Fleet, bare: Client) -> None:
    """A heartbeat of NaN is refused like any other nonsense; the daemon's timers go on."""
    await fleet.daemon()
    for number, (key, value) in enumerate([("heartbeat_s", "NaN"), ("heartbeat_s", "-1"), ("heartbeat_s", "1e-9")]):
        request = await plain_request(fleet, parent={"id": "p"}, on_parent_gone="abort")
        text = json.dumps(request).replace('{"id": "p"}', f'{{"id": "p", "{key}": {value}}}')
        await bare.request(events(f"clock{number}", fleet.pool), text.encode(), timeout=10)
        assert (await ended(fleet, f"clock{number}")).status is not ForkStatus.RUNNING

    async with fleet.connect() as forks:
        result = await (await forks.fork(await fleet.params(says("drum", {"text": DONE, "delay_s": 1.5})))).result()

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 1)


async def test_a_parent_without_a_name_cannot_be_watched_and_is_not(fleet: Fleet, bare: Client) -> None:
    """A plain request that asks for abort with its parent, and names none, is simply run."""
    await fleet.daemon()
    request = await plain_request(fleet, on_parent_gone="abort", parent={"heartbeat_s": 0.2})

    await bare.request(events("nameless", fleet.pool), json.dumps(request).encode(), timeout=10)
    result = await ended(fleet, "nameless")

    assert (result.status, result.attempts) == (ForkStatus.COMPLETED, 1)


async def test_a_request_under_a_strange_name_goes_away(fleet: Fleet, bare: Client) -> None:
    """A subject that holds no run id is dropped from the queue; work goes on."""
    fleet.forged = True
    await fleet.daemon()
    for name in ("a$b", "ümlaut", "x" * 200, "a/b", "%00"):
        await bare.publish(f"agent.{fleet.pool}.{name}.events", b"whatever")
    await bare.flush()

    async with fleet.connect() as forks:
        result = await (await forks.fork(await fleet.params("ebony"))).result()
    await settled(fleet)

    assert result.status is ForkStatus.COMPLETED


async def test_nothing_that_was_refused_was_asked_of_the_model(fleet: Fleet, bare: Client) -> None:
    """Poison costs nothing at the provider."""
    await fleet.daemon()
    await bare.request(events("free", fleet.pool), b'{"v":1,"kind":"requested","snapshot":{"text":"{}"}}', timeout=10)

    await ended(fleet, "free")

    await eventually(lambda: fleet.sim.request_count == 0)


async def test_a_folder_that_may_not_be_entered_ends_the_run(fleet: Fleet, bare: Client, tmp_path: Path) -> None:
    """The log says why after one attempt, and the daemon goes on."""
    locked = tmp_path / "locked"
    (locked / "inner").mkdir(parents=True)
    locked.chmod(0)
    await fleet.daemon(obeys_modes=True, shared_dirs=[str(tmp_path)])
    try:
        data = await plain_request(fleet, workspace={"kind": "path", "path": f"{locked}/inner"})
        await bare.request(events("locked", fleet.pool), json.dumps(data).encode(), timeout=10)
        result = await ended(fleet, "locked")
        await settled(fleet)
    finally:
        locked.chmod(0o700)

    assert (result.status, result.end, result.attempts) == (ForkStatus.REFUSED, "ForkRefused", 1), result.error
    assert f"'{locked}/inner' cannot be opened on this host (Permission denied)" in (result.error or "")
    async with fleet.connect() as forks:
        assert (await (await forks.fork(await fleet.params("quince"))).result()).ok


async def test_what_an_unknown_exception_says_stays_on_the_daemon(fleet: Fleet, bare: Client) -> None:
    """The run ends as failed with the name of the exception; its words, which may quote anything, are not sent."""
    daemon = await fleet.daemon(env={"NEXOFORK_TEST_DEFECT": "sk-secret is not a number"})
    await fleet.snapshot()
    data = await plain_request(fleet)

    await bare.request(events("quoting", fleet.pool), json.dumps(data).encode(), timeout=10)
    result = await ended(fleet, "quoting")

    assert (result.status, result.end) == (ForkStatus.FAILED, "ValueError"), result.error
    assert f"Unexpected ValueError on daemon {daemon.name}" in (result.error or "")
    await eventually(lambda: "sk-secret is not a number" in daemon.log)
    assert "sk-secret" not in result.to_wire().decode()


async def test_a_claim_that_fits_no_message_ends_the_run(fleet: Fleet, bare: Client) -> None:
    """A model name that is too long for the log ends each run at its first attempt, by the name of the error."""
    await fleet.daemon()
    body = {"model": "m" * 1_100_000, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi."}]}
    blobs = BlobStore(fleet.bus, "parent")
    snapshot = {"blob": (await blobs.put(json.dumps(body).encode())).model_dump()}
    data = json.dumps({"v": 1, "kind": "requested", "snapshot": snapshot, "directive": "x"}).encode()

    for run_id in ("long-1", "long-2", "long-3"):
        await bare.request(events(run_id, fleet.pool), data, timeout=10)
        result = await ended(fleet, run_id)
        assert (result.status, result.end, result.attempts) == (ForkStatus.FAILED, "PayloadTooLarge", 1), result.error
        assert len(finals(await fleet.reports(run_id))) == 1
    await settled(fleet)


_ODD_TEXTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "\x00", "\ud800", "../..", "a.b *.>", "x" * 5_000, "-" * 129, "\u202e", "sk-1\r\nx: y"]),
)
_ODD_NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**30, 10**400, 1e-320, 1e308, -1e308, True, None, "7"]),
)
_ODD_BLOBS = st.fixed_dictionaries(
    {
        "owner": st.sampled_from(["parent", "daemon", "x"]),
        "sha256": st.sampled_from(["0" * 64, "A" * 64, ""]),
        "size": _ODD_NUMBERS,
        "chunks": st.sampled_from([1, 9, 100_000, 10**9, -1]),
    }
)
_ODD_PAYLOADS = st.one_of(
    st.builds(lambda text: {"text": text}, _ODD_TEXTS),
    st.builds(lambda blob: {"blob": blob}, _ODD_BLOBS),
    st.builds(
        lambda base, prefix, middle: {
            "delta": {"base": base, "prefix": prefix, "suffix": 0, "middle": middle, "sha256": "0" * 64, "size": 1}
        },
        _ODD_BLOBS,
        _ODD_NUMBERS,
        st.one_of(_ODD_TEXTS, _ODD_BLOBS),
    ),
    st.sampled_from([{}, None, 7, {"text": "[]"}, {"text": "{}"}, {"text": '{"content":[]}'}]),
)
_ODD_VALUES = st.recursive(
    st.one_of(_ODD_NUMBERS, _ODD_TEXTS),
    lambda one: st.one_of(st.lists(one), st.dictionaries(_ODD_TEXTS, one)),
    max_leaves=5,
)
_ODD_FOLDERS = st.sampled_from(["/", "/" + "a" * 300, "/a" * 2_048, "/\x00", "relative"])
"""None that another host could have: such a run waits in the queue for that host."""
_ODD_COMMITS = st.sampled_from(["0" * 40, "f" * 40, "x"])
_ODD_FIELDS = {
    "v": _ODD_NUMBERS,
    "id": _ODD_TEXTS,
    "at": _ODD_NUMBERS,
    "sent_at": _ODD_NUMBERS,
    "snapshot": _ODD_PAYLOADS,
    "reply": _ODD_PAYLOADS,
    "answers": _ODD_PAYLOADS,
    "file_state": _ODD_PAYLOADS,
    "directive": _ODD_TEXTS,
    "notes": st.lists(_ODD_TEXTS, max_size=3),
    "label": _ODD_TEXTS,
    "headers": st.dictionaries(_ODD_TEXTS, _ODD_TEXTS, max_size=2),
    "query": st.lists(st.tuples(_ODD_TEXTS, _ODD_TEXTS), max_size=2),
    "query_source": _ODD_TEXTS,
    "group": _ODD_TEXTS,
    "agent_id": _ODD_TEXTS,
    "reminder": _ODD_TEXTS,
    "overrides": st.dictionaries(
        st.sampled_from(["model", "max_tokens", "tools", "system", "x"]), _ODD_VALUES, max_size=2
    ),
    "allow_cache_break": st.booleans(),
    "max_turns": _ODD_NUMBERS,
    "timeout_s": _ODD_NUMBERS,
    "siblings": _ODD_NUMBERS,
    "replacements": st.dictionaries(
        st.sampled_from(["max_chars", "decisions", "budget_chars"]), _ODD_VALUES, max_size=2
    ),
    "budget": st.fixed_dictionaries({"usd": _ODD_NUMBERS, "tokens": _ODD_NUMBERS}),
    "group_budget": st.fixed_dictionaries({"usd": _ODD_NUMBERS, "tokens": _ODD_NUMBERS}),
    "filters": st.lists(
        st.fixed_dictionaries(
            {
                "name": st.sampled_from(["readonly", "automem", "profile", "tools", "\x00"]),
                "args": st.lists(st.one_of(_ODD_TEXTS, _ODD_FOLDERS), max_size=2),
            }
        ),
        max_size=2,
    ),
    "tool_names": st.dictionaries(_ODD_TEXTS, _ODD_TEXTS, max_size=2),
    "permissions": st.fixed_dictionaries(
        {"mode": st.sampled_from(["deny", "bubble", "x"]), "deadline_s": _ODD_NUMBERS, "allow": st.lists(_ODD_TEXTS)}
    ),
    "parent_tools": st.fixed_dictionaries({"names": st.none() | st.lists(_ODD_TEXTS), "deadline_s": _ODD_NUMBERS}),
    "parent": st.fixed_dictionaries({"id": _ODD_TEXTS, "agent": _ODD_TEXTS, "heartbeat_s": _ODD_NUMBERS}),
    "on_parent_gone": st.sampled_from(["abort", "x"]),
    "continues": _ODD_TEXTS,
    "warm_up": st.sampled_from(["auto", "leader_first", "prewarm", "x"]),
    "needs": st.lists(_ODD_TEXTS, max_size=3),
    "workspace": st.one_of(
        st.builds(lambda path: {"kind": "path", "path": path}, _ODD_FOLDERS),
        st.builds(
            lambda root, commit, bundle, folder: {
                **{"kind": "git", "root": root, "folder": folder, "bundle": bundle},
                **{"base": commit, "head": commit, "commit": commit},
            },
            st.one_of(_ODD_TEXTS, _ODD_FOLDERS),
            _ODD_COMMITS,
            _ODD_BLOBS,
            st.sampled_from(["", "..", "a/../..", "\x00"]),
        ),
    ),
}
_ODD_REQUESTS = st.lists(st.sampled_from(sorted(_ODD_FIELDS)), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: _ODD_FIELDS[name] for name in names})
)


def odd_requests(count: int) -> list[dict[str, Any]]:
    """So many requests' odd parts."""
    found: list[dict[str, Any]] = []

    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None, derandomize=True)
    @given(_ODD_REQUESTS)
    def collect(change: dict[str, Any]) -> None:
        found.append(change)

    collect()
    return found


async def test_whatever_a_request_holds_its_run_ends(fleet: Fleet, bare: Client) -> None:
    """Sixty requests with odd parts each have one end, none is left in the queue, and the daemon goes on."""
    daemon = await fleet.daemon(ask_s=0.2, tool_deadline_s=0.5)
    odd = odd_requests(60)
    asked_twice = says("odd", {"tools": [call("Bash", command="true"), call("Nope")]}, DONE)
    plain = await plain_request(fleet, asked_twice)

    for number, change in enumerate(odd):
        data = json.dumps({**plain, **change}).encode()
        await bare.request(events(f"odd-{number}", fleet.pool), data, timeout=10)
    for number, change in enumerate(odd):
        try:
            async with asyncio.timeout(PATIENCE_S):
                result = await ended(fleet, f"odd-{number}")
        except TimeoutError:
            pytest.fail(f"it does not end: {change}, its log has {await fleet.reports(f'odd-{number}')}")
        assert result.status.over, change
        assert result.status is ForkStatus.COMPLETED or result.error, change
        assert len(finals(await fleet.reports(f"odd-{number}"))) == 1, change
    await settled(fleet)
    assert "failed inside the daemon" not in daemon.log

    async with fleet.connect() as forks:
        assert (await (await forks.fork(await fleet.params("rowan"))).result()).ok
