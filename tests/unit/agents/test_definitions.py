"""Definitions of named agents: from files and from code, which one counts, and what is wrong with the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork import AgentDefinition, AgentRegistry
from nexofork.agents.definition import FORK_AGENT, check_definition
from nexofork.agents.files import read_definition
from nexofork.agents.front_matter import Entry, read_front_matter
from nexofork.agents.settings import AgentSettings
from nexofork.errors import (
    AgentDefinedTwice,
    BadAgentDefinition,
    BadAgentDefinitions,
    ForkRefused,
    UnknownAgent,
)
from tests.strategies import examples

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = """---
# What the release crew uses.
name: Release
description: "Makes a release: notes, tag, upload."
tools: [FileRead, 'Grep', Bash]
disallowedTools: Agent
model: sonnet   # quick enough
max-turns: 30
permission_mode: deny
omit_git_status: true
tool_filter: readonly
---

You make releases.

Be careful.
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a definition into a project's folder."""

    def into(text: str, name: str = "agent.md", folder: str = "project/.nexofork/agents") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return into


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own definitions are the test's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def front(*lines: str, body: str = "Do it.") -> str:
    """A file with these keys."""
    return "\n".join(("---", *lines, "---", body))


def test_a_file_says_everything_about_an_agent(write: Callable[..., Path]) -> None:
    """Keys in any usual spelling, comments, quotes and lists; the rest is the prompt."""
    path = write(GOOD)

    assert read_definition(path) == AgentDefinition(
        name="Release",
        description="Makes a release: notes, tag, upload.",
        prompt="You make releases.\n\nBe careful.",
        tools=("FileRead", "Grep", "Bash"),
        disallowed_tools=("Agent",),
        model="sonnet",
        max_turns=30,
        permission_mode="deny",
        omit_git_status=True,
        tool_filter="readonly",
        source=str(path),
    )


@pytest.mark.parametrize(
    ("lines", "tools"),
    [
        (["tools: *"], ("*",)),
        (["tools: FileRead, Grep"], ("FileRead", "Grep")),
        (["tools:", "  - FileRead", '  - "Grep"'], ("FileRead", "Grep")),
        (["tools: []"], ()),
        ([], ("*",)),
    ],
)
def test_a_list_may_be_written_in_every_usual_way(
    write: Callable[..., Path], lines: list[str], tools: tuple[str, ...]
) -> None:
    """On one line with or without brackets, or one item per line; left out it is every tool."""
    assert read_definition(write(front("description: d", *lines))).tools == tools


def test_a_name_that_is_left_out_is_the_files(write: Callable[..., Path]) -> None:
    """And a folded text is one line."""
    found = read_definition(write(front("description: >", "  Long", "  words.", "model: inherit"), "my-agent.md"))

    assert (found.name, found.description, found.model) == ("my-agent", "Long words.", "inherit")


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ("You are an agent.", 1, None, "does not begin with front matter"),
        ("", 1, None, "does not begin with front matter"),
        ("---\ndescription: d\n", 3, None, "has no end. Close it with a line of ---"),
        (front("description d"), 2, None, "'description d' is no `key: value`"),
        (front("description: d", "description: e"), 3, "description", "stands here and in line 2"),
        (front("description: d", "tool: Bash"), 3, "tool", "is no key of an agent. Keys: name, description, tools"),
        (front("description: d", "max_turns: 3", "maxTurns: 4"), 4, "maxTurns", "same as the key in line 3"),
        (front("description: d", "max_turns: many"), 3, "max_turns", "'many' is not a whole number"),
        (front("description: d", "max_turns: 0"), 3, "max_turns", "0 is out of range. Give 1 to 10,000"),
        (front("description: d", "model: hauku"), 3, "model", "'hauku' is neither an alias nor a model's id"),
        (front("description: d", "permission_mode: ask"), 3, "permission_mode", "'ask' is no mode. Use one of allow"),
        (front("description: d", "omit_git_status: yes"), 3, "omit_git_status", "'yes' is not true or false"),
        (front("description: d", "tool_filter: nope"), 3, "tool_filter", "There is no filter 'nope'"),
        (front("description: d", "tools: [A, B"), 3, "tools", "a list without its ]"),
        (front("description: d", "tools: A,,B"), 3, "tools", "'A,,B' is not a list of names"),
        (front('description: "d'), 2, "description", "has only one of its quotes"),
        (front("description: {a: b}"), 2, "description", "is more than a text. Put it in quotes"),
        (front("description:"), 2, "description", "is not one text"),
        (front("description: d", "name: two words"), 3, "name", "'two words' is no name"),
        (front("description: d", "name: Fork"), 3, "name", "'Fork' is what an Agent call without a type starts"),
        (front("model: haiku"), None, "description", "is empty. Say when to use the agent"),
        (front("description: d", body=" "), None, "prompt", "is empty. Write the agent's system prompt"),
    ],
)
def test_a_bad_file_is_refused_by_line_key_and_value(
    write: Callable[..., Path], text: str, line: int | None, key: str | None, words: str
) -> None:
    """The error names the file, where in it, what is wrong, and what to write instead."""
    path = write(text)
    with pytest.raises(BadAgentDefinition) as caught:
        read_definition(path)

    assert (caught.value.where, caught.value.line, caught.value.key) == (str(path), line, key)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("data", "words"), [(b"---\n\xff\n", "is not UTF-8 at byte 4"), (b"x" * 1_000_001, "1,000,001")]
)
def test_a_file_that_is_no_text_is_refused(write: Callable[..., Path], data: bytes, words: str) -> None:
    """Neither another encoding nor a huge file ends in a traceback."""
    path = write("")
    path.write_bytes(data)
    with pytest.raises(BadAgentDefinition, match=words):
        read_definition(path)


