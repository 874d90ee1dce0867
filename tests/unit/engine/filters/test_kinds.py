from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import AllowAllFilter, FunctionTools, ParentContext
from nexofork.errors import ForkRefused
from nexofork.policy.filters import (
    PROFILES,
    AllOfFilter,
    AutoMemFilter,
    OnlyToolsFilter,
    ProfileFilter,
    ReadOnlyFilter,
    build_filter,
    read_filter,
    travelling,
)
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import GatedTools, ToolCall, ToolOutcome
from nexofork.wire.messages import FilterSpec
from tests.support.conversation import call, declared, says
from tests.support.parents import fork, results_in

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.policy.filters import ToolFilter
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent


def a_call(name: str, **arguments: Any) -> ToolCall:
    """A call as a dispatcher gets it."""
    return ToolCall(run_id="r", id="t", name=name, input=arguments, context=ParentContext())


class Subclassed(ReadOnlyFilter):
    """A filter of somebody's own, close to one of ours."""


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("FileRead", {"file_path": "/etc/passwd"}, None),
        ("Glob", {"pattern": "*"}, None),
        ("Grep", {"pattern": "x", "path": "/"}, None),
        ("Bash", {"command": "git status | head"}, None),
        ("Bash", {"command": "rm x"}, "rm changes files"),
        ("Bash", {"command": "awk 1"}, "use cut, grep or sed -n"),
        ("Bash", {}, "`command` as a string"),
        ("Bash", {"command": ["ls"]}, "`command` as a string"),
        ("Bash", {"input": {"command": "ls"}}, "not inside another object"),
        ("FileWrite", {"file_path": "/tmp/x"}, "may only read"),
        ("FileEdit", {"file_path": "/tmp/x"}, "may only read"),
        ("REPL", {"code": "1"}, "may only read"),
        ("Unknown", {}, "may only read"),
    ],
)
def test_read_only_lets_readers_run(name: str, arguments: dict[str, Any], words: str | None) -> None:
    """Everything else is denied in words that say what to do instead."""
    reason = ReadOnlyFilter().deny(name, arguments)

    assert (reason is None) if words is None else words in (reason or "")


def test_a_profile_is_a_list_of_tools() -> None:
    """What is not on it is denied, and the list is named."""
    explore = ProfileFilter("explore")

    assert explore.deny("FileRead", {}) is None
    assert "FileRead, Glob, Grep" in (explore.deny("Bash", {"command": "ls"}) or "")
    assert "no tools" in (ProfileFilter("none").deny("FileRead", {}) or "")
    assert ProfileFilter("shell").deny("Bash", {"command": "make"}) is None


def test_composed_filters_must_all_allow() -> None:
    """The first that denies gives the reason; what any of them asks of commands is asked for."""
    both = AllOfFilter([ProfileFilter("shell"), ReadOnlyFilter()])

    assert both.deny("Bash", {"command": "ls"}) is None
    assert "rm changes files" in (both.deny("Bash", {"command": "rm x"}) or "")
    assert "profile" in (both.deny("Unknown", {}) or "")
    assert "GIT_OPTIONAL_LOCKS" in both.environment


def test_our_filters_come_back_as_they_went(tmp_path: Path) -> None:
    """Name and arguments are all that is needed to make the same filter on another host."""
    filters: list[ToolFilter] = [
        AllowAllFilter(),
        ReadOnlyFilter(),
        AutoMemFilter(tmp_path),
        *map(ProfileFilter, PROFILES),
        OnlyToolsFilter(["Bash", "mcp__a__b"]),
        OnlyToolsFilter([]),
        AllOfFilter([OnlyToolsFilter(["Bash"]), ReadOnlyFilter()]),
        AllOfFilter([ReadOnlyFilter(), AutoMemFilter(tmp_path)]),
    ]
    for one in filters:
        specs = travelling(one)
        assert type(build_filter(specs)) is type(one)
        assert travelling(build_filter(specs)) == specs


@pytest.mark.parametrize("kind", [Subclassed, type("Mine", (), {"deny": lambda *_: None})])
def test_any_other_filter_does_not_travel(kind: type[Any]) -> None:
    """Not even inside a composition, nor a subclass, whose additions would be lost."""
    for one in (kind(), AllOfFilter([ReadOnlyFilter(), kind()])):
        with pytest.raises(ForkRefused, match=f"{kind.__name__} cannot travel.*automem:DIR"):
            travelling(one)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (FilterSpec(name="nope"), "no filter 'nope' here. Filters: allow-all, automem:DIR, profile:NAME, readonly"),
        (FilterSpec(name="readonly", args=["x"]), "takes no argument"),
        (FilterSpec(name="automem"), "takes one argument"),
        (FilterSpec(name="automem", args=["relative"]), "absolute"),
        (FilterSpec(name="automem", args=["/no/such"]), "not a folder on this host"),
        (FilterSpec(name="automem", args=["/a", "/b"]), "takes one argument"),
        (FilterSpec(name="profile", args=["nope"]), "no profile 'nope'"),
    ],
)
def test_a_filter_that_cannot_be_made_is_refused(spec: FilterSpec, words: str) -> None:
    """Never left out: the others alone would allow more."""
    with pytest.raises(ForkRefused, match=words):
        build_filter([FilterSpec(name="readonly"), spec])


