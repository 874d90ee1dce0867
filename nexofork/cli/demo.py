"""``nexofork demo``: a parent with a long conversation, two daemons as two hosts, five forks, and the bill."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from anthropic import AsyncAnthropic

from nexofork.bus.embedded import EmbeddedServer
from nexofork.cli.exit_codes import OK
from nexofork.cli.output import print_json
from nexofork.cli.session import finish
from nexofork.client.fleet import connect
from nexofork.core.usage import Usage
from nexofork.economics.prices import input_cost_usd, price_of, unshared_input_cost_usd
from nexofork.errors import SandboxUnavailable, UnknownModelPrice
from nexofork.providers.capture import capture
from nexofork.run.events import ForkClaimed, ForkEnded, ToolStarted, TurnFinished
from nexofork.run.params import ForkParams
from nexofork.sandbox.sandbox import SandboxSettings, open_sandbox
from nexofork.simulator import Simulator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from nexofork.client.handle import ForkHandle
    from nexofork.core.snapshot import CacheSafeParams
    from nexofork.run.result import ForkResult

    _Say: TypeAlias = Callable[[str], None]

__all__ = ["demo"]

_HOSTS = ("host-a", "host-b")
_DIRECTIVES = (
    "Update the database schema for the new billing period.",
    "Rewrite the service layer against the new schema.",
    "Adjust the router and its error responses.",
    "Fix the tests that depend on the old period format.",
    "Bring the type definitions in line.",
)
_TASK = "Plan the change to billing periods, then have each part done in parallel."
_TOOLS = [
    {
        "name": "Agent",
        "description": "Start an agent that works in the background. Without subagent_type it is a fork of you.",
        "input_schema": {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    },
    {
        "name": "Bash",
        "description": "Run a command.",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
]
_MARK = {"type": "ephemeral"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endpoint:
    """Where the demo's model calls go."""

    base_url: str | None
    api_key: str | None


@click.command()
@click.option("--model", default="claude-opus-5", show_default=True, help="Model of the parent and its forks.")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="TOKENS",
    default=100_000,
    show_default=True,
    help="Length of the parent's conversation, about.",
)
@click.option("--live", is_flag=True, help="Use the real API; needs ANTHROPIC_API_KEY and costs money.")
@click.option("--yes", is_flag=True, help="With --live: do not ask before spending.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the results, one JSON object per line; the rest on stderr."
)
def demo(*, model: str, tokens: int, live: bool, yes: bool, as_json: bool) -> None:
    """Fork a long conversation five ways and show what sharing saved.

    Starts a nats-server and two daemons of its own, as two hosts, and runs against the built-in simulator, which
    accounts for the prompt cache as the provider does. With --live the same runs on the real API, after showing what
    it will cost.
    """
    say = partial(click.echo, err=as_json)
    try:
        price_of(model, tokens)  # an unknown model is refused before anything is sent
    except UnknownModelPrice as exc:
        raise click.UsageError(str(exc)) from exc
    if live:
        _confirm_spending(model, tokens, yes=yes, say=say)
    finish(lambda: _present(model, tokens, live=live, as_json=as_json, say=say))


async def _present(model: str, tokens: int, *, live: bool, as_json: bool, say: _Say) -> int:
    results = await _demo(model, tokens, live=live, say=say)
    if as_json:
        for result in results:
            print_json(result.to_json())
    else:
        _print_table(results)
    if not all(result.ok for result in results):
        raise click.ClickException("Not every fork completed; see the table.")
    return OK


def _confirm_spending(model: str, tokens: int, *, yes: bool, say: _Say) -> None:
    if not os.environ.get("ANTHROPIC_API_KEY"):
        raise click.UsageError("--live needs ANTHROPIC_API_KEY; without --live the simulator is used.")
    price = price_of(model, tokens)
    parent = tokens * 1.25 * price.input / 1e6
    children = len(_DIRECTIVES) * tokens * price.read / 1e6
    output = (len(_DIRECTIVES) + 1) * 1500 * price.output / 1e6
    say(f"Estimate for {model}: parent writes about {tokens:,} tokens once (${parent:.2f}),")
    say(f"{len(_DIRECTIVES)} forks read them (${children:.2f}), output at most about ${output:.2f}.")
    if not yes:
        click.confirm(f"Spend about ${parent + children + output:.2f} on the real API?", abort=True, err=True)


