"""Find the commands that a command runs: after ``env`` or ``timeout``, in the text of ``eval`` or ``bash -c``.

Deny rules are compared with everything found here. The search guesses on the safe side: it does not know the options of
most programs, so every word after a program that runs others may be the one it runs. What cannot be seen at all, such
as a script or text from standard input, is reported as hidden, and no pattern allows it.

All work is counted in steps. A command that needs more than ``MOST_STEPS`` is not judged further.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.policy.shell import SimpleCommand, Unreadable, Word, problem_of, readable
from nexofork.policy.shell.find_sed import script_problem
from nexofork.policy.shell.flags import Rule
from nexofork.policy.shell.programs import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_STEPS", "Candidate", "Sight", "Steps", "TooMuch", "look_inside", "option_value", "rough_look"]

MOST_STEPS = 100_000
_DEEPEST = 4
_MOST_TEXT = 20_000


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHELLS = _names("sh bash dash ash zsh ksh mksh lksh pdksh oksh rbash yash posh fish tcsh csh")
_RUNNERS = _names(
    "env command builtin exec coproc nice ionice chrt timeout gtimeout xargs gxargs nohup setsid stdbuf time gtime "
    "sudo doas pkexec run0 busybox toybox strace ltrace valgrind gdb taskset numactl setarch linux32 linux64 i386 "
    "x86_64 prlimit fakeroot unbuffer xvfb-run dbus-run-session dbus-launch systemd-run systemd-inhibit systemd-cat "
    "start-stop-daemon rlwrap proxychains proxychains4 torsocks firejail bwrap tini dumb-init gosu su-exec setpriv "
    "setuidgid envdir capsh chpst softlimit cgexec cpulimit perf hyperfine faketime eatmydata caffeinate fd fdfind "
    "npx bunx pnpx entr run-parts choom uclampset setlock pgrphack envuidgid logsave chronic ifne ts "
    "ld.so ld-linux.so.2 ld-linux-x86-64.so.2 ld-linux-aarch64.so.1 jobs sshpass proot fakechroot schroot runcon "
    "aa-exec mpirun mpiexec srun cross-env cross-env-shell dotenv watchexec nodemon coreutils uutils dtach abduco "
    "daemonize sem lckdo rr heaptrack memusage catchsegv"
)
"""Programs that run the program named in their arguments."""
_BY_OPTION = _names(
    "rg tar sort split rsync scp sftp zip install less man cpio gcc g++ cc c++ clang ed ex vi vim nvim nc ncat"
)
"""Programs that run the program that an option names."""
_CALLS = _names("system spawn popen qx execute shell shell-command .shell .system")
"""Words of program texts after which a command stands."""
_RUNNING = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), ("run", "exec")),
    **dict.fromkeys(("poetry", "pipenv", "pdm", "hatch", "rye", "conda", "mamba", "micromamba"), ("run",)),
    **dict.fromkeys(
        ("pipx", "pixi", "doppler", "op", "dotenvx", "infisical", "railway", "foreman", "honcho"), ("run",)
    ),
    **dict.fromkeys(("volta", "devbox", "flatpak", "snap", "toolbox"), ("run",)),
    **dict.fromkeys(("bundle", "direnv", "asdf", "opam", "pyenv", "rbenv", "fnm", "nvm"), ("exec",)),
    **dict.fromkeys(("aws-vault", "chamber", "lerna", "nx"), ("exec",)),
    **dict.fromkeys(("apptainer", "singularity"), ("exec", "run", "shell")),
    "mise": ("exec", "x", "run"),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), ("exec", "x", "dlx")),
    "uv": ("run", "tool"),
    "uvx": (),
    "kubectl": ("exec", "run", "debug"),
    "nix": ("run", "shell", "develop"),
    "rustup": ("run",),
}
"""Programs that do so after one of these words."""
_TEXTS = _names(
    "eval trap ssh watch parallel flock alias mapfile readarray compgen complete nix-shell rsh sg su runuser script "
    "screen tmux env"
)
"""Programs that take a shell command as one argument."""
_UNSEEN = _names(
    "su runuser script screen tmux at batch crontab expect newgrp hash enable fc bind unshare nsenter chroot ssh-agent"
    " rsh mosh socat"
)
"""Programs that run what their arguments do not show: a shell of their own, a file, or a name bound to another."""
_INERT = (
    (frozenset(PROGRAMS) | _names("cp mv rm mkdir rmdir touch ln chmod chown tee export unset set read exit gh glab"))
    - _names("git find command sed python python3 node gcc make")
    - (_SHELLS | _RUNNERS | _TEXTS | _UNSEEN | frozenset(_RUNNING))
)
"""Programs that run none of their arguments; those with flags that could, only where they just read."""
_SETTING: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("read", "mapfile", "readarray", "let", "getopts"), ("",)),
    **dict.fromkeys(("test", "["), ("-v", "-R")),
    "printf": ("-v",),
    "wait": ("-p",),
}
"""Commands of bash that set a variable or evaluate an index, with how an argument that does so begins.

