"""The programs that only read, and with which flags.

A flag is listed because it was looked up, not because it sounds harmless. What writes, sets something, runs a program
of the caller's choice or never ends is left out; so is what is rarely needed.
"""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from nexofork.policy.shell.find_sed import judge_find, judge_test, script_problem
from nexofork.policy.shell.flags import Arguments, Rule
from nexofork.policy.shell.git import judge_git

if TYPE_CHECKING:
    from nexofork.policy.shell.flags import Judge
    from nexofork.policy.shell.words import Word

__all__ = ["HINTS", "PROGRAMS"]

_CONVERSION = re.compile(r"%(?:%|[-+ #0]{0,5}+\d{0,3}+(?:\.\d{0,3}+)?+[sdiuoxXcbqfgeEG])")
"""Of printf. A width of more digits, or one from an argument, could fill the memory."""
_SECONDS = re.compile(r"(?:[0-5]?\d(?:\.\d{1,3})?|60)s?")
_TAR_LIST = re.compile(r"-?[tvzjJ]{1,9}f")
_PS_LETTERS = re.compile(r"[axuwfjlrT]{1,9}|\d{1,9}")
_XXD_FLAGS = ("-a", "-b", "-e", "-E", "-i", "-p", "-ps", "-u", "-C")
_XXD_NUMBER = re.compile(r"-[clgs](?:\d+)?")
_COUNT = re.compile(r"[+-]?(?:\d+|0x[0-9a-fA-F]+)")
_SUMS = Rule(short="bctwz", long="binary check tag text zero ignore-missing quiet status strict warn", tame=True)
_GREP = Rule(
    short="EFGPivwxcLlqsoHhnZzTUabIrRy",
    short_value="efmABCdD",
    long="extended-regexp fixed-strings basic-regexp perl-regexp ignore-case no-ignore-case invert-match word-regexp "
    "line-regexp count files-without-match files-with-matches quiet silent no-messages only-matching with-filename "
    "no-filename line-number null null-data initial-tab byte-offset text recursive dereference-recursive line-buffered",
    long_value="regexp file max-count after-context before-context context include exclude exclude-dir exclude-from "
    "binary-files directories devices label group-separator",
    long_optional="color colour",
    numeric=True,
    tame=True,
)
_RG = Rule(
    short="iSsvwxclnNHIoUFPau0pqhLV.b",
    short_value="efgtTmABCMjEdr",
    long="ignore-case smart-case case-sensitive invert-match word-regexp line-regexp count count-matches "
    "files-with-matches files-without-match line-number no-line-number with-filename no-filename only-matching "
    "multiline multiline-dotall fixed-strings pcre2 text unrestricted null pretty quiet follow hidden no-ignore "
    "no-ignore-vcs no-ignore-parent no-heading heading column vimgrep json stats trim files type-list "
    "one-file-system crlf no-messages no-config byte-offset passthru max-columns-preview version glob-case-insensitive",
    long_value="regexp file glob iglob type type-not max-count after-context before-context context max-columns "
    "threads encoding max-depth maxdepth replace color colors sort sortr context-separator max-filesize engine "
    "path-separator field-match-separator",
)


def _sed(arguments: Arguments) -> str | None:
    scripts = arguments.values("-e", "--expression")
    if not scripts:
        if not arguments.operands:
            return "sed has no script."
        if not arguments.operands[0].literal:
            return "Put the script of sed in single quotes."
        scripts = [arguments.operands[0].text]
    return next((problem for script in scripts if (problem := script_problem(script))), None)


def _date(arguments: Arguments) -> str | None:
    if all(operand.text.startswith("+") for operand in arguments.operands):
        return None
    return "date takes only a +FORMAT here: another operand sets the clock."


def _printf(words: list[Word]) -> str | None:
    """Allow formats that only print. To bash -v and %n set a variable, and evaluate its index."""
    words = words[1:] if words and words[0].text == "--" else words
    if not words or not words[0].literal or words[0].text.startswith("-"):
        return "Begin printf with its format, in single quotes."
    if "%" not in _CONVERSION.sub("", words[0].text):
        return None
    return "The format of printf has a conversion that is not known to only print (%n sets a variable)."


