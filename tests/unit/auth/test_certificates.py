from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from nexofork.auth.certificates import check_certificate
from nexofork.errors import BadAuth
from tests.support.certificates import make_authority, make_certificate

if TYPE_CHECKING:
    from pathlib import Path


def in_days(days: float) -> str:
    """A time as openssl writes it."""
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y%m%d%H%M%SZ")


def test_a_good_certificate_says_how_long(tmp_path: Path) -> None:
    """With its authority and without."""
    ca = make_authority(tmp_path)
    server = make_certificate(tmp_path, ca, not_after=in_days(12))

    for authority in (ca.cert, None):
        assert check_certificate(server.cert, server.key, authority).days == pytest.approx(12, abs=0.1)


def test_a_bad_certificate_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Expired, of another authority, with another key, for no host, not PEM, not there: each is named with its file."""
    ca, other = make_authority(tmp_path), make_authority(tmp_path, "other")
    good = make_certificate(tmp_path, ca, not_after=in_days(99))
    old = make_certificate(tmp_path, ca, name="old", not_after="20210101000000Z")
    nobody = make_certificate(tmp_path, ca, name="nobody", hosts="", not_after=in_days(99))
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")

    for cert, key, authority, words in (
        (old.cert, old.key, ca.cert, r"old\.pem is not good: certificate has expired\. Renew"),
        (old.cert, old.key, None, "certificate has expired"),
        (good.cert, good.key, other.cert, r"unable to get local issuer certificate.*other\.pem.*--tls-ca"),
        (good.cert, old.key, ca.cert, r"old\.key does not belong to the certificate .*server\.pem"),
        (nobody.cert, nobody.key, ca.cert, r"nobody\.pem names no host.*subjectAltName"),
        (rubbish, good.key, None, r"rubbish\.pem and .*PEM"),
        (good.cert, good.key, rubbish, r"rubbish\.pem holds no certificate"),
        (tmp_path / "none.pem", good.key, None, r"none\.pem cannot be read \(No such file"),
    ):
        with pytest.raises(BadAuth, match=words):
            check_certificate(cert, key, authority)


def test_a_host_that_a_certificate_does_not_name_is_told(tmp_path: Path) -> None:
    """Names, patterns and addresses count as a client takes them; a common name does not."""
    ca = make_authority(tmp_path)
    hosts = "DNS:nats.example.com,DNS:*.pool.example.com,IP:10.0.0.1,IP:::1"
    pair = make_certificate(tmp_path, ca, name="server.example.com", hosts=hosts, not_after=in_days(99))
    named = ("nats.example.com", "a.pool.example.com", "10.0.0.1", "[::1]")
    others = ("server.example.com", "example.com", "a.b.pool.example.com", "10.0.0.2", "[::2]", "a..b", ".")

    found = check_certificate(pair.cert, pair.key, ca.cert, hosts=(*named, *others, "10.0.0.2"))

    assert found.names == ("nats.example.com", "*.pool.example.com", "10.0.0.1", "0:0:0:0:0:0:0:1")
    assert found.unnamed == others
