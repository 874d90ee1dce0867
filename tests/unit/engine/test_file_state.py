"""What an agent has seen of files: checked, travelling, and gone when its fork is."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork import ForkOverrides, FunctionTools, ParentContext
from nexofork.errors import ForkRefused
from nexofork.run.params import MAX_FILES, check_file_state, decode_file_state, encode_file_state
from tests.strategies import examples
from tests.support.conversation import call, says
from tests.support.parents import Parent, fork

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from nexofork.tools.dispatch import ToolCall, ToolOutcome

SHA = "0f" * 32
STATES = st.dictionaries(st.text(min_size=1, max_size=20), st.just(SHA), max_size=5)


@given(state=STATES)
@examples(100)
def test_a_state_travels_unchanged(state: dict[str, str]) -> None:
    """Whatever the paths are made of."""
    assert decode_file_state(encode_file_state(state)) == state


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"": SHA}, "a path that is none"),
        ({7: SHA}, "a path that is none"),
        ({"x" * 5_000: SHA}, "a path that is none"),
        ({"/a": "0F" * 32}, "no SHA-256"),
        ({"/a": None}, "no SHA-256"),
        ({f"/{number}": SHA for number in range(MAX_FILES + 1)}, "at most"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, words: str) -> None:
    """With what to give instead."""
    with pytest.raises(ForkRefused, match=words):
        check_file_state(state)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"7", b"\xff", b'{"a": 1}', b"[" * 100_000])
def test_bytes_that_are_no_state_are_refused(data: bytes) -> None:
    """They come from anybody who may publish."""
    with pytest.raises(ForkRefused, match="file_state"):
        decode_file_state(data)


async def test_a_finished_fork_holds_no_file_state(
    sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent
) -> None:
    """Its copy is cleared at its end even for whoever kept it, its context is freed, and the parent's is as it was."""
    snapshot = await parent.ask()
    kept: list[dict[str, str]] = []

    class Keeping(FunctionTools):
        async def dispatch(self, call: ToolCall) -> ToolOutcome:
            call.context.file_state["/new"] = SHA
            kept.append(call.context.file_state)
            assert len(call.context.file_state) == 2
            return await super().dispatch(call)

    async def bash(arguments: dict[str, Any]) -> str:
        return "ok"

    seen = {"/seen": SHA}
    params = fork(
        snapshot,
        llm,
        says("Work.", {"tools": [call(command="ls")]}, {"text": "Done."}),
        tool_dispatcher=Keeping({"Bash": bash}),
        parent_ctx=ParentContext(file_state=seen),
        overrides=ForkOverrides(agent_id="one-of-a-kind"),
    )
    result = await (await forks.fork(params)).result()

    assert result.ok
    assert (kept, seen) == ([{}], {"/seen": SHA})
    gc.collect()
    contexts = [found for found in gc.get_objects() if isinstance(found, ParentContext)]
    assert [found.agent_id for found in contexts if found.agent_id == "one-of-a-kind"] == []
