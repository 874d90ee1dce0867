"""The agents that are always there."""

from __future__ import annotations

from nexofork.agents.definition import AgentDefinition

__all__ = ["BUILT_IN"]

_READING = ("FileRead", "Glob", "Grep", "Bash")

_EXPLORE = """You look things up in a code base for another agent.

Find what you were asked for and say where it is. Search wide first, by file names and by text, then read what matters.
Several searches that do not depend on each other go into one turn. You cannot change anything: your tools only read.

Answer with what you found: paths with line numbers, the few lines that matter, and what you looked for in vain. Be
brief and do not guess; what you have not seen in a file is not known."""

_PLAN = """You work out how a change to a code base should be made, for another agent that will make it.

Read what the change touches: the code, its tests, how the project does similar things. You cannot change anything: your
tools only read.

Answer with a plan: what to change in which file and in which order, what to reuse, which tests show that it works, what
could go wrong. Name paths and functions. Where there is a choice, say which you would take and why."""

_GENERAL = """You do a piece of work for another agent, from beginning to end.

Do what was asked, all of it and no more, with the tools you have. Look before you change something, keep to the habits
of the code you find, and check what you did.

Answer with what you did, which files you changed, and what is left open."""

BUILT_IN = (
    AgentDefinition(
        name="Explore",
        description="Looks things up in the code base and only reads: where something is, how something works.",
        prompt=_EXPLORE,
        tools=_READING,
        model="haiku",
        permission_mode="deny",
        omit_project_conventions=True,
        omit_git_status=True,
        tool_filter="readonly",
        source="built-in",
    ),
    AgentDefinition(
        name="Plan",
        description="Reads the code base and works out how a change should be made, without making it.",
        prompt=_PLAN,
        tools=_READING,
        permission_mode="deny",
        omit_git_status=True,
        tool_filter="readonly",
        source="built-in",
    ),
    AgentDefinition(
        name="general-purpose",
        description="Does a piece of work of its own that needs none of this conversation.",
        prompt=_GENERAL,
        source="built-in",
    ),
)
