"""The book: every tenant, pool and user of a server, from which its configuration is rendered.

It is the one state of truth, kept as JSON beside the configuration. It holds public keys only, so it may be read by
whoever may read the configuration. A value is checked when it comes in, whoever wrote it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from nexofork.wire.streams import inbox_stream, log_stream
from nexofork.wire.subjects import DEFAULT_POOL, check_token

__all__ = ["ROLES", "Book", "Node", "Role", "Server", "Tenant", "Tls", "User", "problem_with_pools"]

Role: TypeAlias = Literal["admin", "parent", "daemon", "observer"]
ROLES: tuple[Role, ...] = ("admin", "parent", "daemon", "observer")

_PRESENCE_POOL = "presence"
"""``live.presence.*.*`` is where presence is republished, so a pool of that name would be read by the wrong people."""


def _token(value: str) -> str:
    # NATS accounts and files are named after it, so the rules of a subject's token fit all three.
    check_token(value, "name")
    return value


Name = Annotated[str, AfterValidator(_token)]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class User(_Entry):
    """Somebody of a role."""

    role: Role
    name: Name
    keys: tuple[Annotated[str, Field(pattern=r"^U[A-Z2-7]{55}$")], ...] = Field(min_length=1, max_length=2)
    """Public keys, the newest last; two while a key is being changed."""


class Tenant(_Entry):
    """Four accounts that share nothing with those of another tenant."""

    name: Name
    pools: tuple[Name, ...] = (DEFAULT_POOL,)
    users: tuple[User, ...] = ()

    def user(self, role: str, name: str) -> User | None:
        """Return a user, if there is one."""
        return next((user for user in self.users if (user.role, user.name) == (role, name)), None)


class Tls(_Entry):
    """Files, as the server finds them."""

    cert: str
    key: str
    ca: str | None = None


class Node(_Entry):
    """One server of a cluster."""

    name: Name
    host: str
    port: int = 4222
    route_port: int = 6222


class Server(_Entry):
    """What is not about users."""

    host: str = "127.0.0.1"
    port: int = 4222
    """-1 takes a free one."""
    monitor_port: int = 8222
    store: str
    sync_always: bool = False
    """Every write is on disk before it is acknowledged."""
    tls: Tls | None = None
    cluster: tuple[Node, ...] = ()
    """Empty for one server alone."""
    replicas: int = Field(default=1, ge=1, le=5)


class Book(_Entry):
    """Everything."""

    v: Literal[1] = 1
    server: Server
    tenants: tuple[Tenant, ...]

    @model_validator(mode="after")
    def _no_key_twice(self) -> Book:
        keys = [key for tenant in self.tenants for user in tenant.users for key in user.keys]
        if len(keys) != len(set(keys)):
            raise ValueError("a key is listed twice")
        return self

    def tenant(self, name: str) -> Tenant | None:
        """Return a tenant, if there is one."""
        return next((tenant for tenant in self.tenants if tenant.name == name), None)


def problem_with_pools(pools: tuple[str, ...]) -> str | None:
    """Say why these cannot be the pools of one tenant; None if they can."""
    if len(set(pools)) != len(pools):
        return "a pool is named twice"
    if _PRESENCE_POOL in pools:
        return f"a pool cannot be called {_PRESENCE_POOL!r}: presence itself is republished under that name"
    streams = [stream for pool in pools for stream in (log_stream(pool), inbox_stream(pool))]
    if len(set(streams)) != len(streams):
        return f"two of the pools {', '.join(pools)} would have a stream of the same name"
    return None
