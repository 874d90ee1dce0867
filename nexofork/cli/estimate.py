"""``nexofork estimate``: what a fan-out would cost, before anything is sent. Needs neither NATS nor the provider."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import click

from nexofork.cli.exit_codes import OK
from nexofork.cli.options import json_option, prices_option
from nexofork.cli.output import brief, counted, print_json, print_table
from nexofork.cli.parent_files import parent_options, read_snapshot
from nexofork.cli.session import finish
from nexofork.economics.estimate import (
    FRESH_CONTEXT_TOKENS,
    MOST_CHILDREN,
    MOST_TURNS,
    OUTPUT_TOKENS,
    Estimate,
)
from nexofork.economics.estimate import estimate as work_out
from nexofork.economics.prices import load_prices
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from nexofork.economics.bills import Bill

__all__ = ["estimate"]


@click.command()
@parent_options
@click.option(
    "-n",
    "--children",
    type=click.IntRange(1, MOST_CHILDREN),
    metavar="N",
    help="How many children, the directives in turn; one per directive unless said.",
)
@click.option(
    "--turns",
    metavar="N",
    type=click.IntRange(1, MOST_TURNS),
    default=1,
    show_default=True,
    help="Calls that each child makes.",
)
@click.option(
    "--output-tokens",
    metavar="N",
    type=click.IntRange(0, 10_000_000),
    default=OUTPUT_TOKENS,
    show_default=True,
    help="What each call answers.",
)
@click.option(
    "--fresh-context-tokens",
    metavar="N",
    type=click.IntRange(0, 10_000_000),
    default=FRESH_CONTEXT_TOKENS,
    show_default=True,
    help="What a named agent would start with instead.",
)
@click.option("--fresh-model", metavar="MODEL", help="What a named agent would run on; the parent's unless said.")
@prices_option
@json_option
def estimate(**options: Any) -> None:
    """Say what forking a conversation would cost, and whether it pays.

    Nothing is sent. The parent's whole response as --reply gives its bill, and --sent-at says whether its cache is
    still warm; without them tokens are guessed and the cache is taken to be cold. Exits with 2 on bad input.
    """
    finish(lambda: _run(**options))


async def _run(
    *,
    request: str,
    reply: str | None,
    headers: tuple[tuple[str, str], ...],
    sent_at: float | None,
    directives: tuple[str, ...],
    children: int | None,
    prices: str | None,
    as_json: bool,
    **assumed: Any,
) -> int:
    if children is not None and children < len(directives):
        raise ForkRefused(
            f"There are {counted(len(directives), 'directive')} and -n {children}; give at least as many children."
        )
    listed = load_prices(prices) if prices else None
    snapshot = read_snapshot(request=request, reply=reply, headers=headers, sent_at=sent_at)
    each = tuple(islice(cycle(directives), children or len(directives)))
    found = work_out(snapshot, each, prices=listed, **assumed)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    return OK


def _print(found: Estimate) -> None:
    header = ("", "read", "written", "fresh", "output", "input $", "output $", "total $")
    named = found.named
    rows = [
        ("fork", found.shared),
        ("ideal", found.ideal),
        ("without sharing", found.unshared),
        (f"named agents ({named.context_tokens:,} tokens each)", named.bill),
    ]
    click.echo("\n".join(_assumptions(found)) + "\n")
    print_table(header, [_row(name, bill) for name, bill in rows], right=frozenset(range(1, 8)))
    click.echo("\n" + "\n".join(_verdicts(found)))
    for note in found.notes:
        click.echo(f"Note: {note}")


def _assumptions(found: Estimate) -> list[str]:
    directives = found.directive_tokens
    own = (
        f"{min(directives):,}" if min(directives) == max(directives) else f"{min(directives):,} to {max(directives):,}"
    )
    by = "by the parent's bill" if found.counted_by == "bill" else "guessed from bytes"
    price = "not known"
    if (facts := found.tariff.facts) is not None:
        rates = facts.price_for(found.prefix_tokens + found.tail_tokens)
        price = (
            f"${rates.input:g} fresh, ${rates.read:g} read, ${rates.write(found.ttl):g} written ({found.ttl}), "
            f"${rates.output:g} output per million; {brief(facts.source, 60)}"
        )
    cache = f"warm, {found.warm_tokens:,} tokens" if found.warm_tokens else "cold"
    lines = [
        f"{'model':<10} {brief(found.model, 60)}",
        f"{'price':<10} {price}",
        f"{'children':<10} {found.children:,}, each with {counted(found.turns, 'turn')} "
        f"of {found.output_tokens:,} output tokens",
        f"{'tokens':<10} {found.prefix_tokens:,} prefix + {found.tail_tokens:,} shared tail + {own} directive, {by}",
        f"{'cache':<10} {cache}: {found.cache_why}",
    ]
    if found.children > 1:
        lines.append(f"{'start':<10} {found.decision.plan.replace('_', ' ')}: {found.decision.why}")
    return lines


def _row(name: str, bill: Bill) -> tuple[str, ...]:
    usage = bill.usage
    tokens = (usage.cache_read_tokens, usage.cache_write_tokens, usage.input_tokens, usage.output_tokens)
    costs = (bill.input_usd, bill.output_usd, bill.total_usd)
    return (name, *(f"{count:,}" for count in tokens), *("-" if cost is None else _usd(cost) for cost in costs))


def _usd(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 100 else f"{cost:.4f}"


def _sharing(found: Estimate) -> str:
    even, saved = found.break_even_children, round(found.saved, 6)
    effect = f"saves {saved:.1%} of the input bill" if saved >= 0 else f"costs {-saved:.1%} more input than not sharing"
    if even is None:
        return f"Sharing {effect}; with more children it does not." if saved > 0 else "Sharing never pays here."
    if saved > 0 and found.children < even:  # a lone child writes at a lower price than two would
        return f"Sharing {effect}; with more children it pays from {even:,} on."
    return f"Sharing {effect}; it pays from {'1 child' if even == 1 else f'{even:,} children'} on."


def _verdicts(found: Estimate) -> list[str]:
    lines = [_sharing(found)]
    named = found.named
    if named.cheaper is None or named.difference_usd is None:
        return lines
    on = f" on {brief(named.model, 60)}" if named.model != found.model else ""
    said = {
        "fork": f"Forking is cheaper than named agents{on}, by ${_usd(named.difference_usd)}.",
        "named": f"Named agents{on} are cheaper than forking, by ${_usd(named.difference_usd)}.",
        "same": f"Forking and named agents{on} cost the same.",
    }[named.cheaper]
    if named.even_at_tokens is None:
        even = "They stay cheaper however much they have to be given."
    else:
        even = f"Forking is cheaper where an agent would need more than {named.even_at_tokens:,} tokens of its own."
    return [*lines, said, even]
