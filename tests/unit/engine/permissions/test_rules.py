"""What rules mean: certain where they allow, cautious where they deny, and refused by name where they mean nothing."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexofork import Permissions
from nexofork.errors import BadPermissions
from nexofork.policy.gate import Judge
from nexofork.policy.rules import parse_rule

if TYPE_CHECKING:
    from pathlib import Path


def bash(command: str, *allow: str, deny: tuple[str, ...] = (), mode: Any = "deny") -> str:
    """What becomes of a command."""
    judge = Judge(Permissions(mode=mode, allow=allow, deny=deny))
    return judge.judge("Bash", {"command": command}, read_only=False).kind


COMMIT = "Bash(git commit *)"


@pytest.mark.parametrize(
    "command",
    [
        "git commit",
        "git commit -m x",
        "git 'commit' -m 'x; rm -rf /'",
        "git status && git commit -m x",
        "git commit -m x 2>&1 | tail -n 3",
        "git commit -m x > /dev/null",
        "git commit -m x\ngit log -n 1",
        "git commit -m *",
        "( git commit -m x )",
    ],
)
def test_a_rule_covers_the_command_and_readers_beside_it(command: str) -> None:
    """Quotes are taken away, wildcards are free where any word is, and what only reads may stand beside it."""
    assert bash(command, COMMIT) == "run"


@pytest.mark.parametrize(
    "command",
    [
        "git commit -m x; rm -rf /",
        "git commit -m x && rm a",
        "git commit -m x || rm a",
        "git commit -m x | sh",
        "git commit -m x & rm a",
        "git commit -m x\nrm a",
        "git commit -m $(rm a)",
        "git commit -m `rm a`",
        'git commit -m "$(rm a)"',
        "git commit -m x > a.txt",
        "git commit -m x >> a.txt",
        "git commit -F <(rm a)",
        "GIT_EDITOR=evil git commit",
        "env git commit",
        "./git commit",
        "/usr/bin/git commit",
        "git -C / commit",
        "git co* -m x",
        "git $HOME",
        "git push",
        "git",
        "git commitx",
        "time git commit",
        "exec git commit",
        "if git commit; then ls; fi",
        "git commit -m x; (rm a)",
        "git commit \r\nrm a",
        "git commit <<EOF\n$(rm a)\nEOF",
        "",
    ],
)
def test_a_rule_is_not_fooled(command: str) -> None:
    """Operators, substitutions, redirections, line breaks, assignments and look-alikes are not covered."""
    assert bash(command, COMMIT) == "deny"


@pytest.mark.parametrize(
    ("rule", "command", "covered"),
    [
        ("Bash", "for i in 1; do rm a; done", True),
        ("Bash(*)", "rm a", True),
        ("Bash(*)", "rm a > b", False),
        ("Bash(*)", "rm $(ls)", False),
        ("Bash(make test)", "make test", True),
        ("Bash(make test)", "make test install", False),
        ("Bash(make test-*)", "make test-unit", True),
        ("Bash(make test-*)", "make test-unit install", False),
        ("Bash(./run *)", "./run all", True),
        ("Bash(* --version)", "rm --version", True),
        ("Bash(* --version)", "rm --version -rf", False),
        ("FileWrite", "rm a", False),
    ],
)
def test_patterns_of_commands(rule: str, command: str, covered: bool) -> None:
    """A star is any text in its word, and at the end any words; without it the words are all there may be."""
    assert bash(command, rule) == ("run" if covered else "deny")


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push origin main",
        "ls; git push",
        "ls | xargs echo && 'git' pu''sh",
        "/usr/bin/git push",
        "git p*sh",
        "git $HOME",
        "$HOME push",
        "git $(echo push)",
        "eval x; for i in 1; do git push; done",
    ],
)
def test_a_denial_errs_on_the_safe_side(command: str) -> None:
    """What may become the denied command is denied, and so is what cannot be read, also where all else runs."""
    assert bash(command, deny=("Bash(git push *)",), mode="allow") == "deny"
    assert bash("git pull", deny=("Bash(git push *)",), mode="allow") == "run"
    assert bash("for i in 1; do git pull; done", mode="allow") == "run"


def test_deny_beats_allow() -> None:
    """Whatever the mode, and also for what only reads."""
    for mode in ("bubble", "deny"):
        assert bash("git push", "Bash(git *)", "Bash", deny=("Bash(git push *)",), mode=mode) == "deny"
        assert bash("git log", "Bash(git *)", deny=("Bash(git log *)",), mode=mode) == "deny"
        assert bash("git pull", "Bash(git *)", deny=("Bash(git push *)",), mode=mode) == "run"


def test_a_command_that_only_reads_runs_as_one(tmp_path: Path) -> None:
    """In the environment that its verdict depends on, also beside one that a rule covers; the latter alone is free."""
    judge = Judge(Permissions(mode="bubble", allow=[COMMIT]), cwd=tmp_path)

    environments = [
        judge.judge("Bash", {"command": command}, read_only=False).environment
        for command in ("git status", "git status && git commit -m x", "git commit -m x")
    ]

    assert [environment.get("GIT_OPTIONAL_LOCKS") for environment in environments] == ["0", "0", None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with links that lead out of it, and into it."""
    root = tmp_path / "work"
    for name in ("src/deep", "secret", ".git"):
        (root / name).mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (root / "src" / "out").symlink_to(tmp_path / "outside")
    (root / "src" / "to-secret").symlink_to(root / "secret")
    (root / "swapped").symlink_to(tmp_path / "outside")
    (tmp_path / "alias").symlink_to(root)
    return root


