"""What the daemon logs, and how: lines, JSON lines, or records with fields of their own in the journal.

All that is logged while a run is dealt with carries the run's id, its parent, and the trace it belongs to.

Labels, names and errors come from parents, models and servers. The formatters escape what a terminal would obey or
hide: control characters, escape sequences, marks that change the direction of writing. A line of text is one record.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from nexofork_daemon.systemd import Journal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["add_facts", "facts_of", "set_level", "start_logging"]

_LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_run: ContextVar[Mapping[str, str] | None] = ContextVar("run", default=None)


def add_facts(**facts: str) -> None:
    """Add what all that this task logs from here on is about: ``run_id``, ``parent``."""
    _run.set({**(_run.get() or {}), **{name: fact for name, fact in facts.items() if fact}})


def facts_of(record: logging.LogRecord) -> dict[str, str]:
    """Return what a record is about, at the time it is made."""
    facts = dict(_run.get() or {})
    if isinstance(run_id := getattr(record, "run_id", None), str):
        facts["run_id"] = run_id
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        facts["trace_id"] = f"{span.trace_id:032x}"
    return facts


def start_logging(*, level: str, form: str, host: str, journal: bool) -> None:
    """Log from here on, in place of however this process logged before.

    Args:
        level: The least that is logged.
        form: ``text``, ``json``, or ``auto``: the journal's own form where stderr is the journal, else text.
        host: What this daemon calls itself.
        journal: Whether stderr is the journal.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_JsonLines(host))
    elif form == "auto" and journal:
        handler = _JournalHandler(host, Journal())
    else:
        handler.setFormatter(_TextLines(_LINE))
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)
    logging.getLogger("httpx2").setLevel(logging.WARNING)


def set_level(level: str) -> None:
    """Log no less than this from here on."""
    logging.getLogger().setLevel(level.upper())


def _visible(text: str, *, keep: str = "") -> str:
    r"""Return a text with all that is not printable as an escape.

    >>> _visible("a\x1b[31mb\u202ec\n")
    'a\\x1b[31mb\\u202ec\\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text)


class _TextLines(logging.Formatter):
    """One line per record; the lines of a traceback are indented, so that none looks like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join(f"    {_visible(line)}" for line in text.split("\n"))


class _JsonLines(logging.Formatter):
    def __init__(self, host: str) -> None:
        super().__init__()
        self._host = host

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _text(self, record),
            "host": self._host,
            **facts_of(record),
        }
        return json.dumps({name: _visible(text, keep="\n\t") for name, text in line.items()}, ensure_ascii=False)


class _JournalHandler(logging.Handler):
    """Writes records to the journal; one that it does not take is written to stderr, which it reads too."""

    def __init__(self, host: str, journal: Journal) -> None:
        super().__init__()
        self._host = host
        self._journal = journal
        self._lines = logging.StreamHandler(sys.stderr)
        self._lines.setFormatter(_TextLines(_LINE))

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            "MESSAGE": _text(logging.Formatter(), record),
            "PRIORITY": str(next((number for least, number in _PRIORITIES if record.levelno >= least), 7)),
            "SYSLOG_IDENTIFIER": "nexoforkd",
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "HOST": self._host,
            **{name.upper(): fact for name, fact in facts_of(record).items()},
        }
        if not self._journal.write({name: _visible(text, keep="\n\t") for name, text in fields.items()}):
            self._lines.emit(record)

    def close(self) -> None:
        self._journal.close()
        super().close()


def _text(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the message, with where an exception was raised."""
    message = record.getMessage()
    if record.exc_info:
        message += "\n" + formatter.formatException(record.exc_info)
    return message