A variable can be the search path, and an index can hold a command.
"""
_KEYWORDS = _names("do then else elif if while until ! { time coproc function in case select for")
_GIT_VALUE = _names("-C -c --git-dir --work-tree --namespace --super-prefix --config-env --attr-source")
_GIT_ALONE = _names(
    "-p --paginate -P --no-pager --no-replace-objects --bare --literal-pathspecs --glob-pathspecs --noglob-pathspecs "
    "--icase-pathspecs --no-optional-locks --no-advice --no-lazy-fetch -v --version -h --help --html-path --man-path "
    "--info-path --exec-path"
)
_GIT_RUNS = _names(
    "submodule rebase bisect filter-branch difftool mergetool for-each-repo hook daemon shell send-email instaweb "
    "remote-ext credential maintenance archive fetch clone ls-remote pull fetch-pack p4 svn"
)
"""Subcommands that can be told to run a program."""
_GIT_KNOWN = _GIT_RUNS | _names(
    "add am annotate apply grep blame branch bugreport bundle cat-file check-attr check-ignore check-mailmap "
    "check-ref-format checkout checkout-index cherry cherry-pick clean column commit commit-graph commit-tree config "
    "count-objects describe diagnose diff diff-files diff-index diff-tree fast-export fast-import fmt-merge-msg "
    "for-each-ref format-patch fsck gc get-tar-commit-id hash-object help index-pack init init-db interpret-trailers "
    "log ls-files ls-tree mailinfo mailsplit merge merge-base merge-file merge-index merge-tree mktag mktree "
    "multi-pack-index mv name-rev notes pack-objects pack-redundant pack-refs patch-id prune prune-packed push "
    "quiltimport range-diff read-tree receive-pack reflog refs remote repack replace replay request-pull rerere reset "
    "restore rev-list rev-parse revert rm send-pack shortlog show show-branch show-index show-ref sparse-checkout "
    "stage stash status stripspace subtree switch symbolic-ref tag unpack-file unpack-objects update-index update-ref "
    "update-server-info upload-archive upload-pack var verify-commit verify-pack verify-tag version whatchanged "
    "worktree write-tree lfs backfill"
)
"""Any other subcommand may be an alias."""
_GIT_PROGRAM = re.compile(
    r"(?i)(alias|include|includeif|pager|filter|difftool|mergetool|credential|gpg|url|remote|submodule|sendemail|"
    r"trailer|browser|man|tar|guitool|protocol|lfs|imap|hook)\.|core\.(ssh|editor|pager|hooks|fsmonitor|askpass|gitproxy|alternate|worktree)|"
    r"sequence\.|diff\.|merge\.|interactive\.|init\.templatedir|uploadpack\.|receive\."
)
"""Settings that name programs, or other files with settings."""
_GIT_REMOTE = _names("fetch clone pull push ls-remote remote submodule archive fetch-pack send-pack")
_GIT_HELPER = re.compile(r"[A-Za-z0-9]+::")
"""A remote that a program is started for: ``ext::PROGRAM``."""
_GIT_PAGER = re.compile(r"-(?:-op[a-z-]*=|[A-Za-z]*?O)(.*)", re.DOTALL)
_FIND_RUNS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SEPARATORS = re.compile(r"[\n;&|()`{}<>!]+")
_BLANKS = re.compile(r"[\s,\[\]]+")
_ESCAPED = re.compile(r"\$'[^'\\]*\\[^']*'")
_ANY = "\0"
_UNTOLD = "It runs a program whose name is not written out."


class TooMuch(Exception):
    """The judgement needs more steps than one call is worth."""


class Steps:
    """Counts the work on one call."""

    def __init__(self, most: int = MOST_STEPS) -> None:
        self._left = most

    def take(self, count: int = 1) -> None:
        """Count some work.

        Raises:
            TooMuch: It is too much.
        """
        self._left -= count
        if self._left < 0:
            raise TooMuch


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Words that may be run as a command."""

    words: Sequence[Word]
    at: int = 0
    """Where it begins."""
    inside: bool = False
    """Whether another program runs it; then its last words may not be its own."""
    weak: bool = False
    """Whether only the words themselves say so: the program before them is not known to run others."""
    grows: bool = False
    """Whether words from standard input follow."""


