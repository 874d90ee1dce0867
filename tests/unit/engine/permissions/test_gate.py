"""Forks in this process: what runs, what is asked for, who answers, and what the model reads when nobody does."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import (
    AllowAllFilter,
    ForkStatus,
    FunctionTools,
    ParentContext,
    PermissionAnswer,
    PermissionAsk,
    Permissions,
    ProfileFilter,
    ReadOnlyFilter,
)
from nexofork.core.replacement import ContentReplacementState
from nexofork.errors import BadPermissions, ForkRefused
from nexofork.policy.gate import Gate
from nexofork.run.abort import AbortReason
from nexofork.run.events import ForkAsked, ForkPermitted, ToolStarted
from nexofork.tools.builtin import BuiltinTools
from nexofork.tools.dispatch import GatedTools, ToolCall, ToolOutcome, ToolRunner
from nexofork.tools.place import Place
from tests.support.conversation import call, declared, says
from tests.support.parents import Parent, fork, results_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkHandle, ForkParams
    from nexofork.core.prompt import ToolAnswer
    from nexofork.simulator import Simulator

BUBBLE = Permissions(mode="bubble")
ALLOW, DENY = PermissionAnswer(allow=True), PermissionAnswer(allow=False, note="not on a Friday")


@pytest.fixture
async def snapshot(parent: Parent) -> CacheSafeParams:
    """A parent that has made one call."""
    return await parent.ask(tools=declared("FileRead", "FileWrite", "Grep", "Build", "REPL"))


@pytest.fixture
def order(snapshot: CacheSafeParams, llm: AnthropicProvider, tmp_path: Path) -> Callable[..., ForkParams]:
    """Makes forks that call tools in a folder, one turn after the other."""

    def make(*turns: dict[str, Any] | list[dict[str, Any]], **more: Any) -> ForkParams:
        script = [{"tools": turn if isinstance(turn, list) else [turn]} for turn in turns]
        more.setdefault("tool_dispatcher", BuiltinTools(Place(cwd=tmp_path)))
        more.setdefault("permissions", BUBBLE)
        return fork(snapshot, llm, says("Work.", *script, {"text": "Done."}), **more)

    return make


class Callback:
    """Answers as told, and keeps what it was asked."""

    def __init__(self, *answers: PermissionAnswer) -> None:
        self.asks: list[PermissionAsk] = []
        self._answers = list(answers)

    async def __call__(self, ask: PermissionAsk) -> PermissionAnswer:
        """Give the next answer."""
        self.asks.append(ask)
        return self._answers.pop(0)


async def until_asked(handle: ForkHandle, count: int = 1) -> list[ForkAsked]:
    """The questions of a run, once there are so many."""
    found: list[ForkAsked] = []
    async for event in handle.events():
        if isinstance(event, ForkAsked):
            found.append(event)
            if len(found) == count:
                return found
    raise AssertionError(f"it ended with {len(found)} questions")


def names_in(folder: Path) -> list[str]:
    """Everything below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def events_of(handle: ForkHandle) -> list[Any]:
    """All that happened in a run that is over."""
    return [event async for event in handle.events()]


