"""What ``nexofork doctor`` says of NATS: reached, trusted, complete, durable, in time, and closed to whom it must be.

One connection for all of them. Nothing is made or changed but one blob of a few bytes, which expires; the attempts at
what must be refused are those of ``nexofork auth check``, which are harmless where they succeed.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Any

from nexofork.auth.attacks import requests
from nexofork.auth.check import refusal
from nexofork.bus.clock import ServerClock
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.credentials import LOCAL, new_seed
from nexofork.bus.failures import BusDenied, NoResponders, NotPermitted, provision_command
from nexofork.bus.jetstream import store
from nexofork.bus.provisioning import look
from nexofork.cli.checkup import Finding
from nexofork.errors import BusError
from nexofork.wire.streams import LEDGER, fill_of, log_stream
from nexofork.wire.subjects import blob

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nexofork.bus.connection import Bus
    from nexofork.bus.provisioning import Found
    from nexofork.cli.checkup import Patient

__all__ = ["check_nats"]

_PASSWORD = re.compile(r"//[^/@\s]*@")
_SKEW_S = 5.0
_PATIENCE_S = 5.0  # what is the matter shall be said, not waited for
_FULL = 0.8


async def check_nats(patient: Patient) -> AsyncIterator[Finding]:
    """Yield one finding per check; those behind one that cannot be passed are left out."""
    settings = patient.settings
    urls = _PASSWORD.sub("//", ", ".join(settings["nats.url"]))
    bus_settings = BusSettings(
        urls=settings["nats.url"],
        creds=settings["nats.creds_file"],
        nkey_seed=settings["nats.nkey_file"],
        ca=settings["nats.ca_file"],
        name="nexofork-doctor",
        patience_s=_PATIENCE_S,
    )
    pool = settings["nats.pool"]
    try:
        async with open_bus(bus_settings) as bus:
            who = "without a key" if bus.identity == LOCAL else f"as {bus.identity[:12]}…"
            yield Finding(name="nats", state="ok", said=f"{urls} lets us in {who}")
            found = await look(bus, pool=pool)
            yield _streams(found, pool)
            if found.streams:
                yield _durability(found, pool)
                yield await _storing(bus)
                yield await _clock(bus, pool)
            yield await _roles(bus, bus_settings, pool)
    except BusError as exc:
        said, _, fix = _PASSWORD.sub("//", str(exc)).partition(". ")
        yield Finding(name="nats", state="wrong" if patient.nats_given else "note", said=said.rstrip("."), fix=fix)


def _streams(found: Found, pool: str) -> Finding:
    if found.missing:
        fix = f"Run `{provision_command(pool)}`, or start a daemon whose role may make them."
        return Finding(name="streams", state="wrong", said=f"missing: {', '.join(found.missing)}", fix=fix)
    if found.differ:
        fix = f"Nothing was changed; let an admin run `{provision_command(pool)} --apply`."
        return Finding(name="streams", state="wrong", said="; ".join(found.differ), fix=fix)
    if found.unlimited:
        fix = f"Nothing was changed; let an admin run `{provision_command(pool)} --apply`, which deletes nothing."
        said = f"{'; '.join(found.unlimited)}: one daemon's key can fill the store until aborts fail"
        return Finding(name="streams", state="wrong", said=said, fix=fix)
    for name, info in found.streams.items():
        if info["config"]["discard"] == "new" and (fill := fill_of(info)) >= _FULL:
            what = "when it is full, calls are no longer booked" if name == LEDGER else "new requests are refused"
            fix = f"Wait for old runs to expire, or give it more room (`{provision_command(pool)} --max-bytes N`)."
            return Finding(name="streams", state="wrong", said=f"stream {name} is {fill:.0%} full and {what}", fix=fix)
    if found.notes:
        fix = "That is an admin's to decide; runs that last longer lose what they need."
        return Finding(name="streams", state="note", said="; ".join(found.notes), fix=fix)
    return Finding(name="streams", state="ok", said=f"all that pool {pool} needs is there, as it has to be")


def _durability(found: Found, pool: str) -> Finding:
    """What an acknowledged request outlives. A client cannot see the server's sync_interval, only its copies."""
    info = found.streams.get(log_stream(pool)) or next(iter(found.streams.values()))
    copies = int(info["config"].get("num_replicas", 1))
    lagging = [peer["name"] for peer in info.get("cluster", {}).get("replicas") or () if _lags(peer)]
    if lagging:
        said = f"{copies} copies of every stream, but {', '.join(lagging)} is behind or away"
        return Finding(name="durability", state="wrong", said=said, fix="Bring that server back.")
    if info["config"].get("storage") == "memory":
        said = "runs are kept in memory: nothing outlives its server"
        fix = "Keep them in files; see the streams above."
        return Finding(name="durability", state="wrong", said=said, fix=fix)
    if copies == 1:
        said = (
            "one copy: a request outlives crashes of its server; a power cut can take the last seconds unless the "
            "server has sync_interval: always, and a lost disk takes all"
        )
        fix = f"For more, run three servers and `{provision_command(pool)} --replicas 3`."
        return Finding(name="durability", state="note", said=said, fix=fix)
    said = f"{copies} copies: a request outlives the loss of {(copies - 1) // 2} of their servers"
    return Finding(name="durability", state="ok", said=said)


