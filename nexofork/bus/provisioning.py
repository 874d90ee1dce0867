"""Make sure that the streams and the pickup consumer are there, or say who can make them.

Safe to run at every start of everything, at the same time: what is missing is made, and what is there is changed only
where somebody says so. Settings that the design needs and that are otherwise are an error that names each difference;
limits that an admin chose (size, age, replicas) are left alone unless they are given. Limits that a stream lacks are
named, and set by a repair. With accounts no role but admin may create anything, because a consumer's deliver subject
could forge an abort: then this only checks.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.bus.differences import changes as changes_to
from nexofork.bus.differences import (
    consumer_needs,
    differences,
    forgets_early,
    missing_limits,
    stream_needs,
    without_limits,
)
from nexofork.bus.failures import (
    CannotChange,
    JetStreamRefused,
    NoResponders,
    NoSuchPool,
    NotPermitted,
    StoreFull,
    StreamsDiffer,
    provision_command,
)
from nexofork.bus.jetstream import Tries, call, retry
from nexofork.errors import BusError
from nexofork.wire.streams import BLOBS, CONSUMER, consumer_settings, inbox_stream, log_stream, stream_settings
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.bus.connection import Bus

__all__ = ["Found", "Provisioned", "check_pool", "look", "make_deletable", "provision"]

log = logging.getLogger(__name__)

_NO_STREAM = 10059
_NO_CONSUMER = 10014
_NAME_TAKEN = 10058
_NO_PEERS = 10005
_NOT_CLUSTERED = 10074
_CANNOT_CHANGE = (10012, 10052)  # of a consumer, of a stream
_REPLICAS = 3
_EMPTY = {"bytes": 0, "messages": 0}
_PEERS_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """What is in force now."""

    lease_s: float
    """How long a request may stay unrenewed; another than asked for where this role may not change it."""
    notes: tuple[str, ...] = ()
    """What an admin may want so, and should know of."""
    unlimited: tuple[str, ...] = ()
    """Each stream that lacks a limit, and which."""
    oversized: tuple[str, ...] = ()
    """Each stream that holds more than its limit, or was given a higher one than usual for that."""


async def provision(
    bus: Bus,
    *,
    pool: str = DEFAULT_POOL,
    lease_s: float | None = 15.0,
    replicas: int | None = None,
    max_bytes: int | None = None,
    repair: bool = False,
) -> Provisioned:
    """Create what is missing, and change what is given or, where `repair` says so, what the design needs otherwise.

    Args:
        bus: The connection.
        pool: Whose log, inbox and consumer.
        lease_s: How long a request may stay unrenewed; None leaves an existing consumer as it is.
        replicas: None means 3 on a cluster that has them, else 1; an existing stream keeps its number.
        max_bytes: The log's limit; None means 640 MiB for a new stream and leaves an existing one. Streams that pools
            share are given more room by it, never less.
        repair: Whether existing streams get the settings that the design needs.

    Raises:
        StreamsDiffer: Something is otherwise than the design needs, and is not to be repaired.
        BusError: Something is missing or wrong and this role may not change it; the message names the admin command.
    """
    work = _Provisioner(bus, pool=pool, replicas=replicas, max_bytes=max_bytes, repair=repair)
    # What lacks a limit gets its share of the log that is there.
    log_bytes = max_bytes or await work.log_bytes()
    for wanted in stream_settings(pool, **({} if log_bytes is None else {"max_bytes": log_bytes})):
        await work.stream(wanted)
    lease = await work.consumer(pool, lease_s)
    if work.differ:
        raise StreamsDiffer(tuple(work.differ), pool=pool)
    return Provisioned(
        lease_s=lease,
        notes=tuple(work.notes),
        unlimited=tuple(work.unlimited),
        oversized=tuple(work.oversized),
    )


async def make_deletable(
    bus: Bus, *, pool: str = DEFAULT_POOL, replicas: int | None = None, max_bytes: int | None = None
) -> None:
    """Create a pool's log, inbox and blobs so that an admin can delete single messages; the rest is `provision`'s.

    Raises:
        CannotChange: A stream exists that does not allow it; JetStream never takes that back.
        BusError: This role may not create streams, or NATS did not answer.
    """
    work = _Provisioner(bus, pool=pool, replicas=replicas, max_bytes=max_bytes, repair=False)
    for wanted in stream_settings(pool, **({} if max_bytes is None else {"max_bytes": max_bytes})):
        if wanted["name"] in (log_stream(pool), inbox_stream(pool), BLOBS):
            await work.deletable(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a pool has on the server."""

    streams: Mapping[str, Mapping[str, Any]]
    """What the server says of each stream that is there: ``config``, ``state``, ``cluster``."""
    missing: tuple[str, ...]
    differ: tuple[str, ...]
    """Each setting that is otherwise than the design needs."""
    notes: tuple[str, ...] = ()
    """What an admin may want so, and should know of."""
    unlimited: tuple[str, ...] = ()
    """Each stream that lacks a limit, and which: one key can fill the store by it."""


