"""``nexofork estimate``: what a fan-out would cost, without NATS, a daemon or a key."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from nexofork import CacheSafeParams, Reply, estimate
from nexofork.cli import run_command
from tests.support.conversation import MARK_1H, request
from tests.unit.economics.test_prices import entry, written

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.cli.conftest import World

    Ask = Callable[..., tuple[int, str, str]]

USAGE = {"input_tokens": 0, "cache_creation_input_tokens": 50_000, "output_tokens": 9}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with the parent's request and response."""
    body = request(tokens=50_000, model="claude-opus-5-5")
    reply = {"role": "assistant", "content": [{"type": "text", "text": "I fork."}], "usage": USAGE}
    (tmp_path / "REQUEST.json").write_text(json.dumps(body, separators=(",", ":")))
    (tmp_path / "REPLY.json").write_text(json.dumps(reply))
    return tmp_path


@pytest.fixture
def ask(files: Path, capfd: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command on the files; gives exit code, stdout and stderr."""

    def run(*arguments: str | Path, reply: bool = True) -> tuple[int, str, str]:
        given = ["--request", files / "REQUEST.json", *(["--reply", files / "REPLY.json"] if reply else [])]
        code = run_command(arguments=["estimate", *map(str, [*given, *arguments])])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run


def now() -> str:
    """The present in RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def test_json_is_what_the_library_says(ask: Ask, files: Path) -> None:
    """One object on one line, with the figures of `nexofork.estimate` for the same files."""
    code, out, err = ask("-d", "Look.", "-d", "Look again.", "--turns", "3", "--output-tokens", "200", "--json")

    reply = Reply.from_response((files / "REPLY.json").read_bytes())
    parent = CacheSafeParams.from_parent_request((files / "REQUEST.json").read_bytes(), reply=reply)
    same = estimate(parent, ["Look.", "Look again."], turns=3, output_tokens=200)
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out) == json.loads(json.dumps(same.to_json()))


def test_people_get_a_table_with_its_assumptions(ask: Ask) -> None:
    """The model and its price, the tokens and where they come from, the cache, four bills, and the verdict."""
    code, out, err = ask("-d", "Look.", "-n", "8")

    assert (code, err) == (0, "")
    for line in (
        "model      claude-opus-5-5",
        "price      $4 fresh, $0.2 read, $5 written (5m), $20 output per million; "
        "provider's public price list, 2026-11",
        "children   8, each with 1 turn of 1,000 output tokens",
        "cache      cold: it is not known when the parent's call was sent",
    ):
        assert line in out.splitlines()
    assert "50,000 prefix" in out
    assert "by the parent's bill" in out
    assert re.search(r"^fork +\d{3},\d{3} +50,\d{3} +\d+ +8,000 +0\.\d{4} +0\.1600 +0\.\d{4}$", out, re.M)
    assert re.search(r"^named agents \(20,000 tokens each\) +0 +0 +160,000 +8,000 +0.6400 +0.1600 +0.8000$", out, re.M)
    assert re.search(r"Sharing saves \d\d\.\d% of the input bill; it pays from 2 children on\.", out)
    assert "Forking is cheaper than named agents, by $0." in out
    assert re.search(r"Forking is cheaper where an agent would need more than [\d,]+ tokens of its own\.", out)
    assert max(map(len, out.splitlines())) <= 120


def test_a_parent_that_has_just_called_is_warm(ask: Ask) -> None:
    """--sent-at decides; a single child pays then."""
    _, out, _ = ask("-d", "Look.", "--sent-at", now())
    assert "cache      warm, 50,000 tokens: the parent's entry lives for another " in out
    assert "it pays from 1 child on" in out

    _, out, _ = ask("-d", "Look.", "--sent-at", "2026-01-01T00:00:00Z")
    assert re.search(r"cache +cold: the parent's call was sent [\d,]+ s ago and its entry lives for 5m", out)
    assert "Sharing costs 25.0% more input than not sharing; it pays from 2 children on." in out


def test_without_a_bill_it_says_so(ask: Ask) -> None:
    """A request alone is enough for a guess."""
    code, out, _ = ask("-d", "Look.", reply=False)

    assert code == 0
    assert "guessed from bytes" in out
    assert "Note: Tokens are guessed" in out


def test_directives_are_repeated_up_to_the_number(ask: Ask) -> None:
    """-n counts children; the directives are taken in turn."""
    _, out, _ = ask("-d", "Look.", "-d", "Look at all of the schema's tables.", "-n", "5", "--json")
    short, long, *rest = json.loads(out)["directive_tokens"]

    assert short < long
    assert rest == [short, long, short]


def test_named_agents_on_a_cheaper_model(ask: Ask) -> None:
    """A small context on a small model may well be cheaper, and the verdict says by how much."""
    _, out, _ = ask("-d", "Look.", "--fresh-model", "claude-haiku-5-5", "--fresh-context-tokens", "5000")

    assert "Named agents on claude-haiku-5-5 are cheaper than forking, by $" in out