def written(folder: Path, path: str, *allow: str, deny: tuple[str, ...] = ()) -> str:
    """What becomes of writing a file."""
    judge = Judge(Permissions(mode="bubble", allow=allow, deny=deny), cwd=folder)
    return judge.judge("FileWrite", {"file_path": path, "content": ""}, read_only=False).kind


@pytest.mark.parametrize(
    ("rule", "path", "covered"),
    [
        ("FileWrite(src/**)", "src/a.py", True),
        ("FileWrite(src/**)", "src/deep/new/a.py", True),
        ("FileWrite(src/**)", "src/../src/a.py", True),
        ("FileWrite(src/**)", "{}/src/a.py", True),
        ("FileWrite(src/**)", "{}/../alias/src/a.py", True),
        ("FileWrite(src/**)", "src/../secret/a", False),
        ("FileWrite(src/**)", "src/out/a", False),
        ("FileWrite(src/**)", "src/to-secret/a", False),
        ("FileWrite(src/**)", "srcs/a", False),
        ("FileWrite(src/**)", "src", False),
        ("FileWrite(src/*)", "src/a.py", True),
        ("FileWrite(src/*)", "src/deep/a.py", False),
        ("FileWrite(**/*.md)", "a.md", True),
        ("FileWrite(**/*.md)", "src/deep/a.md", True),
        ("FileWrite(**/*.md)", "/etc/a.md", False),
        ("FileWrite(src/?.py)", "src/a.py", True),
        ("FileWrite(src/?.py)", "src/ab.py", False),
        ("FileWrite(src/a.py)", "src/aXpy", False),
        ("FileWrite(swapped/**)", "swapped/a", False),
        ("FileWrite({}/src/**)", "src/a.py", True),
        ("FileWrite(**)", ".git/config", False),
        ("FileWrite(**)", "src/.GIT/hooks/post-commit", False),
        ("FileWrite(.git/**)", ".git/config", True),
        ("FileWrite(**)", "src/a\nb", True),
        ("FileWrite(**)", "src/a\0b", False),
        ("FileEdit(src/**)", "src/a.py", False),
        ("FileWrite", "/etc/passwd", True),
    ],
)
def test_paths_are_matched_where_they_lead(folder: Path, rule: str, path: str, covered: bool) -> None:
    """Links and .. are resolved first, a link in the pattern's own folder included; git's own files need their name."""
    kind = written(folder, path.format(folder), rule.format(folder))

    assert kind == ("run" if covered else "ask")


@pytest.mark.parametrize(
    "path", ["secret/a", "src/to-secret/a", "src/../secret/a", "{}/../alias/secret/a", "secret/b/c"]
)
def test_a_denied_path_is_denied_by_every_name(folder: Path, path: str) -> None:
    """Also where the pattern itself goes through a link."""
    for rule in ("FileWrite(secret/**)", "FileWrite(src/to-secret/**)", f"FileWrite({folder.parent}/alias/secret/**)"):
        assert written(folder, path.format(folder), "FileWrite", deny=(rule,)) == "deny"
    assert written(folder, "src/a", "FileWrite", deny=("FileWrite(secret/**)",)) == "run"


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("", "cannot be read"),
        ("Bash(", "cannot be read"),
        ("Bash git commit", "cannot be read"),
        ("Bash(git)x", "cannot be read"),
        ("Bash()", "names no command"),
        ("Bash(git commit; rm *)", "shell syntax"),
        ("Bash(git commit -m 'x')", "shell syntax"),
        ("Bash(git\ncommit)", "shell syntax"),
        ("Grep(src/**)", "has a pattern"),
        ("mcp__x__y(z)", "has a pattern"),
        ("FileWrite(../x)", "holds . or .."),
        ("FileWrite(~/x)", "begins with ~"),
        ("FileWrite(src/)", "empty name"),
        ("FileWrite(src//x)", "empty name"),
        ("FileWrite(/)", "names no file"),
        ("FileWrite(src/**x)", "** inside a name"),
        ("FileWrite(" + 1000 * "x" + ")", "cannot be read"),
        (7, "is not a text"),
    ],
)
def test_a_rule_that_means_nothing_is_named(rule: Any, words: str) -> None:
    """With what is wrong, before anything is sent."""
    with pytest.raises(BadPermissions, match=words.replace(".", r"\.").replace("*", r"\*")):
        Permissions(mode="deny", allow=[rule])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"mode": "maybe"}, "no permission mode 'maybe'"),
        ({"mode": "bubble", "allow": "Bash"}, "not a list of rules"),
        ({"mode": "bubble", "deny": None}, "not a list of rules"),
        ({"mode": "bubble", "allow": 1001 * ["Bash"]}, "1001 rules"),
        ({"mode": "allow", "allow": ["Bash"]}, "lets everything run"),
        ({"deadline_s": 0}, "no time to wait"),
        ({"deadline_s": float("nan")}, "no time to wait"),
        ({"deadline_s": float("inf")}, "no time to wait"),
        ({"deadline_s": True}, "no time to wait"),
        ({"deadline_s": "5"}, "no time to wait"),
    ],
)
def test_permissions_that_cannot_be_meant_are_refused(said: dict[str, Any], words: str) -> None:
    """By name."""
    with pytest.raises(BadPermissions, match=words):
        Permissions(**said)


