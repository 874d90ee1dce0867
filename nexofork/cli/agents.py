"""``nexofork agents``: which named agents a parent in this folder can start, and what each of them is."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexofork.agents.definition import MODEL_ALIASES
from nexofork.agents.registry import AgentRegistry
from nexofork.cli.exit_codes import BAD_INPUT, OK
from nexofork.cli.groups import ListingGroup
from nexofork.cli.options import json_option
from nexofork.cli.output import brief, plain, print_json, print_table
from nexofork.errors import UnknownAgent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.agents.definition import AgentDefinition
    from nexofork.errors import BadAgentDefinition

__all__ = ["agents"]

_project = click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The project whose .nexofork/agents is read; this folder unless said.",
)


@click.group(cls=ListingGroup)
def agents() -> None:
    """Show the named agents that a parent can start here; without a command, list them.

    Definitions are Markdown files in .nexofork/agents of the project and in ~/.config/nexofork/agents; a project's come
    before a user's, and those before the built-in ones. The exit code is 2 where a file cannot be used.
    """


@agents.command("list")
@_project
@json_option
def list_agents(project: Path | None, *, as_json: bool) -> None:
    """Show all agents, and what is wrong with definitions that cannot be used."""
    registry, problems = AgentRegistry.scan(project)
    if as_json:
        for one in registry:
            print_json(_described(registry, one))
    else:
        rows = [
            (one.name, registry.level_of(one), brief(one.model, 30), _tools(one), brief(one.description, 60))
            for one in registry
        ]
        print_table(("agent", "from", "model", "tools", "when to use it"), rows)
    raise click.exceptions.Exit(_say(problems))


@agents.command()
@click.argument("name")
@_project
@json_option
def show(name: str, project: Path | None, *, as_json: bool) -> None:
    """Show one agent with its prompt."""
    registry, problems = AgentRegistry.scan(project)
    try:
        one = registry.get(name)
    except UnknownAgent as exc:
        _say(problems)
        click.echo(f"Error: There is no agent {exc.name!r}. {exc.fix}", err=True)
        raise click.exceptions.Exit(BAD_INPUT) from None
    described = _described(registry, one)
    if as_json:
        print_json(described)
    else:
        prompt = described.pop("prompt")
        for key, value in described.items():
            shown = ", ".join(value) or "none" if isinstance(value, tuple) else value
            click.echo(f"{key:<25} {brief(shown, 400)}")
        click.echo(f"\n{plain(prompt)}")
    raise click.exceptions.Exit(_say(problems))


def _described(registry: AgentRegistry, one: AgentDefinition) -> dict[str, Any]:
    described = {field.name: getattr(one, field.name) for field in fields(one)}
    known = {key: value for key, value in described.items() if value is not None}
    if one.model in MODEL_ALIASES:
        known["model_id"] = MODEL_ALIASES[one.model]
    return known | {"level": registry.level_of(one)}


def _tools(one: AgentDefinition) -> str:
    without = f" but {', '.join(one.disallowed_tools)}" if one.disallowed_tools else ""
    return brief((", ".join(one.tools) or "none") + without, 40)


def _say(problems: Sequence[BadAgentDefinition]) -> int:
    for problem in problems:
        click.echo(f"Error: {plain(' '.join(str(problem).split()))}", err=True)
    return BAD_INPUT if problems else OK
