"""Evaluations in process: every expectation can fail, runs are repeated, and the reports say what happened."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from nexofork import ForkOverrides, ForkStatus, FunctionTools
from nexofork.agents.evaluation import Case, CaseResult, Suite, evaluate
from nexofork.agents.evaluation.expecting import Expectation, Outcome, disappointments
from nexofork.agents.evaluation.junit import junit
from nexofork.errors import CacheBreak, ForkRefused
from tests.support.conversation import call, declared, says
from tests.support.parents import body_of

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, CacheSafeParams, DefaultForkSubagent, ForkParams
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent


class Bench:
    """A conversation and what evaluates forks of it."""

    def __init__(self, snapshot: CacheSafeParams, forks: DefaultForkSubagent, llm: AnthropicProvider) -> None:
        self.snapshot = snapshot
        self.forks = forks
        self.params: dict[str, Any] = {"llm": llm}

    def equip(self, params: ForkParams) -> ForkParams:
        """Give a run its provider and tools."""
        return replace(params, **self.params)

    async def run(self, *cases: Case, **more: Any) -> list[CaseResult]:
        """Evaluate these cases."""
        suite = Suite(name="bench", cases=cases)
        given: dict[str, Any] = {"equip": self.equip, "follow_up": self.forks.wake, **more}
        return await evaluate(suite, self.forks, self.snapshot, **given)


@pytest.fixture
async def bench(parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider) -> Bench:
    """With a warm turn behind it."""
    return Bench(await parent.ask(answer={"text": "Ready."}, tools=declared("FileRead", "Grep")), forks, llm)


def case(*prompts: str, name: str = "c", runs: int = 1, min_passed: int | None = None, **expect: Any) -> Case:
    """A case."""
    return Case(name=name, prompts=prompts, runs=runs, min_passed=min_passed or runs, expect=Expectation(**expect))


async def test_a_case_passes_when_all_of_it_comes_true(bench: Bench, sim: Simulator) -> None:
    """Text, pattern, JSON, tools and bill are judged together; the forks read the conversation's cache."""

    async def grep(arguments: dict[str, Any]) -> str:
        return "router.py:7"

    bench.params["tool_dispatcher"] = FunctionTools({"Grep": grep}, read_only=["Grep"])
    asked = says(
        "Find it.", {"tools": [call("Grep", pattern="route")]}, '{"files": [{"name": "router.py", "line": 7}]}'
    )
    (result,) = await bench.run(
        case(
            asked,
            runs=2,
            contains=("router.py",),
            lacks=("sorry",),
            regex=(r'"line": \d',),
            json={"files[0].line": 7, "files[0].name": "router.py"},
            tools=("Grep",),
            without_tools=("Bash",),
            max_cost_usd=1.0,
            max_tokens=100_000,
            min_hit_ratio=0.9,
        )
    )

    assert [run.failures for run in result.runs] == [(), ()]
    assert (result.passed, result.passed_runs) == (True, 2)
    assert all(record.read >= sim.log[0].prompt_tokens for record in sim.log[1:])
    assert result.runs[0].outcome.tokens == sum(record.prompt_tokens + record.output for record in sim.log[1:]) / 2


GOOD = Outcome(status=ForkStatus.COMPLETED, text='{"n": 1}', tools=("Grep",), tokens=1000, cost_usd=0.5, hit_ratio=0.9)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"status": ForkStatus.MAX_TURNS}, "ended as completed, not as max_turns"),
        ({"contains": ("x",)}, "does not contain 'x'"),
        ({"lacks": ("n",)}, "contains 'n'"),
        ({"regex": ("^x",)}, "does not match '^x'"),
        ({"json": {"n": 2}}, "n is '1', not 2"),
        ({"json": {"n": True}}, "n is '1', not true"),
        ({"json": {"m": 1}}, "there is no m"),
        ({"tools": ("Bash",)}, "Bash did not run; these did: Grep"),
        ({"without_tools": ("Grep",)}, "Grep ran"),
        ({"without_tools": ("*",)}, "A tool ran"),
        ({"max_cost_usd": 0.4}, "It cost $0.5, more than $0.4"),
        ({"max_tokens": 999}, "It took 1,000 tokens, more than 999"),
        ({"min_hit_ratio": 0.99}, "read 90.00% from the cache, less than 99.00%"),
    ],
)
def test_every_expectation_can_fail_and_says_what_was_found(expected: dict[str, Any], words: str) -> None:
    """Each by itself; without it the same run passes."""
    (failure,) = disappointments(Expectation(**expected), GOOD)
    assert words in failure
    assert disappointments(Expectation(), GOOD) == []


