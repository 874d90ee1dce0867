"""What a parent asks for when it forks: the one message that other languages have to write."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from nexofork.wire.contents import REQUEST_VERSION, VERSION, BudgetLimit, FilterSpec, Message, Payload, WireModel
from nexofork.wire.parent_tools import ParentTools  # noqa: TC001 - the models are built with it
from nexofork.wire.permissions import PermissionPolicy  # noqa: TC001 - likewise
from nexofork.wire.workspace import WorkspaceSpec  # noqa: TC001 - likewise

__all__ = ["Parent", "Requested"]


class Parent(WireModel):
    """Who asked."""

    id: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,128}$")
    """Under which its heartbeats and its list of children are found."""
    host: str = ""
    """Its host's name."""
    agent: str = "main"
    """Which agent of it, where it has several."""
    heartbeat_s: float | None = None
    """How often the parent says that it is there; None where it does not."""


class Requested(Message):
    """Run a fork. The smallest valid one has a snapshot and a directive."""

    v: int = Field(default=VERSION, ge=1, le=REQUEST_VERSION, strict=True)
    """2 where it needs something: daemons from before `needs` refuse it then."""
    kind: Literal["requested"] = "requested"
    snapshot: Payload
    """The parent's request body."""
    directive: str = Field(min_length=1)
    """What the child shall do."""
    reply: Payload | None = None
    """The assistant message it got: an API response or a content array."""
    headers: dict[str, str] = Field(default_factory=dict)
    """`anthropic-version` and `anthropic-beta` as the parent sent them."""
    query: list[tuple[str, str]] = Field(default_factory=list)
    """The query string of the parent's call, as pairs."""
    exact: bool = True
    """Whether the body is what was sent, byte for byte."""
    sent_at: float | None = None
    """Unix time at which the parent sent it."""
    workspace_id: str | None = None
    """The provider's workspace (`anthropic-workspace-id` of the response). Daemons known to be of another one leave
    the run alone, and a miss for that reason is named."""
    notes: list[str] = Field(default_factory=list)
    """Further text for this child alone."""
    label: str = "fork"
    """What the fork is called."""
    query_source: str = "agent:builtin:fork"
    """What kind of request it is; the guard against forks of forks reads it."""
    parent: Parent = Field(default_factory=Parent)
    """Who asks."""
    group: str | None = None
    """The group the fork belongs to: for its budget, its bill and its list."""
    boilerplate: bool = True
    """Whether the child is told that it is a fork."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Request fields to replace; refused where that loses the cache, unless allowed."""
    agent_id: str | None = None
    """The child's own name."""
    reminder: str | None = None
    """A critical reminder, shown with every turn."""
    allow_cache_break: bool = False
    """Whether the child may lose the shared prefix."""
    max_turns: int = Field(default=200, ge=1)
    """The most turns it may take."""
    timeout_s: float | None = Field(default=None, gt=0)
    """The longest it may take, counted from the first claim."""
    on_parent_gone: Literal["continue", "abort"] = "continue"
    """`abort` ends the run after three missed heartbeats."""
    skip_transcript: bool = False
    """Keep only the life cycle on the log."""
    replacements: dict[str, Any] | None = None
    """The parent's content-replacement state."""
    siblings: int | None = Field(default=None, ge=1)
    """How many children were asked for together, this one included; None where nobody counted."""
    warm_up: Literal["auto", "all_at_once", "leader_first", "prewarm"] = "auto"
    """How the fan-out starts on a prefix that nobody has written yet; `auto` decides by price."""
    budget: BudgetLimit | None = None
    """What this run may cost."""
    group_budget: BudgetLimit | None = None
    """What all runs of the group may cost together; the first to say so sets it."""
    filters: list[FilterSpec] = Field(default_factory=list)
    """All must let a tool call run. A daemon that does not know one refuses the run."""
    tool_names: dict[str, str] = Field(default_factory=dict)
    """The parent's name of a tool to the name it has on a daemon, where they differ (`Bash`, `FileRead`, `FileWrite`,
    `FileEdit`, `Glob`, `Grep`, `Agent`); the schema stays as it is."""
    file_state: Payload | None = None
    """What the parent has seen of files: a JSON object, path to SHA-256; at most 20,000."""
    permissions: PermissionPolicy | None = None
    """Which tool calls run, are asked for, or are denied; nothing said, all run that the filters let through."""
    parent_tools: ParentTools | None = None
    """What the parent runs itself when it is asked to; None is nothing."""
    continues: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """The finished run whose last request and reply these are; it is then no fork of a fork, but the same child, and
    `boilerplate` should be `false`."""
    answers: Payload | None = None
    """With `continues`: the ``tool_result`` blocks that answer the reply's calls, as a JSON array; calls without one
    get the placeholder."""
    compaction: bool = True
    """Whether a conversation that no longer fits the model is summarised; else the run ends there."""
    workspace: WorkspaceSpec | None = None
    """What the child works in; None gives it nothing of its own."""
    needs: list[Annotated[str, Field(max_length=64)]] = Field(default_factory=list, max_length=64)
    """What must not be ignored; a daemon that does not know one leaves the run to those that do."""
