"""A server with a certificate: clients that know its authority get in, and every other case is called by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nexofork.auth.book import Server, Tls
from nexofork.auth.folder import create, seed_file
from nexofork.bus.connection import BusSettings, open_bus
from nexofork.bus.failures import ServerNotTrusted
from nexofork.bus.provisioning import provision
from nexofork.errors import BusError
from tests.support.certificates import Pair, make_authority, make_certificate
from tests.support.nats import SMALL, ServerProcess, running

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.nats import AccountsServer

_LATER = "20990101000000Z"


def _started(folder: Path, pair: Pair) -> ServerProcess:
    tls = Tls(cert=str(pair.cert), key=str(pair.key))
    create(folder / "auth", Server(port=-1, monitor_port=-1, store=str(folder / "store"), tls=tls))
    return ServerProcess('include "../auth/nats-server.conf"', folder=folder / "server")


async def test_a_client_that_knows_the_authority_gets_in_and_others_do_not(tmp_path: Path) -> None:
    """The rendered TLS works; without the authority the error says how to name it."""
    ca = make_authority(tmp_path)
    with running(_started(tmp_path, make_certificate(tmp_path, ca, not_after=_LATER))) as server:
        seed = seed_file(tmp_path / "auth", "default", "admin", "default")
        async with open_bus(BusSettings(urls=(server.url,), nkey_seed=seed, ca=ca.cert)) as admin:
            assert (await provision(admin, max_bytes=SMALL)).lease_s == 15.0
        with pytest.raises(ServerNotTrusted, match=r"issuer certificate.*--nats-ca"):
            async with open_bus(BusSettings(urls=(server.url,), nkey_seed=seed)):
                pass


async def test_an_expired_certificate_is_the_error(tmp_path: Path) -> None:
    """It is named as expired, by whom to renew it, and not as a server that is not there."""
    ca = make_authority(tmp_path)
    expired = make_certificate(tmp_path, ca, not_after="20210101000000Z")
    with (
        running(_started(tmp_path, expired)) as server,
        pytest.raises(ServerNotTrusted, match=r"certificate has expired\. Let its operator renew it") as caught,
    ):
        async with open_bus(BusSettings(urls=(server.url,), ca=ca.cert)):
            pass
    assert isinstance(caught.value, BusError)
    assert not caught.value.retryable


async def test_a_server_without_tls_is_refused_where_an_authority_is_named(
    accounts_server: AccountsServer, tmp_path: Path
) -> None:
    """Nothing is said to it, so nothing goes over the wire in the clear by mistake."""
    ca = make_authority(tmp_path)

    with pytest.raises(ServerNotTrusted, match="offers no TLS"):
        async with open_bus(
            BusSettings(urls=(accounts_server.url,), nkey_seed=accounts_server.seeds["parent"], ca=ca.cert)
        ):
            pass


async def test_an_authority_that_is_none_is_named(accounts_server: AccountsServer, tmp_path: Path) -> None:
    """The file is the error, before anything is sent."""
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("rubbish")

    with pytest.raises(BusError, match=r"rubbish\.pem cannot be used as a certificate authority"):
        async with open_bus(BusSettings(urls=(accounts_server.url,), ca=rubbish)):
            pass
