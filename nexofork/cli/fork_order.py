"""What ``nexofork fork`` was asked for, read and checked before NATS is asked for anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from nexofork.cli.output import counted
from nexofork.cli.parent_files import read_snapshot
from nexofork.cli.permission_options import read_permissions
from nexofork.core.boilerplate import check_directive
from nexofork.economics.fan_out import WarmUp
from nexofork.errors import ForkRefused
from nexofork.policy.filters import build_filter, read_filter
from nexofork.run.budget import Budget
from nexofork.run.params import ForkParams, prepare, refuse_groupless
from nexofork.wire.messages import new_run_id
from nexofork.workspace import GitWorkspace, PathWorkspace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.cli.options import Target

__all__ = [
    "ForkOrder",
    "budget_options",
    "compaction_option",
    "filter_option",
    "read_budget",
    "read_order",
    "read_tool_names",
    "tool_name_option",
    "warm_up_option",
    "workspace_options",
]

_VERSION = "anthropic-version"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    """What was asked for, checked."""

    target: Target
    params: ForkParams
    """The template: every child has a directive of its own."""
    directives: tuple[str, ...]
    run_ids: tuple[str, ...]
    group: str | None
    on_parent_gone: Literal["continue", "abort"]
    queue_limit_s: float
    detach: bool
    events: bool
    as_json: bool

    @property
    def names_version(self) -> bool:
        """Whether the parent's anthropic-version was given."""
        return any(name == _VERSION for name, _ in self.params.cache_safe.headers)


def workspace_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for what a child works in."""
    for option in (
        click.option(
            "--workspace",
            metavar="none|path:DIR|git:DIR",
            default="none",
            show_default=True,
            help="A folder that daemons share, or a repository: each child gets a checkout of it as it is now.",
        ),
        click.option("--include-ignored", is_flag=True, help="Ignored files of a git workspace go along too."),
    ):
        command = option(command)
    return command


def filter_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for which tool calls a child may make."""
    return click.option(
        "--filter",
        "filters",
        metavar="NAME[:ARG]",
        multiple=True,
        help="Deny tool calls: readonly, automem:DIR or profile:NAME; given twice, both must allow.",
    )(command)


def warm_up_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for how a fan-out starts on a prefix that nobody has written yet."""
    return click.option(
        "--warm-up",
        type=click.Choice(get_args(WarmUp)),
        default="auto",
        show_default=True,
        help="How the children start on a prefix nobody has written; auto goes by price.",
    )(command)


def compaction_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option that ends a child whose conversation no longer fits, instead of summarising it."""
    return click.option(
        "--no-compaction",
        "compaction",
        is_flag=True,
        flag_value=False,
        default=True,
        help="End a child whose conversation no longer fits the model; else its own turns are summarised.",
    )(command)


def tool_name_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for what the parent's schema calls the tools that daemons have built in."""
    return click.option(
        "--tool-name",
        "tool_names",
        metavar="THEIRS=OURS",
        multiple=True,
        help="A name in the parent's tool list, and the built-in tool it means: --tool-name read_file=FileRead.",
    )(command)