async def look(bus: Bus, *, pool: str = DEFAULT_POOL) -> Found:
    """Return what is there, what is missing and what is otherwise; nothing is made or changed.

    Raises:
        BusError: The server did not say.
    """
    work = _Provisioner(bus, pool=pool, replicas=None, max_bytes=None, repair=False)
    streams, missing, differ, notes, unlimited = {}, list[str](), list[str](), list[str](), list[str]()
    for wanted in stream_settings(pool):
        name = wanted["name"]
        info = await work.info(f"STREAM.INFO.{name}", _NO_STREAM)
        if info is None:
            missing.append(f"stream {name}")
            continue
        streams[name] = info
        differ += differences(f"stream {name}", info["config"], stream_needs(wanted))
        notes.append(forgets_early(info["config"], wanted))
        unlimited.append(without_limits(info, wanted))
    log_name = log_stream(pool)
    info = await work.info(f"CONSUMER.INFO.{log_name}.{CONSUMER}", _NO_CONSUMER) if log_name in streams else None
    if info is None:
        missing.append(f"consumer {CONSUMER} of {log_name}")
    else:
        wanted = consumer_settings(pool)
        differ += differences(f"consumer {CONSUMER} of {log_name}", info["config"], consumer_needs(wanted))
    return Found(
        streams=streams,
        missing=tuple(missing),
        differ=tuple(differ),
        notes=tuple(filter(None, notes)),
        unlimited=tuple(filter(None, unlimited)),
    )


async def check_pool(bus: Bus, *, pool: str = DEFAULT_POOL) -> None:
    """Make sure that a pool is there and as it should be; nothing is made or changed.

    Raises:
        NoSuchPool: Nobody has made it.
        StreamsDiffer: Something is otherwise than the design needs.
        BusError: The server did not say.
    """
    found = await look(bus, pool=pool)
    if log_stream(pool) not in found.streams:
        raise NoSuchPool(pool)
    if found.differ:
        raise StreamsDiffer(found.differ, pool=pool)


