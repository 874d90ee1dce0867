"""A folder with everything about a server's users: the book, the configuration rendered from it, and the seeds.

Invariant: a seed is in one file of mode 0600 under folders of mode 0700, is never printed and is replaced only by its
successor; what the server reads holds public keys alone. Nothing is written before everything was checked.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError

from nexofork.auth.book import ROLES, Book, Tenant, User, problem_with_pools
from nexofork.auth.rendering import is_as_rendered, render
from nexofork.bus.credentials import new_seed
from nexofork.errors import BadAuth, BadMessage
from nexofork.wire.subjects import DEFAULT_POOL, check_token

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nexofork.auth.book import Role, Server

__all__ = [
    "BOOK",
    "FIRST",
    "add_user",
    "create",
    "extend",
    "finish_rotation",
    "read_book",
    "remove_user",
    "rotate",
    "seed_file",
    "start_rotation",
]

BOOK = "auth.json"
FIRST = "default"
"""The name of the first tenant, and of the first user of each role."""


def create(
    folder: Path, server: Server, *, tenants: Sequence[str] = (FIRST,), pools: Sequence[str] = (DEFAULT_POOL,)
) -> Book:
    """Make the folder: a user of each role for every tenant, and the configuration.

    Raises:
        BadAuth: The folder is not empty or cannot be made, or names cannot be used.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadAuth(
            f"{folder} is not an empty folder",
            fix="Give a new one; `nexofork auth add`, `rotate` and `extend` change one that was made before.",
        )
    book = Book(server=server, tenants=())
    with _writing(folder):
        return _grow(folder, book, tenants, pools, force=False)


def extend(folder: Path, *, tenants: Sequence[str] = (), pools: Sequence[str] = (), force: bool = False) -> Book:
    """Add tenants, with a user of each role, and pools, to every tenant.

    Raises:
        BadAuth: Names are taken or cannot be used, or the configuration was edited by hand.
    """
    with _locked(folder), _writing(folder):
        return _grow(folder, read_book(folder), tenants, pools, force=force)


def read_book(folder: Path) -> Book:
    """Read the book of a folder.

    Raises:
        BadAuth: There is none, or it cannot be understood.
    """
    path = folder / BOOK
    try:
        return Book.model_validate_json(path.read_bytes())
    except OSError as exc:
        raise BadAuth(
            f"{path} cannot be read ({exc.strerror})", fix="Name a folder made by `nexofork auth init`."
        ) from exc
    except (ValidationError, BadMessage) as exc:
        words = str(exc) if isinstance(exc, BadMessage) else "; ".join(_said(exc))
        raise BadAuth(f"{path} cannot be understood: {words}", fix="Restore it from a backup, or correct it.") from exc


def add_user(folder: Path, role: Role, name: str, *, tenant: str | None = None, force: bool = False) -> Path:
    """Add a user with a key of its own and return the file of its seed.

    Raises:
        BadAuth: The name is taken or cannot be used, or the configuration was edited by hand.
    """
    with _locked(folder), _writing(folder):
        book = read_book(folder)
        whose = _tenant_of(book, tenant)
        _check_names((name,))
        if whose.user(role, name):
            raise BadAuth(
                f"Tenant {whose.name} has a {role} {name!r} already",
                fix="Choose another name, or give it a new key with `nexofork auth rotate`.",
            )
        path = seed_file(folder, whose.name, role, name)
        _renderable(folder, book, force=force)
        user = User(role=role, name=name, keys=(_write_seed(path),))
        _save(folder, _with_user(book, whose, user), force=force)
        return path


