"""Shell commands by chance: every construct of the grammar, and the dangerous arguments of every program.

Made to be judged and then run, so each one that does harm does it in a way that the jail sees: it writes into the
working folder, runs ``evil`` (which does), leaves a process, or changes the shell.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import tree_sitter_bash
from tree_sitter import Language, Parser

from nexofork.policy.shell.flags import Rule
from nexofork.policy.shell.git import SUBCOMMANDS
from nexofork.policy.shell.programs import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ShellCommands", "kinds_of_nodes", "nodes_of"]

_LANGUAGE = Language(tree_sitter_bash.language())
_HARM = ("touch executed", "./evil", "rm a.txt", "echo x >written", "sort -o written a.txt", "find . -delete")
_INDEX = "'a[$(touch executed)]'"
"""Text that runs a command where bash evaluates it as an index."""
_DANGEROUS: dict[str, tuple[str, ...]] = {
    "find": (
        *(
            "-delete",
            "-exec ./evil {} ;",
            "-exec ./evil {} +",
            r"-exec ./evil {} \;",
            "-execdir ./evil {} +",
            "-ok ./evil",
        ),
        *("-fprint written", "-fprint0 written", "-fprintf written %p", "-fls written", "-name -delete"),
        *("-newer -delete", r"\( -name a.txt -delete \)", "-printf %p -delete", "-D exec", "-files0-from a.txt"),
    ),
    "sed": (
        *("-i d a.txt", "-n -i p a.txt", "-ni p a.txt", "-i.bak p a.txt", "--in-place p a.txt", "--in-pl p a.txt"),
        *("--expression='s,'*',x,' a.txt", "'-e=;s,'*',x,' a.txt"),
        *("'w written' a.txt", "-n '1w written' a.txt", "'s/x/y/w written' a.txt", "'1e ./evil' a.txt", "e a.txt"),
        *("'s/.*/.\\/evil/e' a.txt", "-f w.sed a.txt", "--file=w.sed a.txt", "-s -n '/x/,/y/w written' a.txt"),
        *("'{p;w written\n}' a.txt", "-e p -e 'w written' a.txt", "-n 's/[/]/e/w x/p' a.txt", "'$!w written' a.txt"),
        *(
            "'y/a/b/;w written' a.txt",
            "'a\\' -e 'w written' a.txt",
            "-ne'w written' a.txt",
            "-E 's,(x),y,gpw written' a.txt",
        ),
    ),
    "sort": (
        *("-o written a.txt", "-owritten a.txt", "--output=written a.txt", "--outp written a.txt", "-ro written a.txt"),
        *(
            "a.txt -o b.txt",
            "--compress-program=./evil -S 1 a.txt",
            "--compress-prog ./evil a.txt",
            "-T . -S 1 a.txt",
            "*",
        ),
    ),
    "uniq": (
        "a.txt written",
        "-c a.txt written",
        "-- a.txt written",
        "a.txt b.txt",
        "-f 1 a.txt written",
        "+1 a.txt w",
    ),
    "git": (
        *("-c core.pager=./evil -p log", "-c diff.external=./evil diff", "-c core.fsmonitor=./evil status", "-p log"),
        *("-c alias.x=!./evil x", "--exec-path=. status", "--config-env=core.pager=HOME log", "diff --output=written"),
        *(
            "diff --outp=written",
            "log -p --output written",
            "show --output=written",
            "diff --ext-diff",
            "log -p --ext-diff",
        ),
        *("grep -O./evil x", "grep -iO./evil x", "grep --open-files-in-pager=./evil x", "show --textconv", "lg", "gc"),
        *("branch made", "branch -v made", "branch -d main", "branch -m x", "branch --edit-description", "tag made"),
        *(
            "tag -d v1",
            "tag -a v2 -m x",
            "remote add x y",
            "remote -v update",
            "config user.name x",
            "config user.name --get",
        ),
        *(
            "config --global user.name x",
            "config --unset user.name",
            "stash",
            "stash pop",
            "stash drop",
            "commit -am x",
        ),
        *("add .", "checkout .", "reset --hard", "clean -fd", "symbolic-ref HEAD refs/heads/x", "reflog expire --all"),
        *("worktree add w", "bisect start", "rebase -x ./evil HEAD", "archive -o written HEAD", "bundle create w HEAD"),
        *(
            "format-patch -1",
            "update-index --refresh",
            "describe --dirty",
            "describe --dirty=x --always",
            "describe --broken",
        ),
        *("fetch --upload-pack=./evil .", "ls-remote --upload-pack=./evil .", "ls-remote ext::./evil", "clone . w"),
        *("submodule foreach ./evil", "difftool -x ./evil", "mergetool", "help log", "notes add -m x", "write-tree"),
        *(
            "hash-object -w a.txt",
            "mktag",
            "unpack-file HEAD:a.txt",
            "var GIT_PAGER",
            "log --show-signature",
            "rm a.txt",
        ),
        *("diff -U --output=written", "log -n --output=written", "-C . branch made", "--git-dir=.git branch made"),
        *("cat-file --textconv HEAD:a.txt", "cat-file --filters HEAD:a.txt", "update-ref refs/heads/x HEAD", "prune"),
    ),
    "tar": (
        *("-cf written a.txt", "xf a.tar", "-xf a.tar", "-tf a.tar --to-command=./evil", "-tf a.tar -I ./evil"),
        *(
            "-tf a.tar --use-compress-program=./evil",
            "-tf a.tar --use-comp=./evil",
            "tIf ./evil a.tar",
            "-tFf ./evil a.tar",
        ),
        *(
            "-tf a.tar --checkpoint=1 --checkpoint-action=exec=./evil",
            "-tf a.tar --checkpoint --checkpoint-ac exec=./evil",
        ),
        *(
            "-tf host:a.tar --rsh-command=./evil",
            "-tf a.tar -x",
            "txf a.tar",
            "-tf *",
            "--list -f a.tar -x",
            "-rf a.tar w.sed",
        ),
        *(
            "-tf a.tar --index-file=written",
            "-tvf a.tar --index-f=written",
            "--delete -f a.tar a.txt",
            "-uf a.tar b.txt",
        ),
    ),
    "rg": (
        "--pre ./evil x",
        "--pre=./evil x",
        "--pre-glob '*' --pre ./evil x",
        "--hostname-bin ./evil x",
        "x *",
        "-z x",
    ),
    "tree": ("-o written", "-ao written", "-Lo 2 written", "-R -H . -L 1 -o written", "*", "--output written"),
    "xxd": (
        "-r a.txt written",
        "a.txt written",
        "-p -r a.txt written",
        "-l 16 a.txt written",
        "-c16 a.txt written",
        "*",
    ),
    "date": ("-s 10:00", "--set=10:00", "--se 10:00", "010112002030", "-us 10:00", "-u 010112002030"),
    "hostname": ("evil", "-F a.txt", "--file=a.txt", "-b evil", "-sF a.txt", "-- evil"),
    "file": ("-C -m a.txt", "-Cm a.txt", "--compile -m a.txt", "--comp -m a.txt", "-z a.txt", "*"),
    "printf": ("-v PATH .", f"-v {_INDEX} x", "%n PATH", "x%5n PATH", f"%n {_INDEX}", f"%d {_INDEX}", "-- -v PATH"),
    "test": (
        f"-v {_INDEX}",
        f"! -v {_INDEX}",
        f"-R {_INDEX}",
        f"{_INDEX} -eq 1",
        f"-t {_INDEX}",
        f"a = a -a -v {_INDEX}",
    ),
    "[": (f"-v {_INDEX} ]", f"{_INDEX} -eq 1 ]", f"! -v {_INDEX} ]", f"a = a -o -v {_INDEX} ]", f"-o {_INDEX} ]"),
    "command": (
        "touch executed",
        "-p touch executed",
        "-- touch executed",
        "touch -v executed",
        f"printf -v {_INDEX} x",
    ),
    "cd": ("-P src -L", "src b", "- -", "-@ src"),
    "diff": ("-l a.txt b.txt", "--paginate a.txt b.txt", "--pag a.txt b.txt", "--ifdef=x a.txt b.txt"),
    "jq": ("-f evil.awk a.json", "-L . 'import \"x\" as x; .' a.json", "-n 'input' a.json", "-rf w.sed a.json"),
    "sleep": ("infinity &", "0.01 &", "0.01 5", "1d &"),
    "ps": ("auxe", "-o environ=", "e", "--info"),
    "python3": ('-c \'open("written", "w")\'', "--version w.py", '-V -c \'open("written", "w")\''),
    "make": ("-f a.txt", "--eval='x:;touch executed'", "--version --eval=x"),
    "gcc": ("-o written a.txt", "--version -wrapper ./evil a.txt"),
    "node": ('-e \'require("fs").writeFileSync("written", "")\'', "--version a.js"),
    "type": ("-a ls", "-f evil"),
    "ls": ("* {x}>/dev/null", "--output=written"),
    "tail": ("-f a.txt &", "--follow a.txt &"),
}
_USUAL: dict[str, tuple[str, ...]] = {
    "tar": ("-tf a.tar", "tzf a.tgz", "-tvf a.tar a.txt", "tf - < a.tar", "-tzvf a.tgz", "tf a.tgz b.txt"),
    "xxd": ("-l 16 a.txt", "-p a.txt", "-ps -c8 -s 0x2", "-g1", "-i"),
    "find": (
        "-name '*.py'",
        "-type f",
        "-newer a.txt",
        "-printf '%p'",
        "! -empty",
        "-perm -644",
        "-o",
        "-maxdepth 1",
        "-ls",
    ),
    "printf": ("'%s'", "%d", "'%-5s|%5.2f%%'", "%q", "x"),
    **dict.fromkeys(("test", "["), ("-f", "-n", "!", "=", "-a", "-o", "1 -lt 2", "-z ''", r"\(", "a.txt -nt b.txt")),
    **dict.fromkeys(("python", "python3", "node", "gcc", "make"), ("--version",)),
}
"""Of the programs that are judged by more than a list of flags."""
_OTHERS = (
    *("awk 'BEGIN{system(\"touch executed\")}'", "awk -f evil.awk", "echo a.txt | xargs rm", "env touch executed"),
    *("env -S 'touch executed'", "tee written </dev/null", "less a.txt", "man -P ./evil ls", "nice touch executed"),
    *(
        "timeout 5 touch executed",
        "time touch executed",
        "nohup touch executed",
        "setsid touch executed",
        "busybox touch w",
    ),
    *(
        "perl -e 'unlink \"a.txt\"'",
        "bash -c 'touch executed'",
        "dd if=a.txt of=written",
        "split a.txt",
        "eval touch executed",
    ),
    *("exec touch executed", ". ./evil", "source ./evil", "trap './evil' EXIT", "alias ls=./evil", "hash -p ./evil ls"),
    *(
        "export PATH=.",
        "declare -x PATH=.",
        "readonly X=1",
        "unset PATH",
        f"unset {_INDEX}",
        "set -- a",
        "shopt -s extglob",
    ),
    *(f"read {_INDEX} <a.txt", "read PATH <a.txt", "mapfile X <a.txt", f"let {_INDEX}", "builtin eval touch executed"),
    *(
        "enable -n test",
        "umask 0",
        "ulimit -n 10",
        "pushd src",
        "getopts a PATH",
        "wait -p PATH",
        "coproc touch executed",
    ),
)
_PROGRAMS = (*PROGRAMS, *["git"] * 20, *["find", "sed", "sort", "test", "[", "printf", "tar", "ps"] * 4)
_NAMES = (
    "a.txt",
    "b.txt",
    "src",
    "src/one.py",
    ".",
    "./*.txt",
    "*.txt",
    "*",
    "-*",
    "?o",
    "missing",
    "HEAD",
    "v1",
    "a.json",
)
_TEXT = (
    "x",
    "1",
    "3",
    "'x y'",
    '"x y"',
    '"$HOME"',
    "$HOME",
    '"$PWD"',
    "~",
    "~/notes.txt",
    "'p'",
    "1,3p",
    "$?",
    "a{b}c",
    "HEAD@{0}",
)
_NUMBERS = ("", "", "1", "2", "3", "0", "10", "02")
_VARIABLES = ("{x}", "{PATH}", "{GIT_CONFIG_GLOBAL}", "{b[_]}", "{b[x]}", f"{{b[{_INDEX}]}}", "{HOME}", "a", "x")
_OPERATORS = (">", ">>", "<", "&>", "&>>", ">&", "<&", "<>", ">|", "<<<", "<<<")
_TARGETS = (
    "/dev/null",
    "/dev/null",
    "/dev/stderr",
    "1",
    "2",
    "-",
    "written",
    "a.txt",
    "'x'",
    "$HOME",
    ">(cat)",
    "/dev/tcp/a/1",
)
_BLANKS = (" ", " ", " ", "  ", "\t", " \\\n", "\\\n", "\u00a0", "\r")
_JOINS = ("; ", ";", " && ", " || ", " | ", " |& ", "\n", " & ", "\n\n", " &&\n", " |\n", ";\n", " # x\n")
_EXPANSIONS = (
    *(
        "$(%0)",
        "`%0`",
        '"$(%0)"',
        '"`%0`"',
        "<(%0)",
        ">(%0)",
        "${x:-$(%0)}",
        "${x:=$(%0)}",
        "$(( a[$(%0)] ))",
        "$[1+1]",
    ),
    *("${!x}", "${x@P}", "${a[$(%0)]}", "${#x}", "${x//a/$(%0)}", "${x:1:2}", "$'\\x61'", '$"x"', "{a,b}"),
    *("{1..3}", "@(a|b)", "!(a)", "a[1]", "$x", "$1", "$@", "$$", "$!", "$-", "${x}", "$((1 + 2))", "$((x++ + -y))"),
    *("$((x ? 1 : 2))", "$(( (1) ))", "x={1,2}", "a=~", "~root", "{$HOME,x}", "\\{x\\}", "{", "}", "'{x}'", "é", "'é'"),
)
_FRAMES = (
    *("(%0)", "( %0 )", "( %0 ) 2>/dev/null", "{ %0; }", "! %0", "time %0", "coproc %0", "( %0; %1 ) | cat"),
    *("if %0; then %1; elif %1; then %0; else %0; fi", "for i in a b; do %0; done", "while %0; do %1; break; done"),
    *(
        "for ((i = 0; i < 1; i++)); do %0; done",
        "until true; do %0; done",
        "select i in a; do %0; break; done </dev/null",
    ),
    *("case x in x) %0;; y|z) %1;; *) %0;& esac", "f() { %0; }; f", "function f { %0; }", "f() ( %0 ); f"),
    *("x=1 %0", "PATH=. %0", "BASH_ENV=./evil %0", "GIT_PAGER=./evil %0", "x=1 y=2", "x=(1 2) y=3", "x=(1 2); %0"),
    *(
        "a[0]=1",
        "a[$(%0)]=1 %1",
        "x+=1",
        "PATH=.; %0",
        "declare -a x=(1)",
        "export PATH",
        "local x",
        "unset x",
        "unset -v x",
    ),
    *(
        "[[ -v x ]]",
        "[[ x -eq 1 ]] && %0",
        "[[ x =~ ^a+$ ]]",
        "[[ x == !(a) ]]",
        f"[[ {_INDEX} -eq 1 ]]",
        "[[ (a < b) ]]",
    ),
    *(
        "(( x = 1 ))",
        "((x++))",
        "(( a[$(%0)] ))",
        "(( x ? 1 : 2 ))",
        "let x=1",
        "[ -f a.txt ] && %0",
        "[ ! -e x ] || %0",
    ),
    *("cat <<E\n%0\nE", "cat <<E\n$(%0)\nE", "cat <<'E'\n$(%0)\nE\n%1", "cat <<-E\n\tx\n\tE\n%0", "cat <<E | %0\nx\nE"),
    *(
        "cat <<E && %0\nx\nE",
        "cat <<E 2>/dev/null\n$x\nE",
        "cat <<A <<B\nx\nA\ny\nB\n%0",
        "cat <<E\nx\nE \nE\n%0",
        "cat <<E",
    ),
    *("cat <<< $(%0)", "%0 # %1", "# %0\n%1", "%0 \\\n %1", "%0\\\n%1", "%0\r\n%1", "%0\x00%1", "%0\u2028%1"),
    *("bash <<'E'\n%0\nE", "eval '%0'", "exec 3>&1", "{fd}>&-", "exec {x}<&-", "ls {x}>/dev/null; %0", ">/dev/null %0"),
    *("%0 >/dev/null %1", "2>/dev/null %0", "echo `%0`", 'echo "$(%0)"', "cat <(%0)", "ls > >(%0)", "echo '%0'"),
    *(
        f"echo {_INDEX}; true {{b[_]}}>/dev/null",
        f"echo {_INDEX} && ls 2>&1 {{b[_]}}<a.txt",
        f": {_INDEX}; cat {{b[_]}}<<<x",
    ),
    *("!! %0", "!$", "echo x=$((%0))", "%0;;", "%0 &", "%0 & %1", "()", "( )", "%0 | ", "&& %0", "ls() %0", "ls )"),
)


class ShellCommands:
    """A stream of commands, the same for the same seed.

    Args:
        seed: What chance begins with.
        known: Commands to begin with some of the time.
    """

    def __init__(self, seed: int, known: Sequence[str] = ()) -> None:
        self._random = random.Random(seed)
        self._known = known

    def __iter__(self) -> Iterator[str]:
        while True:
            yield self._command(depth=0)

    def _one(self, *of: str) -> str:
        return self._random.choice(of)

    def _chance(self, share: float) -> bool:
        return self._random.random() < share

    def _command(self, depth: int) -> str:
        command = self._simple()
        if depth < 2 and self._chance(0.3):
            frame = self._one(*_FRAMES)
            command = frame.replace("%0", command).replace("%1", self._command(depth + 1))
        if depth < 2 and self._chance(0.25):
            command += self._one(*_JOINS) + self._command(depth + 1)
        if depth == 0 and self._chance(0.15):
            place = self._random.randrange(len(command) + 1)
            command = (
                command[:place]
                + self._one(*_EXPANSIONS, *_VARIABLES, *_BLANKS, *"'\"\\;&|<>(){}[]!#~$`*?=")
                + command[place:]
            )
        return command

    def _simple(self) -> str:
        if self._chance(0.05):
            return self._one(*_HARM, *_OTHERS)
        if self._known and self._chance(0.1):
            return self._one(*self._known)
        program = self._one(*_PROGRAMS)
        parts = [program]
        if program in _DANGEROUS and self._chance(0.35):
            parts.append(self._one(*_DANGEROUS[program]))
            if self._chance(0.3):
                parts.insert(1, self._argument(program))
        else:
            if program == "git":
                parts += self._one(*SUBCOMMANDS).split(" ")
            name = " ".join(parts[1:]) if program == "git" else program
            parts += [self._argument(name, git=program == "git") for _ in range(self._random.randrange(4))]
            parts += ["]"] if program == "[" and self._chance(0.9) else []
        if program == "sleep":  # what is allowed is also waited for
            parts = ["sleep", self._one("0", "0.01", "0.01s", ".", "x", "0.001 &", "infinity &")]
        while self._chance(0.2):
            parts.insert(self._random.randrange(len(parts) + 1), self._redirection())
        return (self._one(*_BLANKS) if self._chance(0.1) else " ").join(parts)

    def _argument(self, program: str, *, git: bool = False) -> str:
        kind = self._random.random()
        if kind < 0.45:
            rule = SUBCOMMANDS[program] if git else PROGRAMS.get(program)
            flag = self._flag(rule) if isinstance(rule, Rule) else self._one(*_USUAL.get(program, ("-n", "-C src")))
            return self._quoted(flag) if self._chance(0.1) else flag
        if kind < 0.55:
            return self._one(*_EXPANSIONS).replace("%0", self._one(*_HARM))
        if kind < 0.6:
            return self._one(_INDEX, *_VARIABLES)
        return self._one(*_NAMES, *_TEXT)

    def _flag(self, rule: Rule) -> str:
        """A flag: listed, shortened, or in a cluster with one that is not listed."""
        letters = [*rule.short, *rule.short_value, *rule.short_attached]
        names = [*rule.long.split(), *rule.long_value.split(), *rule.long_optional.split()]
        choice = self._random.random()
        if letters and (choice < 0.5 or not names):
            cluster = "".join(self._random.choices(letters, k=self._random.randint(1, 3)))
            return (
                "-"
                + cluster
                + (self._one("o", "i", "C", "O", "w", "1", "=x", "o written") if self._chance(0.2) else "")
            )
        if names:
            name = self._one(*names)
            shortened = name[: self._random.randint(1, len(name))] if self._chance(0.15) else name
            return f"--{shortened}" + self._one("", "", "=", "=x", "=1", " x", " 1", "=written", " %p", "='%h'")
        return self._one("-x", "--help", "--version", "-o written", "--output=written")

    def _quoted(self, text: str) -> str:
        return self._one("'%0'", '"%0"', "\\%0", "''%0", "$'%0'", '$"%0"').replace("%0", text)

    def _redirection(self) -> str:
        before = self._one(*_VARIABLES) if self._chance(0.15) else self._one(*_NUMBERS)
        operator = self._one(*_OPERATORS)
        return before + operator + (" " if self._chance(0.3) else "") + self._one(*_TARGETS)


def kinds_of_nodes() -> frozenset[str]:
    """Every named kind of node the grammar can produce."""
    found = set()
    for number in range(_LANGUAGE.node_kind_count):
        real = _LANGUAGE.node_kind_is_named(number) and _LANGUAGE.node_kind_is_visible(number)
        kind = _LANGUAGE.node_kind_for_id(number)
        if real and kind is not None and not _LANGUAGE.node_kind_is_supertype(number):
            found.add(kind)
    return frozenset(found)


def nodes_of(command: str) -> frozenset[str]:
    """The kinds of nodes that the grammar finds in a command."""
    # Beyond ASCII the grammar's scanner can end the process.
    todo = [Parser(_LANGUAGE).parse(command.encode("ascii", "replace")).root_node]
    found = set()
    while todo:
        node = todo.pop()
        found.add(node.type)
        todo += node.children
    return frozenset(found)
