"""Workspaces: what a child works in, how it gets there, and how what it made comes back."""

from __future__ import annotations

from nexofork.workspace.kinds import GitWorkspace, PathWorkspace, ShippedWorkspace, Workspace, check_workspace

__all__ = ["GitWorkspace", "PathWorkspace", "ShippedWorkspace", "Workspace", "check_workspace"]
