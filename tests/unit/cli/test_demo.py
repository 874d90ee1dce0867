"""What the demo refuses, before it starts or spends anything."""

from __future__ import annotations

import pytest

from nexofork.cli import run_command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--live --yes", "--live needs ANTHROPIC_API_KEY"),
        ("--model nosuch", "The price of 'nosuch' is not known"),
        ("--tokens -5", "-5 is not in the range"),
        ("--tokens 0", "0 is not in the range"),
    ],
)
def test_what_the_demo_cannot_do_is_bad_input(words: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 2."""
    assert run_command(arguments=["demo", *words.split()]) == 2
    shown = capfd.readouterr()

    assert (shown.out, len(shown.err.splitlines())) == ("", 1)
    assert said in shown.err


def test_a_price_that_is_not_known_is_bad_input_before_spending(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on the real API, where nobody is asked to spend a sum that nobody knows."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-none")

    assert run_command(arguments=["demo", "--live", "--model", "nosuch"]) == 2
    assert "The price of 'nosuch' is not known" in capfd.readouterr().err