@examples(150)
@given(
    text=st.text()
    | st.lists(st.sampled_from(["---", "\n", ":", "a: b", "- x", "[", "]", '"', " ", "#", ">"])).map("".join)
)
def test_any_text_is_read_or_refused_by_name(text: str) -> None:
    """No file makes the reader fail in another way."""
    problem = ""
    entries: dict[str, Entry] = {}
    try:
        entries = read_front_matter(text, where="f.md").entries
    except BadAgentDefinition as exc:
        problem = str(exc)

    assert not problem or problem.startswith("f.md, line ")
    assert all(2 <= entry.line <= text.count("\n") + 1 for entry in entries.values())


@examples(100)
@given(
    name=st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,20}", fullmatch=True).filter(lambda name: name.lower() != "fork"),
    described=st.from_regex(r"[A-Za-z][A-Za-z0-9 .,;!?()'-]{0,60}[a-z]", fullmatch=True),
    tools=st.lists(st.from_regex(r"[A-Za-z_]{1,12}", fullmatch=True), min_size=1),
    prompt=st.text(st.characters(exclude_categories=["Cs", "Cc"])).filter(str.strip),
)
def test_what_was_written_is_what_is_read(name: str, described: str, tools: list[str], prompt: str) -> None:
    """Plain values and the prompt come back as they were."""
    text = f"---\nname: {name}\ndescription: {described}\ntools: [{', '.join(tools)}]\n---\n{prompt}\n"
    found = read_front_matter(text, where="f.md")

    values: dict[str, Any] = {key: entry.value for key, entry in found.entries.items()}
    assert values == {"name": name, "description": described, "tools": tuple(tools)}
    assert found.body == prompt.strip()


def test_a_project_comes_before_a_user_and_both_before_what_is_built_in(
    tmp_path: Path, write: Callable[..., Path]
) -> None:
    """What a program adds comes before all; each level replaces the whole definition."""
    user = "config/nexofork/agents"
    write(front("name: Explore", "description: the user's"), "e.md", user)
    write(front("name: Plan", "description: the user's"), "p.md", user)
    write(front("name: explore", "description: the project's"), "e.md")
    agents = AgentRegistry.load(tmp_path / "project")
    agents.add(AgentDefinition(name="Mine", description="the program's", prompt="p"))

    found = {one.name: (one.description, agents.level_of(one)) for one in agents}
    assert found["explore"] == ("the project's", "project")
    assert found["Plan"] == ("the user's", "user")
    assert found["Mine"] == ("the program's", "code")
    assert found["general-purpose"][1] == "built-in"
    assert set(found) == {"explore", "Plan", "Mine", "general-purpose"}


def test_two_definitions_of_one_name_on_one_level_are_a_named_error(tmp_path: Path, write: Callable[..., Path]) -> None:
    """Both places are named; case makes no difference."""
    first = write(front("name: Deploy", "description: a"), "a.md")
    second = write(front("name: deploy", "description: b"), "b.md")
    with pytest.raises(AgentDefinedTwice) as caught:
        AgentRegistry.load(tmp_path / "project")

    assert (caught.value.first, caught.value.second) == (str(first), str(second))
    agents = AgentRegistry()
    agents.add(AgentDefinition(name="X", description="d", prompt="p"))
    with pytest.raises(AgentDefinedTwice, match="'x' is defined in code already"):
        agents.add(AgentDefinition(name="x", description="d", prompt="p"))


def test_everything_wrong_is_said_at_once_and_the_rest_can_be_used(tmp_path: Path, write: Callable[..., Path]) -> None:
    """Two bad files are both named; scanning gives what is good beside them."""
    write("no front matter", "a.md")
    write(front("description: d", "model: nope"), "b.md")
    write(front("description: d"), "good.md")
    write("not looked at", "notes.txt")
    with pytest.raises(BadAgentDefinitions) as caught:
        AgentRegistry.load(tmp_path / "project")
    agents, problems = AgentRegistry.scan(tmp_path / "project")

    assert [Path(problem.where).name for problem in caught.value.problems] == ["a.md", "b.md"]
    assert len(problems) == 2
    assert agents.get("good").prompt == "Do it."