async def _demo(model: str, tokens: int, *, live: bool, say: _Say) -> list[ForkResult]:
    async with AsyncExitStack() as stack:
        endpoint = _Endpoint(base_url=os.environ.get("ANTHROPIC_BASE_URL"), api_key=os.environ.get("ANTHROPIC_API_KEY"))
        if not live:
            simulator = await stack.enter_async_context(Simulator())
            simulator.script(*_script())
            endpoint = _Endpoint(base_url=simulator.url, api_key="sk-sim-demo")
        nats = await stack.enter_async_context(EmbeddedServer())
        state_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="nexofork-demo-"))
        sandbox = await _sandbox(Path(state_dir))
        for host in _HOSTS:
            options = ("--name", host, *sandbox, "--state-dir", state_dir)
            await stack.enter_async_context(_daemon(host, nats.url, endpoint, options))
        say(f"nats-server at {nats.url}, daemons {' and '.join(_HOSTS)} are ready (sandbox: {sandbox[1]}).")
        say(f"Parent: {model}, about {tokens:,} tokens of conversation, {'real API' if live else 'simulator'}.")
        snapshot = await _parent_turn(endpoint, model, tokens)
        parent = snapshot.reply.usage if snapshot.reply else Usage()
        say(f"Its turn wrote {parent.cache_write_tokens:,} tokens to the cache. Forking {len(_DIRECTIVES)} ways …")
        return await _fork(nats.url, snapshot, say)


async def _sandbox(state_dir: Path) -> tuple[str, ...]:
    """Return the daemons' options for a sandbox, and say so where there is none."""
    try:
        async with open_sandbox(SandboxSettings(state_dir=state_dir)) as found:
            return ("--sandbox", found.name)
    except SandboxUnavailable as exc:
        root = os.geteuid() == 0
        bare = "bare and as root (--allow-root)" if root else "bare"
        click.echo(f"Commands run {bare} on this machine: {exc.problem}.", err=True)
        return ("--sandbox", "none", *(("--allow-root",) if root else ()))


