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
    from nexofork.errors import NexoforkError
    from nexofork.policy.filters import AllOfFilter, AllowAllFilter, AutoMemFilter, ProfileFilter, ReadOnlyFilter
    from nexofork.policy.permissions import PermissionAnswer, PermissionAsk, Permissions
    from nexofork.providers.anthropic import AnthropicProvider
    from nexofork.providers.capture import capture
    from nexofork.run.abort import AbortToken
    from nexofork.run.budget import Budget
    from nexofork.run.params import DelegateMode, ForkOverrides, ForkParams
    from nexofork.run.result import ForkResult, ForkStatus, task_notification
    from nexofork.tools.dispatch import FunctionTools, ParentContext
    from nexofork.workspace import GitWorkspace, PathWorkspace

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
    "AbortToken": "nexofork.run.abort",
    "AgentDefinition": "nexofork.agents.definition",
    "AgentRegistry": "nexofork.agents.registry",
    "AgentTool": "nexofork.agents.tool",
    "AllOfFilter": "nexofork.policy.filters",
    "AllowAllFilter": "nexofork.policy.filters",
    "AnthropicProvider": "nexofork.providers.anthropic",
    "AutoMemFilter": "nexofork.policy.filters",
    "BlockingForkSubagent": "nexofork.client.blocking",
    "Budget": "nexofork.run.budget",
    "CacheSafeParams": "nexofork.core.snapshot",
    "CacheSafeSlot": "nexofork.core.snapshot",
    "DefaultForkSubagent": "nexofork.client.local",
    "DelegationTool": "nexofork.agents.delegation",
    "DelegateMode": "nexofork.run.params",
    "Estimate": "nexofork.economics.estimate",
    "FleetSettings": "nexofork.client.fleet",
    "ForkHandle": "nexofork.client.handle",
    "ForkOverrides": "nexofork.run.params",
    "ForkParams": "nexofork.run.params",
    "ForkResult": "nexofork.run.result",
    "ForkStatus": "nexofork.run.result",
    "FunctionTools": "nexofork.tools.dispatch",
    "GitWorkspace": "nexofork.workspace",
    "NatsForkSubagent": "nexofork.client.fleet",
    "NexoforkError": "nexofork.errors",
    "ParentContext": "nexofork.tools.dispatch",
    "PathWorkspace": "nexofork.workspace",
    "PermissionAnswer": "nexofork.policy.permissions",
    "PermissionAsk": "nexofork.policy.permissions",
    "Permissions": "nexofork.policy.permissions",
    "ProfileFilter": "nexofork.policy.filters",
    "QuerySource": "nexofork.core.query_source",
    "ReadOnlyFilter": "nexofork.policy.filters",
    "Reply": "nexofork.core.reply",
    "as_completed": "nexofork.client.handle",
    "capture": "nexofork.providers.capture",
    "connect": "nexofork.client.fleet",
    "estimate": "nexofork.economics.estimate",
    "task_notification": "nexofork.run.result",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nexofork' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
