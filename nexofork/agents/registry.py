"""Which agents there are: a project's come before a user's, and those before the built-in ones.

What a program adds comes before all of them: it is the last to have a say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from nexofork.agents.builtin import BUILT_IN
from nexofork.agents.definition import check_definition
from nexofork.agents.files import read_folder
from nexofork.agents.settings import project_agents, user_agents
from nexofork.errors import AgentDefinedTwice, BadAgentDefinition, BadAgentDefinitions, UnknownAgent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nexofork.agents.definition import AgentDefinition

__all__ = ["AgentRegistry", "Level"]

Level: TypeAlias = Literal["built-in", "user", "project", "code"]
"""From the last to the first that is asked."""


class AgentRegistry:
    """The definitions of one session; starts with the built-in ones."""

    def __init__(self) -> None:
        self._levels: dict[Level, dict[str, AgentDefinition]] = {level: {} for level in get_args(Level)}
        for definition in BUILT_IN:
            self.add(definition, level="built-in")

    @classmethod
    def load(cls, folder: Path | None = None) -> AgentRegistry:
        """Return a registry with the user's definitions and those of a project's folder, by default this one.

        Raises:
            BadAgentDefinition: One cannot be used.
            BadAgentDefinitions: Several cannot.
        """
        registry, problems = cls.scan(folder)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise BadAgentDefinitions(tuple(problems))
        return registry

    @classmethod
    def scan(cls, folder: Path | None = None) -> tuple[AgentRegistry, list[BadAgentDefinition]]:
        """Return a registry with what can be used, and what is wrong with the rest."""
        registry, problems = cls(), list[BadAgentDefinition]()
        places: tuple[tuple[Level, Path], ...] = (("user", user_agents()), ("project", project_agents(folder)))
        for level, place in places:
            found, unusable = read_folder(place)
            problems += unusable
            for definition in found:
                try:
                    registry.add(definition, level=level)
                except BadAgentDefinition as exc:
                    problems.append(exc)
        return registry, problems

    def add(self, definition: AgentDefinition, *, level: Level = "code") -> None:
        """Add a definition; it comes before those of the same name from lower levels.

        Raises:
            BadAgentDefinition: It cannot be used.
            AgentDefinedTwice: The level has one of that name; case makes no difference.
        """
        check_definition(definition)
        known = self._levels[level]
        key = definition.name.casefold()
        if key in known:
            raise AgentDefinedTwice(definition.name, first=known[key].source, second=definition.source)
        known[key] = definition

    def get(self, name: str) -> AgentDefinition:
        """Return the definition that a name means.

        Raises:
            UnknownAgent: There is none; it names those there are.
        """
        found = self._effective().get(name.strip().casefold())
        if found is None:
            raise UnknownAgent(name, known=tuple(definition.name for definition in self))
        return found

    def level_of(self, definition: AgentDefinition) -> Level:
        """Return where an effective definition comes from."""
        return next(level for level in self._levels if definition in self._levels[level].values())

    def __iter__(self) -> Iterator[AgentDefinition]:
        effective = self._effective()
        return iter([effective[key] for key in sorted(effective)])

    def copy(self) -> AgentRegistry:
        """Return a registry that later additions to this one do not change."""
        other = AgentRegistry()
        other._levels = {level: dict(known) for level, known in self._levels.items()}
        return other

    def listing(self) -> str:
        """Return the agents for a model to choose from, one per line."""
        return "\n".join(f"- {one.name}: {' '.join(one.description.split())}" for one in self)

    def _effective(self) -> dict[str, AgentDefinition]:
        return {key: one for known in self._levels.values() for key, one in known.items()}
