"""Say an explanation to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.cli.output import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nexofork.cli.explained_run import ExplainedRun
    from nexofork.core.explain import Explanation

__all__ = ["explanation_lines", "run_lines"]


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the lines about two requests."""
    found, parted = explanation.divergence, _diverging(explanation)
    if found is None and not explanation.findings:
        yield "Nothing differs: B begins with all of A and can read what A cached."
        yield f"  cached  {_tokens(explanation, explanation.tokens_cached)}"
    elif found is not None and parted is None:
        yield "They part behind the last block that A cached, so nothing is lost by it."
        yield from _where(explanation)
    for finding in explanation.findings:
        here = found is not None and finding.cause == parted
        yield f"{finding.cause} ({found.likely_cause})" if found and here else finding.cause
        yield f"  {plain(finding.says)}"
        if finding.todo:
            yield f"  {plain(finding.todo)}"
        if here:
            yield from _where(explanation)
    if explanation.loses:
        yield (
            f"Lost: {_tokens(explanation, explanation.tokens_lost)} of "
            f"{explanation.tokens_cached:,} cached; {explanation.tokens_kept:,} can still be read."
        )


def run_lines(run: ExplainedRun) -> Iterator[str]:
    """Yield the lines about a run."""
    check = run.check
    if check is None:
        yet = "has not been answered yet" if run.ended is None else f"was never answered; it ended as {run.ended}"
        yield f"Run {run.run_id}: its first call {yet}."
    else:
        prompt = check.read + check.written + check.fresh
        yield (
            f"Run {run.run_id}: its first call read {check.read:,} of {prompt:,} tokens ({check.hit_ratio:.1%}), "
            f"wrote {check.written:,}" + ("" if check.expected_read is None else f"; expected {check.expected_read:,}")
        )
        if check.cause is None:
            yield "It shared its parent's cache."
        else:
            yield f"{check.cause}"
            yield f"  {plain(check.detail)}"
            if check.diagnosis:
                yield f"  The API's own diagnosis: {plain(check.diagnosis)}."
    if run.decision:
        role = f", as {run.decision['role']}" if run.decision.get("role") else ""
        yield plain(f"Fan-out: {run.decision.get('plan')}{role}: {run.decision.get('why')}.")
    comparison = run.comparison
    whose = "the file" if run.against_file else "the request it was forked from"
    if comparison.divergence is None:
        yield f"Its first request begins with all of {whose}."
    if comparison.findings and (comparison.divergence or check is None):
        yield f"Against {whose}:"
        yield from explanation_lines(comparison)


def _diverging(explanation: Explanation) -> str | None:
    """Return the name of the finding that the divergence is."""
    if explanation.divergence is None:
        return None
    names = ("respelt", "parameters_changed", f"{explanation.divergence.dimension}_changed")
    return next((finding.cause for finding in explanation.findings if finding.cause in names), None)


def _where(explanation: Explanation) -> Iterator[str]:
    found = explanation.divergence
    assert found is not None, "only a divergence is somewhere"
    offsets = (("A", found.offset_a, found.shown_a), ("B", found.offset_b, found.shown_b))
    yield f"  where   {plain(found.path)}"
    for name, offset, shown in offsets:
        yield f"  {name}       {plain(shown)}" + ("" if offset is None else f"   (byte {offset:,})")
    if _diverging(explanation):
        yield f"  loses   {', '.join(found.loses)}"
    if len(explanation.differing) > 1:
        yield f"  differ  {', '.join(explanation.differing)}"


def _tokens(explanation: Explanation, count: int) -> str:
    return f"about {count:,} tokens" if explanation.estimated else f"{count:,} tokens"