def test_the_command_line_names_a_folder_from_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host could make nothing of a relative path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes").mkdir()

    assert read_filter("automem:notes") == FilterSpec(name="automem", args=[str(tmp_path / "notes")])


def test_a_list_of_tools_lets_those_run_and_no_other() -> None:
    """Whatever their arguments; an empty list lets nothing run, and says so."""
    listed = OnlyToolsFilter(["Grep", "Bash", "Grep"])

    assert [listed.deny(name, {}) for name in ("Grep", "Bash")] == [None, None]
    assert listed.deny("FileRead", {}) == "This agent has the tools Grep, Bash. Go on without it."
    assert "no tools" in (OnlyToolsFilter([]).deny("Bash", {}) or "")
    assert (listed.may_change("/x"), OnlyToolsFilter(["Grep", "Glob"]).may_change("/x")) == (True, False)


def test_the_command_line_lists_tools_with_commas() -> None:
    """A list without any name is more likely a slip than a wish."""
    assert read_filter("tools:Bash, Grep") == FilterSpec(name="tools", args=["Bash", "Grep"])
    for text in ("tools", "tools:", "tools: ,"):
        with pytest.raises(ForkRefused, match="name the tools"):
            read_filter(text)


async def test_what_a_repl_calls_inside_passes_the_filter_again(tmp_path: Path) -> None:
    """The outer call is allowed; the inner one is judged by the filter that came with it."""
    ran: list[str] = []

    async def record(arguments: dict[str, Any]) -> str:
        ran.append(arguments["command"])
        return "ran"

    outer = replace(a_call("REPL"), deny=AutoMemFilter(tmp_path).deny)
    inner = GatedTools(FunctionTools({"Bash": record}), outer)
    good = await inner.dispatch(a_call("Bash", command="ls"))
    bad = await inner.dispatch(a_call("Bash", command="rm x"))

    assert (good.is_error, bad.is_error, ran) == (False, True, ["ls"])
    assert "rm changes files" in str(bad.content)


@pytest.mark.parametrize("gated", [False, True])
async def test_a_repl_runs_only_where_it_says_that_it_gates(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent, tmp_path: Path, gated: bool
) -> None:
    """An ungated REPL would be a way round everything, so it is denied, and the model is told to call directly."""

    class Repl:
        async def dispatch(self, one: ToolCall) -> ToolOutcome:
            inner = GatedTools(BuiltinTools(), one)
            return await inner.dispatch(replace(one, name="Bash", input={"command": one.input["code"]}))

        def parallel(self, one: ToolCall) -> bool:
            return False

        def read_only(self, one: ToolCall) -> bool:
            return False

        def gates_inside(self, name: str) -> bool:
            return gated

    calls = [call("REPL", code="echo 42"), call("REPL", code=f"touch {tmp_path}/made")]
    directive = says("Work.", {"tools": calls}, {"text": "Done."})
    asked = await parent.ask(tools=declared("REPL"))
    params = fork(asked, llm, directive, tool_dispatcher=Repl(), tool_filter=AutoMemFilter(tmp_path))
    assert (await (await forks.fork(params)).result()).ok

    reading, writing = results_in(sim, 2)
    assert ("42" if gated else "Call the tools directly") in str(reading["content"])
    assert ("touch changes files" if gated else "Call the tools directly") in str(writing["content"])
    assert not (tmp_path / "made").exists()


async def test_a_denial_is_logged_without_the_arguments(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Run, tool and reason are in the line, at DEBUG; what the model wrote into the call is not."""
    directive = says("Work.", {"tools": [call("FileWrite", file_path="/x", content="s3cret")]}, {"text": "Done."})
    asked = await parent.ask(tools=declared("FileWrite"))
    params = fork(asked, llm, directive, tool_filter=ReadOnlyFilter())
    with caplog.at_level(logging.DEBUG, logger="nexofork.telemetry"):
        result = await (await forks.fork(params)).result()

    (record,) = [record for record in caplog.records if "fork.tool_filter" in record.getMessage()]
    line = record.getMessage()
    assert record.levelno == logging.DEBUG
    assert result.run_id in line
    assert "FileWrite: This fork may only read" in line
    assert "s3cret" not in line


async def test_a_command_that_only_reads_runs_with_what_its_verdict_needs(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """The tool gets the filter's environment with the call."""
    seen: list[dict[str, str]] = []

    class Looking:
        async def dispatch(self, one: ToolCall) -> ToolOutcome:
            seen.append(dict(one.environment))
            return await BuiltinTools().dispatch(one)

        def parallel(self, one: ToolCall) -> bool:
            return False

        def read_only(self, one: ToolCall) -> bool:
            return False

    directive = says("Work.", {"tools": [call(command="git config --get safe.bareRepository")]}, {"text": "Done."})
    snapshot = await parent.ask()
    await (await forks.fork(fork(snapshot, llm, directive, tool_dispatcher=Looking()))).result()
    params = fork(snapshot, llm, directive, tool_dispatcher=Looking(), tool_filter=ReadOnlyFilter())
    await (await forks.fork(params)).result()

    (answer,) = results_in(sim, 4)
    assert seen[0] == {}
    assert seen[1]["GIT_OPTIONAL_LOCKS"] == "0"
    assert "explicit" in str(answer["content"])
