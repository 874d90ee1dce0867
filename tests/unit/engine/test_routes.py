"""Which route takes a call, and what a call and its outcome look like on the way to the parent and back."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork import AutoMemFilter, FunctionTools, ParentContext
from nexofork.client.parent_tools import MemoryFiles
from nexofork.errors import BadMessage
from nexofork.tools.dispatch import NamedTools, RoutedTools, ToolCall, ToolOutcome
from nexofork.tools.parent_tools import (
    BubbledTools,
    MemoryElsewhere,
    ParentsOwn,
    decode_arguments,
    decode_outcome,
    encode_arguments,
    encode_outcome,
    named_path,
)
from nexofork.wire.parent_tools import ParentTools

if TYPE_CHECKING:
    from pathlib import Path

PARTS = st.lists(st.sampled_from(["m", "a", "..", ".", "", "*", "x y"]), min_size=1, max_size=6).map("/".join)


def a_call(tool: str, *, call_id: str = "c", **arguments: Any) -> ToolCall:
    """A call as the model would make it."""
    return ToolCall(run_id="r", id=call_id, name=tool, input=arguments, context=ParentContext())


def bubbled(offered: ParentTools) -> BubbledTools:
    """The parent's tools, which answer with the name they were asked by."""

    async def ask(call: ToolCall, *, name: str, deadline_s: float) -> bytes | None:
        return encode_outcome(ToolOutcome(content=f"parent ran {name}"))

    return BubbledTools(offered, ask, deadline_s=5, their_names={"FileRead": "read_file"})


async def plugin_ran(arguments: dict[str, Any]) -> str:
    """What a plug-in says."""
    return "plug-in ran"


def routed(offered: ParentTools, *, asked: frozenset[str] = frozenset()) -> RoutedTools:
    """Routes as a daemon puts them together."""
    parent = bubbled(offered)
    plugin = FunctionTools({"Mine": plugin_ran, "REPL": plugin_ran}, gates_inside=["REPL"])
    return RoutedTools(
        [
            MemoryElsewhere(parent, ["/memory"], cwd=None),
            NamedTools(FunctionTools({"FileRead": plugin_ran}), ["FileRead"]),
            ParentsOwn(parent, asked=asked),
            NamedTools(plugin, ["Mine", "REPL"]),
            parent,
        ]
    )


@pytest.mark.parametrize(
    ("offered", "tool", "who"),
    [
        (ParentTools(names=["Mine"]), "Mine", "parent ran Mine"),
        (ParentTools(names=[]), "Mine", "plug-in ran"),
        (ParentTools(), "Mine", "plug-in ran"),
        (ParentTools(), "REPL", "parent ran REPL"),
        (ParentTools(names=[]), "REPL", "plug-in ran"),
        (ParentTools(), "Whatever", "parent ran Whatever"),
        (ParentTools(names=["Mine"]), "Whatever", "There is no tool 'Whatever'"),
        (ParentTools(), "Agent", "There is no tool 'Agent'"),
        (ParentTools(), "Bash", "There is no tool 'Bash'"),
    ],
)
async def test_what_is_the_parents_own_is_not_hidden(offered: ParentTools, tool: str, who: str) -> None:
    """What it lists, and a REPL; built-in names never go there."""
    assert str((await routed(offered).dispatch(a_call(tool))).content).startswith(who)


async def test_a_call_that_the_parent_was_asked_for_goes_to_it_again() -> None:
    """A daemon that has a plug-in of that name must not run it a second time."""
    tools = routed(ParentTools(), asked=frozenset({"old"}))

    assert (await tools.dispatch(a_call("Mine", call_id="old"))).content == "parent ran Mine"
    assert tools.bubbles(a_call("Mine", call_id="old"))
    assert (await tools.dispatch(a_call("Mine"))).content == "plug-in ran"
    assert not tools.bubbles(a_call("Mine"))


def test_only_whoever_runs_a_tool_can_say_that_it_gates() -> None:
    """A plug-in that gates does not vouch for the parent's tool of the same name."""
    assert not routed(ParentTools()).gates_inside("REPL")
    assert routed(ParentTools(gates_inside=["REPL"])).gates_inside("REPL")
    assert routed(ParentTools(names=[])).gates_inside("REPL")
    assert not routed(ParentTools()).gates_inside("Unknown")


