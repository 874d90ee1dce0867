"""``nexofork explain`` with two files: what is printed, the exit codes, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nexofork.cli import run_command
from tests.support.conversation import AGENT, BASH, MARK, request, text

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A request, and the same with a session id of its own."""
    paths = []
    for name, session in (("a.json", "41f0aa77"), ("b.json", "9c3e0b12")):
        path = tmp_path / name
        path.write_text(json.dumps(request(system=[text(f"You are it.\nSession: {session}.\x1b[31m")])))
        paths.append(str(path))
    return paths[0], paths[1]


def shown(capfd: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """What the command prints when it ends with this code."""
    got = run_command(arguments=["explain", *arguments])
    out, err = capfd.readouterr()
    assert got == code, err
    return err if code == 2 else out


def test_a_divergence_is_shown_with_all_that_matters(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """Cause, remedy, place, both sides and the loss; nothing that a terminal would obey."""
    out = shown(capfd, *files, code=1)

    assert out.startswith("system_changed (session_id)\n")
    for words in ("Keep it out of the shared prompt", "system[0].text", "Session: 41f0", "Session: 9c3e", "byte "):
        assert words in out
    assert "loses   system, messages" in out
    assert "Lost: about 5,0" in out
    assert "\x1b" not in out


def test_equal_requests_end_with_0(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """And say how much is cached."""
    assert "Nothing differs" in shown(capfd, files[0], files[0], code=0)


def test_json_is_one_object(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """With the same facts, for programs."""
    found = json.loads(shown(capfd, *files, "--json", code=1))

    assert (found["cause"], found["divergence"]["likely_cause"]) == ("system_changed", "session_id")
    assert found["divergence"]["offset_a"] == found["divergence"]["offset_b"] > 0
    assert found["differing"] == ["system"]


def test_requests_that_part_behind_the_last_marker_lose_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Siblings differ in their directives, which nobody cached."""
    for name in ("a", "b"):
        said = [text("Shared.", tokens=2_000, mark=MARK), text(f"Directive {name}.")]
        body = request(tools=[AGENT, BASH], messages=[{"role": "user", "content": said}])
        (tmp_path / name).write_text(json.dumps(body))

    out = shown(capfd, str(tmp_path / "a"), str(tmp_path / "b"), code=0)

    assert "nothing is lost" in out
    assert "messages[0].content[1].text" in out


def test_times_and_workspaces_explain_equal_requests(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """Given on the command line, they are looked at."""
    a = files[0]
    late = ("--sent-at-a", "2026-05-04T10:00:00Z", "--sent-at-b", "2026-05-04T12:06:00+02:00")
    foreign = ("--header-a", "anthropic-workspace-id:one", "--header-b", "anthropic-workspace-id:two")

    assert shown(capfd, a, a, *late, code=1).startswith("expired\n")
    assert shown(capfd, a, a, *foreign, code=1).startswith("workspace\n")
    assert shown(capfd, a, a, *late, *foreign, code=1).startswith("workspace\n")


def test_headers_are_compared(files: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    """Repeated ones are one list, whatever its order."""
    a = files[0]
    one = ("--header-a", "anthropic-beta:x", "--header-a", "anthropic-beta:y")

    assert "beta_header" in shown(capfd, a, a, *one, "--header-b", "anthropic-beta:x", code=1)
    assert "Nothing differs" in shown(capfd, a, a, *one, "--header-b", "anthropic-beta:y,x", code=0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"[]", "not a JSON object"),
        (b'{"model": "m", "messages": [', "truncated"),
        (b"\xff", "not UTF-8"),
        (json.dumps({"model": "m"}).encode(), "no `messages`"),
        (b"[" * 100_000, "not a JSON object"),
    ],
)
def test_a_file_that_is_no_request_is_refused_by_name(
    files: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    """On either side, in one line."""
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)

    for pair in ((str(bad), files[0]), (files[0], str(bad))):
        err = shown(capfd, *pair, code=2)
        assert words in err
        assert "bad.json" in err
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "A.json B.json | RUN_ID"),
        (["{a}"], "is a file; give the file to compare it with"),
        (["{a}", "{b}", "{a}"], "3 things were given"),
        (["{a}", "/no/such/file"], "/no/such/file cannot be read"),
        (["{a}", "{b}", "--reply-a", "/no/such/file"], "/no/such/file cannot be read"),
        (["{a}", "{b}", "--reply-b", "{a}"], "no `content` array"),
        (["{a}", "{b}", "--parent", "{a}"], "--parent is for a run"),
        (["{a}", "{b}", "--sent-at-a", "soon"], "RFC 3339"),
        (["{a}", "{b}", "--header-a", "none"], "is not a header"),
        (["some-run", "--header-a", "a:b"], "--header-a is for two files"),
        (["some-run", "--sent-at-b", "2026-05-04T10:00:00Z"], "--sent-at-b is for two files"),
        (["some.run"], "cannot be used in a subject"),
        (["some-run", "--parent", "/no/such/file"], "/no/such/file cannot be read"),
    ],
)
def test_wrong_arguments_are_refused(
    files: tuple[str, str], capfd: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Before NATS is asked for anything."""
    given = [word.format(a=files[0], b=files[1]) for word in arguments]

    assert words in shown(capfd, *given, code=2)


def test_a_reply_without_cache_counts_is_no_reason_to_fail(
    files: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A provider that reports none is told from a miss."""
    reply: dict[str, Any] = {"content": [], "usage": {"input_tokens": 0}}
    (tmp_path / "reply.json").write_text(json.dumps(reply))
    path = str(tmp_path / "reply.json")

    assert "Nothing differs" in shown(capfd, files[0], files[0], "--reply-a", path, "--reply-b", path, code=0)