def test_a_place_without_definitions_has_none(tmp_path: Path) -> None:
    """A missing folder is no error; a file in its place is."""
    assert [one.name for one in AgentRegistry.load(tmp_path)] == ["Explore", "general-purpose", "Plan"]
    (tmp_path / ".nexofork").mkdir()
    (tmp_path / ".nexofork" / "agents").write_text("")
    with pytest.raises(BadAgentDefinition, match="cannot be listed"):
        AgentRegistry.load(tmp_path)


def test_an_unknown_agent_is_named_with_the_known_ones() -> None:
    """So that the next call can be right."""
    with pytest.raises(UnknownAgent, match=r"no agent 'Nope'\. Agents: Explore, general-purpose, Plan\."):
        AgentRegistry().get("Nope")


def test_the_fork_is_the_parent_with_all_it_has_and_is_never_listed() -> None:
    """Every tool, the parent's model, questions to the parent, 200 turns; no definition may take its name."""
    fork = FORK_AGENT
    assert (fork.name, fork.tools, fork.model, fork.permission_mode, fork.max_turns) == (
        "fork",
        ("*",),
        "inherit",
        "bubble",
        200,
    )
    assert "fork" not in [one.name for one in AgentRegistry()]
    with pytest.raises(BadAgentDefinition, match="Choose another name"):
        AgentRegistry().add(AgentDefinition(name="fork", description="d", prompt="p"))


@pytest.mark.parametrize(
    "changes", [{"model": "claude-haiku-4-5-20251001"}, {"model": "us.anthropic.claude-opus-4-8-v1:0"}, {"tools": ()}]
)
def test_what_can_be_meant_is_taken(changes: dict[str, Any]) -> None:
    """Ids of any vendor's form, and an agent without tools."""
    check_definition(AgentDefinition(name="A", description="d", prompt="p", **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tools": "Bash"}, "`tools`: 'Bash' is no list of names"),
        ({"disallowed_tools": ("Bash", "")}, "`disallowed_tools`"),
        ({"max_turns": "9"}, "`max_turns`: '9' is out of range"),
        ({"model": None}, "`model`: None is no text"),
        ({"name": 7}, "`name`: 7 is no text"),
        ({"prompt": None}, "`prompt`: is empty"),
        ({"description": "\udc00"}, "`description`: has half of a surrogate pair"),
    ],
)
def test_a_slip_in_code_is_named_by_its_field(changes: dict[str, Any], words: str) -> None:
    """Also where the type is wrong: a text where a list belongs would be an agent without tools."""
    good: dict[str, Any] = {"name": "A", "description": "d", "prompt": "p"}
    with pytest.raises(BadAgentDefinition) as caught:
        AgentRegistry().add(AgentDefinition(**(good | changes)))

    assert str(caught.value).startswith(f"code, {words}")


@pytest.mark.parametrize(
    ("variable", "value", "field", "expected"),
    [
        ("NEXOFORK_FORK_SUBAGENT", "0", "fork_enabled", False),
        ("NEXOFORK_FORK_SUBAGENT", "on", "fork_enabled", True),
        ("NEXOFORK_COORDINATOR", "1", "coordinator", True),
        ("NEXOFORK_NON_INTERACTIVE", "true", "interactive", False),
        ("NEXOFORK_AUTO_BACKGROUND", "1", "auto_background_s", 120.0),
        ("NEXOFORK_AUTO_BACKGROUND", "0", "auto_background_s", None),
        ("NEXOFORK_KEEP_PROJECT_CONVENTIONS", "1", "keep_project_conventions", True),
        ("NEXOFORK_KEEP_GIT_STATUS", "yes", "keep_git_status", True),
        ("NEXOFORK_KEEP_GIT_STATUS", "", "keep_git_status", False),
    ],
)
def test_the_environment_sets_what_it_names(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, field: str, expected: object
) -> None:
    """And nothing else; an empty variable says nothing."""
    monkeypatch.setenv(variable, value)
    found = AgentSettings().from_env()

    assert getattr(found, field) == expected


def test_the_environment_comes_before_what_the_program_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the operator's switch; a time that the program chose stays."""
    monkeypatch.setenv("NEXOFORK_KEEP_GIT_STATUS", "0")
    monkeypatch.setenv("NEXOFORK_AUTO_BACKGROUND", "1")

    assert AgentSettings(keep_git_status=True, auto_background_s=7).from_env() == AgentSettings(auto_background_s=7)


def test_a_variable_that_is_neither_yes_nor_no_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and value."""
    monkeypatch.setenv("NEXOFORK_COORDINATOR", "maybe")
    with pytest.raises(ForkRefused, match="NEXOFORK_COORDINATOR is 'maybe'; set it to 1 or 0"):
        AgentSettings().from_env()
