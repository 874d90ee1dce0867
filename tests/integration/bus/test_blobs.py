from __future__ import annotations

import asyncio
import hashlib
import random
from typing import TYPE_CHECKING

import pytest

from nexofork.bus.blobs import BlobStore
from nexofork.bus.embedded import EmbeddedServer
from nexofork.bus.failures import CorruptBlob, MissingBlob, StoreFull
from nexofork.bus.jetstream import call, store
from nexofork.bus.provisioning import provision
from nexofork.wire.messages import INLINE_BYTES, BlobRef, Delta, Payload
from tests.support.nats import Proxy, connected

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.bus.connection import Bus


def content(size: int) -> bytes:
    """Bytes that no other test has."""
    return random.Random().randbytes(size)


@pytest.fixture
def blobs(bus: Bus) -> BlobStore:
    """A parent's store."""
    return BlobStore(bus, "parent")


@pytest.mark.parametrize(
    ("size", "chunks"), [(0, 1), (1, 1), (900_000, 1), (900_001, 4), (5 << 20, 20), ((5 << 20) + 1, 21)]
)
async def test_a_content_comes_back_as_it_went_in(bus: Bus, blobs: BlobStore, size: int, chunks: int) -> None:
    """From nothing to 5 MB, in one message or in pieces, another process reads the same bytes."""
    data = content(size)

    ref = await blobs.put(data)

    assert (ref.size, ref.chunks, ref.sha256, ref.owner) == (size, chunks, hashlib.sha256(data).hexdigest(), "parent")
    assert await BlobStore(bus, "daemon").get(ref) == data


async def test_the_same_content_is_sent_once(blobs: BlobStore) -> None:
    """A hundred who store it at the same time, and one more later, cause one upload."""
    data = content(100_000)

    async with asyncio.TaskGroup() as tasks:
        puts = [tasks.create_task(blobs.put(data)) for _ in range(100)]
    later = await blobs.put(data)

    assert {put.result() for put in puts} == {later}
    assert blobs.stored == 1


async def test_another_process_with_the_same_content_gets_the_same_name(bus: Bus, blobs: BlobStore) -> None:
    """A restarted parent shares what it stored before, whole or in pieces."""
    for size in (1000, 2_000_000):
        data = content(size)
        first = await blobs.put(data)
        other = BlobStore(bus, "parent")

        assert await other.put(data) == first
        assert other.stored == 0


async def test_an_interrupted_upload_is_completed(bus: Bus, blobs: BlobStore) -> None:
    """Pieces that are there already are kept and the missing ones added."""
    data = content(1_000_000)
    name = hashlib.sha256(data).hexdigest()
    await store(bus, f"blob.parent.{name}.1", data[256 * 1024 : 2 * 256 * 1024])

    ref = await blobs.put(data)

    assert ref.name == name
    assert await BlobStore(bus, "daemon").get(ref) == data


@pytest.mark.parametrize("size", [1000, 2_000_000])
async def test_a_name_that_is_taken_by_something_else_is_avoided(bus: Bus, blobs: BlobStore, size: int) -> None:
    """A squatter costs a salted name and nothing more."""
    data = content(size)
    name = hashlib.sha256(data).hexdigest()
    await store(bus, f"blob.parent.{name}.0", b"mine now")

    ref = await blobs.put(data)

    assert ref.name != name
    assert await BlobStore(bus, "daemon").get(ref) == data


async def test_a_hundred_readers_fetch_once(bus: Bus, blobs: BlobStore) -> None:
    """Everybody gets the same object from one fetch."""
    ref = await blobs.put(content(450_000))
    reader = BlobStore(bus, "daemon")

    async with asyncio.TaskGroup() as tasks:
        gets = [tasks.create_task(reader.get(ref)) for _ in range(100)]

    assert reader.fetched == 1
    assert len({id(get.result()) for get in gets}) == 1


async def test_a_reader_that_gives_up_does_not_take_the_others_with_it(bus: Bus, blobs: BlobStore) -> None:
    """Cancelling the one who fetches leaves the rest with their content."""
    data = content(100_000)
    ref = await blobs.put(data)
    reader = BlobStore(bus, "daemon")

    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(reader.get(ref))
        second = tasks.create_task(reader.get(ref))
        await asyncio.sleep(0)
        first.cancel()

    assert second.result() == data


