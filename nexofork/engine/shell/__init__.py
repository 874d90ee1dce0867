"""Tell shell commands that only read from all others, by the grammar and a list of programs with their flags."""

from __future__ import annotations

from nexofork.engine.shell.classify import Verdict, classify, problem_of, readable, redirections_problem
from nexofork.engine.shell.git import READ_ONLY_ENVIRONMENT
from nexofork.engine.shell.words import SimpleCommand, Unreadable, Word

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
