"""Certificates made by openssl, good and bad ones."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Pair", "make_authority", "make_certificate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


def make_authority(folder: Path, name: str = "ca") -> Pair:
    """An authority of our own."""
    pair = Pair(cert=folder / f"{name}.pem", key=folder / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "3650"),
        *("-keyout", pair.key, "-out", pair.cert, "-subj", f"/CN={name}"),
    )
    return pair


def make_certificate(
    folder: Path,
    authority: Pair,
    *,
    name: str = "server",
    hosts: str = "IP:127.0.0.1",
    not_before: str = "20200101000000Z",
    not_after: str,
) -> Pair:
    """A server's certificate; hosts are like DNS:a,IP:10.0.0.1 or nothing, times like 20300101000000Z."""
    pair, request = Pair(cert=folder / f"{name}.pem", key=folder / f"{name}.key"), folder / f"{name}.csr"
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", pair.key),
        *("-out", request, "-subj", f"/CN={name}", *(("-addext", f"subjectAltName={hosts}") if hosts else ())),
    )
    # `ca` sets both dates, which `x509` of this generation of openssl cannot.
    database = folder / f"{name}.db"
    database.mkdir()
    (database / "index").touch()
    settings = folder / f"{name}.cnf"
    settings.write_text(
        f"[ca]\ndefault_ca = us\n[us]\ndatabase = {database}/index\nnew_certs_dir = {database}\nrand_serial = yes\n"
        "default_md = sha256\npolicy = any\ncopy_extensions = copy\n[any]\ncommonName = supplied\n"
    )
    _openssl(
        *("ca", "-batch", "-notext", "-config", settings, "-cert", authority.cert, "-keyfile", authority.key),
        *("-in", request, "-out", pair.cert, "-startdate", not_before, "-enddate", not_after),
    )
    return pair


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
