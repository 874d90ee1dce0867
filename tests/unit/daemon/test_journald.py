"""Records reach the journal whole: fields, values with line ends, and records larger than a datagram."""

from __future__ import annotations

import array
import json
import logging
import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from nexofork_daemon.journald import Journal, encode
from nexofork_daemon.logs import _JournalHandler, _JsonLines, add_facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def decode(record: bytes) -> dict[str, str]:
    """Read a record as the journal does."""
    fields, at = {}, 0
    while at < len(record):
        end = record.index(b"\n", at)
        name, is_short, value = record[at:end].partition(b"=")
        if is_short:
            fields[name.decode()], at = value.decode(), end + 1
            continue
        size = int.from_bytes(record[end + 1 : end + 9], "little")
        fields[name.decode()] = record[end + 9 : end + 9 + size].decode()
        assert record[end + 9 + size : end + 10 + size] == b"\n"
        at = end + 10 + size
    return fields


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    """Where the journal listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.settimeout(5)
        yield listening


@given(st.dictionaries(st.sampled_from(["MESSAGE", "RUN_ID", "A_1"]), st.text("a=\n\0ä", max_size=20)))
def test_what_is_encoded_is_read_as_it_was(fields: dict[str, str]) -> None:
    """Also with line ends, equal signs and NUL in a value."""
    assert decode(encode(fields)) == fields


def test_a_record_is_one_datagram(journal: socket.socket) -> None:
    """The journal gets what was written."""
    with closing(Journal(journal.getsockname())) as ours:
        assert ours.write({"MESSAGE": "two\nlines", "RUN_ID": "r1"})
    assert decode(journal.recv(1 << 16)) == {"MESSAGE": "two\nlines", "RUN_ID": "r1"}


def test_a_large_record_goes_as_a_sealed_file(journal: socket.socket) -> None:
    """More than a datagram holds; nobody can change it afterwards."""
    text = "x" * (4 << 20)
    with closing(Journal(journal.getsockname())) as ours:
        assert ours.write({"MESSAGE": text})

    data, rights, _, _ = journal.recvmsg(10, socket.CMSG_SPACE(4))
    assert data == b""
    (file,) = array.array("i", rights[0][2])
    try:
        assert decode(os.pread(file, 8 << 20, 0)) == {"MESSAGE": text}
        with pytest.raises(PermissionError):
            os.write(file, b"x")
    finally:
        os.close(file)


def test_a_journal_that_is_gone_is_no_error(tmp_path: Path) -> None:
    """The caller learns that the record was not taken."""
    with closing(Journal(str(tmp_path / "nobody"))) as ours:
        assert not ours.write({"MESSAGE": "x"})


def test_a_log_line_says_what_it_is_about(journal: socket.socket) -> None:
    """Run, parent, host and trace are fields of their own, in the journal and in JSON."""
    handler = _JournalHandler("build-7", Journal(journal.getsockname()))
    record = logging.LogRecord("nexofork_daemon.x", logging.WARNING, "x.py", 7, "said %s", ("a\nb",), None)
    add_facts(run_id="r1", parent="")
    add_facts(parent="p1")
    context = trace.SpanContext(trace_id=0xAB, span_id=1, is_remote=False)
    with trace.use_span(trace.NonRecordingSpan(context)):
        handler.emit(record)
        line = json.loads(_JsonLines("build-7").format(record))
    handler.close()

    about = {"RUN_ID": "r1", "PARENT": "p1", "HOST": "build-7", "TRACE_ID": f"{0xAB:032x}"}
    fields = decode(journal.recv(1 << 16))
    assert fields.items() >= {"MESSAGE": "said a\nb", "PRIORITY": "4", "CODE_LINE": "7", **about}.items()
    said = {"message": "said a\nb", "level": "warning"}
    assert line.items() >= {**said, **{name.lower(): value for name, value in about.items()}}.items()