async def test_what_reads_passes_and_the_rest_is_asked(
    sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """The callback sees tool, arguments and what would be remembered; allowed it runs, denied the model reads why."""
    (tmp_path / "seen").write_text("x")
    callback = Callback(ALLOW, DENY)
    params = order(
        [call("FileRead", file_path="seen"), call(command="ls"), call("Grep", pattern="x")],
        call("FileWrite", file_path="new", content="1"),
        call(command="rm seen"),
        on_permission=callback,
    )

    handle = await forks.fork(params)
    result = await handle.result()

    assert result.status is ForkStatus.COMPLETED, result.error
    assert [block.get("is_error", False) for block in results_in(sim, 2)] == [False, False, False]
    asked = [(ask.name, ask.arguments, ask.rules) for ask in callback.asks]
    assert asked == [
        ("FileWrite", {"file_path": "new", "content": "1"}, ("FileWrite(*)",)),
        ("Bash", {"command": "rm seen"}, ("Bash(rm seen)",)),
    ]
    assert (tmp_path / "new").read_text() == "1"
    assert (tmp_path / "seen").exists()
    (denied,) = results_in(sim, 4)
    assert denied["is_error"]
    assert "Bash was not run: permission was denied: not on a Friday." in denied["content"]
    shown = [event for event in await events_of(handle) if isinstance(event, (ForkAsked, ForkPermitted))]
    assert [getattr(event, "allowed", None) for event in shown] == [None, True, None, False]
    assert shown[0].ask_id == shown[1].ask_id == callback.asks[0].ask_id


async def test_a_call_is_announced_only_when_it_may_run(
    forks: DefaultForkSubagent, order: Callable[..., ForkParams]
) -> None:
    """While a question is open no tool has started."""
    handle = await forks.fork(order(call(command="touch x")))
    (asked,) = await until_asked(handle)

    await handle.answer(asked.ask_id, True)
    await handle.result()

    kinds = [type(event) for event in await events_of(handle)]
    assert kinds.index(ForkAsked) < kinds.index(ForkPermitted) < kinds.index(ToolStarted)


async def test_always_spares_the_like_of_it(
    forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """The rule that the question suggests, or one the answer names; another run is asked anew."""
    callback = Callback(
        PermissionAnswer(allow=True, remember=True),
        PermissionAnswer(allow=True, rule="Bash(touch *)"),
        PermissionAnswer(allow=False, remember=True),
        ALLOW,
    )
    writes = [call("FileWrite", file_path=name, content="1") for name in ("a", "b", "c")]
    touches = [call(command=f"touch {name}") for name in ("d", "e")]
    removes = [call(command="rm a"), call(command="rm a")]
    params = order(*writes, *touches, *removes, on_permission=callback)

    assert (await (await forks.fork(params)).result()).status is ForkStatus.COMPLETED
    asked = [ask.arguments for ask in callback.asks]
    assert asked == [{"file_path": "a", "content": "1"}, {"command": "touch d"}, {"command": "rm a"}]
    assert names_in(tmp_path) == ["a", "b", "c", "d", "e"]

    again = order(call("FileWrite", file_path="f", content="1"), on_permission=callback)
    await (await forks.fork(again)).result()
    assert len(callback.asks) == 4


@pytest.mark.parametrize("rule", ["FileWrite", "Bash(git *)", "Bash(rm *)x", "Bash(touch other)"])
async def test_an_answer_widens_nothing_but_what_was_asked(
    forks: DefaultForkSubagent, order: Callable[..., ForkParams], rule: str
) -> None:
    """A rule for another tool, or one that does not cover the call, is not remembered; the call itself is decided."""
    callback = Callback(*2 * [PermissionAnswer(allow=True, rule=rule)])
    handle = await forks.fork(order(call(command="touch x"), call(command="touch x"), on_permission=callback))

    assert (await handle.result()).status is ForkStatus.COMPLETED
    decided = [event for event in await events_of(handle) if isinstance(event, ForkPermitted)]
    assert [(event.allowed, event.rules) for event in decided] == 2 * [(True, ())]
    assert "not remembered" in decided[0].note


async def test_nobody_answers(sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams]) -> None:
    """After the deadline the model reads a denial, and a late answer is refused."""
    params = order(call(command="touch x"), permissions=Permissions(mode="bubble", deadline_s=0.1), timeout=10)
    handle = await forks.fork(params)
    (asked,) = await until_asked(handle)

    await sim.received(3)
    (block,) = results_in(sim, 2)
    assert "nobody answered within 0.1 s" in block["content"]
    with pytest.raises(ForkRefused, match=r"was decided before|is over"):
        await handle.answer(asked.ask_id, True)
    assert (await handle.result()).status is ForkStatus.COMPLETED


async def test_answers_that_are_none_are_refused(
    forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """Unknown questions, rules that cannot be read, second answers: each by name; the first answer stands."""
    handle = await forks.fork(order(call(command="touch x")))
    (asked,) = await until_asked(handle)

    with pytest.raises(ForkRefused, match="no open ask 'permission-9'"):
        await handle.answer("permission-9", True)
    with pytest.raises(BadPermissions, match="cannot be read"):
        await handle.answer(asked.ask_id, True, rule="Bash(")
    await handle.answer(asked.ask_id, False, note="no")
    with pytest.raises(ForkRefused, match="decided before"):
        await handle.answer(asked.ask_id, True)
    await handle.result()
    with pytest.raises(ForkRefused, match="is over"):
        await handle.answer(asked.ask_id, True)
    assert not (tmp_path / "x").exists()


async def raises(ask: PermissionAsk) -> PermissionAnswer:
    """A callback with a defect."""
    raise KeyError("oops")


async def says_yes(ask: PermissionAsk) -> Any:
    """A callback that gives no answer."""
    return True


@pytest.mark.parametrize("callback", [raises, says_yes])
async def test_a_callback_that_fails_denies(
    sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams], callback: Any
) -> None:
    """At once and readably, without waiting for the deadline."""
    handle = await forks.fork(order(call(command="touch x"), on_permission=callback))

    assert (await handle.result()).status is ForkStatus.COMPLETED
    assert "the parent could not decide" in results_in(sim, 2)[0]["content"]


async def test_parallel_calls_are_asked_at_the_same_time(
    forks: DefaultForkSubagent, order: Callable[..., ForkParams]
) -> None:
    """And answered in any order."""

    async def work(arguments: dict[str, Any]) -> str:
        return str(arguments["part"])

    tools = FunctionTools({"Build": work}, parallel=["Build"])
    handle = await forks.fork(
        order([call("Build", part="1"), call("Build", part="2")], tool_dispatcher=tools, skip_transcript=True)
    )
    first, second = await until_asked(handle, 2)

    await handle.answer(second.ask_id, True)
    await handle.answer(first.ask_id, False)
    result = await handle.result()

    assert (result.status, result.tool_uses) == (ForkStatus.COMPLETED, 2)
    assert first.ask_id != second.ask_id


async def test_one_callback_serves_a_group(forks: DefaultForkSubagent, order: Callable[..., ForkParams]) -> None:
    """Every child's question names its run."""
    callback = Callback(ALLOW, ALLOW)
    params = order(call(command="touch x"), on_permission=callback)

    handles = await forks.fork_each(params, [params.directive, params.directive])
    for handle in handles:
        assert (await handle.result()).status is ForkStatus.COMPLETED

    assert {ask.run_id for ask in callback.asks} == {handle.run_id for handle in handles}


async def test_an_abort_ends_the_asking_at_once(forks: DefaultForkSubagent, order: Callable[..., ForkParams]) -> None:
    """The callback is cancelled, and nothing has run."""
    thinking, stopped = asyncio.Event(), asyncio.Event()

    async def think(ask: PermissionAsk) -> PermissionAnswer:
        thinking.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ALLOW

    handle = await forks.fork(order(call(command="touch x"), on_permission=think))
    await thinking.wait()
    await handle.abort("enough")
    result = await handle.result()

    assert (result.status, result.abort and result.abort.reason) == (ForkStatus.ABORTED, AbortReason.PARENT)
    assert stopped.is_set()
    assert not any(isinstance(event, ToolStarted) for event in await events_of(handle))


async def test_a_headless_fork_does_what_its_rules_allow(
    sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """The rest is denied in words that name the rules; nobody is asked."""
    policy = Permissions(mode="deny", allow=["FileWrite(out/**)", "Bash(touch *)"], deny=["Bash(touch b)"])
    callback = Callback()
    params = order(
        call("FileWrite", file_path="out/x", content="1"),
        call(command="touch a && ls"),
        call(command="touch b"),
        call("FileWrite", file_path="x", content="1"),
        permissions=policy,
        on_permission=callback,
    )
    handle = await forks.fork(params)

    assert (await handle.result()).status is ForkStatus.COMPLETED
    assert names_in(tmp_path) == ["a", "out", "out/x"]
    assert "the rule Bash(touch b) of this fork denies it" in results_in(sim, 4)[0]["content"]
    said = results_in(sim, 5)[0]["content"]
    assert "FileWrite was not run: this fork may read, and do what these rules allow: FileWrite(out/**), Bash" in said
    assert callback.asks == []


async def test_the_filter_comes_first(
    sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams]
) -> None:
    """What it denies is not asked for, nor is an agent."""
    callback = Callback()
    calls = [call(command="touch x"), call("Agent", prompt="more")]
    handle = await forks.fork(order(calls, tool_filter=ProfileFilter("explore"), on_permission=callback))

    await handle.result()

    said = [block["content"] for block in results_in(sim, 2)]
    assert "profile 'explore'" in said[0]
    assert "cannot start agents" in said[1]
    assert callback.asks == []


async def test_a_link_that_is_swapped_while_it_is_asked_is_not_followed(
    sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """What was permitted is the file it led to when it was asked."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to("here")
    handle = await forks.fork(order(call("FileWrite", file_path="link/x", content="1")))
    (asked,) = await until_asked(handle)
    link.unlink()
    link.symlink_to("there")

    await handle.answer(asked.ask_id, True)
    await handle.result()

    assert "now leads elsewhere" in results_in(sim, 2)[0]["content"]
    assert names_in(tmp_path / "there") == []


class Repl:
    """A tool that calls others inside, behind the gate of its own call."""

    def __init__(self, inner: BuiltinTools) -> None:
        self._inner = inner

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run one inner command."""
        inner = ToolCall(run_id="r", id="i", name="Bash", input={"command": call.input["run"]}, context=call.context)
        return await GatedTools(self._inner, call).dispatch(inner)

    def parallel(self, call: ToolCall) -> bool:
        """One after the other."""
        return False

    def read_only(self, call: ToolCall) -> bool:
        """Only what it calls may change something, and that is gated."""
        return call.name == "REPL"


async def test_inner_calls_are_gated_too(
    sim: Simulator, forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """What would have to be asked for is denied inside, with the advice to call it directly."""
    tools = Repl(BuiltinTools(Place(cwd=tmp_path)))
    policy = Permissions(mode="bubble", allow=["Bash(touch a)"])
    runs = [call("REPL", run=command) for command in ("touch a", "touch b", "git --version; echo $HOME")]
    handle = await forks.fork(order(runs, tool_dispatcher=tools, permissions=policy))

    await handle.result()

    allowed, denied, reads = results_in(sim, 2)
    assert not allowed.get("is_error", False)
    assert "Call Bash directly." in denied["content"]
    assert "git version" in reads["content"]
    assert names_in(tmp_path) == ["a"]


async def test_the_default_asks_for_nothing(
    forks: DefaultForkSubagent, order: Callable[..., ForkParams], tmp_path: Path
) -> None:
    """Filters and the sandbox are the boundary then."""
    callback = Callback()
    handle = await forks.fork(
        order(call(command="touch x; echo $(ls)"), permissions=Permissions(), on_permission=callback)
    )

    await handle.result()

    assert names_in(tmp_path) == ["x"]
    assert callback.asks == []


async def longest_gap(work: Awaitable[object]) -> float:
    """How long the event loop was held at most while something was done, as a part of the time that took."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        before = time.perf_counter()
        while True:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(tick())
        await work
        ticking.cancel()
    return longest / (time.perf_counter() - begun)


@pytest.mark.parametrize("judged_by", ["rules", "filter"])
async def test_other_forks_go_on_while_a_hostile_command_is_judged(judged_by: str, tmp_path: Path) -> None:
    """The event loop is held for a part of that time only, be it a rule or a filter that judges."""
    deny = [f"Bash(a a a a a{number} *)" for number in range(1_000)] if judged_by == "rules" else []
    tools = BuiltinTools(Place(cwd=tmp_path))
    runner = ToolRunner(
        tools,
        tool_filter=ReadOnlyFilter() if judged_by == "filter" else AllowAllFilter(),
        replacements=ContentReplacementState(),
        watch=Unwatched(),
        gate=Gate(Permissions(deny=deny), tools=tools, cwd=tmp_path),
    )
    command = "env " + "a " * 4_900 if judged_by == "rules" else "ls;" * 3_300 + "rm x"
    hostile = ToolCall(run_id="r", id="t", name="Bash", input={"command": command}, context=ParentContext())
    answers: list[ToolAnswer] = []

    async def judge() -> None:
        answers.extend(await runner.run([hostile], {}))

    # A busy machine may hold the loop as well; one quiet try is enough.
    gaps = [await longest_gap(judge()) for _ in range(5)]

    assert min(gaps) < 0.5
    assert all(answer.is_error and "was not run" in str(answer.content) for answer in answers)


class Unwatched:
    """Hears of calls and does nothing."""

    async def started(self, call: ToolCall, *, read_only: bool) -> None:
        """The call begins."""

    async def finished(self, call: ToolCall, answer: ToolAnswer) -> None:
        """The call has its answer."""
