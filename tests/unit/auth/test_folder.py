from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from nexofork.auth.book import ROLES, Server
from nexofork.auth.folder import (
    BOOK,
    add_user,
    create,
    extend,
    finish_rotation,
    read_book,
    remove_user,
    rotate,
    seed_file,
    start_rotation,
)
from nexofork.bus.credentials import read_login
from nexofork.errors import BadAuth

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one tenant."""
    create(tmp_path / "auth", Server(store="/srv/nats"))
    return tmp_path / "auth"


def configuration(folder: Path) -> str:
    """What the server would read."""
    return (folder / "nats-server.conf").read_text()


def public(path: Path) -> str:
    """The public key of a seed."""
    return read_login(None, path).identity


def test_seeds_are_for_their_owner_alone_and_nowhere_else(folder: Path) -> None:
    """Mode 0600 in folders of 0700; configuration and book hold the public keys and no seed."""
    for role in ROLES:
        seed = seed_file(folder, "default", role, "default")
        assert stat.S_IMODE(seed.stat().st_mode) == 0o600
        for above in (seed.parent, seed.parent.parent, folder / "seeds"):
            assert stat.S_IMODE(above.stat().st_mode) == 0o700
        for file in (folder / "nats-server.conf", folder / BOOK):
            assert public(seed) in file.read_text()
            assert seed.read_text().strip() not in file.read_text()


def test_the_same_book_gives_the_same_configuration(folder: Path) -> None:
    """Adding and removing a user leaves no trace."""
    before = configuration(folder)
    seed = add_user(folder, "daemon", "host2")
    assert public(seed) in configuration(folder)
    remove_user(folder, "daemon", "host2")

    assert configuration(folder) == before
    assert not seed.exists()


def test_a_key_is_changed_with_and_without_grace(folder: Path) -> None:
    """With grace both are valid until the end of it; without, the old one is gone at once."""
    seed = seed_file(folder, "default", "parent", "default")
    first = public(seed)
    second = public(start_rotation(folder, "parent", "default"))
    assert (first in configuration(folder), second in configuration(folder)) == (True, True)
    assert public(seed) == first

    assert finish_rotation(folder, "parent", "default") == seed
    assert (first in configuration(folder), public(seed)) == (False, second)

    third = public(rotate(folder, "parent", "default"))
    assert (second in configuration(folder), third in configuration(folder), public(seed)) == (False, True, third)
    assert stat.S_IMODE(seed.stat().st_mode) == 0o600
    assert [path.name for path in seed.parent.iterdir()] == ["default.nk"]


def test_tenants_and_pools_can_be_added_later(folder: Path) -> None:
    """Existing keys stay; every tenant has every pool."""
    before = {user.keys for user in read_book(folder).tenants[0].users}
    extend(folder, tenants=("blue",), pools=("gpu",))

    book = read_book(folder)
    assert {user.keys for user in book.tenants[0].users} == before
    assert [(tenant.name, tenant.pools) for tenant in book.tenants] == [
        ("default", ("fork", "gpu")),
        ("blue", ("fork", "gpu")),
    ]
    assert "$JS.API.CONSUMER.MSG.NEXT.FORK_POOL_gpu.pickup" in configuration(folder)


def test_an_edited_configuration_is_kept_unless_forced(folder: Path) -> None:
    """The refusal changes nothing: no seed, no entry; with force it is rendered again."""
    path = folder / "nats-server.conf"
    edited = path.read_text().replace("max_payload: 1MB", "max_payload: 2MB")
    path.write_text(edited)
    for change in (
        lambda: add_user(folder, "daemon", "host2"),
        lambda: rotate(folder, "daemon", "default"),
        lambda: extend(folder, pools=("gpu",)),
        lambda: remove_user(folder, "observer", "default"),
    ):
        with pytest.raises(BadAuth, match=r"edited by hand.*--force"):
            change()
    assert path.read_text() == edited
    assert not seed_file(folder, "default", "daemon", "host2").exists()
    assert [user.name for user in read_book(folder).tenants[0].users] == ["default"] * 4

    add_user(folder, "daemon", "host2", force=True)
    assert "max_payload: 1MB" in path.read_text()
    remove_user(folder, "daemon", "host2")


def test_a_seed_is_never_overwritten(folder: Path) -> None:
    """Not even one that nobody's name is on."""
    orphan = seed_file(folder, "default", "daemon", "host2")
    orphan.write_text("SU-something")

    with pytest.raises(BadAuth, match="never overwritten"):
        add_user(folder, "daemon", "host2")
    assert orphan.read_text() == "SU-something"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: create(folder, Server(store="x")), "not an empty folder"),
        (lambda folder: create(folder / BOOK, Server(store="x")), "not an empty folder"),
        (lambda folder: create(folder / BOOK / "x", Server(store="x")), "cannot be written"),
        (lambda folder: add_user(folder, "daemon", "default"), "has a daemon 'default' already"),
        (lambda folder: add_user(folder, "daemon", "../x"), "cannot be a name"),
        (lambda folder: add_user(folder, "daemon", "x", tenant="blue"), "no tenant 'blue'.*There is: default"),
        (lambda folder: rotate(folder, "daemon", "host9"), "no daemon 'host9'.*There is: 'default'"),
        (lambda folder: finish_rotation(folder, "daemon", "default"), "one key only"),
        (lambda folder: remove_user(folder, "admin", "default"), "last admin"),
        (lambda folder: extend(folder, tenants=("default",)), "tenant of that name"),
        (lambda folder: extend(folder, pools=("fork",)), "named twice"),
        (lambda folder: extend(folder, pools=("presence",)), "presence itself"),
        (lambda folder: extend(folder, pools=("gpu", "gpu_INBOX")), "stream of the same name"),
        (lambda folder: read_book(folder / "seeds"), "cannot be read"),
        (lambda folder: add_user(folder / "none", "daemon", "x"), "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(folder: Path, change: object, words: str) -> None:
    """The error names what is wrong, and everything is as before."""
    before = sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file())

    with pytest.raises(BadAuth, match=rf"(?s){words}"):
        change(folder)  # type: ignore[operator]
    assert sorted((path, path.read_bytes()) for path in folder.rglob("*") if path.is_file()) == before


def test_with_several_tenants_one_must_be_named(folder: Path) -> None:
    """The choice is listed."""
    extend(folder, tenants=("blue",))

    with pytest.raises(BadAuth, match=r"default, blue.*--tenant"):
        add_user(folder, "daemon", "host2")


def test_a_broken_book_is_named(folder: Path) -> None:
    """With the place that is wrong."""
    path = folder / BOOK
    path.write_text(path.read_text().replace('"role": "daemon"', '"role": "boss"'))

    with pytest.raises(BadAuth, match=r"auth\.json cannot be understood: tenants\.0\.users\.2\.role"):
        read_book(folder)
