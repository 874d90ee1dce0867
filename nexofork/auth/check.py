"""Attack a live server with each role's key and say what could be done.

Nothing of others is touched: see ``attacks``. One message per tenant is stored on purpose, in the inbox of a run that
does not exist, because a tenant that cannot read it is only reassuring if somebody can. What an attack stores by
mistake is named; it expires with its stream. Filling a store would harm, so the limits that prevent it are read.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.auth.attacks import (
    FORGED,
    NEVER,
    bursts,
    carriers,
    contents,
    eavesdropping,
    heard_by,
    oversized,
    requests,
    targets,
)
from nexofork.auth.book import ROLES
from nexofork.bus.connection import Bus, BusSettings, open_bus
from nexofork.bus.credentials import new_seed
from nexofork.bus.failures import (
    BusDenied,
    JetStreamRefused,
    NoAnswer,
    NoResponders,
    NotPermitted,
    PayloadTooLarge,
    StoreFull,
    WrongTip,
)
from nexofork.bus.jetstream import API, PLAIN_API, call, expect_last, store
from nexofork.bus.reading import last_direct, last_of, last_of_many
from nexofork.errors import BusError
from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import inbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexofork.auth.book import Role
    from nexofork.bus.connection import Msg

__all__ = ["Outcome", "check_server", "refusal"]

_REFUSED_S = 1.0
"""A refusal comes at once; longer silence means that somebody took the request."""
_SETTLE_S = 0.3
_BURST = 200
_REFUSALS = (PayloadTooLarge, NotPermitted, NoResponders, StoreFull)
"""Errors that mean that nothing was stored; after any other that is not known."""
_NOT_ENABLED = b'"err_code":10039'
"""The attacker's own account answers that it has no JetStream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attack and what came of it."""

    tenant: str
    role: str
    kind: str
    """``connect``, ``request``, ``subscribe``, ``reply``, ``size``, ``content``, ``rate``, ``room`` or ``tenant``."""
    what: str
    refused: bool
    detail: str
    """Who refused, or what could be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Party:
    """A tenant's connections."""

    name: str
    buses: Mapping[Role, Bus]

    @property
    def keys(self) -> dict[str, str]:
        return {f"the {role} of {self.name}": bus.identity for role, bus in self.buses.items()}


async def check_server(
    settings: BusSettings,
    seeds: Mapping[str, Mapping[Role, Path]],
    *,
    pools: Sequence[str],
    tell: Callable[[Outcome], None],
) -> list[str]:
    """Run every attack, tell each outcome as it is known, and return the subjects on which something was left behind.

    Args:
        settings: Where the server is; its credentials are not used.
        seeds: Seed files by tenant and role, all four of each tenant.
        pools: The pools to attack.
        tell: Called with every outcome.

    Raises:
        BusError: The server was not reached, does not know a key, or has no streams yet.
    """
    if await _strangers(settings, tell):
        return []  # a server that asks nobody who they are has no roles to tell apart
    left: list[str] = []
    async with AsyncExitStack() as stack:
        parties = [
            _Party(
                name=tenant,
                buses={role: await stack.enter_async_context(open_bus(_as(settings, files[role]))) for role in ROLES},
            )
            for tenant, files in seeds.items()
        ]
        for party in parties:
            for pool in pools:
                await _is_there(party, pool)
        for party in parties:
            others = [other for other in parties if other is not party]
            for pool in pools:
                left += await _attack_pool(party, others, pool, tell)
            await _fill(party, tell)
        for party in parties:
            left += await _cross(party, [other for other in parties if other is not party], pools[0], tell)
    return left


async def _strangers(settings: BusSettings, tell: Callable[[Outcome], None]) -> bool:
    """Try to get in without a key and with one that nobody knows; True if anybody may."""
    with tempfile.TemporaryDirectory() as folder:
        unknown = Path(folder) / "stranger.nk"
        unknown.touch(0o600)
        unknown.write_text(new_seed()[0])
        let_in = False
        for what, seed in (("connect without a key", None), ("connect with an unknown key", unknown)):
            try:
                async with open_bus(_as(settings, seed)):
                    refused, detail = False, "the server asks nobody who they are: it has no accounts for the roles"
            except BusDenied as exc:
                refused, detail = True, exc.reason
            tell(Outcome(tenant="", role="nobody", kind="connect", what=what, refused=refused, detail=detail))
            let_in |= not refused
    return let_in