def test_what_is_not_known_does_not_pass() -> None:
    """No price, no JSON."""
    outcome = replace(GOOD, cost_usd=None, text="plain")
    failures = disappointments(Expectation(max_cost_usd=9, json={"a": 1}), outcome)
    assert [failure.split(":")[0] for failure in failures] == [
        "The answer is no JSON; it is 'plain'.",
        "What it cost is not known",
    ]


async def test_of_repeated_runs_enough_have_to_pass(bench: Bench) -> None:
    """A flaky answer is told from a wrong one by how often it is right."""
    flaky, wrong = case("a", runs=3, min_passed=3, contains=("yes",)), case("b", name="d", runs=2, contains=("yes",))
    bench_results = await bench.run(flaky, wrong)
    assert [result.passed for result in bench_results] == [False, False]
    one = bench_results[0].runs[0]
    passed = replace(one, failures=())
    assert CaseResult(case=replace(flaky, min_passed=2), runs=(passed, one, passed)).passed
    assert not CaseResult(case=flaky, runs=(passed, one, passed)).passed


async def test_further_prompts_continue_the_same_child(bench: Bench, sim: Simulator) -> None:
    """The second is answered with the first in mind; a first that fails ends the case."""
    two, cut = await bench.run(
        case(says("First.", "one"), says("Second.", "two"), contains=("two",)),
        case(says("First.", {"text": "x", "stop_reason": "refusal"}), "Second.", name="cut"),
        parallel=1,
    )

    assert (two.passed, len(two.runs[0].results)) == (True, 2)
    said = [block["text"] for message in body_of(sim, 2)["messages"] for block in message["content"]]
    assert "one" in said
    assert sim.log[2].read >= sim.log[1].prompt_tokens * 0.99
    assert not cut.passed
    assert len(cut.runs[0].results) == 1
    assert "ended as refused" in cut.runs[0].failures[0]


async def test_a_case_may_change_nothing_unless_it_says_so(bench: Bench) -> None:
    """The filter of a case is on; what it denies did not run."""

    async def bash(arguments: dict[str, Any]) -> str:
        return "ran"

    bench.params["tool_dispatcher"] = FunctionTools({"Bash": bash})
    removes = says("Remove.", {"tools": [call(command="rm x")]}, "Done.")
    free = replace(case(removes, name="free", tools=("Bash",)), filters=("allow-all",))
    held, freed = await bench.run(case(removes, without_tools=("*",)), free)
    assert (held.passed, freed.passed) == (True, True)


async def test_an_end_that_was_expected_passes(bench: Bench) -> None:
    """Also one that is no success."""
    endless = says("Loop.", *[{"tools": [call("FileRead", file_path="/x")]}] * 3)
    (result,) = await bench.run(replace(case(endless, status=ForkStatus.MAX_TURNS), max_turns=2))
    assert result.passed


async def test_what_cannot_be_run_is_refused_before_anything_is(bench: Bench, sim: Simulator) -> None:
    """One case is wrong, so none is run; a follow-up needs somebody who can."""
    with pytest.raises(ForkRefused, match="pass `follow_up`"):
        await bench.run(case("a"), case("a", "b", name="d"), follow_up=None)
    with pytest.raises(ForkRefused, match="parallel is 0"):
        await bench.run(case("a"), parallel=0)
    bench.params["overrides"] = ForkOverrides(request={"model": "x"})
    with pytest.raises(CacheBreak):
        await bench.run(case("a"))
    assert sim.request_count == 1


async def test_junit_has_a_test_per_case_and_takes_any_text(bench: Bench) -> None:
    """A failed one says why; what XML cannot hold does not break the file."""
    good, bad = await bench.run(
        case(says("a", "fine \x00 <&> \x1b[31m"), name="good \x01"),
        case(says("b", "no"), name="bad", contains=("yes",)),
    )
    root = ElementTree.fromstring(junit("bench", [good, bad]))

    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    first, second = suite
    assert first.get("name") == "good ?"
    assert "<&>" in (first.findtext("system-out") or "")
    failure = second.find("failure")
    assert failure is not None
    assert failure.get("message") == "0 of 1 runs passed, 1 have to"
    assert "does not contain 'yes'" in (failure.text or "")
