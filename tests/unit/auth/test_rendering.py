from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.auth.book import ROLES, Book, Node, Server, Tenant, Tls, User
from nexofork.auth.rendering import is_as_rendered, render
from nexofork.bus.credentials import new_seed
from nexofork.wire.streams import inbox_stream, log_stream, stream_settings

NAMES = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True), min_size=1, max_size=3, unique=True)

KEYS = [new_seed()[1] for _ in range(12)]


def a_book(tenants: list[str], pools: list[str], *, server: Server | None = None) -> Book:
    """A book with one user of each role for every tenant."""
    keys = iter(KEYS)
    return Book(
        server=server or Server(store="/srv/nats"),
        tenants=tuple(
            Tenant(
                name=name,
                pools=tuple(pools),
                users=tuple(User(role=role, name="default", keys=(next(keys),)) for role in ROLES),
            )
            for name in tenants
        ),
    )


@given(tenants=NAMES, pools=NAMES)
def test_nothing_is_left_of_the_template(tenants: list[str], pools: list[str]) -> None:
    """Every placeholder is filled, every block opened is closed, and an edit of any line shows."""
    (text,) = render(a_book(tenants, pools)).values()

    assert not re.search(r"%\w+%|^#each|^#end|^##", text, re.MULTILINE)
    for opening, closing in ("{}", "[]"):
        code = re.sub(r"#.*", "", text)
        assert code.count(opening) == code.count(closing)
    assert is_as_rendered(text)
    assert not is_as_rendered(text.replace("1MB", "2MB"))


@given(pools=NAMES)
def test_every_pool_is_granted_alike(pools: list[str]) -> None:
    """What one pool has in a tenant, each has, and no other is named."""
    (text,) = render(a_book(["default"], pools)).values()

    counts = {pool: text.count(f'"agent.{pool}.') for pool in pools}
    assert len(set(counts.values())) == 1
    assert set(re.findall(r'"agent\.([^.]+)\.', text)) == set(pools)
    named = {re.sub(r"\.>$", "", stream) for stream in re.findall(r'"\$JS\.API\.DIRECT\.GET\.([^"]+)"', text)}
    shared = {"FORK_BLOBS", "FORK_WARM", "FORK_PRESENCE", "FORK_LEDGER"}
    assert named - shared == {stream for pool in pools for stream in (log_stream(pool), inbox_stream(pool))} - shared


def test_a_tenant_names_no_account_of_another() -> None:
    """Exports and imports stay within the four accounts of the tenant."""
    (text,) = render(a_book(["red", "blue"], ["fork"])).values()
    red, blue = text.split("# Tenant ")[1:]

    assert "_blue" not in red
    assert "_red" not in blue


def test_both_keys_of_a_user_have_the_same_rights() -> None:
    """While a key is changed, the new one can do what the old one can."""
    book = a_book(["default"], ["fork"])
    (tenant,) = book.tenants
    old, new = tenant.users[2].keys[0], KEYS[-1]
    users = (*tenant.users[:2], tenant.users[2].model_copy(update={"keys": (old, new)}), tenant.users[3])
    (text,) = render(book.model_copy(update={"tenants": (tenant.model_copy(update={"users": users}),)})).values()

    blocks = dict(re.findall(r"\{ nkey: (\w+), permissions: \{.*?\n(.*?)\} \} \}", text, re.DOTALL))
    assert blocks[old].replace(old, "") == blocks[new].replace(new, "")


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_the_limits_of_all_streams_fit_the_account(count: int, replicas: int) -> None:
    """Each stream can be filled to its limit, at every replica, before the account is full."""
    pools = [f"p{number}" for number in range(count)]
    (text,) = render(a_book(["default"], pools, server=Server(store="/srv/nats", replicas=replicas))).values()
    streams = {wanted["name"]: wanted for pool in pools for wanted in stream_settings(pool, replicas=replicas)}

    granted = re.search(r"jetstream: \{ max_mem: 256MB, max_file: (\d+)GB", text)
    assert granted is not None
    assert sum(wanted["max_bytes"] for wanted in streams.values()) * replicas <= int(granted[1]) << 30
    assert all(wanted["max_msg_size"] == 1 << 20 for wanted in streams.values())


def test_a_cluster_has_a_file_for_each_node() -> None:
    """Each listens for itself, knows the others, and lets in by certificate; the accounts are the same."""
    nodes = tuple(Node(name=f"n{number}", host=f"10.0.0.{number}") for number in (1, 2, 3))
    server = Server(
        store="/srv/nats",
        cluster=nodes,
        replicas=3,
        sync_always=True,
        tls=Tls(cert="/c.pem", key="/k.pem", ca="/a.pem"),
    )
    files = render(a_book(["default"], ["fork"], server=server))

    assert list(files) == ["nats-server-n1.conf", "nats-server-n2.conf", "nats-server-n3.conf"]
    assert len({text.partition("accounts:")[2] for text in files.values()}) == 1
    second = files["nats-server-n2.conf"]
    assert 'routes: ["nats-route://10.0.0.1:6222", "nats-route://10.0.0.3:6222"]' in second
    assert 'tls { cert_file: "/c.pem", key_file: "/k.pem", ca_file: "/a.pem", timeout: 5 }' in second
    assert 'store_dir: "/srv/nats/n2"' in second
    assert "sync_interval: always" in second