def _sleep(words: list[Word]) -> str | None:
    """Allow waits that end well before a command is timed out."""
    if len(words) == 1 and words[0].literal and _SECONDS.fullmatch(words[0].text):
        return None
    return "sleep takes one number of at most 60 seconds here."


def _tar(words: list[Word]) -> str | None:
    """Judge by position. tar takes any shortened flag, and several run programs (-I, -F, --to-command, --checkpoint).

    It unpacks with programs of fixed names. An archive with a colon in its name is fetched by rsh.
    """
    if len(words) < 2 or not words[0].literal or not _TAR_LIST.fullmatch(words[0].text) or "t" not in words[0].text:
        return "tar may only list: tar -tf ARCHIVE, with v, z, j or J before f."
    archive, names = words[1], words[2:]
    if archive.many or ":" in archive.text or (archive.text.startswith("-") and archive.text != "-"):
        return "Name one archive for tar, without wildcards and colons."
    if any(name.many or name.text.startswith("-") for name in names):
        return "Name the members of the archive for tar, without wildcards and flags; or leave them out."
    return None


def _ps(arguments: Arguments) -> str | None:
    """Refuse the letter e, which shows the environment of other programs."""
    if all(operand.literal and _PS_LETTERS.fullmatch(operand.text) for operand in arguments.operands):
        return None
    return "ps takes only the letters axuwfjlrT or process numbers here."


def _xxd(words: list[Word]) -> str | None:
    """Judge by whole words: to xxd ``-ps`` is one flag, and what follows a file name is a second file, to write."""
    left = deque(words)
    while left:
        word = left.popleft()
        if word.many:
            return "A wildcard may become several words, and xxd writes to the second; name the file."
        if _XXD_NUMBER.fullmatch(word.text) and (
            len(word.text) > 2 or (left and _COUNT.fullmatch(left.popleft().text))
        ):
            continue
        if word.text in _XXD_FLAGS:
            continue
        if word.text.startswith("-") and word.text != "-":
            return f"xxd {word.text} is not among the flags known to only read."
        return "xxd writes to what follows its file; name the file last." if left else None
    return None


def _command(arguments: Arguments) -> str | None:
    return None if arguments.has("-v", "-V") else "command runs another program; only command -v NAME is allowed."


def _version_only(program: str, words: list[Word]) -> str | None:
    if [word.text for word in words] == ["--version"]:
        return None
    return f"{program} runs any program text; only {program} --version is allowed."