@dataclass(slots=True)
class Sight:
    """All that a command may run, as far as it can be seen."""

    candidates: list[Candidate] = field(default_factory=list)
    hidden: str = ""
    """Why a part of it cannot be seen; empty if all can."""
    named: bool = True
    """Whether all that is hidden is in scripts that the command names."""
    _by_program: dict[str, list[Candidate]] = field(default_factory=dict)

    def starting_with(self, program: str | None) -> Sequence[Candidate]:
        """Return the candidates that may start a program; None is any."""
        if program is None:
            return self.candidates
        if not self._by_program:
            for candidate in self.candidates:
                word = candidate.words[candidate.at]
                for name in {word.text, _name(word)} if word.literal else {_ANY}:
                    self._by_program.setdefault(name, []).append(candidate)
        return (*self._by_program.get(program, ()), *self._by_program.get(_ANY, ()))

    def hide(self, why: str, *, named: bool = False) -> None:
        """Note that something cannot be seen."""
        self.hidden = self.hidden or why
        self.named = self.named and named


def look_inside(simple: SimpleCommand, steps: Steps) -> Sight:
    """Return what a simple command runs, itself included.

    Raises:
        TooMuch: It is too long to be searched.
    """
    looker = _Looker(steps)
    looker.simple(simple, depth=0)
    return looker.sight


def rough_look(text: str, steps: Steps, *, runs: bool = False) -> list[Candidate]:
    """Return what text may run that the shell's grammar cannot be read of, by its words alone.

    Args:
        text: A command, or program text with commands in it.
        steps: Counts the work.
        runs: Whether a command may begin at every word.

    Raises:
        TooMuch: It is too long to be searched.
    """
    text = _ESCAPED.sub("$ANY", text.replace("\\\n", "").replace("${IFS}", " ").replace("$IFS", " "))
    text = text.replace("$'", "'").replace('$"', '"').translate(_NO_QUOTES)
    found: list[Candidate] = []
    for segment in _SEPARATORS.split(text):
        words = [_guessed(token) for token in _BLANKS.split(segment) if token]
        steps.take(len(words))
        leads, ran = True, runs
        for at, word in enumerate(words):
            found.append(Candidate(words=words, at=at, inside=True, weak=not (leads or ran)))
            for rest in _attached(word.text):
                steps.take(8)
                found.append(Candidate(words=[_guessed(rest), *words[at + 1 : at + 64]], inside=True, weak=not ran))
            name = _name(word)
            if name in _RUNNERS or name in _SHELLS or name in _TEXTS or name in _CALLS:
                ran = True
            elif not (name in _KEYWORDS or word.text[0] == "-" or _ASSIGNMENT.match(word.text)):
                leads = False
    return found


def option_value(program: str, option: str) -> bool | None:
    """Return whether an option before a subcommand takes the next word; None where that is not known."""
    if "=" in option:
        return False
    if program == "git" and option in _GIT_VALUE:
        return True
    return False if program == "git" and option in _GIT_ALONE else None


_NO_QUOTES = str.maketrans("", "", "'\"\\")


