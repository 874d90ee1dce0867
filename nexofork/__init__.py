"""Fork an agent and pay for its context once.

The public names are loaded when they are first used: importing the package costs nothing, so a command line that needs
only a few of them starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nexofork.agents.definition import AgentDefinition
    from nexofork.agents.delegation import DelegationTool
    from nexofork.agents.registry import AgentRegistry
    from nexofork.agents.tool import AgentTool
    from nexofork.client.blocking import BlockingForkSubagent
    from nexofork.client.fleet import FleetSettings, NatsForkSubagent, connect
    from nexofork.client.handle import ForkHandle, as_completed
    from nexofork.client.local import DefaultForkSubagent
    from nexofork.core.query_source import QuerySource
    from nexofork.core.reply import Reply
    from nexofork.core.snapshot import CacheSafeParams, CacheSafeSlot
    from nexofork.economics.estimate import Estimate, estimate
    from nexofork.engine.abort import AbortToken
    from nexofork.engine.budget import Budget
    from nexofork.engine.dispatch import FunctionTools
    from nexofork.engine.filters import AllOfFilter, AllowAllFilter, AutoMemFilter, ProfileFilter, ReadOnlyFilter
    from nexofork.engine.notices import task_notification
    from nexofork.engine.params import DelegateMode, ForkOverrides, ForkParams, ParentContext
    from nexofork.engine.permissions import PermissionAnswer, PermissionAsk, Permissions
    from nexofork.engine.result import ForkResult, ForkStatus
    from nexofork.engine.workspace import GitWorkspace, PathWorkspace
    from nexofork.errors import NexoforkError
    from nexofork.providers.anthropic import AnthropicProvider
    from nexofork.providers.capture import capture

__all__ = [
    "AbortToken",
    "AgentDefinition",
    "AgentRegistry",
    "AgentTool",
    "AllOfFilter",
    "AllowAllFilter",
    "AnthropicProvider",
    "AutoMemFilter",
    "BlockingForkSubagent",
    "Budget",
    "CacheSafeParams",
    "CacheSafeSlot",
    "DefaultForkSubagent",
    "DelegateMode",
    "DelegationTool",
    "Estimate",
    "FleetSettings",
    "ForkHandle",
    "ForkOverrides",
    "ForkParams",
    "ForkResult",
    "ForkStatus",
    "FunctionTools",
    "GitWorkspace",
    "NatsForkSubagent",
    "NexoforkError",
    "ParentContext",
    "PathWorkspace",
    "PermissionAnswer",
    "PermissionAsk",
    "Permissions",
    "ProfileFilter",
    "QuerySource",
    "ReadOnlyFilter",
    "Reply",
    "as_completed",
    "capture",
    "connect",
    "estimate",
    "task_notification",
]

__version__ = "0.1.0"

_HOMES = {
    "AbortToken": "nexofork.engine.abort",
    "AgentDefinition": "nexofork.agents.definition",
    "AgentRegistry": "nexofork.agents.registry",
    "AgentTool": "nexofork.agents.tool",
    "AllOfFilter": "nexofork.engine.filters",
    "AllowAllFilter": "nexofork.engine.filters",
    "AnthropicProvider": "nexofork.providers.anthropic",
    "AutoMemFilter": "nexofork.engine.filters",
    "BlockingForkSubagent": "nexofork.client.blocking",
    "Budget": "nexofork.engine.budget",
    "CacheSafeParams": "nexofork.core.snapshot",
    "CacheSafeSlot": "nexofork.core.snapshot",
    "DefaultForkSubagent": "nexofork.client.local",
    "DelegationTool": "nexofork.agents.delegation",
    "DelegateMode": "nexofork.engine.params",
    "Estimate": "nexofork.economics.estimate",
    "FleetSettings": "nexofork.client.fleet",
    "ForkHandle": "nexofork.client.handle",
    "ForkOverrides": "nexofork.engine.params",
    "ForkParams": "nexofork.engine.params",
    "ForkResult": "nexofork.engine.result",
    "ForkStatus": "nexofork.engine.result",
    "FunctionTools": "nexofork.engine.dispatch",
    "GitWorkspace": "nexofork.engine.workspace",
    "NatsForkSubagent": "nexofork.client.fleet",
    "NexoforkError": "nexofork.errors",
    "ParentContext": "nexofork.engine.params",
    "PathWorkspace": "nexofork.engine.workspace",
    "PermissionAnswer": "nexofork.engine.permissions",
    "PermissionAsk": "nexofork.engine.permissions",
    "Permissions": "nexofork.engine.permissions",
    "ProfileFilter": "nexofork.engine.filters",
    "QuerySource": "nexofork.core.query_source",
    "ReadOnlyFilter": "nexofork.engine.filters",
    "Reply": "nexofork.core.reply",
    "as_completed": "nexofork.client.handle",
    "capture": "nexofork.providers.capture",
    "connect": "nexofork.client.fleet",
    "estimate": "nexofork.economics.estimate",
    "task_notification": "nexofork.engine.notices",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nexofork' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