_RULES: dict[str, Rule] = {
    "ls": Rule(
        short="aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1",
        short_value="ITw",
        long="all almost-all author escape ignore-backups directory file-type full-time no-group "
        "group-directories-first human-readable si dereference inode kibibytes numeric-uid-gid literal "
        "hide-control-chars quote-name reverse recursive size context zero",
        long_value="block-size hide ignore indicator-style quoting-style sort time time-style width format tabsize",
        long_optional="classify color hyperlink",
        tame=True,
    ),
    "cat": Rule(
        short="AbeEnstTuv",
        long="show-all number-nonblank show-ends number squeeze-blank show-tabs show-nonprinting",
        tame=True,
    ),
    "head": Rule(
        short="qvz",
        short_value="nc",
        long="quiet silent verbose zero-terminated",
        long_value="lines bytes",
        numeric=True,
        tame=True,
    ),
    "tail": Rule(
        short="qvz",
        short_value="nc",
        long="quiet silent verbose zero-terminated",
        long_value="lines bytes",
        numeric=True,
        tame=True,
    ),
    "wc": Rule(short="clmLw", long="bytes chars lines max-line-length words", tame=True),
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _RG,
    "stat": Rule(
        short="Lft", short_value="c", long="dereference file-system terse", long_value="format printf", tame=True
    ),
    "file": Rule(
        short="biLhkN0", long="brief mime mime-type mime-encoding dereference no-dereference keep-going no-pad"
    ),
    "du": Rule(
        short="abcDhHklLmPsSx0",
        short_value="dBt",
        long="all apparent-size bytes total dereference-args human-readable inodes count-links dereference "
        "no-dereference separate-dirs si summarize one-file-system null",
        long_value="block-size max-depth threshold exclude time-style",
        long_optional="time",
        tame=True,
    ),
    "df": Rule(
        short="ahHiklPT",
        short_value="Btx",
        long="all human-readable si inodes local portability total print-type",
        long_value="block-size type exclude-type",
        long_optional="output",
        tame=True,
    ),
    "tree": Rule(
        short="adfilpsughDFQNqrtUCnAvxJX",
        short_value="LPI",
        long="noreport dirsfirst gitignore du prune matchdirs ignore-case inodes device filesfirst",
        long_optional="sort timefmt filelimit",
        values_apart=True,
    ),
    "sort": Rule(
        short="bdfghiMnRruVsczCm",
        short_value="ktS",
        long="ignore-leading-blanks dictionary-order ignore-case general-numeric-sort human-numeric-sort "
        "ignore-nonprinting month-sort numeric-sort random-sort reverse unique version-sort stable merge "
        "zero-terminated debug",
        long_value="key field-separator buffer-size sort parallel",
        long_optional="check",
    ),
    "uniq": Rule(
        short="cdDiuz",
        short_value="fsw",
        long="count repeated ignore-case unique zero-terminated",
        long_value="skip-fields skip-chars check-chars",
        long_optional="all-repeated group",
        operands=1,
    ),
    "cut": Rule(
        short="snz",
        short_value="bcdf",
        long="complement only-delimited zero-terminated",
        long_value="bytes characters delimiter fields output-delimiter",
        tame=True,
    ),
    "tr": Rule(short="cCdst", long="complement delete squeeze-repeats truncate-set1", tame=True),
    "nl": Rule(
        short="p",
        short_value="bdfhilnsvw",
        long="no-renumber",
        long_value="body-numbering number-format number-separator number-width starting-line-number",
        tame=True,
    ),
    "tac": Rule(short="br", short_value="s", long="before regex", long_value="separator", tame=True),
    "rev": Rule(tame=True),
    "comm": Rule(
        short="123z", long="check-order nocheck-order total zero-terminated", long_value="output-delimiter", tame=True
    ),
    "paste": Rule(short="sz", short_value="d", long="serial zero-terminated", long_value="delimiters", tame=True),
    "fold": Rule(short="bs", short_value="w", long="bytes spaces", long_value="width", tame=True),
    "join": Rule(short="iz", short_value="aejotv12", long="ignore-case header", tame=True),
    "expand": Rule(short="i", short_value="t", long="initial", long_value="tabs", tame=True),
    "column": Rule(short="tx", short_value="cso", long="table", long_value="separator output-separator"),
    "od": Rule(short="abcdfilosxv", short_value="AjNt", long_value="address-radix skip-bytes read-bytes format"),
    "base64": Rule(short="di", short_value="w", long="decode ignore-garbage", long_value="wrap"),
    "strings": Rule(short="af", short_value="nt", long="all print-file-name", long_value="bytes radix"),
    "seq": Rule(short="w", short_value="fs", long="equal-width", long_value="format separator", numeric=True),
    "diff": Rule(
        short="uqrsbBwiaNyTtcEZd",
        short_value="CUxIWF",
        long="brief recursive report-identical-files side-by-side ignore-all-space ignore-space-change "
        "ignore-blank-lines ignore-case ignore-tab-expansion ignore-trailing-space new-file text minimal "
        "expand-tabs initial-tab suppress-common-lines left-column show-c-function no-dereference "
        "strip-trailing-cr speed-large-files",
        long_value="exclude ignore-matching-lines width label",
        long_optional="unified context color",
        numeric=True,
    ),
    "cmp": Rule(
        short="bls", short_value="in", long="print-bytes verbose quiet silent", long_value="bytes ignore-initial"
    ),
    "sed": Rule(
        short="nErsuz",
        short_value="e",
        long="quiet silent regexp-extended separate unbuffered null-data posix sandbox debug",
        long_value="expression",
        check=_sed,
    ),
    "jq": Rule(
        short="rRjcSnesaMC",
        long="raw-output raw-input join-output compact-output sort-keys null-input exit-status slurp ascii-output "
        "monochrome-output color-output tab stream seq",
        long_value="arg argjson indent",
    ),
    "md5sum": _SUMS,
    "sha1sum": _SUMS,
    "sha224sum": _SUMS,
    "sha256sum": _SUMS,
    "sha384sum": _SUMS,
    "sha512sum": _SUMS,
    "b2sum": _SUMS,
    "cksum": Rule(tame=True),
    "true": Rule(tame=True),
    "false": Rule(tame=True),
    "pwd": Rule(short="LP"),
    "cd": Rule(short="LP", operands=1),
    "basename": Rule(short="az", short_value="s", long="multiple zero", long_value="suffix", tame=True),
    "dirname": Rule(short="z", long="zero", tame=True),
    "realpath": Rule(
        short="emLPqsz",
        long="canonicalize-existing canonicalize-missing logical physical quiet strip no-symlinks zero",
        long_value="relative-to relative-base",
        tame=True,
    ),
    "readlink": Rule(
        short="femnqsvz",
        long="canonicalize canonicalize-existing canonicalize-missing no-newline quiet silent verbose zero",
        tame=True,
    ),
    "date": Rule(
        short="uR",
        short_value="dr",
        short_attached="I",
        long="utc universal rfc-email",
        long_value="date reference rfc-3339",
        long_optional="iso-8601",
        check=_date,
    ),
    "hostname": Rule(short="fsidAI", long="fqdn short ip-address domain all-ip-addresses all-fqdns", operands=0),
    "uname": Rule(
        short="asnrvmpio",
        long="all kernel-name nodename kernel-release kernel-version machine processor hardware-platform "
        "operating-system",
    ),
    "arch": Rule(operands=0),
    "nproc": Rule(long="all", long_value="ignore"),
    "whoami": Rule(operands=0),
    "id": Rule(short="Ggnruz", long="group groups name real user zero"),
    "groups": Rule(),
    "uptime": Rule(short="ps", long="pretty since", operands=0),
    "free": Rule(short="bkmghwtlv", long="bytes kibi mebi gibi tebi human wide total lohi si", operands=0),
    "ps": Rule(
        short="AadefFHjlLTwy",
        short_value="opuUgGtCq",
        long="forest headers no-headers",
        long_value="sort format pid ppid user cols",
        check=_ps,
    ),
    "which": Rule(short="a"),
    "type": Rule(short="aftpP"),
    # Its flags end at the first operand: `command rm -v x` runs rm. Limited operands keep flags in front.
    "command": Rule(short="vV", operands=16, check=_command),
}
_JUDGES: dict[str, Judge] = {
    "echo": lambda words: None,
    "find": judge_find,
    "git": judge_git,
    "printf": _printf,
    "sleep": _sleep,
    "tar": _tar,
    "test": judge_test,
    "xxd": _xxd,
    "[": judge_test,
}
PROGRAMS: dict[str, Rule | Judge] = {
    **_RULES,
    **_JUDGES,
    **{name: partial(_version_only, name) for name in ("python", "python3", "node", "gcc", "make")},
}
"""By the name they are called by."""