async def _is_there(party: _Party, pool: str) -> None:
    """Attacks on streams that do not exist would all be refused."""
    for stream in (log_stream(pool), inbox_stream(pool)):
        try:
            await call(party.buses["admin"], f"STREAM.INFO.{stream}")
        except JetStreamRefused as exc:
            raise BusError(
                f"Tenant {party.name} has no stream {stream} to attack. Let its admin run "
                f"`nexofork provision --pool {pool}` first.",
                retryable=False,
            ) from exc


async def _attack_pool(
    party: _Party, others: Sequence[_Party], pool: str, tell: Callable[[Outcome], None]
) -> list[str]:
    left = []
    stranger = new_seed()[1]
    for role, bus in party.buses.items():
        attempt = _Attempt(party=party, role=role, bus=bus, pool=pool, stranger=stranger, tell=tell)
        await attempt.ask()
        foreign = {who: key for other in others for who, key in other.keys.items()}
        await attempt.listen({"a stranger": stranger, **party.keys, **foreign})
        if role != "admin":  # an admin owns the account that everything is written in
            left += await attempt.carry()
        if role == "daemon":
            left += await attempt.misuse()
            await attempt.hurry()
    return left


class _Attempt:
    """What one role tries in one pool."""

    def __init__(
        self,
        *,
        party: _Party,
        role: Role,
        bus: Bus,
        pool: str,
        stranger: str,
        tell: Callable[[Outcome], None],
    ) -> None:
        self._party, self._role, self._bus, self._pool = party, role, bus, pool
        self._stranger, self._tell = stranger, tell
        self._run_id = f"probe-{secrets.token_hex(8)}"

    async def ask(self) -> None:
        """Send what must be refused."""
        ears = [
            await self._party.buses[role].subscribe(subject, _ignore)
            for role in self._victims()
            for subject in heard_by(role, run_id=self._run_id, pool=self._pool)
        ]
        await self._flushed()
        for request in requests(self._role, run_id=self._run_id, pool=self._pool, stranger=self._stranger):
            refused, detail = await refusal(self._bus, request.subject, request.data, request.headers)
            self._told("request", request.what, refused, f"{detail}: {request.subject}")
        for ear in ears:
            await ear.unsubscribe()

    async def listen(self, keys: Mapping[str, str]) -> None:
        """Subscribe to what others are told."""
        foreign = {who: key for who, key in keys.items() if key != self._bus.identity}
        tried = [
            (what, await self._bus.subscribe(subject, _ignore))
            for what, subject in eavesdropping(self._role, pool=self._pool, keys=foreign)
        ]
        await self._bus.flushed()
        for what, subscription in tried:
            refused = subscription.denied is not None
            who = "not permitted" if refused else "the server took the subscription"
            self._told("subscribe", what, refused, f"{who}: {subscription.subject}")
            await subscription.unsubscribe()

    async def carry(self) -> list[str]:
        """Ask for answers that land where the role may not write; returns where something was stored."""
        vehicles = list(carriers(self._bus.identity, run_id=self._run_id, pool=self._pool))
        runs = [f"{self._run_id}-{number}" for number in range(len(vehicles))]
        heard: set[str] = set()
        calls: set[str] = set()
        ears = [
            await self._party.buses[role].subscribe(subject, lambda msg: heard.add(msg.subject))
            for role in self._victims()
            for run_id in runs
            for subject in heard_by(role, run_id=run_id, pool=self._pool)
        ]
        ears.append(
            await self._party.buses["admin"].subscribe("$JS.EVENT.ADVISORY.API", lambda msg: calls.update(_names(msg)))
        )
        await self._flushed()
        aims = [targets(self._role, run_id=run, pool=self._pool, stranger=self._stranger) for run in runs]
        for vehicle, run_id, aim in zip(vehicles, runs, aims, strict=True):
            for reply in (*aim, f"{PLAIN_API}.STREAM.PURGE.{run_id}", f"{self._bus.api}.STREAM.PURGE.{run_id}"):
                await self._bus.publish(vehicle.subject, vehicle.data, vehicle.headers, reply=reply)
        await self._flushed()
        await asyncio.sleep(_SETTLE_S)  # what does not happen announces nothing
        stored = await self._stored({subject: stream for aim in aims for subject, stream in aim.items()})
        for vehicle, run_id, aim in zip(vehicles, runs, aims, strict=True):
            done = [f"stored on {subject}" for subject in aim if subject in stored]
            done += [f"heard on {subject}" for subject in aim if subject in heard - stored]
            done += ["the API was called"] if run_id in calls else []
            words = "; ".join(done) or "nothing was stored, heard or called"
            self._told("reply", f"aim the answer to {vehicle.what}", not done, words)
        for ear in ears:
            await ear.unsubscribe()
        return sorted(stored)

    async def misuse(self) -> list[str]:
        """Write too much, or what a stream must not obey, where the role may write; returns where it was stored."""
        own, run_id, left = self._bus.identity, self._run_id, list[str]()
        tried = [("size", one) for one in oversized(own, run_id=run_id, pool=self._pool)]
        tried += [("content", one) for one in contents(own, run_id=run_id, pool=self._pool, stranger=self._stranger)]
        for kind, request in tried:
            try:
                await store(self._bus, request.subject, request.data, headers=request.headers)
            except JetStreamRefused as exc:
                self._told(kind, request.what, True, f"{exc.description}: {request.subject}")
            except BusError as exc:
                self._told(kind, request.what, isinstance(exc, _REFUSALS), str(exc))
            else:
                left.append(request.subject)
                self._told(kind, request.what, False, f"stored on {request.subject}")
        return left

    async def hurry(self) -> None:
        """Send a burst of writes that no stream takes, and see whether a parent's abort is answered meanwhile."""
        abort = inbox(self._run_id, "abort", self._pool)
        for request in bursts(self._bus.identity, run_id=self._run_id, pool=self._pool):
            for _ in range(_BURST):
                await self._bus.publish(request.subject, request.data, request.headers)
            what = f"keep an abort waiting by a burst of {_BURST} writes to {request.what}"
            try:
                await store(self._party.buses["parent"], abort, FORGED, headers=expect_last(NEVER, abort))
            except WrongTip:
                self._told("rate", what, True, f"the abort was answered: {abort}")
            except BusError as exc:
                self._told("rate", what, False, f"the abort was not answered ({exc}): {abort}")

    async def _stored(self, where: Mapping[str, str]) -> set[str]:
        admin, found = self._party.buses["admin"], set[str]()
        for stream in {stream for stream in where.values() if stream}:
            subjects = [subject for subject, kept in where.items() if kept == stream]
            found |= {message.subject for message in await last_of_many(admin, stream, subjects)}
        return found

    def _victims(self) -> list[Role]:
        # Those of one role share an account and can spoof each other's hints, which is why the stream decides.
        return [role for role in ROLES if role != self._role]

    async def _flushed(self) -> None:
        for bus in self._party.buses.values():
            await bus.flushed()

    def _told(self, kind: str, what: str, refused: bool, detail: str) -> None:
        name = self._party.name
        self._tell(Outcome(tenant=name, role=self._role, kind=kind, what=what, refused=refused, detail=detail))