def start_rotation(folder: Path, role: str, name: str, *, tenant: str | None = None, force: bool = False) -> Path:
    """Give a user a second key beside the one it has, and return the file of its seed.

    Raises:
        BadAuth: There is no such user, it has two keys already, or the configuration was edited by hand.
    """
    with _locked(folder), _writing(folder):
        book, whose, user = _find(folder, role, name, tenant)
        if len(user.keys) > 1:
            raise BadAuth(
                f"The {role} {name!r} has two keys already",
                fix="End the change that is under way with `nexofork auth rotate --finish`.",
            )
        _renderable(folder, book, force=force)
        path = _next(seed_file(folder, whose.name, user.role, name))
        key = _write_seed(path)
        changed = user.model_copy(update={"keys": (*user.keys, key)})
        _save(folder, _with_user(book, whose, changed), force=force)
        return path


def finish_rotation(folder: Path, role: str, name: str, *, tenant: str | None = None, force: bool = False) -> Path:
    """Take the older of a user's two keys away; the file of its seed has the newer one from now on.

    Raises:
        BadAuth: There is no such user, it has one key only, or the configuration was edited by hand.
    """
    with _locked(folder), _writing(folder):
        book, whose, user = _find(folder, role, name, tenant)
        if len(user.keys) == 1:
            raise BadAuth(f"The {role} {name!r} has one key only", fix="Start with `nexofork auth rotate --grace`.")
        changed = user.model_copy(update={"keys": user.keys[-1:]})
        _save(folder, _with_user(book, whose, changed), force=force)
        path = seed_file(folder, whose.name, user.role, name)
        if _next(path).exists():
            _next(path).replace(path)
        else:  # it was taken to where it is used, and what is left here opens nothing any more
            path.unlink(missing_ok=True)
        return path


def rotate(folder: Path, role: str, name: str, *, tenant: str | None = None, force: bool = False) -> Path:
    """Give a user another key in place of the one it has, at once, and return the file of its seed.

    Raises:
        BadAuth: As for ``start_rotation``.
    """
    start_rotation(folder, role, name, tenant=tenant, force=force)
    return finish_rotation(folder, role, name, tenant=tenant, force=force)


def remove_user(folder: Path, role: str, name: str, *, tenant: str | None = None, force: bool = False) -> None:
    """Take a user's keys out of the configuration and delete its seeds.

    Raises:
        BadAuth: There is no such user, it is the last admin, or the configuration was edited by hand.
    """
    with _locked(folder), _writing(folder):
        book, whose, user = _find(folder, role, name, tenant)
        if role == "admin" and [other.role for other in whose.users].count("admin") == 1:
            raise BadAuth(
                f"{name!r} is the last admin of tenant {whose.name}, and nobody could change its streams any more",
                fix="Add another admin first.",
            )
        left = whose.model_copy(update={"users": tuple(other for other in whose.users if other != user)})
        _save(folder, _with_tenant(book, left), force=force)
        path = seed_file(folder, whose.name, user.role, name)
        path.unlink(missing_ok=True)
        _next(path).unlink(missing_ok=True)


def seed_file(folder: Path, tenant: str, role: Role, name: str) -> Path:
    """Return where a user's seed is kept."""
    return folder / "seeds" / tenant / role / f"{name}.nk"


def _grow(folder: Path, book: Book, tenants: Sequence[str], pools: Sequence[str], *, force: bool) -> Book:
    """Add tenants and pools; every tenant has all pools."""
    _check_names((*tenants, *pools))
    named = [tenant.name for tenant in book.tenants] + list(tenants)
    if len(set(named)) != len(named):
        raise BadAuth("A tenant of that name is there already", fix="Every tenant has a name of its own.")
    all_pools = (*(book.tenants[0].pools if book.tenants else ()), *pools)
    if problem := problem_with_pools(all_pools):
        raise BadAuth(f"These pools cannot be made: {problem}", fix="Choose other names.")
    grown = [tenant.model_copy(update={"pools": all_pools}) for tenant in book.tenants]
    fresh = [Tenant(name=name, pools=all_pools) for name in tenants]
    _renderable(folder, book.model_copy(update={"tenants": (*grown, *fresh)}), force=force)
    folder.mkdir(parents=True, exist_ok=True)
    for tenant in fresh:
        seeds = {role: seed_file(folder, tenant.name, role, FIRST) for role in ROLES}
        users = tuple(User(role=role, name=FIRST, keys=(_write_seed(path),)) for role, path in seeds.items())
        grown.append(tenant.model_copy(update={"users": users}))
    changed = book.model_copy(update={"tenants": tuple(grown)})
    _save(folder, changed, force=force)
    return changed