def _guessed(token: str) -> Word:
    return Word(start=0, end=0, text=token, varies=any(char in token for char in "$*?"))


def _attached(text: str) -> list[str]:
    """Return what may be the value of an option, or of a variable, in the same word."""
    values = text.split("=", 3)[1:]
    if values:
        return [value for value in values if value]
    return [text[2:]] if len(text) > 2 and text[0] == "-" and text[1] != "-" else []


def _name(word: Word) -> str:
    return word.text.rpartition("/")[2]


def _told(word: Word) -> bool:
    """Whether the name of a program is known: its folder may vary."""
    return word.literal or (word.before_glob is None and not word.many and _name(word)[-1:].isalpha())


def _plain(word: Word) -> bool:
    """Whether a word is neither an option, nor a number, nor an assignment."""
    return not (word.text[:1] in ("-", "+") or word.text[:1].isdigit() or _ASSIGNMENT.match(word.text))


class _Looker:
    """Goes through commands and what they run."""

    def __init__(self, steps: Steps) -> None:
        self.sight = Sight()
        self._steps = steps
        self._text_left = _MOST_TEXT

    def simple(self, simple: SimpleCommand, *, depth: int) -> None:
        """Look at one simple command."""
        words = simple.words
        if not words:
            return
        self._steps.take(len(words))
        self.sight.candidates.append(Candidate(words=words, inside=depth > 0))
        braces = {word.end for word in words if word.text.startswith("{") and word.text.endswith("}")}
        if any(redirection.start in braces for redirection in simple.redirections):
            self.sight.hide("A redirection sets a variable ({NAME}>); use a number.")
            if rest := [word for word in words if word.end not in braces]:
                self.sight.candidates.append(Candidate(words=rest, inside=True))
        if not _told(words[0]):
            self.sight.hide(_UNTOLD)
            return
        self._program(words, 0, depth=depth, grows=False)
        self._arguments(words, depth=depth)

    def text(self, text: str, *, depth: int) -> None:
        """Look at a shell command that another one runs as text."""
        self._text_left -= len(text)
        if depth >= _DEEPEST or self._text_left < 0:
            self.sight.hide("It nests commands in commands too deeply.")
        else:
            try:
                for simple in readable(text):
                    self.simple(simple, depth=depth + 1)
                return
            except Unreadable as exc:
                self.sight.hide(f"It runs text that cannot be read: {exc}")
        self._rough(text, runs=True)

    def _rough(self, text: str, *, runs: bool) -> None:
        self._steps.take(1 + len(text) // 16)
        self.sight.candidates += rough_look(text, self._steps, runs=runs)

    def _arguments(self, words: Sequence[Word], *, depth: int) -> None:
        """Take every argument for a command that the program may run."""
        name = _name(words[0])
        first = self._first_argument(words, name)
        if name in _SHELLS or first is None or self._inert(words, name):
            return
        by_option = name in _BY_OPTION
        runs = by_option or self._runs(words, name)
        grows = name in ("xargs", "gxargs", "parallel")
        if grows or name == "find":
            words = _with_blanks(words)
        started = False
        for at in range(first, len(words)):
            word = words[at]
            self._steps.take()
            weak = not runs or (by_option and not word.literal)
            self.sight.candidates.append(Candidate(words=words, at=at, inside=True, weak=weak, grows=grows))
            if runs and not (by_option or started or _told(word)) and _plain(word):
                self.sight.hide(_UNTOLD)
            started = started or _plain(word)
            seen = word.literal and (not by_option or _name(word) in _SHELLS)
            if runs and seen and self._program(words, at, depth=depth, grows=grows):
                break
            if (
                word.literal
                and name != "git"
                and (_holds_text(name, word.text) or (by_option and word.text[0:1] == "-"))
            ):
                self._rough(word.text, runs=runs or name == "sed")

    def _inert(self, words: Sequence[Word], name: str) -> bool:
        rule = PROGRAMS.get(name)
        if name not in _INERT or rule is None or (isinstance(rule, Rule) and rule.tame):
            return name in _INERT
        self._steps.take(len(words))
        if name == "rg":  # its flags cannot be shortened
            return not any(word.text.startswith(("--pre", "--hostname-bin")) for word in words)
        return problem_of(SimpleCommand(words=[Word(start=0, end=0, text=name), *words[1:]])) is None

    def _first_argument(self, words: Sequence[Word], name: str) -> int | None:
        """Return from which word on there may be another command; None where there is none."""
        texts = [word.text for word in words[1:]]
        if name == "command" and any(text[:1] == "-" and ("v" in text or "V" in text) for text in texts[:2]):
            return None
        if name == "find":
            return next((at + 2 for at, text in enumerate(texts) if text in _FIND_RUNS), None)
        if _RUNNING.get(name):
            return next((at + 2 for at, text in enumerate(texts) if text in _RUNNING[name]), 1)
        return 1

    def _runs(self, words: Sequence[Word], name: str) -> bool:
        if name in _RUNNING:
            after = _RUNNING[name]
            return not after or any(word.text in after for word in words[1:])
        if name == "git":
            return (self._subcommand(words, 0) or "") in _GIT_RUNS - {"archive", "clone", "fetch", "pull"}
        return name in _RUNNERS or name in _TEXTS or name in _UNSEEN or name == "find"

    def _program(self, words: Sequence[Word], at: int, *, depth: int, grows: bool) -> bool:
        """Look at a program that may be started here; returns whether the words after it are its text."""
        name = _name(words[at])
        special = name in _SHELLS or name in _TEXTS or name in _RUNNERS or name in (".", "source")
        if grows and special and at:
            self.sight.hide(f"{name} runs what it reads from standard input.")
        if name in _SETTING:
            self._setting(name, words[at + 1 :])
        if name in _UNSEEN:
            self.sight.hide(f"What {name} runs cannot be seen.")
        if name in _SHELLS:
            self._shell(words, at, depth=depth)
        elif name in (".", "source"):
            self.sight.hide(f"{name} runs a file, and what is in it cannot be seen.", named=len(words) > at + 1)
        elif name == "eval":
            self._eval(words[at + 1 :], depth=depth)
            return True
        elif name in ("sudo", "doas") and any(word.text in ("-s", "-i", "--shell", "--login") for word in words[at:]):
            self.sight.hide(f"What the shell of {name} runs cannot be seen.")
        elif name in _TEXTS:
            self._texts(name, words[at + 1 :], depth=depth)
        elif name == "git" or name.startswith("git-"):
            self._git(words, at, name)
        return False

    def _setting(self, name: str, words: Sequence[Word]) -> None:
        self._steps.take(len(words))
        # To printf only its first argument can be an option.
        if any(word.text.startswith(_SETTING[name]) for word in (words[:1] if name == "printf" else words)):
            self.sight.hide(f"{name} sets a variable of the shell, or evaluates an index.")

    def _shell(self, words: Sequence[Word], at: int, *, depth: int) -> None:
        self._steps.take(4)
        name, from_text = _name(words[at]), False
        left = list(words[at + 1 : at + 33])
        if [word.text for word in left] in (["--version"], ["--help"]):
            return
        while left:
            word = left.pop(0)
            if not word.literal:
                break
            if word.text[:1] not in ("-", "+") or word.text == "-":
                if from_text:
                    self.text(word.text, depth=depth)
                else:
                    self.sight.hide(f"{name} runs a script, and what is in it cannot be seen.", named=True)
                return
            if word.text in ("--rcfile", "--init-file"):
                break
            short = word.text[:2] != "--"
            from_text = from_text or (word.text[0] == "-" and short and "c" in word.text)
            if short and word.text[-1] in "oO" and left:
                left.pop(0)
        self.sight.hide(f"What {name} runs is not written in the command.")

    def _eval(self, words: Sequence[Word], *, depth: int) -> None:
        self._steps.take(len(words))
        texts = [word.text for word in words if word.literal]
        if len(texts) < len(words):
            self.sight.hide("eval runs text that is not written out.")
        self.text(" ".join(texts[1:] if texts[:1] == ["--"] else texts), depth=depth)

    def _texts(self, name: str, words: Sequence[Word], *, depth: int) -> None:
        self._steps.take(4 * len(words))
        if name == "ssh" and sum(map(_plain, words)) < 2:
            self.sight.hide("What ssh runs is not written in the command.")
        for word in words:
            options = [word.text, *_attached(word.text)]
            if name == "env":
                # Only -S takes text; any other argument may hold blanks.
                options = options[1:] if word.text.startswith(("-S", "--s")) else []
            if name == "env" and re.match(r"-[A-Za-z0]*S", word.text):
                self.sight.hide("env -S splits text into words of its own; write the words.")
            if not word.literal and name != "env":
                self.sight.hide(f"{name} runs text that is not written out.")
            for text in options:
                if _BLANKS.search(text) or _SEPARATORS.search(text):
                    self.text(text, depth=depth)

    def _git(self, words: Sequence[Word], at: int, name: str) -> None:
        if name != "git":
            self._steps.take(64)
            split = [Word(start=0, end=0, text="git"), Word(start=0, end=0, text=name[4:]), *words[at + 1 : at + 64]]
            self.sight.candidates.append(Candidate(words=split, inside=True))
            return
        subcommand = self._subcommand(words, at)
        if subcommand and subcommand not in _GIT_KNOWN:
            self.sight.hide(f"git {subcommand[:40]} may be an alias.")
        git = Word(start=0, end=0, text="git")
        changes = subcommand == "config" and problem_of(SimpleCommand(words=[git, *words[at + 1 :]])) is not None
        for number, word in enumerate(words[at + 1 :], at + 1):
            self._steps.take()
            for text in _git_texts(subcommand, word.text):
                self._rough(text, runs=True)
            if subcommand in _GIT_REMOTE and _GIT_HELPER.match(word.text):
                self.sight.hide("git starts a program for a remote of this form.")
            if word.text == subcommand:
                continue
            setting = changes or words[number - 1].text in ("-c", "--config-env")
            setting = setting or word.text.startswith(("-c", "--config-env="))
            value = word.text.removeprefix("--config-env=").removeprefix("-c")
            if setting and _GIT_PROGRAM.match(value):
                self.sight.hide(f"The setting {value.partition('=')[0][:40]} of git can name a program.")

    def _subcommand(self, words: Sequence[Word], at: int) -> str | None:
        skip = False
        for word in words[at + 1 :]:
            self._steps.take()
            if skip:
                skip = False
            elif word.text[:1] != "-":
                return word.text if word.literal else None
            else:
                skip = option_value("git", word.text) is True
        return None


def _git_texts(subcommand: str | None, text: str) -> list[str]:
    """Return what of an argument git may run: all of it, or what is attached to an option."""
    if subcommand == "grep":
        found = _GIT_PAGER.match(text)
        return [found[1]] if found else []
    if subcommand not in _GIT_RUNS:
        return []
    attached = _attached(text)
    if attached and "=" not in text:
        attached += [text[3:], text[4:]]  # other letters may stand before the option's own
    return [*attached, *([_GIT_HELPER.sub("", text, count=1)] if _BLANKS.search(text) else [])]


def _with_blanks(words: Sequence[Word]) -> list[Word]:
    """Return the words with those unknown that the program fills in: ``{}``, or what ``xargs -I`` names."""
    marks = ["{}"]
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word.text in ("-I", "-J") and following is not None:
            marks.append(following.text)
        elif word.text[:2] in ("-I", "-i", "-J") and len(word.text) > 2:
            marks.append(word.text[2:])
        elif word.text.startswith("--replace="):
            marks.append(word.text[10:])
    parallel = _name(words[0]) == "parallel"
    return [
        Word(start=word.start, end=word.end, text=word.text, varies=True)
        if (parallel and "{" in word.text) or any(mark and mark in word.text for mark in marks[:8])
        else word
        for word in words
    ]


def _holds_text(name: str, text: str) -> bool:
    """Whether an argument may be program text that starts other programs."""
    if not _BLANKS.search(text) and not _SEPARATORS.search(text) and "=" not in text:
        return False
    if name == "sed":
        return script_problem(text) is not None
    return name not in ("awk", "gawk", "mawk") or "system" in text or "|" in text
