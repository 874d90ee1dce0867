"""What an evaluation starts, and what it makes of an answer that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork import DelegateMode, ForkParams, QuerySource
from nexofork.agents.evaluation import Case, Suite, evaluate
from nexofork.agents.evaluation.expecting import Expectation
from tests.support.conversation import says

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.client.handle import ForkHandle
    from tests.support.parents import Parent


async def test_a_case_is_a_synchronous_fork_and_a_wrong_answer_fails_it(
    parent: Parent, forks: DefaultForkSubagent, llm: AnthropicProvider
) -> None:
    """Every prompt of the script is waited for; the case whose expectation does not come true says so."""
    asked: list[ForkParams] = []

    class Noting:
        async def fork(self, params: ForkParams) -> ForkHandle:
            asked.append(params)
            return await forks.fork(params)

    right = Case(name="right", prompts=(says("x", "yes"),), expect=Expectation(contains=("yes",)))
    wrong = replace(right, name="wrong", expect=Expectation(contains=("no",)))
    snapshot = await parent.ask(answer={"text": "Ready."})
    found = await evaluate(
        Suite(name="s", cases=(right, wrong)), Noting(), snapshot, equip=lambda params: replace(params, llm=llm)
    )

    assert {(one.mode, one.query_source) for one in asked} == {(DelegateMode.SYNC, QuerySource.EVAL)}
    assert [one.passed for one in found] == [True, False]
    assert found[1].runs[0].failures == ("The answer does not contain 'no'; it is 'yes'.",)
