from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.failures import NoResponders
from nexofork.bus.jetstream import store
from nexofork.bus.reading import first_of, last_direct, last_of, last_of_many, read_subject
from nexofork.errors import BusError

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus


async def fill(bus: Bus, run_id: str, count: int, size: int = 4) -> list[int]:
    """Store numbered reports of a run and return their sequences."""
    async with asyncio.TaskGroup() as tasks:
        written = [
            tasks.create_task(store(bus, f"agent.fork.{run_id}.reports", b"%0*d" % (size, n))) for n in range(count)
        ]
    return sorted(task.result() for task in written)


async def test_a_long_log_is_read_in_pages(bus: Bus, run_id: str) -> None:
    """All 1,500 entries come, each once, in order, from one sequence on if wanted."""
    sequences = await fill(bus, run_id, 1500)
    await fill(bus, f"{run_id}x", 5)

    found = await read_subject(bus, "FORK", f"agent.fork.{run_id}.*")

    assert [message.seq for message in found] == sequences
    assert sorted(int(message.data) for message in found) == list(range(1500))
    later = await read_subject(bus, "FORK", f"agent.fork.{run_id}.*", start_seq=sequences[1000])
    assert [message.seq for message in later] == sequences[1000:]


async def test_pages_end_by_bytes_too(bus: Bus, run_id: str) -> None:
    """More than a page's bytes in fewer messages than a page's number still come completely."""
    sequences = await fill(bus, run_id, 24, size=500_000)

    found = await read_subject(bus, "FORK", f"agent.fork.{run_id}.*")

    assert [message.seq for message in found] == sequences


async def test_an_empty_subject_is_an_empty_list(bus: Bus, run_id: str) -> None:
    """Nothing stored is an answer, not an error."""
    assert await read_subject(bus, "FORK", f"agent.fork.{run_id}.*") == []
    assert await last_of(bus, "FORK", f"agent.fork.{run_id}.*") is None
    assert await first_of(bus, "FORK", f"agent.fork.{run_id}.*") is None
    assert await last_direct(bus, "FORK", f"agent.fork.{run_id}.events") is None
    assert await last_of_many(bus, "FORK", [f"agent.fork.{run_id}.*"]) == []
    assert await last_of_many(bus, "FORK", []) == []


async def test_first_and_last_take_wildcards(bus: Bus, run_id: str) -> None:
    """Both ends of a run's log are found over both of its subjects, with their headers."""
    first = await store(bus, f"agent.fork.{run_id}.events", b"first", headers={"Trace": "1-2"})
    last = await store(bus, f"agent.fork.{run_id}.reports", b"last")

    start = await first_of(bus, "FORK", f"agent.fork.{run_id}.*")
    end = await last_of(bus, "FORK", f"agent.fork.{run_id}.*")

    assert start is not None
    assert end is not None
    assert (start.seq, start.data, start.headers["Trace"]) == (first, b"first", "1-2")
    assert (end.seq, end.data, end.subject) == (last, b"last", f"agent.fork.{run_id}.reports")


async def test_the_newest_of_many_runs_in_one_go(bus: Bus, run_id: str) -> None:
    """A thousand runs, more than the server answers for at once, each give their newest of both subjects."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(1000):
            tasks.create_task(store(bus, f"agent.fork.{run_id}-{number}.events", b"e"))
            tasks.create_task(store(bus, f"agent.fork.{run_id}-{number}.reports", b"r%d" % number))

    found = await last_of_many(bus, "FORK", [f"agent.fork.{run_id}-{number}.*" for number in range(1000)])

    assert len(found) == 2000
    assert {message.data for message in found} == {b"e", *(b"r%d" % number for number in range(1000))}


async def test_a_filter_that_matches_too_much_is_split_or_said(bus: Bus, run_id: str) -> None:
    """Two filters of 800 subjects each are read one by one; one filter over all of them is refused."""
    async with asyncio.TaskGroup() as tasks:
        for owner in ("parent", "daemon"):
            for number in range(800):
                tasks.create_task(store(bus, f"blob.{owner}.{run_id}.{number}", b"x"))
    names = [f"blob.{owner}.{run_id}.*" for owner in ("parent", "daemon")]

    assert len(await last_of_many(bus, "FORK_BLOBS", names)) == 1600
    with pytest.raises(BusError, match="too many subjects"):
        await last_of_many(bus, "FORK_BLOBS", [f"blob.*.{run_id}.*"])


async def test_a_forged_status_is_data(bus: Bus, run_id: str) -> None:
    """A stored message with the headers of an end or of a missing responder neither ends a read nor hides others."""
    subject = f"agent.fork.{run_id}.reports"
    for status in ("204", "404", "503", "413", "100"):
        await store(bus, subject, b"", headers={"Status": status, "Description": "EOB", "Nats-Num-Pending": "0"})
    await store(bus, subject, b"end")

    found = await read_subject(bus, "FORK", f"agent.fork.{run_id}.*")
    newest = await last_direct(bus, "FORK", subject)

    assert [message.data for message in found] == [b"", b"", b"", b"", b"", b"end"]
    assert newest is not None
    assert newest.data == b"end"


async def test_a_stream_that_does_not_exist_is_said(bus: Bus) -> None:
    """Reading from nowhere is an error and not an empty answer."""
    with pytest.raises(NoResponders):
        await read_subject(bus, "NOPE", "x")
    with pytest.raises(BusError):
        await last_of(bus, "NOPE", "x")
