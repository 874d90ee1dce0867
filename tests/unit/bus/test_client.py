from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError

from nexofork.bus.client import SturdyClient, _SturdyParser

token = st.binary(min_size=1, max_size=8).filter(lambda raw: not set(raw) & set(b" \t\r\n"))
messages = st.lists(
    st.tuples(
        token, st.one_of(st.just(b""), token), st.one_of(st.none(), st.binary(max_size=12)), st.binary(max_size=20)
    ),
    max_size=5,
)


class Receiver:
    """Stands where the client stands behind the parser."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.pings = 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, payload: bytes, headers: bytes | None) -> None:
        self.got.append((subject, reply, headers, payload))

    async def _process_ping(self) -> None:
        self.pings += 1

    async def _process_pong(self) -> None:
        pass


def wire(subject: bytes, reply: bytes, headers: bytes | None, payload: bytes) -> bytes:
    """A message as the server sends it."""
    middle = b" " + reply if reply else b""
    if headers is None:
        return b"MSG %s 7%s %d\r\n%s\r\n" % (subject, middle, len(payload), payload)
    return b"HMSG %s 7%s %d %d\r\n%s%s\r\n" % (
        subject,
        middle,
        len(headers),
        len(headers) + len(payload),
        headers,
        payload,
    )


@given(sent=messages, cuts=st.lists(st.integers(min_value=1, max_value=40), max_size=20))
async def test_messages_come_out_as_they_were_sent(
    sent: list[tuple[bytes, bytes, bytes | None, bytes]], cuts: list[int]
) -> None:
    """Whatever bytes are in them, and wherever the stream is cut."""
    receiver = Receiver()
    parser = _SturdyParser(receiver)
    stream = b"".join(wire(*message) + b"PING\r\n" for message in sent)
    for size in cuts:
        await parser.parse(stream[:size])
        stream = stream[size:]
    await parser.parse(stream)

    assert receiver.got == sent
    assert receiver.pings == len(sent)


@pytest.mark.parametrize(
    "line", [b"NONSENSE\r\n", b"MSG a\r\n", b"MSG a b 1\r\nx\r\n", b"MSG a 1 r x\r\n", b"HMSG a 1 1\r\n"]
)
async def test_nonsense_is_a_protocol_error(line: bytes) -> None:
    """What is not the protocol ends the connection, so that a new one begins."""
    with pytest.raises(ProtocolError):
        await _SturdyParser(Receiver()).parse(line)


async def test_a_line_without_an_end_is_a_protocol_error() -> None:
    """Nobody can make us keep an endless line."""
    with pytest.raises(ProtocolError):
        await _SturdyParser(Receiver()).parse(b"INFO " + b"x" * 100_000)


@given(st.binary(max_size=60))
async def test_no_header_block_raises(block: bytes) -> None:
    """Headers of any bytes are read as far as they can be."""
    found = await SturdyClient()._process_headers(b"NATS/1.0" + block)

    assert all(key and not key.isspace() for key in found or {})


async def test_the_servers_lines_win() -> None:
    """A name that a publisher used before the server is the server's."""
    block = b"NATS/1.0 503\r\nNats-Stream: EVIL\r\nNats-Stream: FORK\r\n\r\n"

    assert await SturdyClient()._process_headers(block) == {"Status": "503", "Description": "", "Nats-Stream": "FORK"}
