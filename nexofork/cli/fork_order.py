"""What ``nexofork fork`` was asked for, read and checked before NATS is asked for anything.

An option whose capability comes later is refused, never ignored: a child without the filter it was given would not be
what was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from nexofork.cli.output import counted
from nexofork.cli.parent_files import read_snapshot
from nexofork.core.boilerplate import check_directive
from nexofork.economics.fan_out import WarmUp
from nexofork.engine.budget import Budget
from nexofork.engine.params import ForkParams, prepare, refuse_groupless
from nexofork.errors import ForkRefused
from nexofork.wire.messages import new_run_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nexofork.cli.options import Target

__all__ = ["ForkOrder", "budget_options", "later_options", "read_order", "warm_up_option"]

_LATER = {
    "permissions": "--permissions",
    "permission_deadline": "--permission-deadline",
    "filter_": "--filter",
    "workspace": "--workspace",
}
_VERSION = "anthropic-version"
_DEFAULTS = {"permissions": "allow", "workspace": "none"}


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
    detach: bool
    events: bool
    as_json: bool

    @property
    def names_version(self) -> bool:
        """Whether the parent's anthropic-version was given."""
        return any(name == _VERSION for name, _ in self.params.cache_safe.headers)


def later_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options whose capability comes later: known, and refused where they are used."""
    for option in (
        click.option("--permissions", metavar="bubble|allow|deny|FILE", help="For now only `allow`."),
        click.option("--permission-deadline", metavar="SECONDS", help="Comes with a later version."),
        click.option("--filter", "filter_", metavar="NAME[:ARG]", help="Comes with a later version."),
        click.option("--workspace", metavar="none|path:DIR|git:DIR", help="For now only `none`."),
    ):
        command = option(command)
    return command


def warm_up_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option for how a fan-out starts on a prefix that nobody has written yet."""
    return click.option(
        "--warm-up",
        type=click.Choice(get_args(WarmUp)),
        default="auto",
        show_default=True,
        help="How the children start on a prefix nobody has written; auto goes by price.",
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
    **more: Any,
) -> ForkOrder:
    """Read the files and check that everything goes together.

    Raises:
        ForkRefused: Something is wrong with the input, or comes with a later version; the message names it.
    """
    budget, group_budget = (_budget(kind, more) for kind in ("budget", "group_budget"))
    output = _without_later(more)
    _check_together(directives, run_ids, group, output)
    snapshot = read_snapshot(request=request, reply=reply, headers=headers, sent_at=sent_at)
    params = ForkParams(
        cache_safe=snapshot,
        prompt_messages=directives[0],
        timeout=timeout,
        max_turns=max_turns,
        warm_up=warm_up,
        budget=budget,
        group_budget=group_budget,
    )
    for directive in directives:
        check_directive(directive)
    refuse_groupless(params, group)
    prepare(params)
    ids = run_ids or tuple(new_run_id() for _ in directives)
    return ForkOrder(target=target, params=params, directives=directives, run_ids=ids, group=group, **output)


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


def _budget(kind: str, options: dict[str, Any]) -> Budget | None:
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


def _without_later(options: dict[str, Any]) -> dict[str, Any]:
    for key, name in _LATER.items():
        if options[key] not in (None, _DEFAULTS.get(key)):
            raise ForkRefused(f"{name} {options[key]} comes with a later version; leave it out.")
    return {key: value for key, value in options.items() if key not in _LATER}
