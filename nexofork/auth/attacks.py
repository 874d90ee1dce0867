"""What somebody with a role's key would try beyond that role: the list that the check runs and the tests share.

An attack must be harmless even where it succeeds, because it is run against servers in use. So it names runs, streams
and keys that nobody has, or asks for what even an admin would be refused (a delete with a body, a write behind a
sequence that does not exist). What tells is who refuses: the server at the door, or JetStream behind it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.bus.jetstream import API, PLAIN_API, expect_last
from nexofork.wire.budget import budget_run_id
from nexofork.wire.messages import AbortEvent, encode
from nexofork.wire.streams import BLOBS, CONSUMER, LEDGER, PRESENCE, WARM, inbox_stream, log_stream
from nexofork.wire.subjects import blob, delta, events, inbox, ledger, live_reports, presence, reports, warm

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nexofork.auth.book import Role

__all__ = [
    "FORGED",
    "NEVER",
    "Request",
    "bursts",
    "carriers",
    "contents",
    "eavesdropping",
    "heard_by",
    "oversized",
    "requests",
    "targets",
]

FORGED = encode(AbortEvent(note="an attempt of `nexofork auth check`"))
NEVER = 1 << 53
"""A sequence no stream comes to."""
_LARGEST = 1 << 20
"""What every stream takes at most in one message."""
_ABSURD = b"[1]"
"""JSON that no request of the API is."""
_TOO_LARGE = b" " * (_LARGEST + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A message that asks for an answer."""

    what: str
    """What an answer means, behind "could"; what it is, where the answer is only a vehicle."""
    subject: str
    data: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


_WRITERS: dict[str, tuple[Role, ...]] = {
    "abort a run": ("parent",),
    "abort a run through its inbox": ("parent",),
    "claim a run or report on it": ("daemon",),
    "store a parent's blob": ("parent",),
    "store a daemon's blob": ("daemon",),
    "say that a prefix is warm": ("daemon",),
    "change a group's budget": ("daemon",),
    "abort a group's budget": ("parent",),
    "show tokens to watchers": ("daemon",),
}
"""Who may do what is written; everything else that is written, nobody may."""
_READERS: dict[str, tuple[Role, ...]] = {
    "log": ("parent", "daemon", "observer"),
    "inbox": ("parent", "daemon"),
    BLOBS: ("parent", "daemon"),
    WARM: ("daemon",),
    PRESENCE: ("parent", "daemon", "observer"),
    LEDGER: ("parent", "observer"),
}
_LEADER_READERS: dict[str, tuple[Role, ...]] = {"log": ("parent", "daemon"), "inbox": ("daemon",), WARM: ("daemon",)}


def requests(role: Role, *, run_id: str, pool: str, stranger: str) -> Iterator[Request]:
    """Everything a role must be refused.

    Args:
        role: Whose key is used.
        run_id: A run that does not exist.
        pool: Of the run.
        stranger: A public key that is nobody's.
    """
    for what, subject, headers in _all_writes(run_id, pool, stranger):
        if role not in _WRITERS.get(what, ()):
            yield Request(what=what, subject=subject, data=FORGED, headers=headers)
    if role != "admin":  # whose job is to make and change streams
        yield from _takes(role, pool)
        yield from _reads(role, run_id, pool)
        for api in (API, PLAIN_API):
            yield from _administration(api, run_id, pool)
    yield Request(what="list the servers", subject="$SYS.REQ.SERVER.PING")
    yield Request(what="list the connections of the account", subject="$SYS.REQ.ACCOUNT.PING.CONNZ")