async def test_the_cache_keeps_what_was_used_last(bus: Bus, blobs: BlobStore) -> None:
    """Three contents in room for two: the one not used for longest is fetched again."""
    one, two, three = [await blobs.put(content(1000)) for _ in range(3)]
    reader = BlobStore(bus, "daemon", cache_bytes=2000)

    for ref in (one, two, one, three):
        await reader.get(ref)
    assert reader.fetched == 3
    await reader.get(one)
    assert reader.fetched == 3
    await reader.get(two)
    assert reader.fetched == 4


async def test_what_is_larger_than_the_cache_is_not_kept(bus: Bus, blobs: BlobStore) -> None:
    """The bound holds for a single content too."""
    ref = await blobs.put(content(3000))
    reader = BlobStore(bus, "daemon", cache_bytes=2000)

    await reader.get(ref)
    await reader.get(ref)

    assert reader.fetched == 2


async def test_a_missing_blob_is_named(bus: Bus) -> None:
    """A reference to nothing says which blob and how much of it there is."""
    name = content(16).hex()
    await store(bus, f"blob.parent.{name}.1", b"x")
    for chunks, found in ((1, 0), (3, 1)):
        ref = BlobRef(owner="parent", name=name, sha256="0" * 64, size=10, chunks=chunks)
        with pytest.raises(MissingBlob, match=rf"parent/{name}.*{found} of {chunks}") as caught:
            await BlobStore(bus, "daemon").get(ref)
        assert caught.value.retryable


async def test_a_blob_with_other_bytes_is_corrupt(bus: Bus) -> None:
    """Bytes of the right size and the wrong digest are never handed out."""
    name = content(16).hex()
    await store(bus, f"blob.parent.{name}.0", b"0123456789")
    digest = hashlib.sha256(b"9876543210").hexdigest()
    ref = BlobRef(owner="parent", name=name, sha256=digest, size=10, chunks=1)

    with pytest.raises(CorruptBlob, match=f"{name}.*digest"):
        await BlobStore(bus, "daemon").get(ref)


async def test_a_reference_with_another_size_is_corrupt(bus: Bus, blobs: BlobStore) -> None:
    """A wrong or huge size is refused, cached content or not."""
    ref = await blobs.put(content(100))
    reader = BlobStore(bus, "daemon")

    for size in (99, 1 << 40):
        with pytest.raises(CorruptBlob):
            await reader.get(ref.model_copy(update={"size": size}))
    await reader.get(ref)
    with pytest.raises(CorruptBlob, match="100 bytes"):
        await reader.get(ref.model_copy(update={"size": 99}))


async def test_a_reader_asks_again_for_what_was_missing(bus: Bus, blobs: BlobStore) -> None:
    """After a miss, storing it again under the same name helps, although the owner knows that it stored it."""
    data = content(1000)
    digest = hashlib.sha256(data).hexdigest()
    known = BlobRef(owner="parent", name=digest, sha256=digest, size=1000, chunks=1)
    blobs._known[digest] = (known, asyncio.get_running_loop().time())
    reader = BlobStore(bus, "daemon")
    assert await blobs.put(data) == known
    with pytest.raises(MissingBlob):
        await reader.get(known)

    again = await blobs.put(data, again=True)

    assert again == known
    assert await reader.get(known) == data


async def test_a_growing_body_travels_as_what_it_added(bus: Bus, blobs: BlobStore) -> None:
    """The first body is a blob; later turns are deltas to it, whole again when little is left in common."""
    start = content(50_000).hex().encode()
    first = await blobs.put_next(b"[" + start + b"]")
    same = await blobs.put_next(b"[" + start + b"]")
    small = await blobs.put_next(b"[" + start + b', "added"]')
    large = await blobs.put_next(b"[" + start + content(40_000).hex().encode() + b"]")
    other = await blobs.put_next(content(50_000))

    assert first.blob is not None
    assert same == first
    assert small.delta is not None
    assert (small.delta.base, small.delta.middle) == (first.blob, ', "added"')
    assert large.delta is not None
    assert isinstance(large.delta.middle, BlobRef)
    assert large.delta.middle.size == 80_000
    assert other.blob is not None


