"""Files of evaluations: what they may say, and that everything wrong with one is named at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nexofork import ForkStatus
from nexofork.agents.evaluation import Suite, read_suite
from nexofork.errors import BadEvaluation

DOCUMENTED = Path(__file__).resolve().parents[4] / "docs" / "evaluation.md"

WHOLE = """
name = "router"
request = "request.json"
reply = "reply.json"
headers = { Anthropic-Version = "2023-06-01" }
runs = 3
filter = "profile:explore"

[[case]]
name = "finds it"
prompt = "Where is the router?"
min_passed = 2
timeout_s = 30
[case.expect]
contains = "router.py"
lacks = ["sorry"]
regex = '^router\\.py:\\d+$'
tools = ["Grep"]
without_tools = ["Bash"]
max_cost_usd = 0.5
max_tokens = 90000
min_hit_ratio = 0.99
json = { "files[0].name" = "router.py" }

[[case]]
prompts = ["Begin.", "Go on."]
runs = 1
filter = ["readonly", "tools:Grep"]
boilerplate = false
expect.status = "max_turns"
"""


def written(folder: Path, text: str) -> Suite:
    """Read a file with this text."""
    file = folder / "suite.toml"
    file.write_text(text)
    return read_suite(file)


def test_a_file_says_everything_about_its_cases(tmp_path: Path) -> None:
    """What stands at its head holds for all cases that do not say otherwise."""
    suite = written(tmp_path, WHOLE)
    first, second = suite.cases

    assert (suite.name, suite.request, suite.reply) == ("router", "request.json", "reply.json")
    assert suite.headers == (("anthropic-version", "2023-06-01"),)
    assert (first.name, first.prompts, first.runs, first.min_passed) == ("finds it", ("Where is the router?",), 3, 2)
    assert (first.timeout_s, first.filters, first.boilerplate) == (30, ("profile:explore",), True)
    assert (first.expect.contains, first.expect.lacks, first.expect.tools) == (("router.py",), ("sorry",), ("Grep",))
    assert (first.expect.max_cost_usd, first.expect.max_tokens, first.expect.min_hit_ratio) == (0.5, 90_000, 0.99)
    assert first.expect.json == {"files[0].name": "router.py"}
    assert (second.name, second.prompts, second.runs, second.min_passed) == ("case 2", ("Begin.", "Go on."), 1, 1)
    assert second.filters == ("readonly", "tools:Grep")
    assert second.expect.status is ForkStatus.MAX_TURNS


def test_the_documented_file_can_be_used(tmp_path: Path) -> None:
    """As it stands in the documentation."""
    text = re.search(r"```toml\n(.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    assert text is not None
    first, second = written(tmp_path, text[1]).cases
    assert (first.runs, first.min_passed, second.min_passed) == (3, 2, 3)
    assert second.expect.json == {"routes[0].path": "/users"}


def test_a_case_only_reads_unless_it_says_otherwise(tmp_path: Path) -> None:
    """An evaluation must not change what it looks at by accident."""
    (case,) = written(tmp_path, '[[case]]\nprompt = "x"').cases
    assert case.filters == ("readonly",)
    assert case.expect.status is ForkStatus.COMPLETED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there are no cases"),
        ("case = 1", "there are no cases"),
        ("x = ", "it is no TOML"),
        ('[[case]]\nname = "a"', "give `prompt`, or `prompts`"),
        ('[[case]]\nprompt = "a"\nprompts = ["a"]', "give `prompt`, or `prompts`"),
        ("[[case]]\nprompts = []", "`prompts` is empty"),
        ('[[case]]\nprompt = " "', "`prompt` is empty"),
        ('[[case]]\nprompt = "<fork-boilerplate>"', "contains the tag"),
        ('[[case]]\nprompt = "a"\nruns = 0', "give a whole number from 1 to 1000"),
        ('[[case]]\nprompt = "a"\nruns = 2\nmin_passed = 3', "`min_passed` is 3"),
        ('[[case]]\nprompt = "a"\nruns = true', "`runs` is True"),
        ('[[case]]\nprompt = "a"\nfilter = "nope"', "There is no filter 'nope'"),
        ('[[case]]\nprompt = "a"\nexpects = 1', "`expects` is not known"),
        ('[[case]]\nprompt = "a"\nexpect.contain = "x"', "`contain` is not known"),
        ('[[case]]\nprompt = "a"\nexpect.regex = "("', "`regex`"),
        ('[[case]]\nprompt = "a"\nexpect.status = "good"', "there is no status 'good'"),
        ('[[case]]\nprompt = "a"\nexpect.status = "running"', "there is no status 'running'"),
        ('[[case]]\nprompt = "a"\nexpect.min_hit_ratio = 99', "from 0 to 1"),
        ('[[case]]\nprompt = "a"\nexpect.max_tokens = 1.5', "whole number"),
        ('[[case]]\nprompt = "a"\nexpect.json = { "a[" = 1 }', "is no path"),
        ('[[case]]\nprompt = "a"\nexpect.contains = [1]', "neither a text nor a list"),
        ('[[case]]\nprompt = "a"\n[[case]]\nprompt = "b"\nname = "case 1"', "several cases are named 'case 1'"),
        ('headers = 1\n[[case]]\nprompt = "a"', "`headers` is no table"),
    ],
)
def test_what_cannot_be_meant_is_named(tmp_path: Path, text: str, words: str) -> None:
    """With the file, the case and the key."""
    with pytest.raises(BadEvaluation) as caught:
        written(tmp_path, text)
    assert words in str(caught.value)
    assert "suite.toml" in str(caught.value)


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    """Nobody corrects a file five times."""
    with pytest.raises(BadEvaluation) as caught:
        written(tmp_path, 'x = 1\n[[case]]\nruns = "a"\nname = "first"\nexpect.status = 3')
    assert len(caught.value.problems) == 4


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Like any other that cannot be used."""
    with pytest.raises(BadEvaluation, match="cannot be read"):
        read_suite(tmp_path / "none.toml")