def eavesdropping(role: Role, *, pool: str, keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What a role must not hear: what it would hear, and the subscription.

    Args:
        role: Whose key is used.
        pool: Which runs.
        keys: Public keys of others, by who they are.
    """
    yield "hear everything", ">"
    yield "hear all answers", "_INBOX.>"
    for who, key in keys.items():
        yield f"hear the answers to {who}", f"_INBOX.{key}.>"
    yield "hear the server's events", "$SYS.>"
    yield "hear who acknowledges what", "$JS.ACK.>"
    if role != "admin":
        yield "hear what JetStream tells the admin", "$JS.EVENT.ADVISORY.>"
    if role != "daemon":
        yield "hear the requests of parents", f"agent.{pool}.*.events"
        yield "hear answers to runs", f"agent.{pool}.*.inbox.*"
    yield "hear reports that were not stored", f"agent.{pool}.*.reports"


def oversized(identity: str, *, run_id: str, pool: str) -> Iterator[Request]:
    """Messages larger than any stream takes, on what a daemon's key may write.

    Args:
        identity: The public key that is used.
        run_id: A run that does not exist.
        pool: Of the run.
    """
    for place, subject, _ in _written_by_daemons(identity, f"{run_id}-size", pool, ""):
        yield Request(what=f"write more than {_LARGEST} bytes at once to {place}", subject=subject, data=_TOO_LARGE)


def contents(identity: str, *, run_id: str, pool: str, stranger: str) -> Iterator[Request]:
    """Messages whose headers would make a stream do more than keep them, on what a daemon's key may write.

    A stream that takes one keeps it under a name that no run and no daemon has, and forgets it like any other.

    Args:
        identity: The public key that is used.
        run_id: A run that does not exist.
        pool: Of the run.
        stranger: A public key that no user has.
    """
    for what, headers in (
        ("erase what stood before in", {"Nats-Rollup": "sub"}),
        ("choose how long a message stays in", {"Nats-TTL": "60s"}),
        ("write a batch at once to", {"Nats-Batch-Id": run_id, "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}),
    ):
        for place, subject, _ in _written_by_daemons(identity, f"{run_id}-{next(iter(headers))}", pool, stranger):
            yield Request(what=f"{what} {place}", subject=subject, data=FORGED, headers=headers)
    for place, subject, forbidden in _written_by_daemons(identity, f"{run_id}-schedule", pool, stranger):
        headers = {"Nats-Schedule": "@at 2100-01-01T00:00:00Z", "Nats-Schedule-Target": forbidden}
        what = f"have the server write to {forbidden} later, by {place}"
        yield Request(what=what, subject=subject, data=FORGED, headers=headers)


def bursts(identity: str, *, run_id: str, pool: str) -> Iterator[Request]:
    """Writes to send many of at once; their headers keep every stream from taking one.

    Args:
        identity: The public key that is used.
        run_id: A run that does not exist.
        pool: Of the run.
    """
    for place, subject, _ in _written_by_daemons(identity, f"{run_id}-burst", pool, ""):
        yield Request(what=place, subject=subject, data=FORGED, headers=expect_last(NEVER, subject))


def _written_by_daemons(key: str, run_id: str, pool: str, stranger: str) -> tuple[tuple[str, str, str], ...]:
    """Return what a daemon's key may write: what it is, a subject of it, and one of its stream that it may not."""
    budget = budget_run_id(run_id)
    return (
        ("the ledger", ledger(key, run_id), ledger(stranger or key, run_id)),
        ("the warmth of prefixes", warm(run_id), warm(f"{run_id}-other")),
        ("its presence", presence(key, run_id), presence(stranger or key, run_id)),
        ("a group's budget", reports(budget, pool), events(budget, pool)),
        ("a run's reports", reports(run_id, pool), events(run_id, pool)),
        ("its blobs", blob("daemon", run_id, 0), blob("parent", run_id, 0)),
    )


def carriers(identity: str, *, run_id: str, pool: str) -> Iterator[Request]:
    """Everything some role is answered, to carry the answer elsewhere: the server looks at no reply subject.

    Whoever uses one may be refused, which is as good.

    Args:
        identity: The public key that is used.
        run_id: A run that does not exist.
        pool: Of the run.
    """
    for name, stream in _streams(pool).items():
        last = json.dumps({"last_by_subj": _subject_in(name, run_id, pool)}).encode()
        batch = json.dumps({"multi_last": [_subject_in(name, run_id, pool)]}).encode()
        yield Request(what=f"a read of {stream}", subject=f"{API}.DIRECT.GET.{stream}", data=last)
        yield Request(what=f"a batch read of {stream}", subject=f"{API}.DIRECT.GET.{stream}", data=batch)
        yield Request(
            what=f"a read of a subject of {stream}",
            subject=f"{API}.DIRECT.GET.{stream}.{_subject_in(name, run_id, pool)}",
        )
        yield Request(what=f"a leader's read of {stream}", subject=f"{API}.STREAM.MSG.GET.{stream}", data=last)
        yield Request(what=f"the state of {stream}", subject=f"{API}.STREAM.INFO.{stream}")
    yield Request(what="the state of the queue", subject=f"{API}.CONSUMER.INFO.{log_stream(pool)}.{CONSUMER}")
    yield Request(
        what="a pull that cannot be met",
        subject=f"{API}.CONSUMER.MSG.NEXT.{log_stream(pool)}.{CONSUMER}",
        data=b'{"batch":"none"}',
    )
    yield Request(what="an acknowledgement of nothing", subject=_acknowledged(pool), data=b"+WPI")
    for what, subject, headers in _writes(run_id, pool, identity):
        if not subject.startswith("live."):
            yield Request(what=f"the refusal to {what}", subject=subject, data=FORGED, headers=headers)


def targets(role: Role, *, run_id: str, pool: str, stranger: str) -> dict[str, str]:
    """Where a carried answer would do harm, with the stream that would keep it; a role's own subjects are left out."""
    found = {}
    for what, subject, _ in _all_writes(run_id, pool, stranger):
        if role not in _WRITERS.get(what, ()):
            found[subject] = _kept_in(subject, pool)
    return found


def heard_by(role: Role, *, run_id: str, pool: str) -> tuple[str, ...]:
    """Which subjects of a run somebody of a role listens on, and would believe or show."""
    match role:
        case "daemon":
            return events(run_id, pool), inbox(run_id, "abort", pool)
        case "parent":
            return live_reports(run_id, pool), delta(run_id, pool)
        case "observer":
            return live_reports(run_id, pool), _live_events(run_id, pool), delta(run_id, pool)
        case "admin":
            return ()


def _writes(run_id: str, pool: str, key: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Every subject somebody writes: what that means, the subject, and headers with which no stream takes it."""
    named = (
        ("abort a run", events(run_id, pool)),
        ("abort a run through its inbox", inbox(run_id, "abort", pool)),
        ("claim a run or report on it", reports(run_id, pool)),
        ("store a parent's blob", blob("parent", run_id, 0)),
        ("store a daemon's blob", blob("daemon", run_id, 0)),
        ("say that a prefix is warm", warm(run_id)),
        ("speak for another daemon", presence(key, run_id)),
        ("book calls for another daemon", ledger(key, run_id)),
        ("show watchers a report that was not stored", live_reports(run_id, pool)),
        ("show watchers an event that was not stored", _live_events(run_id, pool)),
        ("show tokens to watchers", delta(run_id, pool)),
    )
    for what, subject in named:
        yield what, subject, expect_last(NEVER, subject)


def _all_writes(run_id: str, pool: str, key: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Return the same with budgets, which are kept as runs and so are answered like runs."""
    yield from _writes(run_id, pool, key)
    for what, subject in (
        ("change a group's budget", reports(budget_run_id(run_id), pool)),
        ("abort a group's budget", events(budget_run_id(run_id), pool)),
    ):
        yield what, subject, expect_last(NEVER, subject)


def _takes(role: Role, pool: str) -> Iterator[Request]:
    log = log_stream(pool)
    if role == "daemon":
        return
    for api in (API, PLAIN_API):
        yield Request(
            what="take requests from the daemons",
            subject=f"{api}.CONSUMER.MSG.NEXT.{log}.{CONSUMER}",
            data=b'{"batch":"none"}',
        )
    yield Request(what="acknowledge a request", subject=_acknowledged(pool), data=b"+WPI")


def _reads(role: Role, run_id: str, pool: str) -> Iterator[Request]:
    for api in (API, PLAIN_API):
        for name, stream in _streams(pool).items():
            query = json.dumps({"last_by_subj": _subject_in(name, run_id, pool)}).encode()
            for how, readers in (("DIRECT.GET", _READERS), ("STREAM.MSG.GET", _LEADER_READERS)):
                if role not in readers.get(name, ()):
                    yield Request(what=f"read {stream}", subject=f"{api}.{how}.{stream}", data=query)


def _administration(api: str, run_id: str, pool: str) -> Iterator[Request]:
    """Calls that change or list streams and consumers, each malformed so that it does nothing."""
    log, not_empty = log_stream(pool), b'{"none":1}'
    other = json.dumps({"name": f"{run_id}-other"}).encode()
    consumer = json.dumps(
        {"stream_name": f"{run_id}-other", "config": {"deliver_subject": events(run_id, pool)}}
    ).encode()
    for what, call, data in (
        ("purge the log", f"STREAM.PURGE.{log}", _ABSURD),
        ("delete the log", f"STREAM.DELETE.{log}", not_empty),
        ("delete a message of the log", f"STREAM.MSG.DELETE.{log}", _ABSURD),
        ("change the log's settings", f"STREAM.UPDATE.{log}", other),
        ("create a stream", f"STREAM.CREATE.{run_id}", other),
        ("restore a stream", f"STREAM.RESTORE.{run_id}", _ABSURD),
        ("copy the log", f"STREAM.SNAPSHOT.{log}", _ABSURD),
        ("move the log's leader", f"STREAM.LEADER.STEPDOWN.{log}", _ABSURD),
        ("delete the inbox", f"STREAM.DELETE.{inbox_stream(pool)}", not_empty),
        ("delete the blobs", f"STREAM.DELETE.{BLOBS}", not_empty),
        ("create a consumer that writes aborts", f"CONSUMER.CREATE.{log}.{run_id}", consumer),
        ("create a nameless consumer that writes aborts", f"CONSUMER.CREATE.{log}", consumer),
        ("create a durable consumer that writes aborts", f"CONSUMER.DURABLE.CREATE.{log}.{run_id}", consumer),
        ("delete the queue", f"CONSUMER.DELETE.{log}.{CONSUMER}", not_empty),
        ("pause the queue", f"CONSUMER.PAUSE.{log}.{CONSUMER}", _ABSURD),
        ("list the streams", "STREAM.NAMES", _ABSURD),
        ("list the consumers", f"CONSUMER.NAMES.{log}", _ABSURD),
        ("see the account's limits", "INFO", b""),
    ):
        yield Request(what=what, subject=f"{api}.{call}", data=data)


def _streams(pool: str) -> dict[str, str]:
    named = {"log": log_stream(pool), "inbox": inbox_stream(pool)}
    return named | {name: name for name in (BLOBS, WARM, PRESENCE, LEDGER)}


def _subject_in(name: str, run_id: str, pool: str) -> str:
    """Return a subject of a stream on which nothing is stored."""
    match name:
        case "log":
            return reports(run_id, pool)
        case "inbox":
            return inbox(run_id, "none", pool)
        case _:
            return {BLOBS: blob("parent", run_id, 0), WARM: warm(run_id)}.get(name, presence(run_id, "none"))


def _kept_in(subject: str, pool: str) -> str:
    if subject.startswith("agent."):
        return inbox_stream(pool) if ".inbox." in subject else log_stream(pool)
    return {"blob": BLOBS, "warm": WARM, "presence": PRESENCE, "ledger": LEDGER}.get(subject.partition(".")[0], "")


def _acknowledged(pool: str) -> str:
    return f"$JS.ACK.{log_stream(pool)}.{CONSUMER}.1.{NEVER}.{NEVER}.1.0"


def _live_events(run_id: str, pool: str) -> str:
    return f"live.{pool}.{run_id}.events"
