"""Bad input ends with exit code 2 and one line, before NATS is asked for anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.cli import run_command

if TYPE_CHECKING:
    from pathlib import Path

GOOD = {"model": "claude-opus-4-8", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}
REPLY = [{"type": "text", "text": "I fork."}]


class Files:
    """A request and a reply, right or wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, content: Any) -> str:
        """Write a file and return its path."""
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Where the files go."""
    return Files(tmp_path)


def refusal(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line a wrong call ends with; nothing listens where NATS is looked for."""
    code = run_command(arguments=[*arguments, "--nats", "nats://127.0.0.1:9"])
    shown = capfd.readouterr()
    assert (code, shown.out) == (2, "")
    assert len(shown.err.splitlines()) == 1, shown.err
    assert shown.err.startswith("Error: ")
    return shown.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "request body"),
        (b'{"model": "m", "messages": [', "request body"),
        (b"[]", "request body"),
        (b"\xff\xfe", "request body"),
        ({**GOOD, "messages": "hello"}, "messages"),
        ({**GOOD, "messages": []}, "messages"),
        ({**GOOD, "model": 7}, "model"),
        ({"messages": GOOD["messages"]}, "model"),
    ],
)
def test_a_request_that_is_none(files: Files, capfd: pytest.CaptureFixture[str], content: Any, words: str) -> None:
    """Truncated, of the wrong type, or without what a request needs."""
    assert words in refusal(capfd, "fork", "--request", files.write("r.json", content), "-d", "Look.")


