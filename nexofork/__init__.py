"""Fork an agent and pay for its context once.

The public names are loaded when they are first used: importing the package costs nothing, so a command line that needs
only a few of them starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nexofork.client.blocking import BlockingForkSubagent
    from nexofork.client.fleet import FleetSettings, NatsForkSubagent, connect
    from nexofork.client.handle import ForkHandle
    from nexofork.client.in_process import DefaultForkSubagent
    from nexofork.client.notices import task_notification
    from nexofork.core.query_source import QuerySource
    from nexofork.core.reply import Reply
    from nexofork.core.snapshot import CacheSafeParams, CacheSafeSlot
    from nexofork.economics.estimate import Estimate, estimate
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.budget import Budget
    from nexofork.engine.dispatch import FunctionTools
    from nexofork.engine.filters import AllowAllFilter
    from nexofork.engine.params import DelegateMode, ForkOverrides, ForkParams, ParentContext
    from nexofork.engine.result import ForkResult, ForkStatus
    from nexofork.errors import NexoforkError
    from nexofork.providers.anthropic import AnthropicProvider
    from nexofork.providers.capture import capture

__all__ = [
    "AbortToken",
    "AllowAllFilter",
    "AnthropicProvider",
    "BlockingForkSubagent",
    "Budget",
    "CacheSafeParams",
    "CacheSafeSlot",
    "DefaultForkSubagent",
    "DelegateMode",
    "Estimate",
    "FleetSettings",
    "ForkHandle",
    "ForkOverrides",
    "ForkParams",
    "ForkResult",
    "ForkStatus",
    "FunctionTools",
    "NatsForkSubagent",
    "NexoforkError",
    "ParentContext",
    "QuerySource",
    "Reply",
    "capture",
    "connect",
    "estimate",
    "task_notification",
]

__version__ = "0.1.0"

_HOMES = {
    "AbortToken": "nexofork.engine.abort",
    "AllowAllFilter": "nexofork.engine.filters",
    "AnthropicProvider": "nexofork.providers.anthropic",
    "BlockingForkSubagent": "nexofork.client.blocking",
    "Budget": "nexofork.engine.budget",
    "CacheSafeParams": "nexofork.core.snapshot",
    "CacheSafeSlot": "nexofork.core.snapshot",
    "DefaultForkSubagent": "nexofork.client.in_process",
    "DelegateMode": "nexofork.engine.params",
    "Estimate": "nexofork.economics.estimate",
    "FleetSettings": "nexofork.client.fleet",
    "ForkHandle": "nexofork.client.handle",
    "ForkOverrides": "nexofork.engine.params",
    "ForkParams": "nexofork.engine.params",
    "ForkResult": "nexofork.engine.result",
    "ForkStatus": "nexofork.engine.result",
    "FunctionTools": "nexofork.engine.dispatch",
    "NatsForkSubagent": "nexofork.client.fleet",
    "NexoforkError": "nexofork.errors",
    "ParentContext": "nexofork.engine.params",
    "QuerySource": "nexofork.core.query_source",
    "Reply": "nexofork.core.reply",
    "capture": "nexofork.providers.capture",
    "connect": "nexofork.client.fleet",
    "estimate": "nexofork.economics.estimate",
    "task_notification": "nexofork.client.notices",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nexofork' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
