"""Make sure that the streams and the pickup consumer are there, or say who can make them.

Safe to run at every start of everything, at the same time: what is missing is made, and what is there is changed only
where somebody says so. Settings that the design needs and that are otherwise are an error that names each difference;
limits that an admin chose (size, age, replicas) are left alone unless they are given. With accounts no role but admin
may create anything, because a consumer's deliver subject could forge an abort: then this only checks.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.bus.differences import changes as changes_to
from nexofork.bus.differences import consumer_needs, differences, forgets_early, stream_needs
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
from nexofork.bus.jetstream import call
from nexofork.errors import BusError
from nexofork.wire.streams import CONSUMER, consumer_settings, log_stream, stream_settings
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nexofork.bus.connection import Bus

__all__ = ["Found", "Provisioned", "check_pool", "look", "provision"]

log = logging.getLogger(__name__)

_NO_STREAM = 10059
_NO_CONSUMER = 10014
_NAME_TAKEN = 10058
_NO_PEERS = 10005
_NOT_CLUSTERED = 10074
_CANNOT_CHANGE = (10012, 10052)  # of a consumer, of a stream
_REPLICAS = 3
_DEADLINE_S = 15.0
_PEERS_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """What is in force now."""

    lease_s: float
    """How long a request may stay unrenewed; another than asked for where this role may not change it."""
    notes: tuple[str, ...] = ()
    """What an admin may want so, and should know of."""


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
        max_bytes: The log's limit; None means 640 MiB for a new stream and leaves an existing one.
        repair: Whether existing streams get the settings that the design needs.

    Raises:
        StreamsDiffer: Something is otherwise than the design needs, and is not to be repaired.
        BusError: Something is missing or wrong and this role may not change it; the message names the admin command.
    """
    work = _Provisioner(bus, pool=pool, replicas=replicas, max_bytes=max_bytes, repair=repair)
    for wanted in stream_settings(pool, **({} if max_bytes is None else {"max_bytes": max_bytes})):
        await work.stream(wanted)
    lease = await work.consumer(pool, lease_s)
    if work.differ:
        raise StreamsDiffer(tuple(work.differ), pool=pool)
    return Provisioned(lease_s=lease, notes=tuple(work.notes))


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


async def look(bus: Bus, *, pool: str = DEFAULT_POOL) -> Found:
    """Return what is there, what is missing and what is otherwise; nothing is made or changed.

    Raises:
        BusError: The server did not say.
    """
    work = _Provisioner(bus, pool=pool, replicas=None, max_bytes=None, repair=False)
    streams, missing, differ, notes = {}, list[str](), list[str](), list[str]()
    for wanted in stream_settings(pool):
        name = wanted["name"]
        info = await work.info(f"STREAM.INFO.{name}", _NO_STREAM)
        if info is None:
            missing.append(f"stream {name}")
            continue
        streams[name] = info
        differ += differences(f"stream {name}", info["config"], stream_needs(wanted))
        notes.append(forgets_early(info["config"], wanted))
    log_name = log_stream(pool)
    info = await work.info(f"CONSUMER.INFO.{log_name}.{CONSUMER}", _NO_CONSUMER) if log_name in streams else None
    if info is None:
        missing.append(f"consumer {CONSUMER} of {log_name}")
    else:
        wanted = consumer_settings(pool)
        differ += differences(f"consumer {CONSUMER} of {log_name}", info["config"], consumer_needs(wanted))
    return Found(streams=streams, missing=tuple(missing), differ=tuple(differ), notes=tuple(filter(None, notes)))


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
        self._given = {"num_replicas": replicas, "max_bytes": max_bytes}
        self._replicas = replicas or _REPLICAS
        self._fixed_replicas = replicas is not None

    async def stream(self, wanted: dict[str, Any]) -> None:
        name = wanted["name"]
        current = await self._config(f"STREAM.INFO.{name}", _NO_STREAM)
        if current is None:
            current = await self._create(wanted)
        changes = self._asked(current, wanted)
        if self._repair:
            changes |= changes_to(current, stream_needs(wanted))
        else:
            self.differ += differences(f"stream {name}", current, stream_needs(wanted))
        if note := forgets_early(current, wanted):
            self.notes.append(note)
        if changes:
            await self._do(
                f"STREAM.UPDATE.{name}", {**current, **changes}, f"stream {name} has other {_names(changes)}"
            )

    async def consumer(self, pool: str, lease_s: float | None) -> float:
        stream = log_stream(pool)
        wanted = consumer_settings(pool, **({} if lease_s is None else {"lease_s": lease_s}))
        current = await self._config(f"CONSUMER.INFO.{stream}.{CONSUMER}", _NO_CONSUMER)
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
        asked = {
            key: value if key == "num_replicas" else wanted[key]
            for key, value in self._given.items()
            if value is not None and key in wanted
        }
        return changes_to(current, asked)

    async def _create(self, wanted: dict[str, Any]) -> Mapping[str, Any]:
        name, loop = wanted["name"], asyncio.get_running_loop()
        give_up = loop.time() + _PEERS_S
        while True:
            settings = {**wanted, "num_replicas": self._replicas}
            try:
                return await self._do(f"STREAM.CREATE.{name}", settings, f"stream {name} does not exist")
            except JetStreamRefused as refused:
                if refused.err_code == _NAME_TAKEN:  # somebody was faster
                    return await self._config(f"STREAM.INFO.{name}", _NO_STREAM) or wanted
                if self._fixed_replicas or refused.err_code not in (_NO_PEERS, _NOT_CLUSTERED):
                    raise
                if refused.err_code == _NO_PEERS and loop.time() < give_up:  # a cluster that is still coming up
                    await asyncio.sleep(0.1)
                    continue
                if refused.err_code == _NO_PEERS:
                    log.warning("the cluster has fewer than %d servers: %s is not replicated", _REPLICAS, name)
                self._replicas, self._fixed_replicas = 1, True

    async def _config(self, subject: str, missing: int) -> Mapping[str, Any] | None:
        info = await self.info(subject, missing)
        config: Mapping[str, Any] | None = info["config"] if info else None
        return config

    async def info(self, subject: str, missing: int) -> Mapping[str, Any] | None:
        try:
            return await _patiently(self._bus, subject, None)
        except JetStreamRefused as refused:
            if refused.err_code == missing:
                return None
            raise

    async def _do(self, subject: str, payload: Mapping[str, Any], lacks: str) -> Mapping[str, Any]:
        try:
            config: Mapping[str, Any] = (await _patiently(self._bus, subject, payload))["config"]
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
                f"The server has no room for this: {exc.detail}. Give it more storage, or provision with a smaller "
                f"max_bytes (`{provision_command(self._pool)} --max-bytes N`).",
                retryable=False,
            ) from exc
        return config


async def _patiently(bus: Bus, subject: str, payload: Mapping[str, Any] | None) -> dict[str, Any]:
    """Call the API, again while the server says that it is not ready yet (a cluster that elects a leader)."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _DEADLINE_S
    while True:
        try:
            return await call(bus, subject, payload)
        except (NoResponders, StoreFull):
            raise
        except BusError as exc:
            if not exc.retryable or loop.time() >= give_up:
                raise
        await asyncio.sleep(0.1)


def _names(changes: Mapping[str, Any]) -> str:
    return ", ".join(sorted(changes))