async def _fill(party: _Party, tell: Callable[[Outcome], None]) -> None:
    """Read whether every stream of a tenant has limits, and whether all of them fit its account."""
    admin, reserved = party.buses["admin"], 0

    def told(what: str, refused: bool, detail: str) -> None:
        tell(Outcome(tenant=party.name, role="daemon", kind="room", what=what, refused=refused, detail=detail))

    for stream in sorted((await call(admin, "STREAM.NAMES", {}))["streams"] or ()):
        config = (await call(admin, f"STREAM.INFO.{stream}"))["config"]
        missing = [name for name in ("max_bytes", "max_msg_size") if int(config.get(name) or -1) <= 0]
        reserved += max(int(config["max_bytes"]), 0) * int(config["num_replicas"])
        words = f"it has no {' and no '.join(missing)}" if missing else f"it takes {config['max_bytes']} bytes"
        told(f"fill the tenant's store by {stream}", not missing, words)
    limit = int((await call(admin, "INFO"))["limits"]["max_storage"])
    room = "has no limit" if limit <= 0 else f"takes {limit}"
    fits = limit <= 0 or reserved <= limit
    told("keep aborts out by full streams", fits, f"all copies may hold {reserved} bytes, and the account {room}")


async def _cross(party: _Party, others: Sequence[_Party], pool: str, tell: Callable[[Outcome], None]) -> list[str]:
    """Leave a message as a parent and look for it as everybody of other tenants."""
    if not others:
        return []
    subject = inbox(f"probe-{secrets.token_hex(8)}", "probe", pool)
    heard: set[str] = set()
    ears = [
        await one.buses["daemon"].subscribe(subject, lambda _, name=one.name: heard.add(name))  # type: ignore[misc]
        for one in (party, *others)
    ]
    for one in (party, *others):
        await one.buses["daemon"].flushed()
    await store(party.buses["parent"], subject, b"{}")
    await asyncio.sleep(_SETTLE_S)
    stream = inbox_stream(pool)
    if await last_of(party.buses["daemon"], stream, subject) is None or party.name not in heard:
        raise BusError(
            f"The daemon of tenant {party.name} does not get what its parent writes. "
            "Check that both keys belong to the same tenant.",
            retryable=False,
        )
    for other in others:
        found = {
            "daemon": await last_of(other.buses["daemon"], stream, subject),
            "parent": await last_direct(other.buses["parent"], stream, subject),
            "admin": await last_of(other.buses["admin"], stream, subject),
        }
        for role, message in found.items():
            tell(_between(other, role, f"read what a parent of {party.name} wrote", message is None, subject))
        quiet = other.name not in heard
        tell(_between(other, "daemon", f"hear what a parent of {party.name} writes", quiet, subject))
    for ear in ears:
        await ear.unsubscribe()
    return [subject]


