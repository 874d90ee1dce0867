"""Read what ``nexofork auth init`` is told about the server: addresses, certificate, cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from nexofork.auth.book import Node, Server, Tls
from nexofork.auth.certificates import check_certificate
from nexofork.auth.rendering import is_loopback
from nexofork.cli.options import token
from nexofork.errors import BadAuth

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["certificate", "host_and_port", "nodes", "server_of"]

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/,=]+)(?::(\d{1,5}))?(?::(\d{1,5}))?")
_SIZES = (3, 5)
_SOON_DAYS = 30
_ANY = ("0.0.0.0", "::")
"""All addresses of the machine: by which of its names it is reached is not known here."""


def host_and_port(value: Any) -> tuple[str, int]:
    """Read ``HOST[:PORT]``."""
    found = _ADDRESS.fullmatch(str(value))
    if found is None or found[3] or not 0 < int(found[2] or 4222) < 65536:
        raise click.BadParameter(f"{value!r} is not an address, such as 0.0.0.0:4222.")
    return found[1], int(found[2] or 4222)


def nodes(value: Any) -> tuple[Node, ...]:
    """Read ``NAME=HOST[:PORT[:ROUTE_PORT]],…``."""
    if not value:
        return ()
    found = []
    for text in str(value).split(","):
        name, _, address = text.partition("=")
        parts = _ADDRESS.fullmatch(address)
        ports = [int(parts[2] or 4222), int(parts[3] or 6222)] if parts else [0]
        if parts is None or not all(0 < port < 65536 for port in ports):
            raise click.BadParameter(f"{text!r} is not a server, such as n1=10.0.0.1 or n1=10.0.0.1:4222:6222.")
        found.append(Node(name=token(name), host=parts[1], port=ports[0], route_port=ports[1]))
    if len(found) not in _SIZES:
        raise click.BadParameter(f"A cluster has 3 or 5 servers, not {len(found)}.")
    listening = [(node.host, port) for node in found for port in (node.port, node.route_port)]
    if len({node.name for node in found}) != len(found) or len(set(listening)) != len(listening):
        raise click.BadParameter("Every server needs a name and addresses of its own.")
    return tuple(found)


def certificate(
    cert: Path | None, key: Path | None, ca: Path | None, *, listen: tuple[str, int], cluster: tuple[Node, ...]
) -> Tls | None:
    """Check the files of a certificate, warn of what it is not good for, and return them as the server will find them.

    Raises:
        BadAuth: They cannot be used.
    """
    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None:
        raise click.UsageError("TLS takes both --tls-cert and --tls-key.")
    hosts = [host for host in _hosts(listen, cluster) if host.strip("[]") not in _ANY]
    checked = check_certificate(cert, key, ca, hosts=hosts)
    if checked.unnamed:
        named = f"The certificate {cert} names {', '.join(checked.names)}, and not {', '.join(checked.unnamed)}"
        if cluster and ca and len(checked.unnamed) == len(set(hosts)):
            raise BadAuth(named, fix="The servers of the cluster would refuse each other: name their hosts in it.")
        click.echo(f"Warning: {named}. Whoever reaches a server by what it does not name refuses it.", err=True)
    if checked.days < _SOON_DAYS:
        click.echo(f"Warning: the certificate {cert} is good for {checked.days:.0f} days only.", err=True)
    return Tls(cert=str(cert.absolute()), key=str(key.absolute()), ca=str(ca.absolute()) if ca else None)


def server_of(
    folder: Path,
    *,
    tls: Tls | None,
    listen: tuple[str, int],
    store: Path | None,
    cluster: tuple[Node, ...],
    replicas: int | None,
    sync_always: bool | None,
) -> Server:
    """Put together what the server is told, and warn of what is left open."""
    copies = replicas or (3 if cluster else 1)
    if copies > max(len(cluster), 1):
        raise click.UsageError(f"{copies} replicas need as many servers; name them with --cluster.")
    if not all(map(is_loopback, _hosts(listen, cluster))):
        if tls is None:
            click.echo("Warning: without TLS, everything between hosts can be read on the way.", err=True)
        if cluster and (tls is None or tls.ca is None):
            click.echo(
                "Warning: without --tls-ca, whoever reaches a route port can join the cluster: close those ports.",
                err=True,
            )
    return Server(
        host=listen[0],
        port=listen[1],
        store=str((store or folder / "store").absolute()),
        sync_always=bool(cluster) if sync_always is None else sync_always,
        tls=tls,
        cluster=cluster,
        replicas=copies,
    )


def _hosts(listen: tuple[str, int], cluster: tuple[Node, ...]) -> list[str]:
    return [node.host for node in cluster] or [listen[0]]