@pytest.mark.parametrize("content", [b"", b"{", {}, {"content": "text"}, [], [{"text": "no type"}], [7], 7])
def test_a_reply_that_is_none(files: Files, capfd: pytest.CaptureFixture[str], content: Any) -> None:
    """Truncated, without content, or with blocks that are none."""
    good, bad = files.write("r.json", GOOD), files.write("reply.json", content)
    assert "reply" in refusal(capfd, "fork", "--request", good, "--reply", bad, "-d", "Look.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-d", ""], "directive is empty"),
        (["-d", "Look.", "-d", "  "], "directive is empty"),
        (["-d", "a <fork-boilerplate> b"], "fork-boilerplate"),
        (["-d", "Look.", "--tool-name", "bash"], "'bash' does not name two tools; write it as THEIRS=OURS"),
        (["-d", "Look.", "--tool-name", "=Bash"], "does not name two tools"),
        (["-d", "Look.", "--tool-name", "sh=Shell"], "no tool 'Shell' for 'sh' to mean; known are Bash, FileRead"),
        (["-d", "Look.", "--tool-name", "sh=Bash"], "The parent's tools have no 'sh' to map to Bash; they are: none"),
        (["-d", "Look.", "--tool-name", "sh=Bash", "--tool-name", "sh=Grep"], "two meanings, Bash and Grep"),
        (["-d", "Look.", "--header", "no colon"], "'no colon' is not a header"),
        (["-d", "Look.", "--header", "a b:c"], "is not a header"),
        (["-d", "Look.", "--header", "a:"], "is not a header"),
        (["-d", "Look.", "--header", "a:b\r\nc: d"], "is not a header"),
        (
            ["-d", "Look.", "--header", "anthropic-workspace-id:a", "--header", "anthropic-workspace-id:b"],
            "several workspaces",
        ),
        (["-d", "Look.", "--sent-at", "yesterday"], "RFC 3339"),
        (["-d", "Look.", "--sent-at", "2026-05-04"], "RFC 3339"),
        (["-d", "Look.", "--sent-at", "2026-05-04T10:00:00"], "RFC 3339"),
        (["-d", "Look.", "--sent-at", "2026-13-04T10:00:00Z"], "RFC 3339"),
        (["-d", "Look.", "--run-id", "a", "--run-id", "b"], "1 directive and 2 run ids"),
        (["-d", "Look.", "-d", "Look.", "--run-id", "a"], "2 directives and 1 run id;"),
        (["-d", "a", "-d", "b", "--run-id", "x", "--run-id", "x"], "twice"),
        (["-d", "Look.", "--run-id", "a.b"], "'a.b' cannot be used in a subject"),
        (["-d", "Look.", "--run-id", ""], "cannot be used in a subject"),
        (["-d", "Look.", "--pool", "a b"], "cannot be used in a subject"),
        (["-d", "Look.", "--group", " "], "--group is empty"),
        (["-d", "Look.", "--run-id", "budget-1"], "budgets are kept"),
        (["-d", "Look.", "--budget-usd", "0"], "--budget-usd '0' is no budget; give a number above 0"),
        (["-d", "Look.", "--budget-usd", "-1"], "--budget-usd"),
        (["-d", "Look.", "--budget-usd", "nan"], "--budget-usd"),
        (["-d", "Look.", "--budget-usd", "inf"], "--budget-usd"),
        (["-d", "Look.", "--budget-usd", "a lot"], "--budget-usd"),
        (["-d", "Look.", "--budget-usd", ""], "--budget-usd"),
        (["-d", "Look.", "--budget-tokens", "-5"], "--budget-tokens"),
        (["-d", "Look.", "--budget-tokens", "1.5"], "--budget-tokens '1.5' is no budget; give a whole number above 0"),
        (["-d", "Look.", "--group", "g", "--group-budget-usd", "-0.1"], "--group-budget-usd"),
        (["-d", "Look.", "--group", "g", "--group-budget-tokens", "0"], "--group-budget-tokens"),
        (["-d", "Look.", "--group-budget-usd", "1"], "no group"),
        (["-d", "Look.", "--timeout", "0"], "--timeout"),
        (["-d", "Look.", "--timeout", "nan"], "--timeout"),
        (["-d", "Look.", "--timeout", "soon"], "--timeout"),
        (["-d", "Look.", "--max-turns", "0"], "--max-turns"),
        (["-d", "Look.", "--on-parent-gone", "cry"], "--on-parent-gone"),
        (["-d", "Look.", "--creds", "/no/such/file"], "/no/such/file"),
        (["-d", "Look.", "--detach", "--events"], "--detach"),
        (["-d", "Look.", "--detach", "--on-parent-gone", "abort"], "--detach"),
        (["-d", "Look.", "--filter", "read-only"], "There is no filter 'read-only' here. Filters: allow-all, automem"),
        (["-d", "Look.", "--filter", ""], "There is no filter ''"),
        (["-d", "Look.", "--filter", "automem"], "'automem' takes one argument"),
        (["-d", "Look.", "--filter", "automem:"], "'automem' takes one argument"),
        (["-d", "Look.", "--filter", "automem:/no/such/folder"], "'/no/such/folder' is not a folder on this host"),
        (["-d", "Look.", "--filter", "profile:nope"], "There is no profile 'nope'. Profiles: edit, explore"),
        (["-d", "Look.", "--filter", "readonly:x"], "'readonly' takes no argument"),
        (["-d", "Look.", "--filter", "readonly", "--filter", "nope"], "There is no filter 'nope'"),
        (["-d", "Look.", "--permissions", "maybe"], "'maybe' is neither a mode nor a file"),
        (["-d", "Look.", "--permissions", "deny", "--allow", "Bash("], "The rule 'Bash(' cannot be read"),
        (["-d", "Look.", "--deny", "Glob(x)"], "The rule 'Glob(x)' has a pattern"),
        (["-d", "Look.", "--allow", "Bash"], "the mode `allow` lets everything run"),
        (["-d", "Look.", "--permission-deadline", "0"], "0 is too short"),
        (["-d", "Look.", "--workspace", "svn:x"], "--workspace 'svn:x' is none of none, path:DIR and git:DIR"),
        (["-d", "Look.", "--workspace", "git:"], "--workspace 'git:' is none of"),
        (["-d", "Look.", "--include-ignored"], "--include-ignored goes with --workspace git:DIR"),
        (["-d", "Look.", "--nope"], "--nope"),
        ([], "--directive"),
    ],
)
def test_options_that_are_wrong(
    files: Files, capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """The line names the option or the value."""
    assert words in refusal(capfd, "fork", "--request", files.write("r.json", GOOD), *arguments)


def test_what_is_so_anyway_may_be_said(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    """The values that change nothing are taken; the call then fails at NATS, which is not there."""
    good = files.write("r.json", GOOD)
    code = run_command(
        arguments=[
            *("fork", "--request", good, "-d", "Look.", "--permissions", "allow", "--workspace", "none"),
            *("--nats", "nats://127.0.0.1:9"),
        ]
    )
    assert (code, "127.0.0.1:9" in capfd.readouterr().err) == (3, True)


def test_a_missing_file_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    """So is a folder in its place."""
    assert "/no/such.json" in refusal(capfd, "fork", "--request", "/no/such.json", "-d", "Look.")
    assert "/tmp" in refusal(capfd, "fork", "--request", "/tmp", "-d", "Look.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["wait"],
        ["wait", "a b"],
        ["wait", "a", "--timeout", "-1"],
        ["logs"],
        ["attach", "a.b"],
        ["abort"],
        ["answer", "r1", "q1"],
        ["answer", "r1", "q1", "--data", "[]"],
        ["answer", "r1", "q1", "--data", "{"],
        ["ps", "extra"],
        ["provision", "--replicas", "0"],
        ["provision", "--max-bytes", "0"],
    ],
)
def test_other_commands_refuse_likewise(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """One line, exit code 2."""
    refusal(capfd, *arguments)


@pytest.mark.parametrize("url", ["http://x", "nats://", "nats://a:99999", "nats://a b", "nats://a,", "://a"])
def test_a_url_that_is_none(capfd: pytest.CaptureFixture[str], url: str) -> None:
    """Told from a server that is not there."""
    assert run_command(arguments=["ps", "--nats", url]) == 2
    assert "is not a NATS URL" in capfd.readouterr().err


def test_creds_and_nkey_exclude_each_other(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    """Who you are is said once."""
    path = files.write("seed", b"SU")
    assert "--creds and --nkey" in refusal(capfd, "ps", "--creds", path, "--nkey", path)


def test_an_unreadable_identity_is_a_refusal_of_nats(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    """A file without a seed lets nobody in."""
    assert run_command(arguments=["ps", "--nkey", files.write("seed", b"nothing")]) == 3
    assert "holds no nkey seed" in capfd.readouterr().err


def test_dollars_for_a_model_without_a_price(files: Files, capfd: pytest.CaptureFixture[str]) -> None:
    """Refused here and not by the first daemon; the line says what to do."""
    path = files.write("r.json", {**GOOD, "model": "claude-nova-9"})
    line = refusal(capfd, "fork", "--request", path, "-d", "Look.", "--budget-usd", "1")
    assert all(word in line for word in ("claude-nova-9", "tokens", "price file"))
