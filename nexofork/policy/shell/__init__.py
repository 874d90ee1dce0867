"""Tell shell commands that only read from all others, by the grammar and a list of programs with their flags."""

from __future__ import annotations

from nexofork.policy.shell.classify import Verdict, classify, problem_of, readable, redirections_problem
from nexofork.policy.shell.git import READ_ONLY_ENVIRONMENT
from nexofork.policy.shell.words import SimpleCommand, Unreadable, Word

__all__ = [
    "READ_ONLY_ENVIRONMENT",
    "SimpleCommand",
    "Unreadable",
    "Verdict",
    "Word",
    "classify",
    "problem_of",
    "readable",
    "redirections_problem",
]
