"""The loop: what the user says and what the children report go to the model, in the order they come.

While the children of a turn run, the agent waits for all of them, and their reports enter the conversation together.
Ctrl-B moves that wait to the background: the user goes on talking, and each report enters as it comes. Ctrl-C ends what
goes on, the children included: it returns to the prompt when the end of each of them is on its log.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, TypeVar

import anthropic

from examples.parent.terminal import CTRL_B
from nexofork import NexoforkError, task_notification

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from examples.parent.children import Children
    from examples.parent.commands import Commands
    from examples.parent.conversation import Conversation
    from examples.parent.terminal import Terminal
    from nexofork import AgentTool

__all__ = ["Session"]

INTERRUPTED = 130
_ENDING_S = 15.0

A = TypeVar("A")
B = TypeVar("B")


class Session:
    """One person, one conversation, and its children."""

    def __init__(
        self,
        terminal: Terminal,
        conversation: Conversation,
        agents: AgentTool,
        children: Children,
        commands: Commands,
    ) -> None:
        self._terminal = terminal
        self._conversation = conversation
        self._agents = agents
        self._children = children
        self._commands = commands
        self._inputs: asyncio.Queue[str] = asyncio.Queue()
        self._untold: list[str] = []
        """Ends that the model hears of with the next thing the user says."""
        self._let_go: set[str] = set()
        """Runs that nobody waits for in the foreground."""
        self._step: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._idle = self._leaving = self._pressed = False
        self._code = 0

    async def run(self) -> int:
        """Talk until the user leaves; returns the exit code."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave, INTERRUPTED)
        with self._terminal.opened(), self._agents.backgrounded_by():
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(self._listen(tasks))
                while not self._leaving:
                    if await self._interruptible(self._talk()):
                        await self._interruptible(self._end_children())
                await self._interruptible(self._end_children())
                for task in (listener, *self._chores):
                    task.cancel()
        return self._code

    async def _interruptible(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do something that Ctrl-C ends; returns whether it was pressed, be it at the last moment."""
        async with asyncio.TaskGroup() as tasks:
            self._step = tasks.create_task(work)
        pressed, self._pressed = self._pressed, False
        return pressed

    def _interrupt(self) -> None:
        self._terminal.stream("\n")  # behind the terminal's own ^C
        if self._idle and not self._children.running:
            self._leave(INTERRUPTED)
        elif self._step is not None:
            self._pressed = True
            self._step.cancel()

    def _leave(self, code: int = 0) -> None:
        self._leaving, self._code = True, code
        if self._step is not None:
            self._step.cancel()

    async def _talk(self) -> None:
        """Take what comes next and let the model deal with it."""
        texts = await self._next()
        self._idle = False
        try:
            await self._conversation.turn(texts)
        except (anthropic.AnthropicError, NexoforkError) as exc:
            self._terminal.show(f"That did not work: {exc}")

    async def _next(self) -> list[str]:
        if told := self._agents.notifications() or await self._foreground():
            return told
        self._idle = True
        self._terminal.prompt()
        while True:
            if not self._agents.running:
                return [*self._taken(), await self._inputs.get()]
            said, notice = await _first_of(self._inputs.get(), self._agents.next_notification())
            if said is not None:
                return [*self._taken(), *([notice] if notice else []), said]
            if notice is not None:
                return [notice]

    def _taken(self) -> list[str]:
        untold, self._untold = self._untold, []
        return untold

    async def _foreground(self) -> list[str]:
        """Wait for what was started and not let go of; returns the reports that came."""
        runs = [run_id for run_id in self._agents.running if run_id not in self._let_go]
        if not runs:
            return []
        count = "an agent" if len(runs) == 1 else f"{len(runs)} agents"
        self._terminal.show(f"Waiting for {count}; Ctrl-B (or /bg) goes on without, Ctrl-C ends everything.")
        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(self._agents.wait(run_id)) for run_id in runs]
        self._let_go.update(self._agents.running)
        return [task_notification(result) for wait in waits if (result := wait.result()) is not None]

    async def _end_children(self) -> None:
        """End all children, and keep what became of them for the model."""
        self._idle = False
        ending = 0
        try:
            with self._terminal.unasked():
                async with asyncio.timeout(_ENDING_S):
                    await self._children.settled()
                    running = self._agents.running
                    if ending := len(self._children.running):
                        self._terminal.show(f"Ending {ending} agents.")
                    problems = await self._children.end("interrupted by the user")
                    for run_id in running:
                        if (result := await self._agents.wait(run_id)) is not None:
                            self._untold.append(task_notification(result))
        except TimeoutError:
            problems = [f"{len(self._children.running)} agents have not reported their end yet; they were told to end."]
        self._untold += self._agents.notifications()
        for problem in problems:
            self._terminal.show(problem)
        if ending:
            self._terminal.show(f"Ended {ending - len(self._children.running)} of {ending} agents.")

    async def _listen(self, tasks: asyncio.TaskGroup) -> None:
        """Sort what is typed: commands are followed at once, everything else is for the model."""
        while (line := await self._terminal.line()) is not None:
            if line in (CTRL_B, "/bg"):
                self._background()
            elif line in ("/quit", "/exit"):
                break
            elif line.startswith("/"):
                chore = tasks.create_task(self._follow(line))
                self._chores.add(chore)
                chore.add_done_callback(self._chores.discard)
            else:
                if not self._idle:
                    self._terminal.show("(for the model, when it is done)")
                self._inputs.put_nowait(line)
        self._leave()

    async def _follow(self, line: str) -> None:
        await self._commands.follow(line)
        if self._idle:
            self._terminal.prompt()

    def _background(self) -> None:
        moved = self._agents.background()
        self._terminal.show("They go on in the background." if moved else "Nothing waits.")


async def _first_of(one: Coroutine[Any, Any, A], other: Coroutine[Any, Any, B]) -> tuple[A | None, B | None]:
    """Return what comes first, or both where they come together; nothing that came is lost."""
    async with asyncio.TaskGroup() as racers:
        first, second = racers.create_task(one), racers.create_task(other)
        first.add_done_callback(lambda _: second.cancel())
        second.add_done_callback(lambda _: first.cancel())
    return None if first.cancelled() else first.result(), None if second.cancelled() else second.result()
