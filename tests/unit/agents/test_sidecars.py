"""Sidecars in process: each reads the session's cache, does its one thing, and leaves the session alone."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeSlot, ForkStatus, FunctionTools, ParentContext, Permissions, QuerySource
from nexofork.agents.sidecars import SidecarHost, away, btw, session_memory, suggest
from nexofork.agents.sidecars.speech import said_nothing
from nexofork.core.boilerplate import BOILERPLATE
from nexofork.errors import AlreadyAFork, BadDirective, EmptySlot, ForkRefused
from nexofork.tools.builtin import BuiltinTools
from tests.support.conversation import call
from tests.support.parents import body_of, results_in
from tests.support.sessions import reads_the_parent, warm_request
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import AnthropicProvider, DefaultForkSubagent, ForkParams
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent


class Session:
    """A parent and the host of its sidecars."""

    def __init__(self, parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> None:
        self.parent = parent
        self.slot = CacheSafeSlot()
        self.llm = llm
        self.params: dict[str, Any] = {"tool_dispatcher": BuiltinTools()}
        self.host = SidecarHost(forks=forks, source=self.slot, equip=self.equip)

    def equip(self, params: ForkParams) -> ForkParams:
        """Give a run its provider and tools."""
        return replace(params, llm=self.llm, **self.params)

    async def turn(self, *turns: dict[str, Any] | str, **more: Any) -> None:
        """Let the parent have a turn, after which its sidecar says `turns`."""
        self.slot.save(await self.parent.ask(warm_request(*turns, **more)), QuerySource.MAIN_LOOP)


@pytest.fixture
def session(parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> Session:
    """A session that has not begun."""
    return Session(parent, forks, llm)


async def test_btw_answers_from_the_conversation_and_does_not_enter_it(session: Session, sim: Simulator) -> None:
    """One message more than the session, 99% read; the session's snapshot is what it was."""
    await session.turn("It is in router.py.")
    before = session.slot.get()
    said = await btw(session.host, "Where is the router?")

    assert (said.text, said.result.status) == ("It is in router.py.", ForkStatus.COMPLETED)
    assert reads_the_parent(sim, sim.log[1])
    messages = body_of(sim, 1)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    (asked,) = messages[-1]["content"]
    assert asked["text"].endswith("Where is the router?")
    assert asked["text"] != BOILERPLATE
    assert session.slot.get() is before


async def test_btw_of_an_open_tool_call_answers_it_and_reads_the_cache(session: Session, sim: Simulator) -> None:
    """In the middle of the parent's work the question is as cheap, and the API takes it."""
    await session.turn("Half done.", answer={"text": "I look.", "tools": [call(command="make")]})
    said = await btw(session.host, "How far are you?")

    assert said.text == "Half done."
    assert reads_the_parent(sim, sim.log[1])


async def test_a_sidecar_without_tools_is_told_so_and_answers_then(session: Session, sim: Simulator) -> None:
    """The tools stay in the request; a call of one is denied and not run."""
    await session.turn({"tools": [call("FileRead", file_path="/etc/hostname")]}, "I do not know.")
    said = await btw(session.host, "What is this host called?")

    (denied,) = results_in(sim, 2)
    assert denied["is_error"]
    assert "has no tools" in denied["content"]
    assert said.text == "I do not know."
    assert body_of(sim, 1)["tools"] == body_of(sim, 0)["tools"]
    assert all(reads_the_parent(sim, record) for record in sim.log[1:])


@pytest.mark.parametrize("question", ["", " \n"])
async def test_a_question_that_is_none_is_refused(session: Session, sim: Simulator, question: str) -> None:
    """Before anything is sent."""
    await session.turn()
    with pytest.raises(BadDirective, match="is empty"):
        await btw(session.host, question)
    assert sim.request_count == 1


@pytest.mark.parametrize(
    ("answer", "suggestion"),
    [
        ("run the tests", "run the tests"),
        ('"Now commit it."\nBecause that comes next.', "Now commit it."),
        ("NOTHING", ""),
        ("nothing.", ""),
        ("word " * 80, ""),
    ],
)
async def test_a_suggestion_is_one_short_line_or_none(
    session: Session, sim: Simulator, answer: str, suggestion: str
) -> None:
    """However the model dresses it up; it costs one call, which reads the session's cache."""
    await session.turn(answer)
    said = await suggest(session.host)

    assert (said.ok, said.text) == (True, suggestion)
    assert reads_the_parent(sim, sim.log[1])
    assert sim.request_count == 2


async def test_an_away_summary_may_look_and_not_touch(session: Session, sim: Simulator, tmp_path: Path) -> None:
    """It reads a file, is denied a write and a command that writes, and says what there is to say."""
    note = tmp_path / "note.md"
    note.write_text("one\n")
    calls = [
        call("FileRead", file_path=str(note)),
        call("FileWrite", file_path=str(note), content="two"),
        call("Bash", command=f"echo two > {note}"),
    ]
    await session.turn({"tools": calls}, "The tests wait for you.")
    said = await away(session.host, since="two hours")

    read, written, shell = results_in(sim, 2)
    assert "one" in read["content"]
    assert written["is_error"]
    assert shell["is_error"]
    assert note.read_text() == "one\n"
    assert said.text == "The tests wait for you."
    assert "two hours" in body_of(sim, 1)["messages"][-1]["content"][0]["text"]
    assert all(reads_the_parent(sim, record) for record in sim.log[1:])


