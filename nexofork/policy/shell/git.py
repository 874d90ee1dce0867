"""Judge ``git``: the subcommands that only read, each with its flags.

A repository's own configuration can name programs (external diff, textconv, filters, fsmonitor, hooks). It is trusted
as far as it lies in a real ``.git``, which no commit can carry; what a commit *can* carry, a bare repository disguised
as a folder, is shut out by ``READ_ONLY_ENVIRONMENT``, which every command under a read-only verdict runs in. Flags that
switch such programs on are refused here. The user's and the system's configuration are not read at all.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from nexofork.policy.shell.flags import Arguments, Rule, judge

if TYPE_CHECKING:
    from nexofork.policy.shell.words import Word

__all__ = ["READ_ONLY_ENVIRONMENT", "SUBCOMMANDS", "judge_git"]

_SETTINGS = {
    "safe.bareRepository": "explicit",
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "diff.autoRefreshIndex": "false",  # `git diff` rewrites the index even without optional locks
    "log.showSignature": "false",
}
READ_ONLY_ENVIRONMENT: dict[str, str] = {
    "GIT_CONFIG_GLOBAL": "/dev/null",  # the home of commands is a folder that others may write to
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",  # or `git status` rewrites the index
    "GIT_NO_LAZY_FETCH": "1",  # or a partial clone runs what its configuration names to fetch
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_SETTINGS.values())},
}
"""What a command is run with that was let through because it only reads."""

_DIFF_LONG = (
    "patch no-patch raw summary shortstat numstat name-only name-status cached staged merge-base no-index no-color "
    "no-renames no-ext-diff no-textconv ignore-all-space ignore-space-change ignore-space-at-eol ignore-blank-lines "
    "ignore-cr-at-eol text binary full-index histogram patience minimal quiet exit-code check function-context "
    "compact-summary cumulative pickaxe-regex pickaxe-all no-prefix patch-with-stat no-color-moved cc "
)
_DIFF_VALUE = "diff-algorithm inter-hunk-context diff-filter unified src-prefix dst-prefix "
_DIFF_OPTIONAL = (
    "stat dirstat color color-words color-moved word-diff word-diff-regex find-renames find-copies abbrev relative "
    "submodule ignore-submodules "
)
_DIFF = Rule(
    short="puswbaRztrcmW",
    short_value="SG",
    short_attached="UMCBl",
    long=_DIFF_LONG,
    long_value=_DIFF_VALUE,
    long_optional=_DIFF_OPTIONAL,
)
_LOG = replace(
    _DIFF,
    short="puswbaztrcmWgiEFP",
    short_value="SGLn",
    numeric=True,
    long=_DIFF_LONG
    + "oneline graph all reverse merges no-merges first-parent follow abbrev-commit no-abbrev-commit topo-order "
    "date-order author-date-order full-history simplify-by-decoration simplify-merges dense sparse cherry-pick "
    "cherry-mark cherry left-right left-only right-only ancestry-path boundary source no-decorate walk-reflogs "
    "invert-grep all-match regexp-ignore-case extended-regexp fixed-strings perl-regexp no-notes parents children "
    "relative-date no-mailmap use-mailmap show-pulls root",
    long_value=_DIFF_VALUE
    + "author committer grep since until after before max-count skip date max-parents min-parents grep-reflog encoding "
    "glob exclude decorate-refs decorate-refs-exclude",
    long_optional=_DIFF_OPTIONAL + "decorate branches tags remotes pretty format notes",
)
_SIGNATURE = re.compile(r"%[-+ ]?G")
_LIST = "contains no-contains merged no-merged sort format points-at"


def _branch(arguments: Arguments) -> str | None:
    # Old versions take -l for "create with a reflog", so only the long form makes operands patterns.
    if arguments.operands and not arguments.has("--list"):
        return "git branch NAME creates a branch; list with git branch --list PATTERN."
    return None


def _tag(arguments: Arguments) -> str | None:
    if arguments.operands and not arguments.has("-l", "--list"):
        return "git tag NAME creates a tag; list with git tag -l PATTERN."
    return None


def _config(arguments: Arguments) -> str | None:
    if arguments.has("--get", "--get-all", "--get-regexp", "--list", "-l"):
        return None
    # A setting has a dot in its name; without one it may be a subcommand, such as edit.
    if len(arguments.operands) == 1 and "." in arguments.operands[0].text and arguments.operands[0].literal:
        return None
    return "git config may write; read with --get NAME or --list."


def _describe(arguments: Arguments) -> str | None:
    # Seen with git 2.39: the index is written even with GIT_OPTIONAL_LOCKS=0.
    if arguments.has("--dirty", "--broken"):
        return "git describe --dirty rewrites the index; use git describe and git status --short."
    return None


def _no_operands(arguments: Arguments) -> str | None:
    return f"git takes no {arguments.operands[0].text!r} here." if arguments.operands else None


SUBCOMMANDS: dict[str, Rule] = {
    "status": Rule(
        short="sbvz",
        short_attached="u",
        long="short branch long show-stash verbose ahead-behind no-ahead-behind renames no-renames null",
        long_optional="porcelain untracked-files ignored ignore-submodules find-renames",
    ),
    "log": _LOG,
    "show": _LOG,
    "diff": _DIFF,
    "rev-list": replace(_LOG, long=_LOG.long + " count objects header timestamp disk-usage"),
    "diff-tree": replace(_DIFF, long=_DIFF.long + " root stdin no-commit-id", long_optional=_DIFF_OPTIONAL + "pretty"),
    "diff-index": _DIFF,
    "shortlog": Rule(
        short="nsecz",
        short_attached="w",
        long="numbered summary email committer all no-merges merges",
        long_value="since until after before author group",
    ),
    "blame": Rule(
        short="lstfnpewcb",
        short_value="L",
        short_attached="MC",
        long="porcelain line-porcelain root show-email show-name show-number show-stats incremental first-parent",
        long_value="date ignore-rev since",
        long_optional="abbrev",
    ),
    "branch": Rule(
        short="arvil",
        long="all remotes list verbose show-current ignore-case no-color no-column no-abbrev",
        long_value=_LIST,
        long_optional="color column abbrev",
        check=_branch,
    ),
    "tag": Rule(
        short="li",
        short_attached="n",
        long="list ignore-case no-column",
        long_value=_LIST,
        long_optional="color column",
        check=_tag,
    ),
    "rev-parse": Rule(
        short="q",
        long="verify quiet show-toplevel show-prefix show-cdup git-dir absolute-git-dir git-common-dir "
        "is-inside-work-tree is-inside-git-dir is-bare-repository is-shallow-repository symbolic symbolic-full-name "
        "all revs-only no-revs no-flags show-superproject-working-tree",
        long_value="git-path",
        long_optional="short abbrev-ref branches tags remotes path-format show-object-format",
    ),
    "ls-files": Rule(
        short="cdmoistuvzk",
        short_value="x",
        long="cached deleted modified others ignored stage unmerged killed exclude-standard full-name error-unmatch "
        "directory no-empty-directory eol deduplicate recurse-submodules",
        long_value="exclude format",
        long_optional="abbrev",
    ),
    "ls-tree": Rule(
        short="drtlz",
        long="name-only name-status object-only full-name full-tree long",
        long_value="format",
        long_optional="abbrev",
    ),
    "describe": Rule(
        long="all tags contains long always exact-match first-parent debug",
        long_value="match exclude candidates",
        long_optional="abbrev dirty broken",
        check=_describe,
    ),
    "remote": Rule(short="v", long="verbose", check=_no_operands),
    "remote get-url": Rule(long="all push"),
    "cat-file": Rule(short="tspe", long="batch-all-objects buffer unordered", long_optional="batch batch-check"),
    "merge-base": Rule(short="a", long="all octopus independent is-ancestor fork-point"),
    "grep": Rule(
        short="iIvwlLcnEFGPhHopqaWrz",
        short_value="eABCfm",
        long="ignore-case invert-match word-regexp line-number column name-only files-with-matches "
        "files-without-match count only-matching extended-regexp basic-regexp fixed-strings perl-regexp cached "
        "untracked no-index no-exclude-standard exclude-standard heading break show-function function-context text "
        "full-name null quiet all-match and or not recursive no-recursive no-color recurse-submodules",
        long_value="max-depth threads after-context before-context context max-count",
        long_optional="color",
        numeric=True,
    ),
    "stash list": _LOG,
    "stash show": replace(_DIFF, long=_DIFF.long + " include-untracked only-untracked"),
    "worktree list": Rule(short="vz", long="porcelain verbose"),
    "reflog show": _LOG,
    "reflog": replace(_LOG, check=_no_operands),
    "for-each-ref": Rule(
        short="spq", long="ignore-case", long_value="count sort format points-at merged no-merged contains no-contains"
    ),
    # A second operand is written.
    "symbolic-ref": Rule(short="q", long="short quiet no-recurse", operands=1),
    "show-ref": Rule(
        short="dqs", long="head heads tags dereference verify quiet branches", long_optional="hash abbrev"
    ),
    "name-rev": Rule(long="tags name-only always all no-undefined", long_value="refs exclude"),
    "count-objects": Rule(short="vH", long="verbose human-readable"),
    "check-ignore": Rule(short="qvnz", long="quiet verbose non-matching no-index"),
    "check-attr": Rule(short="az", long="all cached"),
    # Its flags end at the first operand: `git config user.name --get` sets a name. A limit keeps flags in front.
    "config": Rule(
        operands=2,
        short="lz",
        long="get get-all get-regexp list global local system show-origin show-scope name-only null includes",
        long_value="type default",
        check=_config,
    ),
    "version": Rule(long="build-options"),
}


def judge_git(words: list[Word]) -> str | None:
    """Return why a ``git`` command may not run, or None."""
    left = list(words)
    while left and left[0].text.startswith("-"):
        option = left.pop(0)
        if option.text == "-C" and left:
            if left[0].many or left[0].text.startswith("-"):
                return "Name one folder after git -C."
            left.pop(0)
        elif option.text == "--version" and not left:
            return None
        elif option.text not in ("--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"):
            return f"git {option.text.partition('=')[0]} is not allowed before the subcommand."
    if not left or not left[0].literal:
        return "Name the subcommand of git in plain letters."
    name = left[0].text
    if len(left) > 1 and left[1].literal and f"{name} {left[1].text}" in SUBCOMMANDS:
        name = f"{name} {left.pop(1).text}"
    rule = SUBCOMMANDS.get(name)
    if rule is None:
        return f"git {name} is not among the subcommands known to only read."
    return _signature_problem(left[1:]) or judge(f"git {name}", rule, left[1:])


def _signature_problem(words: list[Word]) -> str | None:
    """Checking a signature runs gpg, which keeps files of its own."""
    before = ""
    for word in words:
        shown = "%(" in word.text or word.text.startswith("--sort") or before == "--sort"
        if _SIGNATURE.search(word.text) or (shown and "signature" in word.text):
            return "A format that checks signatures runs another program; leave it out."
        before = word.text
    return None
