"""The ``Bash`` tool: one shell command per call, bounded by what `commands` bounds a program by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nexofork.tools.dispatch import ToolOutcome
from nexofork.tools.process import Limits, Output, minimal_environment, run_command, temporary_home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexofork.sandbox.run_sandbox import Enclosure

__all__ = ["BashTool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BashTool:
    """The ``Bash`` tool: ``{"command": …, "timeout_s": …}``; ``timeout`` in milliseconds is taken too."""

    cwd: Path | None = None
    """Where commands run without a sandbox, which has its own; None is where the daemon does."""
    home: Path | None = None
    """The home of commands without a sandbox; None is a temporary folder."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What commands see besides a minimal environment without the daemon's secrets."""
    limits: Limits = field(default_factory=Limits)
    """What a command may use; a call may ask for less time, not for more."""
    sandbox: Enclosure | None = None
    """What commands run in; None is bare."""
    max_output_bytes: int = 256 * 1024
    """What is kept of the output: its start and its end, half each."""

    def within(self, environment: Mapping[str, str]) -> BashTool:
        """Return the tool with more in its environment."""
        return replace(self, environment={**self.environment, **environment})

    async def run(self, arguments: dict[str, Any]) -> ToolOutcome:
        """Run one command and return what it printed and how it ended."""
        command = arguments.get("command")
        if not isinstance(command, str) or not command.strip():
            return ToolOutcome(content="Bash needs a `command` that is a non-empty string.", is_error=True)
        if arguments.get("run_in_background"):
            said = "A command's processes end with its call here; run it in the foreground, without run_in_background."
            return ToolOutcome(content=said, is_error=True)
        limits = self.limits
        for name, unit_s in (("timeout_s", 1.0), ("timeout", 0.001)):
            if (limit := arguments.get(name)) is None:
                continue
            if not isinstance(limit, (int, float)) or isinstance(limit, bool) or not limit > 0:
                return ToolOutcome(content=f"`{name}` has to be a number above 0.", is_error=True)
            limits = replace(limits, time_s=min(limit * unit_s, limits.time_s))
        return await self._run(command, limits)

    async def _run(self, command: str, limits: Limits) -> ToolOutcome:
        output = Output(self.max_output_bytes)
        home = "/tmp" if self.sandbox is not None else str(self.home or temporary_home())
        try:
            ended = await run_command(
                ("/bin/bash", "-c", command),
                output=output,
                cwd=self.cwd if self.sandbox is None else None,
                environment={**minimal_environment(home), **self.environment},
                limits=limits,
                sandbox=self.sandbox,
            )
        except (OSError, ValueError) as exc:
            return ToolOutcome(content=f"Bash could not be started: {exc}", is_error=True)
        if ended.killed is not None:
            return ToolOutcome(content=f"{output.text()}\n[killed: {ended.killed}]", is_error=True)
        if ended.code == 0:
            return ToolOutcome(content=output.text())
        return ToolOutcome(content=f"{output.text()}\n[exit code {ended.code}]".lstrip("\n"), is_error=True)