_RUNS = "can run other programs"
HINTS = {
    "tee": "writes files",
    "awk": f"{_RUNS} and write files; use cut, grep or sed -n",
    "gawk": f"{_RUNS} and write files; use cut, grep or sed -n",
    "mawk": f"{_RUNS} and write files; use cut, grep or sed -n",
    "xargs": f"{_RUNS}; name the files, or use a wildcard or grep -r",
    "parallel": _RUNS,
    "env": f"{_RUNS}; call the program itself",
    "timeout": f"{_RUNS}; call the program itself",
    "nice": f"{_RUNS}; call the program itself",
    "nohup": f"{_RUNS}; call the program itself",
    "sudo": f"{_RUNS}, as another user",
    "less": f"{_RUNS}; use cat, head or sed -n",
    "more": f"{_RUNS}; use cat, head or sed -n",
    "man": _RUNS,
    "vi": "edits files",
    "vim": "edits files",
    "ip": "can change the network",
    "eval": "runs text as a command; write the command itself",
    "exec": "runs another program in the shell's place; call the program itself",
    "source": "runs a file as commands; read it with cat",
    ".": "runs a file as commands; read it with cat",
    **dict.fromkeys(("perl", "ruby", "php", "lua"), "runs any program text"),
    **dict.fromkeys(("sh", "bash", "dash", "zsh", "ksh", "fish", "busybox"), f"{_RUNS}; write the command itself"),
    **dict.fromkeys(("rm", "mv", "cp", "dd", "touch", "mkdir", "chmod", "chown", "ln", "truncate"), "changes files"),
}
"""Why some well-known programs are not listed; the sentence begins with their name."""
