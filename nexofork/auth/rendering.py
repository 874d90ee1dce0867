"""Render the configuration of nats-server from the book and the templates of ``daemon/nats``.

The same book gives the same bytes. Nothing secret goes in: users are public keys, certificates are file names.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from nexofork.wire.streams import inbox_stream, log_stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.auth.book import Book, Node, Server, Tenant

__all__ = ["is_as_rendered", "is_loopback", "render"]

# A wheel carries the templates beside this module; a source tree has them where operators look for them.
_HOMES = (Path(__file__).with_name("templates"), Path(__file__).parents[2] / "daemon" / "nats")
_PLACEHOLDER = re.compile(r"%(\w+)%")
_DIGEST = "# digest "
_PER_POOL = ("%pool%", "%log%", "%inbox%")
_SHARED_STREAMS = 6  # four, and room for two that an admin adds
_SHARED_GB = 2.0
_POOL_GB = 0.8
_LEAST_GB = 8
_CONNECTIONS = {"core": 64, "parents": 4096, "daemons": 1024, "observers": 256}
"""What the keys of a role may have open together, so that a key that opens many keeps no other role out."""
_LEAST_CONNECTIONS = 65_536


def render(book: Book) -> dict[str, str]:
    """Return the text of every configuration file by its name: one, or one for each node of a cluster."""
    if not book.server.cluster:
        return {"nats-server.conf": _server(book, None)}
    return {f"nats-server-{node.name}.conf": _server(book, node) for node in book.server.cluster}


def is_as_rendered(text: str) -> bool:
    """Whether a configuration file is as it was written; the digest of the rest stands in its first line."""
    first, _, rest = text.partition("\n")
    return first == _DIGEST + _digest(rest)


def is_loopback(host: str) -> bool:
    """Whether nobody outside this machine reaches the address.

    >>> is_loopback("127.0.0.1"), is_loopback("[::1]"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    return host == "localhost" or host.startswith("127.") or host.strip("[]") == "::1"


def _server(book: Book, node: Node | None) -> str:
    server = book.server
    file_gb = {tenant.name: _file_gb(tenant, server.replicas) for tenant in book.tenants}
    host, port = (server.host, server.port) if node is None else (_bound(node.host), node.port)
    store = server.store if node is None else f"{server.store}/{node.name}"
    values = {
        "server_name": node.name if node else "nexofork",
        "listen": _quoted(f"{host}:{port}"),
        "monitor": _quoted(f"127.0.0.1:{_monitor_port(server, node)}"),
        "max_connections": str(max(_LEAST_CONNECTIONS, len(book.tenants) * sum(_CONNECTIONS.values()))),
        "tls": _tls(server),
        "store": _quoted(store),
        "max_file": f"{sum(file_gb.values())}GB",
        "sync": ", sync_interval: always" if server.sync_always else "",
        "cluster": _cluster(server, node) if node else "",
        "accounts": "\n".join(_tenant(tenant, file_gb[tenant.name]) for tenant in book.tenants),
    }
    lines = _filled(_template("server.conf"), values).splitlines()
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    return f"{_DIGEST}{_digest(text)}\n{text}"


def _tenant(tenant: Tenant, file_gb: int) -> str:
    values = {
        "tenant": tenant.name,
        "max_file": f"{file_gb}GB",
        "max_streams": str(_SHARED_STREAMS + 2 * len(tenant.pools)),
        "max_consumers": str(15 + len(tenant.pools)),
        **{f"{role}_connections": str(count) for role, count in _CONNECTIONS.items()},
    }
    return _filled("\n".join(_lines(tenant, _template("tenant.conf"))), values)


def _lines(tenant: Tenant, template: str) -> Iterator[str]:
    """Write out what is repeated per key, then what is repeated per pool."""
    block: list[str] | None = None
    role = ""
    for line in template.splitlines():
        if line.startswith("##"):
            continue
        if line.startswith("#each "):
            block, role = [], line.removeprefix("#each ")
        elif line == "#end":
            for key, name in _keys(tenant, role):
                for inner in block or ():
                    yield inner.replace("%nkey%", key).replace("%name%", name)
            block = None
        else:
            lines = _per_pool(tenant, line)
            if block is None:
                yield from lines
            else:
                block += lines


def _keys(tenant: Tenant, role: str) -> Iterator[tuple[str, str]]:
    for user in tenant.users:
        if user.role == role:
            for number, key in enumerate(user.keys):
                yield key, user.name + (" (the key that follows)" if number else "")


def _per_pool(tenant: Tenant, line: str) -> list[str]:
    if not any(placeholder in line for placeholder in _PER_POOL):
        return [line]
    return [
        line.replace("%pool%", pool).replace("%log%", log_stream(pool)).replace("%inbox%", inbox_stream(pool))
        for pool in tenant.pools
    ]


def _filled(template: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[1]], template)


def _template(name: str) -> str:
    home = next(home for home in _HOMES if (home / name).exists())
    return (home / name).read_text(encoding="utf-8")


def _tls(server: Server) -> str:
    if server.tls is None:
        return ""
    # No client certificates: who somebody is, is told by the nkey.
    return f"tls {{ cert_file: {_quoted(server.tls.cert)}, key_file: {_quoted(server.tls.key)}, timeout: 5 }}"


def _cluster(server: Server, node: Node) -> str:
    routes = ", ".join(
        _quoted(f"nats-route://{other.host}:{other.route_port}") for other in server.cluster if other != node
    )
    parts = ["name: nexofork", f"listen: {_quoted(f'{_bound(node.host)}:{node.route_port}')}", f"routes: [{routes}]"]
    if server.tls is not None and server.tls.ca is not None:  # here both sides show a certificate of this authority
        files = (("cert_file", server.tls.cert), ("key_file", server.tls.key), ("ca_file", server.tls.ca))
        parts.append("tls { " + ", ".join(f"{name}: {_quoted(file)}" for name, file in files) + ", timeout: 5 }")
    return f"cluster {{ {', '.join(parts)} }}"


def _bound(host: str) -> str:
    """Return the address to listen on: a node's name is for the others and may not be one of its addresses."""
    return host if is_loopback(host) else "0.0.0.0"


def _monitor_port(server: Server, node: Node | None) -> int:
    """Return a port of its own for every node of one machine."""
    if node is None or server.monitor_port < 0:
        return server.monitor_port
    same_host = [other for other in server.cluster if other.host == node.host]
    return server.monitor_port + same_host.index(node)


def _file_gb(tenant: Tenant, replicas: int) -> int:
    """Return what streams of the default sizes need; the server counts every replica."""
    return max(_LEAST_GB, math.ceil(replicas * (_SHARED_GB + _POOL_GB * len(tenant.pools))))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