def _find(folder: Path, role: str, name: str, tenant: str | None) -> tuple[Book, Tenant, User]:
    book = read_book(folder)
    whose = _tenant_of(book, tenant)
    user = whose.user(role, name)
    if user is None:
        there = ", ".join(repr(other.name) for other in whose.users if other.role == role) or "none"
        raise BadAuth(f"Tenant {whose.name} has no {role} {name!r}", fix=f"There is: {there}.")
    return book, whose, user


def _tenant_of(book: Book, name: str | None) -> Tenant:
    names = ", ".join(tenant.name for tenant in book.tenants)
    if name is None:
        if len(book.tenants) == 1:
            return book.tenants[0]
        raise BadAuth(f"There are several tenants: {names}", fix="Name one with --tenant.")
    if (tenant := book.tenant(name)) is None:
        raise BadAuth(f"There is no tenant {name!r}", fix=f"There is: {names}. `nexofork auth extend` adds one.")
    return tenant


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        try:
            check_token(name, "name")
        except BadMessage as exc:
            raise BadAuth(f"{name[:140]!r} cannot be a name", fix=exc.fix) from exc


def _with_user(book: Book, tenant: Tenant, user: User) -> Book:
    others = [other for other in tenant.users if (other.role, other.name) != (user.role, user.name)]
    order = {role: number for number, role in enumerate(ROLES)}
    users = sorted((*others, user), key=lambda one: (order[one.role], one.name))
    return _with_tenant(book, tenant.model_copy(update={"users": tuple(users)}))


def _with_tenant(book: Book, changed: Tenant) -> Book:
    tenants = tuple(changed if tenant.name == changed.name else tenant for tenant in book.tenants)
    return book.model_copy(update={"tenants": tenants})


def _renderable(folder: Path, book: Book, *, force: bool) -> dict[str, str]:
    """Return the configuration files to write, unless one of them was edited by hand."""
    files = render(book)
    for name in files:
        path = folder / name
        if path.exists() and not force and not is_as_rendered(path.read_text(encoding="utf-8", errors="replace")):
            raise BadAuth(
                f"{path} was edited by hand, and rendering it again would lose that",
                fix="Move the changes elsewhere (`include` works), or say --force.",
            )
    return files


def _save(folder: Path, book: Book, *, force: bool) -> None:
    # The book last: a configuration without its entry is rendered again, an entry without its key would not be.
    for name, text in _renderable(folder, book, force=force).items():
        _replace(folder / name, text)
    _replace(folder / BOOK, book.model_dump_json(indent=2) + "\n")


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _write_seed(path: Path) -> str:
    """Make a key, write its seed where none is, and return the public key."""
    seed, key = new_seed()
    for missing in reversed([above for above in path.parents if not above.exists()]):
        missing.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as exc:
        raise BadAuth(
            f"{path} exists, and a seed is never overwritten",
            fix="It belongs to nobody in the book: move it away, then try again.",
        ) from exc
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(seed + "\n")
    return key


def _next(path: Path) -> Path:
    return path.with_name(f"{path.stem}.next.nk")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one command at a time change a folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as exc:
        raise BadAuth(
            f"{folder} cannot be read ({exc.strerror})", fix="Name a folder made by `nexofork auth init`."
        ) from exc
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BadAuth(
            f"{exc.filename or folder} cannot be written ({exc.strerror})",
            fix="Check its owner and the room on the disk.",
        ) from exc


def _said(exc: ValidationError) -> Iterator[str]:
    for error in exc.errors():
        yield f"{'.'.join(map(str, error['loc'])) or 'the whole'}: {error['msg']}"