async def test_session_notes_are_written_as_a_whole(session: Session, sim: Simulator, tmp_path: Path) -> None:
    """What was in the file is shown to the model, and its answer takes the file's place."""
    file = tmp_path / "session.md"
    file.write_text("# Task\nold words\n")
    file.chmod(0o600)
    await session.turn("# Task\nnew words")
    kept = await session_memory(session.host, file)

    assert (kept.changed, kept.ok, kept.reason) == (True, True, "")
    assert file.read_text() == kept.notes == "# Task\nnew words\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "old words" in body_of(sim, 1)["messages"][-1]["content"][0]["text"]
    assert reads_the_parent(sim, sim.log[1])
    assert os.listdir(tmp_path) == ["session.md"]


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ("NOTHING", "say it all already"),
        ({"text": "cut", "stop_reason": "max_tokens"}, "ended as failed"),
        ({"text": "no", "stop_reason": "refusal"}, "ended as refused"),
    ],
)
async def test_notes_stay_where_there_is_nothing_better(
    session: Session, tmp_path: Path, turn: dict[str, Any] | str, why: str
) -> None:
    """A model that adds nothing, or fails, changes no file; the result says why."""
    file = tmp_path / "session.md"
    file.write_text("mine\n")
    await session.turn(turn)
    kept = await session_memory(session.host, file)

    assert not kept.changed
    assert why in kept.reason
    assert file.read_text() == kept.notes == "mine\n"


async def test_notes_that_cannot_be_kept_are_refused_before_anything_is_paid(
    session: Session, sim: Simulator, tmp_path: Path
) -> None:
    """No folder, a folder in the file's place, bytes that are no text, far too much text."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("x" * 300_000)
    await session.turn()
    for name, words in (
        ("none/session.md", "is not a folder"),
        (".", "cannot be read"),
        ("bytes", "no text in UTF-8"),
        ("long", "Shorten them"),
    ):
        with pytest.raises(ForkRefused, match=words):
            await session_memory(session.host, tmp_path / name)
    assert sim.request_count == 1


async def test_a_slot_that_was_never_written_is_a_named_error(session: Session, sim: Simulator, tmp_path: Path) -> None:
    """For every sidecar, before anything else happens."""
    for work in (
        btw(session.host, "?"),
        suggest(session.host),
        away(session.host),
        session_memory(session.host, tmp_path / "notes.md"),
    ):
        with pytest.raises(EmptySlot, match="snapshot slot was never written"):
            await work
    assert sim.request_count == 0
    assert os.listdir(tmp_path) == []


async def test_a_sidecar_keeps_no_transcript_asks_nobody_and_is_bounded(session: Session) -> None:
    """Whatever its session equips runs with; what the session denies stays denied."""
    session.params |= {
        "skip_transcript": False,
        "max_turns": 200,
        "timeout": None,
        "permissions": Permissions(mode="bubble", allow=["Bash(make)"], deny=["Bash(curl *)"]),
    }
    forked: list[ForkParams] = []

    class Recording:
        async def fork(self, params: ForkParams) -> Any:
            forked.append(params)
            return await session.host.forks.fork(params)

    await session.turn("Yes.")
    await btw(replace(session.host, forks=Recording()), "Sure?")

    (params,) = forked
    assert (params.skip_transcript, params.boilerplate, params.query_source) == (True, False, "side_question")
    assert (params.max_turns, params.timeout) == (3, 120.0)
    assert params.permissions == Permissions(deny=["Bash(curl *)"])


async def test_a_fork_has_no_sidecars(session: Session, sim: Simulator) -> None:
    """The guard of forks holds for them."""
    session.params["parent_ctx"] = ParentContext(query_source=QuerySource.FORK)
    await session.turn()
    with pytest.raises(AlreadyAFork):
        await suggest(session.host)
    assert sim.request_count == 1


async def test_a_sidecar_cannot_start_agents(session: Session, sim: Simulator) -> None:
    """Agent is refused at call time, also where the session has a tool of that name."""

    async def agent(arguments: dict[str, Any]) -> str:
        raise AssertionError("it ran")

    session.params["tool_dispatcher"] = FunctionTools({"Agent": agent})
    await session.turn({"tools": [call("Agent", prompt="x")]}, "Nothing.")
    await away(session.host)

    (refused,) = results_in(sim, 2)
    assert "cannot start agents" in refused["content"]


async def test_nobody_pays_for_a_sidecar_nobody_waits_for(session: Session, sim: Simulator) -> None:
    """Cancelling the wait ends the call in the middle of its stream."""
    await session.turn({"text": "Slowly.", "hold": "here"})
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(btw(session.host, "Quick?"))
        await sim.received(2)
        waiting.cancel()
    await eventually(lambda: sim.log[1].closed_early)


async def test_sidecars_of_one_turn_run_side_by_side(session: Session, sim: Simulator, tmp_path: Path) -> None:
    """All read the session's entry; none of them waits for another."""
    await session.turn("Same for all.")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(btw(session.host, "One?"))
        tasks.create_task(suggest(session.host))
        tasks.create_task(away(session.host))
        tasks.create_task(session_memory(session.host, tmp_path / "n.md"))

    assert all(reads_the_parent(sim, record) for record in sim.log[1:])
    assert sim.request_count == 5


@pytest.mark.parametrize("text", ["NOTHING", "Nothing.", "**nothing**", '"NOTHING"\n'])
def test_nothing_is_recognised_however_it_is_dressed_up(text: str) -> None:
    """Models add marks."""
    assert said_nothing(text)
    assert not said_nothing(text + " happened")