async def test_paths_in_a_memory_folder_elsewhere_go_to_the_parent_by_its_name() -> None:
    """Also where `..` leads back into it; paths beside it stay."""
    tools = routed(ParentTools(names=[], files=True))

    for path in ("/memory/note", "/memory", "/x/../memory/note", "/memory//a/./b", "//memory/x"):
        assert (await tools.dispatch(a_call("FileRead", file_path=path))).content == "parent ran read_file", path
    for other in ("/memory2/note", "/memory/../etc/passwd", "memory/note", "", None, 7):
        assert (await tools.dispatch(a_call("FileRead", file_path=other))).content == "plug-in ran", other


@given(path=PARTS, absolute=st.booleans())
def test_a_path_is_named_as_the_tools_would_have_it(path: str, absolute: bool) -> None:
    """Without links, words and file system agree on where a call works."""
    given = "/" + path if absolute else path or "."
    expected = os.path.realpath(os.path.join("/nowhere/deep", given))
    assert named_path("FileRead", {"file_path": given}, cwd="/nowhere/deep") == expected
    begins = given.split("*")[0].rpartition("/")[0] if "*" in given else given
    root = begins or ("/" if given.startswith("/") else "")
    found = named_path("Glob", {"pattern": given + "/*"}, cwd="/nowhere/deep")
    assert found == os.path.realpath(os.path.join("/nowhere/deep", root))


@given(content=st.one_of(st.text(), st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}))))
def test_an_outcome_comes_back_as_it_went(content: Any) -> None:
    """Text and blocks, whatever characters they have."""
    outcome = ToolOutcome(content=content, is_error=True)
    if "\\ud" not in json.dumps(content):
        assert decode_outcome(encode_outcome(outcome)) == outcome
    assert decode_outcome(encode_outcome(outcome)).is_error


@pytest.mark.parametrize(
    "data", [b"", b"7", b"[]", b"{}", b'{"content": 7}', b'{"content": ["x"]}', b"\xff", b"[" * 10**5]
)
def test_what_is_no_outcome_is_refused(data: bytes) -> None:
    """The daemon turns it into words for the model."""
    with pytest.raises(BadMessage, match="outcome"):
        decode_outcome(data)


def test_a_result_that_is_no_json_is_an_error_the_model_can_read() -> None:
    """A tool of the parent's may return anything."""
    outcome = decode_outcome(encode_outcome(ToolOutcome(content=[{"type": "text", "text": {1, 2}}])))

    assert outcome.is_error
    assert "cannot be sent" in str(outcome.content)


def test_arguments_come_back_as_they_went() -> None:
    """Anything else than an object is refused."""
    assert decode_arguments(encode_arguments(a_call("x", text="ä\n", n=[1, None]))) == {"text": "ä\n", "n": [1, None]}
    for bad in (b"[]", b"", b"\xff"):
        with pytest.raises(BadMessage, match="arguments"):
            decode_arguments(bad)


def test_a_folder_elsewhere_is_judged_by_words() -> None:
    """The filter can be made where the folder is not, and lets nothing here be changed."""
    judge = AutoMemFilter("/no/such/memory", elsewhere=True)

    assert judge.deny("FileWrite", {"file_path": "/no/such/memory/a/b.md"}) is None
    for path in ("/no/such/memory", "/no/such/memory/../x", "/etc/passwd", "no/such/memory/x", "/no/such/memory/\0"):
        assert judge.deny("FileWrite", {"file_path": path}) is not None, path
    assert judge.deny("Bash", {"command": "rm x"}) is not None
    assert judge.deny("FileRead", {"file_path": "/etc/passwd"}) is None
    assert not judge.may_change("/no/such/memory/a/b.md")


@pytest.mark.parametrize("swap", ["a link in a folder's place", "a hard link", "another case"])
async def test_the_parents_file_tools_stay_in_the_folder(tmp_path: Path, swap: str) -> None:
    """However a path in the folder leads out of it."""
    memory, other = tmp_path / "memory", tmp_path / "other"
    memory.mkdir()
    other.mkdir()
    (other / "note").write_text("safe")
    judge, path = AutoMemFilter(memory), memory / "deep" / "note"
    if swap == "a link in a folder's place":
        (memory / "deep").symlink_to(other)
    elif swap == "a hard link":
        (memory / "deep").mkdir()
        os.link(other / "note", path)
    else:
        path = tmp_path / "MEMORY" / "note"
    seen = ParentContext(file_state={str(path): "0" * 64})
    call = ToolCall(
        run_id="r",
        id="c",
        name="FileWrite",
        input={"file_path": str(path), "content": "x"},
        context=seen,
        deny=judge.deny,
    )

    assert (await MemoryFiles([str(memory)]).dispatch(call)).is_error
    assert (other / "note").read_text() == "safe"
    assert not (tmp_path / "MEMORY").exists()