class _Provisioner:
    def __init__(self, bus: Bus, *, pool: str, replicas: int | None, max_bytes: int | None, repair: bool) -> None:
        self._bus = bus
        self._pool = pool
        self._repair = repair
        self.differ: list[str] = []
        """What was found otherwise than the design needs, and left."""
        self.notes: list[str] = []
        self.unlimited: list[str] = []
        self.oversized: list[str] = []
        self._given = {"num_replicas": replicas, "max_bytes": max_bytes, "max_msgs": max_bytes}
        self._replicas = replicas or _REPLICAS
        self._fixed_replicas = replicas is not None

    async def log_bytes(self) -> int | None:
        """Return the limit of the pool's log; None where it has none yet."""
        info = await self.info(f"STREAM.INFO.{log_stream(self._pool)}", _NO_STREAM)
        limit = -1 if info is None else int(info["config"].get("max_bytes", -1))
        return limit if limit > 0 else None

    async def stream(self, wanted: dict[str, Any]) -> None:
        """Bring one stream in order, as far as that is asked for."""
        name = wanted["name"]
        info = await self.info(f"STREAM.INFO.{name}", _NO_STREAM)
        if info is None:
            info = await self._create(wanted)
        current: Mapping[str, Any] = info["config"]
        changes = self._asked(current, wanted)
        if self._repair:
            changes |= changes_to(current, stream_needs(wanted))
            changes = missing_limits(info, wanted) | changes
        else:
            self.differ += differences(f"stream {name}", current, stream_needs(wanted))
            if lacks := without_limits({**info, "config": {**current, **changes}}, wanted):
                self.unlimited.append(lacks)
        if note := forgets_early(current, wanted):
            self.notes.append(note)
        if changes:
            await self._change(info, wanted, changes)

    async def deletable(self, wanted: dict[str, Any]) -> None:
        """Create a stream that allows single messages to be deleted, unless it is there and does."""
        name = wanted["name"]
        info = await self.info(f"STREAM.INFO.{name}", _NO_STREAM) or await self._create(
            {**wanted, "deny_delete": False}
        )
        if info["config"].get("deny_delete"):
            changed = {**info["config"], "deny_delete": False}
            await self._do(f"STREAM.UPDATE.{name}", changed, f"stream {name} protects its messages from deletion")

    async def _change(self, info: Mapping[str, Any], wanted: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
        name, current = wanted["name"], info["config"]
        lacks = f"stream {name} has other {_names(changes)}"
        try:
            done = await self._do(f"STREAM.UPDATE.{name}", {**current, **changes}, lacks)
        except BusError as exc:
            # A stream that worked without a limit still does: a server with little room must start all the same.
            if not isinstance(exc.__cause__, StoreFull) or changes != missing_limits(info, wanted):
                raise
            self.unlimited.append(
                f"{without_limits(info, wanted)}, and the server has no room for {changes['max_bytes']} bytes"
            )
        else:
            self._compare(info["state"], done["config"], wanted)

    def _compare(self, state: Mapping[str, Any], config: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Take note of a stream that holds more than its limit, or that got a higher one because of what it holds."""
        holds, limit = int(state["bytes"]), int(config["max_bytes"])
        said = f"stream {config['name']} holds {holds} bytes"
        if config["discard"] == "new" and 0 < limit <= holds:
            self.oversized.append(
                f"{said} and its limit is {limit} now, so it takes nothing new until enough has expired"
            )
        elif self._repair and holds >= int(wanted["max_bytes"]):
            self.oversized.append(f"{said}, so its limit is {limit} and not the usual {wanted['max_bytes']}")

    async def consumer(self, pool: str, lease_s: float | None) -> float:
        stream = log_stream(pool)
        wanted = consumer_settings(pool, **({} if lease_s is None else {"lease_s": lease_s}))
        info = await self.info(f"CONSUMER.INFO.{stream}.{CONSUMER}", _NO_CONSUMER)
        current: Mapping[str, Any] | None = info["config"] if info else None
        lacks = f"consumer {CONSUMER} of {stream} does not exist"
        if current is not None:
            needed = consumer_needs(wanted)
            changes = changes_to(current, needed) if self._repair else {}
            if not self._repair:
                self.differ += differences(f"consumer {CONSUMER} of {stream}", current, needed)
            if lease_s is not None and current.get("ack_wait") != wanted["ack_wait"]:
                changes["ack_wait"] = wanted["ack_wait"]
            if not changes:
                return float(current["ack_wait"]) / 1e9
            wanted = {**current, **changes}
            lacks = f"consumer {CONSUMER} of {stream} has other {_names(changes)}"
            if set(changes) == {"ack_wait"} and not await self._may(stream, wanted):
                return float(current["ack_wait"]) / 1e9
        await self._do(f"CONSUMER.CREATE.{stream}.{CONSUMER}", {"stream_name": stream, "config": wanted}, lacks)
        return float(wanted["ack_wait"]) / 1e9

    async def _may(self, stream: str, wanted: Mapping[str, Any]) -> bool:
        """Change the lease where allowed; another lease than the wanted one is no reason to stop."""
        try:
            await self._do(f"CONSUMER.CREATE.{stream}.{CONSUMER}", {"stream_name": stream, "config": wanted}, "")
        except BusError as exc:
            log.info("the lease stays as the admin set it: %s", exc)
            return False
        return True

    def _asked(self, current: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What the caller gave that is otherwise."""
        shared = wanted["name"] not in (log_stream(self._pool), inbox_stream(self._pool))
        asked = {}
        for key, value in self._given.items():
            if value is None or key not in wanted:
                continue
            if key == "num_replicas":
                asked[key] = value
            elif not shared or 0 < int(current.get(key, -1)) < wanted[key]:  # one pool takes no room from the others
                asked[key] = wanted[key]
        return changes_to(current, asked)

    async def _create(self, wanted: dict[str, Any]) -> Mapping[str, Any]:
        """Make a stream, and return what the server says of it."""
        name, tries = wanted["name"], Tries(self._bus, math.inf)
        while True:
            settings = {**wanted, "num_replicas": self._replicas}
            try:
                return await self._do(f"STREAM.CREATE.{name}", settings, f"stream {name} does not exist")
            except JetStreamRefused as refused:
                if refused.err_code == _NAME_TAKEN:  # somebody was faster
                    return await self.info(f"STREAM.INFO.{name}", _NO_STREAM) or {"config": wanted, "state": _EMPTY}
                if self._fixed_replicas or refused.err_code not in (_NO_PEERS, _NOT_CLUSTERED):
                    raise
                if refused.err_code == _NO_PEERS and tries.spent_s < _PEERS_S:  # a cluster that is still coming up
                    tries.note(refused)
                    await tries.pause()
                    continue
                if refused.err_code == _NO_PEERS:
                    log.warning("the cluster has fewer than %d servers: %s is not replicated", _REPLICAS, name)
                self._replicas, self._fixed_replicas = 1, True

    async def info(self, subject: str, missing: int) -> Mapping[str, Any] | None:
        try:
            return await self._call(subject, None)
        except JetStreamRefused as refused:
            if refused.err_code == missing:
                return None
            raise

    async def _call(self, subject: str, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        """Call the API; no answer at all means that this account does not have it, which waiting does not heal."""
        return await retry(self._bus, lambda: call(self._bus, subject, payload), final=(NoResponders,))

    async def _do(self, subject: str, payload: Mapping[str, Any], lacks: str) -> Mapping[str, Any]:
        try:
            return await self._call(subject, payload)
        except (NotPermitted, NoResponders) as exc:
            raise BusError(
                f"The {lacks}, and this role may not change it. Let an admin run "
                f"`{provision_command(self._pool)} --nats URL --creds ADMIN` (on one machine `nexofork serve` needs no "
                "credentials).",
                retryable=False,
            ) from exc
        except JetStreamRefused as refused:
            if refused.err_code not in _CANNOT_CHANGE:
                raise
            raise CannotChange(lacks, subject, reason=refused.description, pool=self._pool) from refused
        except StoreFull as exc:
            raise BusError(
                f"The server has no room for stream {subject.split('.')[2]}: {exc.detail}. Give it more storage, or "
                f"provision with a smaller max_bytes (`{provision_command(self._pool)} --max-bytes N`).",
                retryable=False,
            ) from exc


def _names(changes: Mapping[str, Any]) -> str:
    return ", ".join(sorted(changes))
