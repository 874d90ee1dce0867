"""A denied command is denied in every wrapping, and what cannot be seen through is allowed by no pattern."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nexofork import Permissions
from nexofork.policy.gate import Judge

if TYPE_CHECKING:
    from collections.abc import Callable

PUSH = ("Bash(git push *)",)
EVERYTHING = ("Bash(*)",)


def judged(command: str, *, mode: Any, allow: tuple[str, ...] = (), deny: tuple[str, ...] = PUSH) -> str:
    """What becomes of a command."""
    judge = Judge(Permissions(mode=mode, allow=allow, deny=deny))
    return judge.judge("Bash", {"command": command}, read_only=False).kind


def in_all_modes(command: str, deny: tuple[str, ...] = PUSH) -> list[str]:
    """What becomes of a command where everything else is allowed."""
    return [
        judged(command, mode="allow", deny=deny),
        judged(command, mode="bubble", allow=EVERYTHING, deny=deny),
        judged(command, mode="deny", allow=EVERYTHING, deny=deny),
    ]


@pytest.mark.parametrize(
    "command",
    [
        "git -C . push",
        "git -c x=y push",
        "git --git-dir=/x push",
        "git --git-dir /x --work-tree /y push origin",
        "git --no-pager -P push",
        "git --unknown value push",
        "git -C . p*sh",
        "git {X}>/dev/null push; git push",
        "git-push origin",
        "/usr/lib/git-core/git-push origin",
        "git submodule foreach 'git push'",
        "git rebase -x 'git push' HEAD~1",
        "git rebase --exec='git push' HEAD~1",
        "git bisect run git push",
        "git -c alias.p='!git push' p",
        "git grep -O'git push' x",
        "git grep -iO'git push' x",
        "git grep --op='git push' x",
        "git config --global alias.p '!git push'",
        "git -c protocol.ext.allow=always ls-remote 'ext::git push'",
    ],
)
def test_a_denial_sees_past_the_options_of_git(command: str) -> None:
    """Also where git runs the command itself."""
    assert in_all_modes(command) == ["deny", "deny", "deny"]


@pytest.mark.parametrize(
    "command",
    [
        "eval 'git push'",
        "eval git push",
        "eval -- git push",
        "eval \"eval 'git push'\"",
        "env A=b git push",
        "env -i -u C git push",
        "env -S 'git push'",
        "env -S'git push'",
        "env --split-string='git push'",
        "command git push",
        "command -p git push",
        "builtin eval 'git push'",
        "exec -a x git push",
        "nice -n 5 git push",
        "timeout -s KILL 5 git push",
        "nohup git push",
        "setsid git push",
        "stdbuf -oL git push",
        "time -p git push",
        "sudo -u bob git push",
        "busybox git push",
        "busybox sh -c 'git push'",
        "strace -f git push",
        "/lib64/ld-linux-x86-64.so.2 /usr/bin/git push",
        "unshare -r git push",
        "docker run image git push",
        "poetry run git push",
        "ssh host git push",
        "ssh host 'cd x && git push'",
        "su -c 'git push'",
        "flock lock -c 'git push'",
        "watch -n1 'git push'",
        "trap 'git push' EXIT",
        "jobs -x git push",
        "mapfile -C 'git push' -c 1 lines",
        "echo x | xargs git push",
        "echo push | xargs git",
        "echo push | xargs -I % git %",
        "echo push | xargs -i git {}",
        "echo push | xargs -I{} sh -c '{}'",
        "parallel git push ::: a",
        "find . -exec git push \\;",
        "find . -exec git -C {} push +",
        "find . -name push -exec git {} \\;",
        "find . -execdir sh -c 'git push' \\;",
        "timeout 5 env -u X nice -n 5 nohup command git -C . -c a=b push",
    ],
)
def test_a_denial_sees_past_programs_that_run_programs(command: str) -> None:
    """Whatever options they have, and one after the other."""
    assert in_all_modes(command) == ["deny", "deny", "deny"]


@pytest.mark.parametrize(
    "command",
    [
        "bash -c 'git push'",
        "bash -lc 'git push'",
        "bash -o pipefail -c 'git push'",
        "bash --norc -c -- 'git push'",
        "/bin/sh -c 'sh -c \"git push\"'",
        "( git push )",
        "{ git push; }",
        "! git push",
        "if true; then git push; fi",
        "for i in 1; do git push; done",
        "while true; do git push; done",
        "case x in x) git push;; esac",
        "f() { git push; }; f",
        "echo $(git push)",
        'echo "`git push`"',
        "[[ $(git push) ]]",
        "coproc git push",
        "ls | git push",
        "ls && git push",
        "git push &",
        "ls\ngit push",
        "git \\\npush",
        "A=b git push",
        "g\\it push",
        '"git" pu""sh',
        "$'git' push",
        "$'\\x67it' push",
        "{git,push}",
        "git${IFS}push",
        "/usr/bin/git push",
        "timeout 5 /usr/bin/g?t push",
        "~/git push",
        "$CMD push",
        "X='git push'; eval \"$X\"",
        "echo git push | sh",
        "bash <<< 'git push'",
        "bash <(echo git push)",
        "cat <<'EOF' | sh\ngit push\nEOF",
        "python3 -c 'import os; os.system(\"git push\")'",
        'python3 -c \'import subprocess; subprocess.run(["git", "push"])\'',
        "awk 'BEGIN{system(\"git push\")}'",
        "sed '1e git push' file",
        "tar cf x --checkpoint-action=exec='git push' y",
        "some-wrapper -- git -C . push",
    ],
)
def test_a_denial_sees_past_the_syntax_of_the_shell(command: str) -> None:
    """Quotes, substitutions, compound commands, and shells in the shell."""
    assert in_all_modes(command) == ["deny", "deny", "deny"]


@pytest.mark.parametrize(
    "command",
    [
        'eval "$X"',
        "bash script.sh",
        "bash -x script.sh -c 'ls'",
        "bash --rcfile script.sh",
        ". ./script.sh",
        "source script.sh",
        "sh",
        "ls | sudo -s",
        "ls | xargs env",
        "find . -exec {} \\;",
        "ssh host",
        "git p",
        "git -c alias.p=push p",
        "git -c core.sshCommand=x fetch",
        "git -c protocol.ext.allow=always fetch",
        "git ls-remote ext::./helper",
        "git config core.fsmonitor ./helper",
        "read PATH <<< .",
        "printf -v PATH .",
        "printf -v 'a[$(ls)]' x",
        "test -v 'a[$(ls)]'",
        "[ -v 'a[i]' ]",
        "let 'a[i]'",
        "wait -n -p 'a[i]'",
        "timeout 5 socat - EXEC:ls",
        "hash -p /usr/bin/git foo; foo push",
        "git {X}>/dev/null push",
        "timeout 5 ./*",
        "if true; then ls",
    ],
)
def test_what_cannot_be_seen_is_allowed_by_no_pattern(command: str) -> None:
    """It is asked for, or denied where no answer is to be expected, or where some commands are denied."""
    assert in_all_modes(command) == ["deny", "ask", "deny"]
    assert judged(command, mode="bubble", allow=EVERYTHING, deny=()) == "ask"
    assert judged(command, mode="bubble", allow=("Bash",), deny=()) == "run"


def test_a_script_is_allowed_by_a_rule_that_names_it() -> None:
    """A wildcard is not enough."""
    for rule in ("Bash(bash *)", "Bash(bash scripts/*)", "Bash(bash scripts/test.sh *)"):
        assert judged("bash scripts/test.sh", mode="deny", allow=(rule,), deny=()) == "deny"
    assert judged("bash scripts/test.sh", mode="deny", allow=("Bash(bash scripts/test.sh)",), deny=()) == "run"
    assert judged("echo ls | bash", mode="deny", allow=("Bash(bash)",), deny=()) == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "git pull",
        "git -C . status",
        "git --no-pager log push",
        "git log --grep push",
        "git commit -m 'describe git push'",
        "git stash push",
        "git checkout push",
        "git grep 'git push'",
        "git rebase main",
        "git -c user.name=x commit -m 'a b'",
        "echo git push",
        "grep -rn 'git push' .",
        "sed -i 's/git push/git pull/' file",
        "gh pr create --title 'git push'",
        "timeout 5 make test",
        "timeout 5 rm *.o",
        "env A=b make",
        "bash -c 'make test'",
        "find . -exec rm {} \\;",
        "ls | xargs rm",
        "ssh host make",
        "sudo apt install git",
        "docker push image",
        "npm run push",
        "python3 push.py",
        "git config user.name x",
        "git config --get remote.origin.url",
        "git fetch origin push",
        "git commit -m 'std::vector'",
        "/usr/bin/echo git push",
        "printf '%s' -v",
        "[ -n x ]",
        "sort -u *.txt",
        "tar cf - . | ssh host 'tar xf -'",
        "rsync -a -e ssh *.txt host:folder",
        "rg 'git push' --no-ignore-files",
    ],
)
def test_other_commands_run_as_before(command: str) -> None:
    """Words that only look like the denied ones deny nothing, and a pattern covers what can be seen through."""
    assert in_all_modes(command) == ["run", "run", "run"]


@pytest.mark.parametrize(
    ("rule", "command", "denied"),
    [
        ("Bash(rm *)", "timeout 5 rm x", True),
        ("Bash(rm *)", "docker rm x", False),
        ("Bash(rm *)", "git rm x", False),
        ("Bash(rm *)", "docker run image rm x", True),
        ("Bash(rm)", "find . -exec rm {} \\;", True),
        ("Bash(test *)", "npm test x", False),
        ("Bash(npm publish *)", "npm --prefix . publish", True),
        ("Bash(kubectl delete *)", "kubectl -n x --v=3 delete pod", True),
        ("Bash(make deploy)", "make -C dir deploy", True),
        ("Bash(make deploy)", "make deploy all", False),
        ("Bash(docker compose push *)", "docker compose -f x push", True),
        ("Bash(curl *)", "apt install curl", False),
        ("Bash(git -C *)", "git -C . status", True),
        ("Bash(rm *)", "rg --pre rm x file", True),
        ("Bash(rm *)", "rg --pre=rm x file", True),
        ("Bash(rm *)", "rg * x", False),
        ("Bash(rm *)", "tar -tf a.tar --to-command=rm", True),
        ("Bash(rm *)", "tar -tf a.tar -Irm", True),
        ("Bash(rm *)", "tar -cf x a '--checkpoint-action=exec=rm a'", True),
        ("Bash(rm *)", "tar -cf x *", False),
        ("Bash(rm *)", "sort --compress-prog rm file", True),
        ("Bash(rm *)", "split --filter='rm file' file", True),
        ("Bash(rm *)", "rsync --rsh=rm a: b", True),
        ("Bash(rm *)", "vim -es -c '!rm file'", True),
        ("Bash(rm *)", "perl -e 'system \"rm file\"'", True),
        ("Bash(rm *)", "sed '1e rm file' file", True),
        ("Bash(rm *)", "sed -i '/rm file/d' file", False),
        ("Bash(rm *)", "git grep -Orm x", True),
        ("Bash(rm *)", "git difftool -yxrm", True),
        ("Bash(rm *)", "git ls-remote --upload-pack=rm .", True),
        ("Bash(rm *)", "test -v 'a[$(rm file)]'", True),
        ("Bash(rm *)", "read 'a[$(rm file)]'", True),
        ("Bash(rm *)", "sshpass -p x rm file", True),
        ("Bash(rm *)", "doppler run -- rm file", True),
        ("Bash(*)", "env ls", True),
    ],
)
def test_rules_of_other_programs(rule: str, command: str, denied: bool) -> None:
    """A rule of one word looks after programs that are known to run others; options before a subcommand are skipped."""
    assert judged(command, mode="allow", deny=(rule,)) == ("deny" if denied else "run")


@pytest.mark.parametrize(
    "command",
    [
        "git commit; rm -rf x",
        "git commit $(rm x)",
        "git commit `rm x`",
        'git commit "$(rm x)"',
        "git commit > file",
        "git commit >> file",
        "git commit &> file",
        "git commit >| file",
        "git commit <> file",
        "git commit {PATH}>/dev/null",
        "git commit {PATH}<&-",
        "git commit 2>&{X}",
        "git commit <(rm x)",
        "git commit & rm x",
        "git commit | sh",
        "A=b git commit",
        "env git commit",
        "git commit\nrm x",
    ],
)
def test_an_allowed_command_carries_nothing_along(command: str) -> None:
    """No other command, no substitution, and no redirection that writes or sets a variable."""
    assert judged(command, mode="bubble", allow=("Bash(git commit *)",), deny=()) != "run"


PREFIXES = (
    *("env", "env A=b", "env -i", "command", "exec", "nice -n 5", "timeout 5", "xargs", "nohup", "setsid", "time"),
    *("stdbuf -o L", "sudo -u bob", "busybox", "/usr/bin/env", "timeout -k 1 5", "ionice -c 3", "strace -o x"),
    *("find . -exec", "docker exec box", "ssh host"),
)
AROUND = (
    *("bash -c {}", "sh -ec {}", "eval {}", "su bob -c {}", "timeout 5 bash -c {}", "env -S {}"),
    *("watch {}", "flock x -c {}"),
)
SYNTAX = (
    *("( {} )", "ls && {}", "{} | cat", "if ls; then {}; fi", "echo $( {} )", "for i in 1; do {}; done", "ls; {}"),
    *("{} > /dev/null", "{{ {}; }}", "f() {{ {}; }}; f", "while ls; do {}; done", "A=b; {}", "! {}", "{} &"),
)
DISGUISES = ("git push", "git -C . push", "git -c a=b push origin", "/usr/bin/git push", "'git' pu''sh", "g\\it push")


def _prefixed(prefix: str) -> Callable[[tuple[str, bool]], tuple[str, bool]]:
    def wrap(inner: tuple[str, bool]) -> tuple[str, bool]:
        command, simple = inner
        return f"{prefix} {command if simple else f'sh -c {shlex.quote(command)}'}", True

    return wrap


def _quoted(around: str) -> Callable[[tuple[str, bool]], tuple[str, bool]]:
    return lambda inner: (around.format(shlex.quote(inner[0])), True)


def _syntax(around: str) -> Callable[[tuple[str, bool]], tuple[str, bool]]:
    return lambda inner: (around.format(inner[0]), False)


WRAPPERS = st.one_of(
    st.sampled_from(PREFIXES).map(_prefixed),
    st.sampled_from(AROUND).map(_quoted),
    st.sampled_from(SYNTAX).map(_syntax),
)


@settings(max_examples=400, deadline=None)
@given(command=st.sampled_from(DISGUISES), wrappers=st.lists(WRAPPERS, max_size=6))
def test_no_wrapping_lets_a_denied_command_run(
    command: str, wrappers: list[Callable[[tuple[str, bool]], tuple[str, bool]]]
) -> None:
    """However wrappers are put together, rules that allow everything else do not allow it."""
    wrapped = (command, True)
    for wrap in wrappers:
        wrapped = wrap(wrapped)

    assert "run" not in in_all_modes(wrapped[0]), wrapped[0]
