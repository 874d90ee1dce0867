"""How a simulator is set up: address, tenants, limits, and what it may be asked to do differently.

All of it has a default, so ``Simulator()`` is a whole provider. Invariant: a configuration is a value; nothing here
opens a socket or reads the environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Self

from nexofork.simulator.catalog import CATALOG, Model

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RateLimits", "SimulatorConfig", "Tenant"]

DEFAULT_WORKSPACE = "wrkspc_default"
DEFAULT_ORGANIZATION = "org_default"
SIMULATOR_KEY = re.compile(r"^sk-sim-(?P<workspace>[A-Za-z0-9_]+)(-.*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Whose cache, limits and bill a request uses."""

    organization: str
    workspace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Limits per workspace; None is no limit."""

    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    """Counts fresh input and cache writes; cache reads are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorConfig:
    """Everything that can be set before a simulator starts."""

    host: str = "127.0.0.1"
    port: int = 0
    """Zero takes a free port."""
    workspaces: Mapping[str, str] = field(default_factory=dict)
    """API key to workspace id; keys that are not listed go by their shape (see `tenant`)."""
    organizations: Mapping[str, str] = field(default_factory=dict)
    """Workspace id to organisation id; others belong to `org_default`."""
    invalid_keys: frozenset[str] = frozenset()
    """Keys answered with a 401."""
    rate_limits: RateLimits = RateLimits()
    models: Mapping[str, Model] = field(default_factory=dict)
    """Models added to the catalogue or put in place of its entries."""
    script: tuple[Mapping[str, Any], ...] = ()
    """Rules for what the model says; see `nexofork.simulator.script`."""
    time_scale: float = 1.0
    """How many simulated seconds pass in one real second; delays stay real."""
    escape_non_ascii: bool = False
    """Send non-ASCII as ``\\u`` escapes, with surrogate pairs in tool input split over two deltas."""
    context_tokens: int | None = None
    """The context window of every model that has a larger one; None leaves them as they are."""
    max_body_bytes: int = 32 * 1024 * 1024
    kept_body_bytes: int = 512 * 1024 * 1024
    """How many request bytes the log keeps; beyond it the oldest bodies are dropped, their records stay."""
    signing_secret: str = "simulator"
    """Signs thinking blocks; two simulators with the same secret accept each other's."""

    def catalog(self) -> dict[str, Model]:
        """The models this simulator answers for."""
        return {**CATALOG, **self.models}

    def tenant(self, key: str) -> Tenant:
        """Whom a key belongs to.

        >>> SimulatorConfig().tenant("sk-sim-alpha-2").workspace
        'wrkspc_alpha'
        """
        workspace = self.workspaces.get(key) or _workspace_by_shape(key)
        return Tenant(organization=self.organizations.get(workspace, DEFAULT_ORGANIZATION), workspace=workspace)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build a configuration from parsed JSON.

        Raises:
            ValueError: a name is not a setting.
        """
        known = {item.name for item in fields(cls)} - {"models"}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"unknown simulator settings: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        config = cls(**{name: value for name, value in values.items() if name not in {"rate_limits", "invalid_keys"}})
        limits = RateLimits(**values.get("rate_limits", {}))
        return replace(config, rate_limits=limits, invalid_keys=frozenset(values.get("invalid_keys", ())))


def _workspace_by_shape(key: str) -> str:
    shaped = SIMULATOR_KEY.match(key)
    if shaped is None:
        return DEFAULT_WORKSPACE
    name = shaped["workspace"]
    return name if name.startswith("wrkspc_") else f"wrkspc_{name}"
