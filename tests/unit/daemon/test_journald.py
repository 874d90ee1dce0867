"""Records reach the journal whole: fields, values with line ends, and records larger than a datagram."""

from __future__ import annotations

import array
import contextvars
import json
import logging
import os
import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from nexofork_daemon.logs import _JournalHandler, _JsonLines, add_facts, start_logging
from nexofork_daemon.systemd import Journal, encode_record

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
    assert decode(encode_record(fields)) == fields


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


HOSTILE = "red\x1b[31m \u202egnorw \x9b2J \x00 \u2028\r\n2026-01-01 00:00:00,000 INFO nexofork_daemon: forged"


def hostile_record(*, raised: bool) -> logging.LogRecord:
    """A record whose argument, and exception, tries to look like another record."""
    exc_info: Any = None
    if raised:
        try:
            raise RuntimeError(HOSTILE)
        except RuntimeError:
            exc_info = sys.exc_info()
    return logging.LogRecord("nexofork_daemon.x", logging.INFO, "x.py", 7, "Run %r for %s", ("r1", HOSTILE), exc_info)


def is_safe(text: str) -> bool:
    """Whether a terminal shows the text as it is."""
    return all(char.isprintable() or char in "\n\t" for char in text)


@pytest.mark.parametrize("raised", [False, True])
def test_a_label_cannot_forge_a_line_of_the_log(raised: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """One record is one line; what follows it is indented, and nothing in it moves the cursor or turns the text."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        start_logging(level="info", form="text", host="h", journal=False)
        root.handle(hostile_record(raised=raised))
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    written = capsys.readouterr().err

    first, *others = written.removesuffix("\n").split("\n")
    assert is_safe(written)
    assert first.endswith("forged")
    assert all(escape in first for escape in (r"\x1b[31m", r"\u202e", r"\r\n2026"))
    assert bool(others) is raised
    assert all(line.startswith("    ") for line in others)


def test_a_label_is_escaped_in_json_and_in_the_journal(journal: socket.socket) -> None:
    """Every field is safe to print once it is decoded, ids and parents included."""
    handler = _JournalHandler("h\x1b[0m", Journal(journal.getsockname()))
    record = hostile_record(raised=True)

    def emit() -> str:
        add_facts(run_id="r\x1b[1m", parent=HOSTILE)
        handler.emit(record)
        return _JsonLines("h\x1b[0m").format(record)

    line = contextvars.copy_context().run(emit)
    handler.close()

    assert "\n" not in line
    assert all(is_safe(value) for value in json.loads(line).values())
    assert all(is_safe(value) for value in decode(journal.recv(1 << 16)).values())
