"""Judge forks by scripted prompts: what they are asked, what is expected, how often, and what came of it."""

from __future__ import annotations

from nexofork.agents.evaluation.running import CaseResult, CaseRun, evaluate
from nexofork.agents.evaluation.suite import Case, Suite, read_suite

__all__ = ["Case", "CaseResult", "CaseRun", "Suite", "evaluate", "read_suite"]
