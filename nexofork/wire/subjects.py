"""Every subject, who publishes on it, and how it is spelt.

Abort is one-way because of these names: a parent may publish ``.events`` and ``.inbox``, a daemon ``.reports``, and
the server enforces it (``daemon/nats``). The default pool is ``fork``.
"""

from __future__ import annotations

import re

from nexofork.errors import BadMessage

__all__ = [
    "DEFAULT_POOL",
    "RESERVED_RUN_IDS",
    "blob",
    "check_run_id",
    "check_token",
    "delta",
    "events",
    "inbox",
    "inbox_filter",
    "ledger",
    "live_pool",
    "live_presence",
    "live_reports",
    "live_warm",
    "parent_alive",
    "presence",
    "reports",
    "run_filter",
    "run_of",
    "warm",
]

DEFAULT_POOL = "fork"
RESERVED_RUN_IDS = "budget-"
"""What begins like this is no run: the budgets of groups are kept there."""
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


def check_token(value: str, what: str) -> str:
    """Return the value if it can be one token of a subject.

    Raises:
        BadMessage: It holds anything but letters, digits, ``_`` and ``-``, or is too long.
    """
    if not _TOKEN.fullmatch(value):
        raise BadMessage(
            f"{what} {value[:140]!r} cannot be used in a subject", fix="Use 1 to 128 letters, digits, '_' or '-'."
        )
    return value


def check_run_id(value: str) -> str:
    """Return the value if a run may have it as its id.

    Raises:
        BadMessage: It cannot be part of a subject, or belongs to a group's budget.
    """
    if value.startswith(RESERVED_RUN_IDS):
        raise BadMessage(
            f"run id {value[:140]!r} begins with {RESERVED_RUN_IDS!r}, where budgets are kept", fix="Use another id."
        )
    return check_token(value, "run id")


def events(run_id: str, pool: str = DEFAULT_POOL) -> str:
    """Parent to daemon: requested, abort.

    >>> events("r1")
    'agent.fork.r1.events'
    """
    return f"agent.{check_token(pool, 'pool')}.{check_token(run_id, 'run id')}.events"


def reports(run_id: str, pool: str = DEFAULT_POOL) -> str:
    """Daemon to parent: claimed, turns, tools, final.

    >>> reports("r1")
    'agent.fork.r1.reports'
    """
    return f"agent.{check_token(pool, 'pool')}.{check_token(run_id, 'run id')}.reports"


def run_filter(run_id: str, pool: str = DEFAULT_POOL) -> str:
    """Both subjects of a run's log: the one string every compare-and-set uses.

    On a replicated stream a writer only sees in-flight writes that name the identical filter.

    >>> run_filter("r1")
    'agent.fork.r1.*'
    """
    return f"agent.{check_token(pool, 'pool')}.{check_token(run_id, 'run id')}.*"


def inbox(run_id: str, ask_id: str, pool: str = DEFAULT_POOL) -> str:
    """Parent to daemon, write-once: an answer, a message, or ``abort`` when the log takes no more.

    >>> inbox("r1", "q7")
    'agent.fork.r1.inbox.q7'
    """
    return f"agent.{check_token(pool, 'pool')}.{check_token(run_id, 'run id')}.inbox.{check_token(ask_id, 'ask id')}"


def inbox_filter(run_id: str, pool: str = DEFAULT_POOL) -> str:
    """Everything in a run's inbox, or in all inboxes of a pool with ``*``.

    >>> inbox_filter("r1"), inbox_filter("*")
    ('agent.fork.r1.inbox.*', 'agent.fork.*.inbox.*')
    """
    run = run_id if run_id == "*" else check_token(run_id, "run id")
    return f"agent.{check_token(pool, 'pool')}.{run}.inbox.*"


def parent_alive(parent_id: str, pool: str = DEFAULT_POOL) -> str:
    """Parent to daemons, over and over: still here.

    The first one is stored, the stream refuses the rest (write-once) and core NATS delivers them all the same.

    >>> parent_alive("p1")
    'agent.fork.p1.inbox.alive'
    """
    return inbox(parent_id, "alive", pool)


def live_reports(run_id: str, pool: str = DEFAULT_POOL) -> str:
    """Server to watchers: a report, after it was stored.

    >>> live_reports("r1")
    'live.fork.r1.reports'
    """
    return f"live.{check_token(pool, 'pool')}.{check_token(run_id, 'run id')}.reports"


def live_pool(pool: str = DEFAULT_POOL) -> tuple[str, str]:
    """Server to watchers of a whole pool: every report, and every event where the role may see them.

    >>> live_pool()
    ('live.fork.*.reports', 'live.fork.*.events')
    """
    name = check_token(pool, "pool")
    return f"live.{name}.*.reports", f"live.{name}.*.events"


def delta(run_id: str, pool: str = DEFAULT_POOL) -> str:
    """Daemon to whoever watches now: token deltas, over core NATS.

    >>> delta("r1")
    'delta.fork.r1'
    """
    return f"delta.{check_token(pool, 'pool')}.{check_token(run_id, 'run id')}"


def blob(owner: str, name: str, chunk: int) -> str:
    """Parent or daemon, write-once: a piece of a blob.

    >>> blob("parent", "ab12", 0)
    'blob.parent.ab12.0'
    """
    return f"blob.{check_token(owner, 'blob owner')}.{check_token(name, 'blob name')}.{chunk}"


def presence(nkey: str, instance: str) -> str:
    """Daemon: here, with so many slots.

    >>> presence("local", "d1")
    'presence.local.d1'
    """
    return f"presence.{check_token(nkey, 'nkey')}.{check_token(instance, 'instance')}"


def ledger(nkey: str, instance: str) -> str:
    """Daemon: what its runs' model calls were billed for.

    >>> ledger("local", "d1")
    'ledger.local.d1'
    """
    return f"ledger.{check_token(nkey, 'nkey')}.{check_token(instance, 'instance')}"


def live_presence() -> str:
    """Server to watchers: presence, after it was stored.

    >>> live_presence()
    'live.presence.*.*'
    """
    return "live.presence.*.*"


def warm(key: str) -> str:
    """Daemon, compare-and-set: who writes a prefix, and until when it is warm.

    >>> warm("ab12")
    'warm.ab12'
    """
    return f"warm.{check_token(key, 'prefix key')}"


def live_warm() -> str:
    """Server to daemons: what became of prefixes, after it was stored.

    >>> live_warm()
    'live.warm.*'
    """
    return "live.warm.*"


def run_of(subject: str) -> str:
    """Return the run id in a subject of a run.

    >>> run_of("agent.fork.r1.events")
    'r1'
    """
    return subject.split(".")[2]