def budget_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for what a child, and all children of a group, may cost."""
    for option in (
        click.option("--budget-usd", metavar="X", help="The most a child may cost, in dollars."),
        click.option("--budget-tokens", metavar="N", help="The most tokens a child may use; all kinds count."),
        click.option("--group-budget-usd", metavar="X", help="The most the --group may cost, on all hosts together."),
        click.option("--group-budget-tokens", metavar="N", help="The most tokens the --group may use."),
    ):
        command = option(command)
    return command


def read_order(
    *,
    target: Target,
    request: str,
    reply: str | None,
    directives: tuple[str, ...],
    headers: tuple[tuple[str, str], ...],
    sent_at: float | None,
    run_ids: tuple[str, ...],
    group: str | None,
    timeout: float | None,
    max_turns: int,
    warm_up: WarmUp,
    filters: tuple[str, ...],
    compaction: bool,
    **more: Any,
) -> ForkOrder:
    """Read the files and check that everything goes together.

    Raises:
        ForkRefused: Something is wrong with the input, or comes with a later version; the message names it.
    """
    budget, group_budget = (read_budget(kind, more) for kind in ("budget", "group_budget"))
    tool_names = read_tool_names(more.pop("tool_names"))
    permissions = read_permissions(more)
    workspace = _workspace(more.pop("workspace"), ignored=more.pop("include_ignored"))
    _check_together(directives, run_ids, group, more)
    snapshot = read_snapshot(request=request, reply=reply, headers=headers, sent_at=sent_at)
    params = ForkParams(
        cache_safe=snapshot,
        prompt_messages=directives[0],
        timeout=timeout,
        max_turns=max_turns,
        warm_up=warm_up,
        tool_filter=build_filter([read_filter(text) for text in filters]),
        budget=budget,
        group_budget=group_budget,
        tool_names=tool_names,
        permissions=permissions,
        compaction=compaction,
        workspace=workspace,
    )
    for directive in directives:
        check_directive(directive)
    refuse_groupless(params, group)
    prepare(params)
    ids = run_ids or tuple(new_run_id() for _ in directives)
    return ForkOrder(target=target, params=params, directives=directives, run_ids=ids, group=group, **more)


def _check_together(
    directives: Sequence[str], run_ids: Sequence[str], group: str | None, output: dict[str, Any]
) -> None:
    if run_ids and len(run_ids) != len(directives):
        raise ForkRefused(
            f"There are {counted(len(directives), 'directive')} and {counted(len(run_ids), 'run id')}; "
            "give one --run-id per -d, or none."
        )
    if len(set(run_ids)) != len(run_ids):
        raise ForkRefused("A --run-id is given twice; every child needs one of its own.")
    if group is not None and not group.strip():
        raise ForkRefused("--group is empty; name the group, or leave it out.")
    if output["detach"] and output["events"]:
        raise ForkRefused("--events would have nobody to print them after --detach; use `nexofork attach` for that.")
    if output["detach"] and output["on_parent_gone"] == "abort":
        raise ForkRefused(
            "--detach leaves at once, and --on-parent-gone abort would then end the children; choose one."
        )


def read_budget(kind: str, options: dict[str, Any]) -> Budget | None:
    """Take a budget's two options out, and read them."""
    values: dict[str, Any] = {}
    for unit, read in (("usd", float), ("tokens", int)):
        if (text := options.pop(f"{kind}_{unit}")) is None:
            continue
        name = f"--{kind.replace('_', '-')}-{unit}"
        try:
            values[unit] = read(text)
            Budget(**{unit: values[unit]})
        except (ValueError, ForkRefused) as exc:
            whole = "a whole number" if unit == "tokens" else "a number"
            raise ForkRefused(f"{name} {text!r} is no budget; give {whole} above 0.") from exc
    return Budget(**values) if values else None


def _workspace(text: str, *, ignored: bool) -> GitWorkspace | PathWorkspace | None:
    kind, colon, folder = text.partition(":")
    if ignored and kind != "git":
        raise ForkRefused("--include-ignored goes with --workspace git:DIR; leave it out, or name the repository.")
    match kind:
        case "none" if not colon:
            return None
        case "git" if folder:
            return GitWorkspace(os.path.abspath(folder), include_ignored=ignored)
        case "path" if folder:
            return PathWorkspace(os.path.abspath(folder))
        case _:
            raise ForkRefused(f"--workspace {text!r} is none of none, path:DIR and git:DIR.")


def read_tool_names(options: Sequence[str]) -> dict[str, str]:
    """Read ``--tool-name`` options.

    Raises:
        ForkRefused: One names no two tools, or two disagree.
    """
    names: dict[str, str] = {}
    for option in options:
        theirs, equals, ours = option.rpartition("=")
        if not (theirs and equals and ours):
            raise ForkRefused(f"--tool-name {option!r} does not name two tools; write it as THEIRS=OURS.")
        if names.setdefault(theirs, ours) != ours:
            raise ForkRefused(f"--tool-name gives {theirs!r} two meanings, {names[theirs]} and {ours}; choose one.")
    return names
