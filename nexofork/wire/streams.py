"""The streams and the consumer, as settings the server is asked for and checked against.

Why these: one limits stream keeps a run's two subjects in one order, write-once streams make a name mean one content
for ever, and nothing may be deleted, purged or rolled up by anybody but time.

Every stream has a limit in bytes, and all limits together fit the account. So a key that fills each stream it may write
to takes no room from the others, and an abort always fits: the inbox is written by parents alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.wire.subjects import DEFAULT_POOL, check_token

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BLOBS",
    "CONSUMER",
    "DOMAIN",
    "LEDGER",
    "PRESENCE",
    "WARM",
    "consumer_settings",
    "fill_of",
    "inbox_stream",
    "log_stream",
    "stream_of",
    "stream_settings",
]

DOMAIN = "fork"
"""The JetStream domain every role talks to, so client code is the same with and without accounts."""
CONSUMER = "pickup"
BLOBS = "FORK_BLOBS"
WARM = "FORK_WARM"
PRESENCE = "FORK_PRESENCE"
LEDGER = "FORK_LEDGER"

_HOUR_NS = 3600 * 10**9
_DAY_NS = 24 * _HOUR_NS


def log_stream(pool: str = DEFAULT_POOL) -> str:
    """Return the name of a pool's log stream.

    >>> log_stream(), log_stream("gpu")
    ('FORK', 'FORK_POOL_gpu')
    """
    return "FORK" if pool == DEFAULT_POOL else f"FORK_POOL_{check_token(pool, 'pool')}"


def inbox_stream(pool: str = DEFAULT_POOL) -> str:
    """Return the name of a pool's inbox stream.

    >>> inbox_stream()
    'FORK_INBOX'
    """
    return f"{log_stream(pool)}_INBOX"


def stream_of(subject: str) -> str | None:
    """Return the name of the stream that keeps a subject; None where none does.

    >>> stream_of("agent.gpu.r1.events"), stream_of("agent.fork.r1.inbox.7"), stream_of("blob.parent.d0.0")
    ('FORK_POOL_gpu', 'FORK_INBOX', 'FORK_BLOBS')
    """
    match subject.split("."):
        case ["agent", pool, _, "events" | "reports"]:
            return log_stream(pool)
        case ["agent", pool, _, "inbox", _]:
            return inbox_stream(pool)
        case [("blob" | "warm" | "presence" | "ledger") as kind, *_]:
            return {"blob": BLOBS, "warm": WARM, "presence": PRESENCE, "ledger": LEDGER}[kind]
        case _:
            return None


def stream_settings(pool: str = DEFAULT_POOL, *, replicas: int = 1, max_bytes: int = 640 << 20) -> list[dict[str, Any]]:
    """Return the settings of every stream, in the server's own JSON form.

    Args:
        pool: Whose log and inbox.
        replicas: 1 on one server, 3 on a cluster.
        max_bytes: The log's limit; the others get theirs in proportion. New requests are refused at 80% of it, so that
            aborts and finals still fit. With the default, all streams at three replicas fit the accounts' limit of
            8 GB.
    """
    check_token(pool, "pool")
    streams = [
        _log(pool, max_bytes),
        _inbox(pool, max_bytes),
        _blobs(max_bytes),
        _warm(max_bytes),
        _presence(max_bytes),
        _ledger(max_bytes),
    ]
    return [{**_COMMON, "num_replicas": replicas, **settings} for settings in streams]


def fill_of(info: Mapping[str, Any]) -> float:
    """Return how full a stream is, from 0 to 1, by bytes or by messages, from what the server says of it.

    >>> fill_of({"config": {"max_bytes": 100, "max_msgs": 4}, "state": {"bytes": 50, "messages": 3}})
    0.75
    """
    config, state = info["config"], info["state"]
    used = ((state["bytes"], config.get("max_bytes", -1)), (state["messages"], config.get("max_msgs", -1)))
    return max((count / limit for count, limit in used if limit > 0), default=0.0)


def consumer_settings(pool: str = DEFAULT_POOL, *, lease_s: float = 15.0) -> dict[str, Any]:
    """Return the settings of the shared pull consumer that hands out requests.

    Args:
        pool: Whose requests.
        lease_s: How long a request may stay unrenewed before another daemon gets it.
    """
    return {
        "durable_name": CONSUMER,
        "name": CONSUMER,
        "filter_subject": f"agent.{check_token(pool, 'pool')}.*.events",
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "replay_policy": "instant",
        "ack_wait": int(lease_s * 1e9),
        "max_deliver": -1,
        "max_ack_pending": 20_000,
        "max_waiting": 2_048,
        "max_batch": 256,
        "max_expires": 60 * 10**9,
    }


_COMMON = {
    "retention": "limits",
    "storage": "file",
    "allow_direct": True,
    "deny_delete": True,
    "deny_purge": True,
    "allow_rollup_hdrs": False,
    "duplicate_window": 100 * 10**6,
    "max_msg_size": 1 << 20,
}
_WRITE_ONCE = {"max_msgs_per_subject": 1, "discard": "new", "discard_new_per_subject": True}
_LEAST_BYTES = 4 << 20
"""A stream that holds a few of the largest messages."""


def _limits(max_bytes: int, mean_bytes: int = 512) -> dict[str, int]:
    """Limit the number of messages too: the server keeps about 330 bytes of memory for each subject.

    Args:
        max_bytes: What the stream may hold.
        mean_bytes: Less than what stored messages have on average, with subject and headers.
    """
    return {"max_bytes": max_bytes, "max_msgs": max_bytes // mean_bytes}


def _log(pool: str, max_bytes: int) -> dict[str, Any]:
    return {
        "name": log_stream(pool),
        "subjects": [f"agent.{pool}.*.events", f"agent.{pool}.*.reports"],
        "max_age": 72 * _HOUR_NS,
        **_limits(max_bytes),
        "discard": "new",
        "max_msgs_per_subject": 20_000,
        "discard_new_per_subject": True,
        "republish": {
            "src": f"agent.{pool}.*.*",
            "dest": f"live.{pool}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}",
        },
    }


def _inbox(pool: str, max_bytes: int) -> dict[str, Any]:
    return {
        "name": inbox_stream(pool),
        "subjects": [f"agent.{pool}.*.inbox.*"],
        "max_age": 72 * _HOUR_NS,
        "max_bytes": max_bytes // 4,
        **_WRITE_ONCE,
    }


def _blobs(max_bytes: int) -> dict[str, Any]:
    return {
        "name": BLOBS,
        "subjects": ["blob.parent.*.*", "blob.daemon.*.*"],
        "max_age": 72 * _HOUR_NS,
        **_limits(2 * max_bytes, 1024),
        **_WRITE_ONCE,
    }


def _warm(max_bytes: int) -> dict[str, Any]:
    return {
        "name": WARM,
        "subjects": ["warm.*"],
        "max_age": 2 * _HOUR_NS,
        **_limits(max(max_bytes // 20, _LEAST_BYTES)),
        "max_msgs_per_subject": 1,
        "discard": "old",
        "republish": {"src": "warm.*", "dest": "live.warm.{{wildcard(1)}}"},
    }


def _presence(max_bytes: int) -> dict[str, Any]:
    return {
        "name": PRESENCE,
        "subjects": ["presence.*.*"],
        "max_age": 30 * 10**9,
        **_limits(max(max_bytes // 40, _LEAST_BYTES)),
        "max_msgs_per_subject": 1,
        "discard": "old",
        "republish": {"src": "presence.*.*", "dest": "live.presence.{{wildcard(1)}}.{{wildcard(2)}}"},
    }


def _ledger(max_bytes: int) -> dict[str, Any]:
    # A full ledger refuses calls, and the daemons say so: discarding old ones would lose bills without a word.
    return {
        "name": LEDGER,
        "subjects": ["ledger.*.*"],
        "max_age": 90 * _DAY_NS,
        **_limits(max(max_bytes * 4 // 5, _LEAST_BYTES)),
        "discard": "new",
    }
