"""``nexofork eval``: run the cases of a file as forks of one conversation, and judge them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nexofork.agents.evaluation import evaluate, read_suite
from nexofork.agents.evaluation.junit import junit
from nexofork.cli.exit_codes import NOT_COMPLETED, OK
from nexofork.cli.fork_order import tool_name_option
from nexofork.cli.hosting import local_option, open_hosting
from nexofork.cli.options import json_option, target_options
from nexofork.cli.output import brief, counted, plain, print_json, print_table
from nexofork.cli.parent_files import read_snapshot
from nexofork.cli.session import finish
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.agents.evaluation import Case, CaseResult, CaseRun, Suite
    from nexofork.cli.options import Target
    from nexofork.core.snapshot import CacheSafeParams

__all__ = ["eval"]


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--request", metavar="FILE", help="The parent's request body, in place of the file's own.")
@click.option("--reply", metavar="FILE", help="The assistant message it got, in place of the file's own.")
@click.option("--runs", type=click.IntRange(min=1, max=1000), help="Run every case so often; all runs have to pass.")
@click.option("--parallel", type=click.IntRange(min=1), default=4, show_default=True, help="Runs at once.")
@click.option("--junit", "junit_file", type=click.Path(path_type=Path), metavar="FILE", help="Write JUnit XML here.")
@json_option
@tool_name_option
@local_option
@target_options
def eval(file: Path, **options: Any) -> None:
    """Judge forks by scripted prompts and what is expected of them.

    FILE is TOML; docs/evaluation.md says what is in it. Exits with 0 if all cases passed, 1 if some did not, 2 on bad
    input, 3 if NATS is not reachable, 130 after Ctrl-C, which aborts the runs.
    """
    finish(lambda: _eval(file, **options))


async def _eval(
    file: Path,
    *,
    request: str | None,
    reply: str | None,
    runs: int | None,
    parallel: int,
    junit_file: Path | None,
    as_json: bool,
    tool_names: tuple[str, ...],
    local: bool,
    target: Target,
) -> int:
    suite = _repeated(read_suite(file), runs)
    snapshot = _snapshot(file, suite, request, reply)
    if junit_file is not None:
        _write(junit_file, b"")  # before anything is paid for

    def ended(case: Case, run: CaseRun) -> None:
        if not as_json:
            click.echo(f"{'passed' if run.passed else 'FAILED'}  {brief(case.name, 60)}", err=True)

    async with open_hosting(target, local=local, tool_names=tool_names) as hosting:
        results = await evaluate(
            suite,
            hosting.forks,
            snapshot,
            follow_up=hosting.follow_up,
            equip=hosting.equip,
            parallel=parallel,
            on_run=ended,
        )
    if junit_file is not None:
        _write(junit_file, junit(suite.name, results))
    if as_json:
        for result in results:
            print_json(result.to_json())
    else:
        _print(results)
    return OK if all(result.passed for result in results) else NOT_COMPLETED


def _repeated(suite: Suite, runs: int | None) -> Suite:
    if runs is None:
        return suite
    return replace(suite, cases=tuple(replace(case, runs=runs, min_passed=runs) for case in suite.cases))


def _snapshot(file: Path, suite: Suite, request: str | None, reply: str | None) -> CacheSafeParams:
    """Return the conversation; what the file names lies beside it."""
    if request is None and suite.request is None:
        raise ForkRefused(f"{file} names no `request` to fork from; add it, or give --request.")
    if request is None and suite.request is not None:
        request = str(file.parent / suite.request)
        reply = reply or (str(file.parent / suite.reply) if suite.reply else None)
    return read_snapshot(request=str(request), reply=reply, headers=suite.headers, sent_at=None)


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as exc:
        raise ForkRefused(f"--junit {path} cannot be written: {exc.strerror}. Name another file.") from exc


def _print(results: Sequence[CaseResult]) -> None:
    rows = []
    for result in results:
        costs = [run.outcome.cost_usd for run in result.runs if run.outcome.cost_usd is not None]
        rows.append(
            (
                brief(result.case.name, 44),
                click.style("passed", fg="green") if result.passed else click.style("failed", fg="red"),
                f"{result.passed_runs}/{len(result.runs)}",
                f"{sum(run.outcome.tokens for run in result.runs):,}",
                f"{min(run.outcome.hit_ratio for run in result.runs):.1%}",
                f"{sum(costs):.4f}" if len(costs) == len(result.runs) else "-",
            )
        )
    print_table(("case", "verdict", "runs", "tokens", "least hit", "$"), rows, right=frozenset(range(2, 6)))
    passed = sum(result.passed for result in results)
    click.echo(f"\n{passed} of {counted(len(results), 'case')} passed")
    for result in results:
        for number, run in enumerate(result.runs, start=1):
            for failure in run.failures:
                click.echo(f"{brief(result.case.name, 60)}, run {number}: {plain(failure)}", err=True)
