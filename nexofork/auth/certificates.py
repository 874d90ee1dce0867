"""Check the certificate a server is to be given, before it is given.

The check is a TLS handshake in memory, so what is accepted here is what a client accepts: the key fits, the chain leads
to the authority, and today lies within its dates.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING

from nexofork.errors import BadAuth

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_certificate"]

_DAY_S = 86_400


def check_certificate(cert: Path, key: Path, ca: Path | None) -> float:
    """Return for how many days the certificate is still good.

    Args:
        cert: The server's certificate, with those between it and the authority.
        key: Its private key, not encrypted.
        ca: The authority clients will trust; None checks the certificate by itself.

    Raises:
        BadAuth: It could not be used; the error names the file and what is wrong.
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
    return (ssl.cert_time_to_seconds(str(seen["notAfter"])) - time.time()) / _DAY_S


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
    context.check_hostname = False  # which names clients will use is not known here
    # Without an authority the certificate vouches for itself, so that its dates are judged all the same.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=ca or cert)
    except ssl.SSLError as exc:
        raise BadAuth(
            f"{ca or cert} holds no certificate in PEM form", fix="Give the authority's certificate."
        ) from exc
    return context


def _handshake(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> dict[str, object]:
    """Connect the two in memory and return the certificate as the client saw it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = ours.wrap_bio(to_server, to_client, server_side=True)
    client = theirs.wrap_bio(to_client, to_server)
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