def _between(party: _Party, role: str, what: str, refused: bool, subject: str) -> Outcome:
    words = "not found" if refused else "it was found"
    return Outcome(
        tenant=party.name, role=role, kind="tenant", what=what, refused=refused, detail=f"{words}: {subject}"
    )


async def refusal(bus: Bus, subject: str, data: bytes, headers: Mapping[str, str]) -> tuple[bool, str]:
    """Send what must be refused; returns whether it was, and by whom or with what answer."""
    denied = False
    # A server whose own domain is ``fork`` looks at permissions after it has translated the subject, and names that.
    mapped = subject.replace(API, PLAIN_API, 1)
    try:
        async with asyncio.timeout(None) as scope:

            def noticed(_: BusError) -> None:
                nonlocal denied
                denied = True
                scope.reschedule(asyncio.get_running_loop().time())

            remove = bus.on_denied(mapped, noticed)
            try:
                reply = await bus.request(subject, data, headers=headers, timeout_s=_REFUSED_S)
            finally:
                remove()
    except (NotPermitted, TimeoutError):
        return True, "not permitted"
    except NoResponders:
        return True, "nobody there"
    except NoAnswer:
        return denied, "somebody took it"
    if _NOT_ENABLED in reply.data:
        return True, "not enabled for this account"
    return False, f"it was answered ({_brief(reply)})"


def _brief(reply: Msg) -> str:
    text = reply.headers.get("Description") or reply.data.decode("utf-8", "replace")
    return text[:200] or "empty"


def _names(advisory: Msg) -> list[str]:
    """The runs named in an account of an API call."""
    return [word for word in advisory.data.decode("utf-8", "replace").replace('"', ".").split(".") if "probe-" in word]


def _as(settings: BusSettings, seed: Path | None) -> BusSettings:
    return BusSettings(
        urls=settings.urls,
        ca=settings.ca,
        nkey_seed=seed,
        name="nexofork-auth-check",
        connect_timeout_s=settings.connect_timeout_s,
    )


def _ignore(_: Msg) -> None:
    """Whether it came is told by the request that was not refused."""