async def _storing(bus: Bus) -> Finding:
    """Whether a daemon's blob is really stored: the stream that a full disk hits first still answers for itself."""
    try:
        await store(bus, blob("daemon", f"doctor-{secrets.token_hex(8)}", 0), b"{}")
    except (NotPermitted, NoResponders):
        said = "this key may not store what a daemon does, so that was not tried"
        return Finding(name="storing", state="note", said=said, fix="Give a daemon's key to try it.")
    except BusError as exc:
        said, _, fix = str(exc).partition(". ")
        return Finding(name="storing", state="wrong", said=said.rstrip("."), fix=fix)
    return Finding(name="storing", state="ok", said="a blob of two bytes was stored, and confirmed")


def _lags(peer: dict[str, Any]) -> bool:
    return bool(peer.get("offline")) or not peer.get("current", True)


async def _clock(bus: Bus, pool: str) -> Finding:
    clock = ServerClock(bus, log_stream(pool))
    await clock.refresh()
    said = f"this host's clock is {-clock.ahead_s:+.1f} s off the NATS server's"
    if abs(clock.ahead_s) > _SKEW_S:
        fix = "It is allowed for; run a time service (apt install systemd-timesyncd) so that logs agree."
        return Finding(name="clock", state="note", said=said, fix=fix)
    return Finding(name="clock", state="ok", said=said)


async def _roles(bus: Bus, settings: BusSettings, pool: str) -> Finding:
    """Whether strangers are kept out, and this key from what a daemon must not do."""
    if bus.identity == LOCAL or await _strangers(settings):
        said = "the server asks nobody who they are, so parents and daemons are kept apart by their code alone"
        fix = "Between hosts, use `nexofork auth init`."
        return Finding(name="roles", state="note", said=said, fix=fix)
    run_id, stranger = f"probe-{secrets.token_hex(8)}", new_seed()[1]
    tried = list(requests("daemon", run_id=run_id, pool=pool, stranger=stranger))
    allowed = []
    for request in tried:
        refused, _ = await refusal(bus, request.subject, request.data, request.headers)
        if not refused:
            allowed.append(request.what)
    if allowed:
        said = f"this key can {', '.join(dict.fromkeys(allowed[:3]))}: {len(allowed)} things that no daemon may"
        fix = "Give the daemon a daemon's key; `nexofork auth check` tries all roles."
        return Finding(name="roles", state="wrong", said=said, fix=fix)
    said = f"strangers are kept out, and this key from {len(tried)} things that no daemon may"
    return Finding(name="roles", state="ok", said=said)


async def _strangers(settings: BusSettings) -> bool:
    """Whether somebody without a key is let in."""
    try:
        async with open_bus(BusSettings(urls=settings.urls, ca=settings.ca, name=settings.name)):
            return True
    except BusDenied:
        return False
