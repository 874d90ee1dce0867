"""Check the certificate a server is to be given, before it is given.

The check is a TLS handshake in memory, so what is accepted here is what a client accepts: the key fits, the chain leads
to the authority, today lies within its dates, and it names the host.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nexofork.errors import BadAuth

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Checked", "check_certificate"]

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A certificate that can be used."""

    days: float
    """For how long it is still good."""
    names: tuple[str, ...]
    """The hosts it is for; at least one."""
    unnamed: tuple[str, ...]
    """Of the hosts that were asked about, those by which a client would refuse the server."""


def check_certificate(cert: Path, key: Path, ca: Path | None, *, hosts: Iterable[str] = ()) -> Checked:
    """Return what the certificate is good for.

    Args:
        cert: The server's certificate, with those between it and the authority.
        key: Its private key, not encrypted.
        ca: The authority clients will trust; None checks the certificate by itself.
        hosts: Names and addresses by which the server may be reached.

    Raises:
        BadAuth: It could not be used, whatever the host; the error names the file and what is wrong.
    """
    for path in (cert, key, *((ca,) if ca else ())):
        try:
            path.read_bytes()
        except OSError as exc:
            raise BadAuth(f"{path} cannot be read ({exc.strerror})", fix="Name files that this user can read.") from exc
    ours = _server_side(cert, key)
    theirs = _client_side(cert, ca)
    try:
        seen = _handshake(ours, theirs)
    except ssl.SSLCertVerificationError as exc:
        raise BadAuth(
            f"The certificate {cert} is not good: {exc.verify_message}", fix=_remedy(exc.verify_message, ca)
        ) from exc
    except ssl.SSLError as exc:
        raise BadAuth(f"No TLS connection can be made with {cert}: {exc.reason}", fix="Use another one.") from exc
    names = tuple(str(name) for _, name in seen.get("subjectAltName", ()))
    if not names:
        raise BadAuth(
            f"The certificate {cert} names no host",
            fix="Make one whose subjectAltName has the names or addresses that clients use; they look nowhere else.",
        )
    return Checked(
        days=(ssl.cert_time_to_seconds(seen["notAfter"]) - time.time()) / _DAY_S,
        names=names,
        unnamed=tuple(host for host in dict.fromkeys(hosts) if not _is_named(host, ours, cert)),
    )


def _is_named(host: str, ours: ssl.SSLContext, cert: Path) -> bool:
    theirs = _client_side(cert, None)
    theirs.check_hostname = True
    # Servers and clients in Go do not fall back on the common name.
    theirs.hostname_checks_common_name = False
    try:
        _handshake(ours, theirs, host.strip("[]"))
    except (ssl.SSLCertVerificationError, ValueError):  # the latter where it can be no name at all
        return False
    return True


def _server_side(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")  # without one it would ask at the terminal
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise BadAuth(
                f"The key {key} does not belong to the certificate {cert}", fix="Give the two of a pair."
            ) from exc
        raise BadAuth(
            f"{cert} and {key} are not a certificate and its unencrypted key in PEM form ({exc.reason or exc})",
            fix="Convert them; nats-server reads PEM files without a password.",
        ) from exc
    return context


def _client_side(cert: Path, ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # asked about host by host
    # Without an authority the certificate vouches for itself, so that its dates are judged all the same.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=ca or cert)
    except ssl.SSLError as exc:
        raise BadAuth(
            f"{ca or cert} holds no certificate in PEM form", fix="Give the authority's certificate."
        ) from exc
    return context


def _handshake(ours: ssl.SSLContext, theirs: ssl.SSLContext, host: str | None = None) -> dict[str, Any]:
    """Connect the two in memory and return the certificate as the client saw it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ours.wrap_bio(to_server, to_client, server_side=True)
    client = theirs.wrap_bio(to_client, to_server, server_hostname=host)
    done: set[ssl.SSLObject] = set()
    while len(done) < 2:
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    return dict(client.getpeercert() or {})


def _remedy(message: str, ca: Path | None) -> str:
    if "expired" in message:
        return "Renew it first; clients would refuse the server."
    if "issuer" in message or "self-signed" in message:
        return f"It does not lead to {ca}: add the certificates in between, or give the right --tls-ca."
    return "Use another one; clients would refuse the server."