def test_prices_come_from_a_file(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By option or by environment; the source is shown."""
    path = written(tmp_path, entry(price=3))

    assert "price      $3 fresh, $0.5 read" in ask("-d", "Look.", "--prices", path)[1]
    monkeypatch.setenv("NEXOFORK_PRICES", str(path))
    assert "per million; our contract" in ask("-d", "Look.")[1]


def test_an_unknown_model_has_tokens_only(ask: Ask, files: Path) -> None:
    """It is no error: dollars are dashes, and a note says why."""
    body = request(tokens=50_000, model="claude-novel-9")
    (files / "REQUEST.json").write_text(json.dumps(body, separators=(",", ":")))
    code, out, _ = ask("-d", "Look.", "-n", "3")

    assert code == 0
    assert "price      not known" in out
    assert re.search(r"^fork +[\d,]+ +[\d,]+ +\d+ +3,000 +- +- +-$", out, re.M)
    assert "Note: The price of 'claude-novel-9' is not known" in out
    assert "named agents, by" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing option '-d'"),
        (["-d", " "], "The directive is empty"),
        (["-d", "Look.", "-n", "0"], "'-n' / '--children': 0 is not in the range"),
        (["-d", "Look.", "-n", "1000000000"], "is not in the range"),
        (["-d", "Look.", "-d", "Look.", "-n", "1"], "There are 2 directives and -n 1; give at least as many children"),
        (["-d", "Look.", "--turns", "-3"], "--turns"),
        (["-d", "Look.", "--turns", "many"], "--turns"),
        (["-d", "Look.", "--output-tokens", "-1"], "--output-tokens"),
        (["-d", "Look.", "--fresh-context-tokens", "1e9"], "--fresh-context-tokens"),
        (["-d", "Look.", "--sent-at", "yesterday"], "--sent-at"),
        (["-d", "Look.", "--header", "nonsense"], "--header"),
        (
            ["-d", "Look.", "--prices", "/nowhere.toml"],
            "The price file /nowhere.toml cannot be used: it cannot be read",
        ),
        (["-d", "Look.", "--reply", "/nowhere.json"], "--reply /nowhere.json cannot be read"),
        (["-d", "Look.", "--request", "-", "--reply", "-"], "cannot both come from stdin"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(ask: Ask, arguments: list[str], said: str) -> None:
    """As of every command."""
    code, out, err = ask(*arguments)

    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b'{"model": "m"}', b'{"model":"m","max_tokens":1,"messages":[]}']
)
def test_a_bad_request_is_refused_as_by_fork(ask: Ask, files: Path, content: bytes) -> None:
    """The message is about the parent's request body."""
    (files / "REQUEST.json").write_bytes(content)
    code, out, err = ask("-d", "Look.", "--json")

    assert (code, out) == (2, "")
    assert err.startswith("Error: The parent's request body ")


def test_a_daemon_names_a_bad_price_file_before_it_starts(world: World, tmp_path: Path) -> None:
    """Not in the middle of somebody's run."""
    path = written(tmp_path, entry().replace("input = 3", "input = -3"))
    done = world.run("daemon", env={**world.environment, "NEXOFORK_PRICES": str(path)})

    assert (done.returncode, done.stdout) == (2, "")
    assert f"The price file {path} cannot be used: entry 1 (claude-opus-5-5): `input` is -3" in done.stderr


def test_it_needs_no_nats_and_no_key(world: World, files: Path) -> None:
    """From a shell with nothing set."""
    bare: dict[str, Any] = {
        name: value for name, value in world.environment.items() if not name.startswith(("ANTHROPIC", "NATS"))
    }
    done = world.run("estimate", "--request", files / "REQUEST.json", "-d", "Look.", "--json", env=bare)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["children"] == 1


@pytest.mark.parametrize(
    ("children", "turns", "output", "said"),
    [
        (1, 2, 800, r"Sharing saves \d+\.\d% of the input bill; with more children it pays from 3 on\."),
        (2, 2, 800, r"Sharing costs \d+\.\d% more input than not sharing; it pays from 3 children on\."),
        (3, 2, 800, r"Sharing saves \d+\.\d% of the input bill; it pays from 3 children on\."),
        (1, 3, 4_000, r"Sharing saves \d+\.\d% of the input bill; with more children it does not\."),
        (2, 3, 4_000, r"Sharing never pays here\."),
    ],
)
def test_a_lone_child_that_pays_says_nothing_about_more(
    ask: Ask, files: Path, children: int, turns: int, output: int, said: str
) -> None:
    """It writes a short prompt for five minutes where two would for an hour, so the verdict tells the two apart."""
    body = request(tokens=600, mark=MARK_1H, model="claude-opus-5-5")
    usage = {"input_tokens": 0, "cache_creation_input_tokens": 600}
    reply = {"role": "assistant", "content": [{"type": "text", "text": "I fork."}], "usage": usage}
    (files / "REQUEST.json").write_text(json.dumps(body, separators=(",", ":")))
    (files / "REPLY.json").write_text(json.dumps(reply))

    _, out, _ = ask(
        "-d", "Look at the router.", "-n", str(children), "--turns", str(turns), "--output-tokens", str(output)
    )
    assert re.search(said, out)