@asynccontextmanager
async def _daemon(name: str, nats_url: str, endpoint: _Endpoint, options: Sequence[str]) -> AsyncIterator[None]:
    """Run a daemon process, as if it were a host of its own."""
    settings = {"ANTHROPIC_BASE_URL": endpoint.base_url, "ANTHROPIC_API_KEY": endpoint.api_key}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # This host's own settings are for a daemon of its own.
        *("-P", "-m", "nexofork_daemon", "--config", os.devnull, "--nats", nats_url, "--slots", "8", *options),
        env={**os.environ, **{key: value for key, value in settings.items() if value}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        if (await process.stdout.readline()).strip() != b"ready":
            said = (await process.stderr.read()).decode(errors="replace").strip()
            raise click.ClickException(f"The daemon {name} did not start: {said}")
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _parent_turn(endpoint: _Endpoint, model: str, tokens: int) -> CacheSafeParams:
    """Let the parent speak once through the ordinary SDK, with its bytes recorded."""
    async with AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        captured = capture(client)
        async with client.messages.stream(**_request(model, tokens)) as stream:
            await stream.until_done()
        return captured.snapshot()


async def _fork(nats_url: str, snapshot: CacheSafeParams, say: _Say) -> list[ForkResult]:
    async with connect(nats_url) as forks:
        params = ForkParams(cache_safe=snapshot, prompt_messages="", max_turns=8, timeout=300)
        handles = await forks.fork_each(params, _DIRECTIVES)
        async with asyncio.TaskGroup() as watching:
            for number, handle in enumerate(handles, start=1):
                watching.create_task(_show(number, handle, say))
        return [await handle.result() for handle in handles]


async def _show(number: int, handle: ForkHandle, say: _Say) -> None:
    """Say what a child does as it does it."""
    async for event in handle.events():
        match event:
            case ForkClaimed():
                say(f"  {number}  {event.daemon} took it")
            case TurnFinished():
                say(f"  {number}  turn {event.turn}: {event.usage.cache_read_tokens:,} tokens read from the cache")
            case ToolStarted():
                say(f"  {number}  runs {event.name}")
            case ForkEnded():
                say(f"  {number}  {event.result.status}")
            case _:
                pass


def _request(model: str, tokens: int) -> dict[str, Any]:
    """A conversation of about so many tokens, marked the way a caching agent marks it."""
    chunk_tokens = 4_000
    messages: list[dict[str, Any]] = []
    for index in range(max(1, tokens // chunk_tokens)):
        listing = _listing(index, chunk_tokens)
        messages.append({"role": "user", "content": [{"type": "text", "text": listing}]})
        messages.append({"role": "assistant", "content": [{"type": "text", "text": f"Read file {index}."}]})
    messages.append({"role": "user", "content": [{"type": "text", "text": _TASK, "cache_control": _MARK}]})
    system = [
        {"type": "text", "text": "You are a careful engineer. Fork when work is parallel.", "cache_control": _MARK}
    ]
    return {"model": model, "max_tokens": 1500, "system": system, "tools": _TOOLS, "messages": messages}


def _listing(index: int, tokens: int) -> str:
    """Text that looks like source code and is the same on every run."""
    words = random.Random(index)
    names = [f"{words.choice(_WORDS)}_{words.choice(_WORDS)}" for _ in range(60)]
    lines = [f"# file {index}"]
    size = 0
    while size < tokens * 4:
        line = f"    {words.choice(names)} = {words.choice(names)}({words.choice(names)}, {words.randrange(1000)})"
        lines.append(line)
        size += len(line) + 1
    return "\n".join(lines)


_WORDS = ("period", "billing", "invoice", "schema", "router", "tenant", "amount", "cursor", "ledger", "retry")


def _script() -> list[dict[str, Any]]:
    """What the simulated model says: the parent forks five ways, each child looks once and reports."""
    calls = [{"name": "Agent", "input": {"prompt": directive}} for directive in _DIRECTIVES]
    children = [
        {
            "match": directive,
            "turns": [
                {"tools": [{"name": "Bash", "input": {"command": "grep -c . /etc/os-release"}}]},
                {"text": f"Scope: {directive}\nResult: done\nKey files: file 0\nFiles changed: none\nIssues: none"},
            ],
        }
        for directive in _DIRECTIVES
    ]
    return [*children, {"match": _TASK, "turns": [{"text": "Five parts, one fork each.", "tools": calls}]}]


def _print_table(results: list[ForkResult]) -> None:
    click.echo()
    click.echo(
        f"{'fork':<30} {'host':<8} {'status':<10} {'read':>9} {'written':>8} {'fresh':>6} {'hit':>6} {'input $':>9}"
    )
    total = alone = 0.0
    for result in results:
        usage = result.usage
        cost = sum(input_cost_usd(call.usage, result.model) for call in result.calls)
        total += cost
        alone += sum(unshared_input_cost_usd(call.usage, result.model) for call in result.calls)
        click.echo(
            f"{result.directive[:29]:<30} {result.daemon or '':<8} {result.status:<10} {usage.cache_read_tokens:>9,} "
            f"{usage.cache_write_tokens:>8,} {usage.input_tokens:>6,} {usage.hit_ratio:>6.1%} {cost:>9.4f}"
        )
    click.echo()
    hosts = {result.daemon for result in results if result.calls and result.calls[0].usage.hit_ratio > 0.5}
    click.echo(f"{'hosts that read one cache':<34} {', '.join(sorted(filter(None, hosts)))}")
    click.echo(f"{'input, shared':<34} ${total:.4f}")
    click.echo(f"{'input, no sharing':<34} ${alone:.4f}")
    if alone:
        click.echo(f"{'saved':<34} {1 - total / alone:.1%}")
