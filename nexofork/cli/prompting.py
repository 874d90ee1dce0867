"""Ask a person at the terminal whether a call may run, one question at a time."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING

import click

from nexofork.cli.output import plain
from nexofork.policy.permissions import PermissionAnswer

if TYPE_CHECKING:
    from nexofork.cli.keyboard import Keyboard
    from nexofork.policy.permissions import PermissionAsk

__all__ = ["Prompt"]

_SHOWN_CHARACTERS = 4_000


class Prompt:
    """Shows questions in the order they came; an `on_permission` callback."""

    def __init__(self, keyboard: Keyboard) -> None:
        self._keyboard = keyboard

    async def __call__(self, ask: PermissionAsk) -> PermissionAnswer:
        """Return what the person says; waits for ever where nobody wants to."""
        ends_at = time.monotonic() + ask.deadline_s
        always = ", a(lways)" if ask.rules else ""
        async with self._keyboard.lines() as line:
            _show(ask, left_s=max(0.0, ends_at - time.monotonic()))
            while (said := await line(f"Allow? y(es), n(o), n REASON{always}: ")) is not None:
                if (answer := _answer(said, ask)) is not None:
                    return answer
        click.echo("This question is left to others.", err=True)
        forever: asyncio.Future[PermissionAnswer] = asyncio.get_running_loop().create_future()
        return await forever  # until the question is decided, or the run is over


def _answer(line: str, ask: PermissionAsk) -> PermissionAnswer | None:
    word, _, reason = line.partition(" ")
    match word.lower():
        case "y" | "yes" if not reason:
            return PermissionAnswer(allow=True)
        case "n" | "no":
            return PermissionAnswer(allow=False, note=reason.strip())
        case "a" | "always" if ask.rules and not reason:
            return PermissionAnswer(allow=True, remember=True)
        case _:
            return None


def _show(ask: PermissionAsk, *, left_s: float) -> None:
    lines = [f"{ask.name} asks for permission ({ask.ask_id}, {left_s:.0f} s left)"]
    for key, value in ask.arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        if len(text) > _SHOWN_CHARACTERS:
            text = f"{text[:_SHOWN_CHARACTERS]}… [{len(text) - _SHOWN_CHARACTERS} characters more]"
        lines.append(f"  {key}: " + text.replace("\n", "\n    "))
    if ask.rules:
        lines.append(f"  always means: {', '.join(ask.rules)}")
    click.echo(plain("\n".join(lines)), err=True)