async def test_a_delta_comes_back_whole(bus: Bus, blobs: BlobStore) -> None:
    """Reading a delta gives the exact bytes; a thousand of them cost no further fetch."""
    base = content(200_000)
    await blobs.put_next(base)
    grown = base[:-10] + content(5000) + base[-10:]
    payload = await blobs.put_next(grown)
    reader = BlobStore(bus, "daemon")

    async with asyncio.TaskGroup() as tasks:
        reads = [tasks.create_task(reader.resolve(payload)) for _ in range(100)]

    assert all(read.result() == grown for read in reads)
    assert reader.fetched == 2


@pytest.mark.parametrize("wrong", [{"prefix": 3}, {"suffix": 60}, {"size": 1}, {"sha256": "0" * 64}, {"middle": "b"}])
async def test_a_delta_that_does_not_fit_is_corrupt(bus: Bus, blobs: BlobStore, wrong: dict[str, object]) -> None:
    """Whatever is wrong with a delta, no wrong bytes come out."""
    base = content(50)
    whole = base[:10] + b"a" + base[-10:]
    delta = Delta(
        base=await blobs.put(base),
        prefix=10,
        suffix=10,
        middle="a",
        sha256=hashlib.sha256(whole).hexdigest(),
        size=len(whole),
    )
    assert await BlobStore(bus, "daemon").resolve(Payload(delta=delta)) == whole

    with pytest.raises(CorruptBlob):
        await BlobStore(bus, "daemon").resolve(Payload(delta=delta.model_copy(update=wrong)))


@pytest.mark.parametrize(
    ("data", "inline"),
    [
        (b"", True),
        ("é".encode() * 10, True),
        (b"x" * INLINE_BYTES, True),
        (b"x" * (INLINE_BYTES + 1), False),
        (b"\xff", False),
    ],
)
async def test_short_text_travels_inline(bus: Bus, blobs: BlobStore, data: bytes, inline: bool) -> None:
    """Text up to the limit is in the message, anything else beside it, and both come back."""
    payload = await blobs.pack(data)

    assert (payload.text is not None) == inline
    assert await BlobStore(bus, "daemon").resolve(Payload.model_validate_json(payload.model_dump_json())) == data


async def test_an_upload_survives_a_cut_wire(nats_server: EmbeddedServer, bus: Bus) -> None:
    """A connection that breaks in the middle delays the upload and does not spoil it."""
    data = content(3 << 20)
    async with Proxy(nats_server.url) as wire, connected(wire.url) as own:
        wire.hold_answers_to(b"blob.daemon.")
        async with asyncio.TaskGroup() as tasks:
            putting = tasks.create_task(BlobStore(own, "daemon").put(data))
            await wire.withheld.wait()
            wire.cut()

    assert await BlobStore(bus, "parent").get(putting.result()) == data


async def test_a_full_store_is_said(tmp_path: Path) -> None:
    """No room for a blob is an error by name, not a hang."""
    async with EmbeddedServer(store_dir=tmp_path) as server, connected(server.url) as own:
        await provision(own, max_bytes=1 << 20)
        blobs = BlobStore(own, "parent")
        await blobs.put(content(800_000))
        with pytest.raises(StoreFull, match="maximum bytes"):
            await blobs.put(content(4 << 20))


async def test_extra_pieces_do_not_confuse(bus: Bus, blobs: BlobStore) -> None:
    """Pieces that somebody added to a name are ignored."""
    data = content(1_000_000)
    ref = await blobs.put(data)
    for piece in ("99", "junk", "01"):
        await store(bus, f"blob.parent.{ref.name}.{piece}", b"junk")

    assert await BlobStore(bus, "daemon").get(ref) == data


async def test_traffic_of_a_snapshot(bus: Bus, blobs: BlobStore) -> None:
    """A 450 KB body is one message in the stream."""
    before = (await call(bus, "STREAM.INFO.FORK_BLOBS"))["state"]["messages"]

    await blobs.put_next(content(450_000))

    assert (await call(bus, "STREAM.INFO.FORK_BLOBS"))["state"]["messages"] == before + 1