@pytest.mark.parametrize(
    ("name", "arguments", "rules"),
    [
        ("Bash", {"command": "git commit -m 'a b'"}, ("Bash(git commit *)",)),
        ("Bash", {"command": "ls && rm -rf build"}, ("Bash(rm -rf build)",)),
        ("Bash", {"command": "git add . && git commit -m x"}, ("Bash(git add *)", "Bash(git commit *)")),
        ("Bash", {"command": "git -C x commit"}, ("Bash(git -C x commit)",)),
        ("Bash", {"command": "python3 -c 'print(1)'"}, ()),
        ("Bash", {"command": "rm *.o"}, ()),
        ("Bash", {"command": "git commit -m x > log"}, ()),
        ("Bash", {"command": "rm $(ls)"}, ()),
        ("Bash", {}, ()),
        ("FileWrite", {"file_path": "src/a.py"}, ("FileWrite(src/*)",)),
        ("FileWrite", {"file_path": "a.py"}, ("FileWrite(*)",)),
        ("FileWrite", {"file_path": "src/out/a"}, ("FileWrite({}/outside/*)",)),
        ("FileEdit", {"file_path": ".git/config"}, ("FileEdit(.git/config)",)),
        ("mcp__shop__buy", {"what": 1}, ("mcp__shop__buy",)),
    ],
)
def test_what_would_be_remembered_is_narrow(
    folder: Path, name: str, arguments: dict[str, Any], rules: tuple[str, ...]
) -> None:
    """The same words or the same subcommand, the files of one folder; nothing where no narrow rule would do."""
    judge = Judge(Permissions(mode="bubble"), cwd=folder)

    verdict = judge.judge(name, arguments, read_only=False)

    assert (verdict.kind, verdict.rules) == ("ask", tuple(rule.format(folder.parent) for rule in rules))
    if verdict.rules:
        judge.remember(allowed=True, rules=verdict.rules)
        assert judge.judge(name, arguments, read_only=False).kind == "run"


def cpu_time(judge: Judge, name: str, arguments: dict[str, Any]) -> float:
    """The least CPU time that judging a call takes, out of some tries."""
    found = []
    for _ in range(3):
        begun = time.process_time()
        judge.judge(name, arguments, read_only=False)
        found.append(time.process_time() - begun)
    return min(found)


def sided(side: str, rule: str) -> Permissions:
    """Permissions with one rule."""
    allow, deny = ([rule], []) if side == "allow" else ([], [rule])
    return Permissions(mode="bubble", allow=allow, deny=deny)


MANY_STARS = "*a" * 40 + "*b"


