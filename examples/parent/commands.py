"""What the user can do beside talking: look after children, take their work over, ask aside, see the bill."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nexofork import AnthropicProvider, DefaultForkSubagent, ForkParams, ForkStatus, NexoforkError
from nexofork.bus.connection import open_bus
from nexofork.bus.ledger import check_ledger, read_bookings
from nexofork.economics.ledger import price_calls, sum_by, total
from nexofork.errors import ForkRefused
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from anthropic import AsyncAnthropic

    from examples.parent.children import Children
    from examples.parent.conversation import Bill
    from examples.parent.terminal import Terminal
    from nexofork import ForkHandle, NatsForkSubagent
    from nexofork.agents.tool import SnapshotSource
    from nexofork.bus.connection import BusSettings
    from nexofork.core.usage import Usage
    from nexofork.workspace.fetch import Fetched

__all__ = ["Commands"]

HELP = """\
/tasks            the agents, and how far they are
/msg N TEXT       say something to a running agent
/bg, Ctrl-B       go on talking while agents run
/btw QUESTION     ask aside: answered from the conversation, not part of it
/fetch N          take an agent's commits into refs/forks/, and say whether they merge
/merge [N …]      merge the work of these agents, or of all that are done
/cost             what was spent, here and by the agents
/quit, Ctrl-D     end all agents and leave; Ctrl-C ends what goes on"""
_ASIDE = (
    "The user asks something aside. Answer it in a few sentences from what you know already; do not go on with the "
    "work, and call no tool. The question: "
)


class Commands:
    """The commands of one session."""

    def __init__(
        self,
        terminal: Terminal,
        children: Children,
        forks: NatsForkSubagent,
        *,
        root: Path,
        source: SnapshotSource,
        client: AsyncAnthropic,
        bus: BusSettings,
        parent_id: str,
        bill: Bill,
    ) -> None:
        self._terminal = terminal
        self._children = children
        self._forks = forks
        self._root = root
        self._source = source
        self._client = client
        self._bus = bus
        self._parent_id = parent_id
        self._bill = bill
        self._since = time.time()
        self._merged: set[str] = set()
        self._repository = asyncio.Lock()
        """Two at a time would be in each other's way."""
        self._known: dict[str, Callable[[str], Awaitable[None]]] = {
            "/help": self._help,
            "/tasks": self._tasks,
            "/msg": self._message,
            "/btw": self._aside,
            "/fetch": self._fetch,
            "/merge": self._merge,
            "/cost": self._cost,
        }

    async def follow(self, line: str) -> None:
        """Do what a line says; whatever is wrong with it is shown."""
        word, _, rest = line.partition(" ")
        try:
            await self._known.get(word, self._help)(rest.strip())
        except (NexoforkError, OSError) as exc:
            self._terminal.show(f"{word}: {exc}")

    async def _help(self, _: str) -> None:
        self._terminal.show(HELP)

    async def _tasks(self, _: str) -> None:
        rows = {row.run_id: row for row in await self._forks.children()}
        if not self._children.handles:
            self._terminal.show("No agent was started yet.")
        for number, handle in enumerate(self._children.handles, start=1):
            row = rows.get(handle.run_id)
            # The handle may know of an end that the log's index does not have yet.
            status = handle.status if row is None or handle.status.over else row.status
            where = f"on {row.daemon}" if row and row.daemon else "on no host"
            self._terminal.show(f"{number}  {status}  {where}  {handle.label}  {handle.run_id}")

    async def _message(self, rest: str) -> None:
        word, _, text = rest.partition(" ")
        handle = self._children.find(word)
        await handle.message(text.strip())
        self._terminal.show(f"{self._children.name(handle.run_id)} reads it after its present turn.")

    async def _aside(self, question: str) -> None:
        if not question:
            raise ForkRefused("Say what you want to know: /btw QUESTION.")
        # In this process: it needs no tools, and must not wait for a free daemon.
        async with DefaultForkSubagent() as forks:
            params = ForkParams(
                cache_safe=self._source.snapshot(),
                llm=AnthropicProvider(self._client),
                prompt_messages=_ASIDE + question,
                fork_label="btw",
                boilerplate=False,
                max_turns=3,
            )
            result = await (await forks.fork(params)).result()
        for call in result.calls:
            self._bill.add(call.usage)
        self._terminal.show(result.final_text if result.ok else f"/btw: {result.error or result.status}")

    async def _fetch(self, word: str) -> None:
        async with self._repository:
            self._terminal.show(self._described(await self._fetched(self._children.find(word))))

    async def _merge(self, words: str) -> None:
        """Merge one after the other, so that each is tried on what the one before left."""
        async with self._repository:
            chosen = [self._children.find(word) for word in words.split()] or [
                handle
                for handle in self._children.handles
                if handle.status is ForkStatus.COMPLETED and handle.run_id not in self._merged
            ]
            if not chosen:
                raise ForkRefused("No agent is done whose work was not merged yet; /tasks shows them.")
            for handle in chosen:
                name = self._children.name(handle.run_id)
                try:
                    fetched = await self._fetched(handle)
                except ForkRefused as exc:
                    self._terminal.show(f"{name}: {exc}")
                    continue
                if not fetched.merges or fetched.in_the_way:
                    self._terminal.show(self._described(fetched))
                    continue
                code, said = await self._git("merge", "--no-edit", "-m", f"Merge {name}", fetched.ref)
                if code:
                    await self._git("merge", "--abort")
                    self._terminal.show(f"{name} was not merged, and nothing is changed: {said}")
                    continue
                self._merged.add(handle.run_id)
                self._terminal.show(f"{name} is merged: {', '.join(one.subject for one in fetched.commits)}")

    async def _fetched(self, handle: ForkHandle) -> Fetched:
        if not handle.status.over:
            raise ForkRefused(f"{self._children.name(handle.run_id)} is still at work.")
        return await handle.fetch(self._root)

    def _described(self, fetched: Fetched) -> str:
        lines = [f"{self._children.name(fetched.run_id)}: {fetched.ref}"]
        lines += [f"  {commit.subject}" for commit in fetched.commits]
        lines += [f"  {file.path}" for file in fetched.files]
        if fetched.in_the_way:
            lines.append(f"Commit or stash your own changes first: {', '.join(fetched.in_the_way)}.")
        elif fetched.conflicts:
            lines.append(f"It conflicts in {', '.join(fetched.conflicts)}; merge {fetched.ref} by hand.")
        else:
            lines.append("It merges." if fetched.merges else f"git does not merge it; look at {fetched.ref}.")
        return "\n".join(lines)

    async def _git(self, *arguments: str) -> tuple[int, str]:
        # In a session of its own: Ctrl-C at the terminal does not tear a merge in two.
        process = await asyncio.create_subprocess_exec(
            *("git", "-C", str(self._root), *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode(errors="replace").strip()

    async def _cost(self, _: str) -> None:
        bill = self._bill
        self._terminal.show(_bill_line("This conversation", bill.calls, bill.usage, bill.usd))
        async with open_bus(self._bus) as bus:
            checked = await check_ledger(bus, await read_bookings(bus, self._since), pool=DEFAULT_POOL)
        calls = price_calls(call for call in checked.counted if call.parent == self._parent_id)
        for row in sum_by(calls, "run"):
            usd = row.money.billed if row.priced else None
            self._terminal.show(_bill_line(self._children.name(row.key), row.calls, row.usage, usd))
        sums = total(calls)
        if sums.saved is not None:
            self._terminal.show(f"Sharing the conversation saved {sums.saved:.0%} of what the agents would have cost.")


def _bill_line(name: str, calls: int, usage: Usage, usd: float | None) -> str:
    cost = "no price is known for the model" if usd is None else f"${usd:.4f}"
    return f"{name}: {calls} calls, {usage.prompt_tokens:,} tokens in ({usage.hit_ratio:.0%} cached), {cost}"