@pytest.mark.parametrize("side", ["allow", "deny"])
@pytest.mark.parametrize(
    ("rule", "hostile"),
    [
        (f"Bash(make {MANY_STARS})", "make " + "a" * 9_990),
        (f"Bash(make {'*a ' * 300})", "make " + "a " * 4_990),
        (f"Bash(make {'* ' * 400} b)", "make " + "-a " * 3_300),
        ("Bash(git push *)", "env " * 2_490),
        ("Bash(git push *)", "env " + "git -c " * 1_420),
        ("Bash(git push *)", "xargs " + "bash -c " * 1_240),
        ("Bash(git push *)", "eval " * 1_990 + "x"),
        ("Bash(git push *)", "for i in 1; do " + "-agit=x " * 1_200 + "; done"),
        ("Bash(git push *)", "make " + "'" + "{git" * 2_400 + "'"),
    ],
)
def test_judging_a_hostile_command_costs_like_any_other(side: str, rule: str, hostile: str) -> None:
    """At the longest that is judged at all, next to plain commands of the same length."""
    judge = Judge(sided(side, rule))
    plain = "ls some.txt; " * (len(hostile) // 13)

    assert len(hostile) <= 10_000
    ordinary = cpu_time(judge, "Bash", {"command": plain})
    assert cpu_time(judge, "Bash", {"command": hostile}) < 30 * ordinary


@pytest.mark.parametrize("side", ["allow", "deny"])
@pytest.mark.parametrize(
    ("rule", "hostile"),
    [
        (f"FileWrite(src/{MANY_STARS})", "src/" + "a" * 4_000),
        (f"FileWrite(src/*{'?' * 400}b)", "src/" + "a" * 4_000),
        (f"FileWrite({'**/a/' * 150}b)", "a/" * 1_950 + "c"),
        (f"FileWrite(**/{'a/' * 400}b/**/c)", "a/" * 1_950 + "c"),
        (f"FileWrite({'**/*a*/' * 100}b)", "aa/" * 1_300 + "c"),
    ],
)
def test_judging_a_hostile_path_costs_like_any_other(tmp_path: Path, side: str, rule: str, hostile: str) -> None:
    """At the longest that is judged at all, next to a plain rule and path of the same length."""
    judge = Judge(sided(side, rule), cwd=tmp_path)
    usual = Judge(sided(side, "FileWrite(src/**/*.py)"), cwd=tmp_path)
    plain = "src/" + "some-name/" * (len(hostile) // 10)

    ordinary = cpu_time(usual, "FileWrite", {"file_path": plain})
    assert cpu_time(judge, "FileWrite", {"file_path": hostile}) < 300 * ordinary


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Bash", {"command": "make " + "x" * 10_000}),
        ("Bash", {"command": "env " + "git -c " * 1_420}),
        ("FileWrite", {"file_path": "x" * 4_097}),
        ("FileWrite", {"file_path": "a/" * 1_950 + "c"}),
    ],
)
def test_what_is_too_long_to_judge_is_denied_or_asked(name: str, arguments: dict[str, Any]) -> None:
    """A deny rule counts as meant, an allow rule does not, and the reason says what to do."""
    rules = ["Bash(git push *)", f"FileWrite(**/{'a/' * 400}b/**/c)", "Bash(* * make)"]
    for mode in ("allow", "bubble"):
        verdict = Judge(Permissions(mode=mode, deny=rules)).judge(name, arguments, read_only=False)
        assert (verdict.kind, "Split it into shorter calls" in verdict.reason) == ("deny", True)
    rules.append("Bash(*)")
    assert Judge(Permissions(mode="bubble", allow=rules)).judge(name, arguments, read_only=False).kind == "ask"


@settings(max_examples=500, deadline=None)
@given(part=st.text("ab*", max_size=8), text=st.text("ab", max_size=12))
def test_stars_match_as_they_always_did(part: str, text: str) -> None:
    """Searching each piece once finds what trying every way finds."""
    expected = re.fullmatch(part.replace("*", ".*"), text) is not None
    rule = f"Bash(make x{part}y)"

    assert (bash(f"make x{text}y", rule) == "run") == expected


@settings(max_examples=500, deadline=None)
@given(
    parts=st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?", "*b*"]), min_size=1, max_size=5),
    names=st.lists(st.sampled_from(["a", "b", "ab", "ba", "bb"]), min_size=1, max_size=6),
)
def test_wildcards_of_paths_match_as_they_always_did(parts: list[str], names: list[str]) -> None:
    """Taking the first place that fits finds what trying every way finds."""
    pieces = {"**": "(?:/[^/]+)*"}
    inner = [pieces.get(part, "/" + part.replace("*", "[^/]*").replace("?", "[^/]")) for part in parts]
    inner[-1] = "/.+" if parts[-1] == "**" else inner[-1]
    path = "/none/" + "/".join(names)
    judge = Judge(Permissions(mode="deny", allow=[f"FileWrite(/none/{'/'.join(parts)})"]))

    kind = judge.judge("FileWrite", {"file_path": path}, read_only=False).kind

    assert (kind == "run") == (re.fullmatch("/none" + "".join(inner), path) is not None)


@settings(max_examples=500, deadline=None)
@given(text=st.text(max_size=40) | st.from_regex(r"(Bash|FileWrite|X)\(.{0,20}\)", fullmatch=True))
def test_every_text_is_a_rule_or_refused(text: str) -> None:
    """And what is a rule is the same rule when it is written down and read again."""
    try:
        rule = parse_rule(text)
    except BadPermissions:
        return
    assert parse_rule(str(rule)) == rule
