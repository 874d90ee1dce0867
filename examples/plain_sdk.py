"""Fork from a plain `anthropic` client: ``python -m examples.plain_sdk "Fix the tests." "Update the docs."``."""

import asyncio
import os
import sys

from anthropic import AsyncAnthropic
from anthropic.types import ToolParam

from nexofork import ForkParams, as_completed, capture, connect
from nexofork.errors import BusError

COMMAND: dict[str, object] = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH: ToolParam = {"name": "Bash", "description": "Run a command in a shell.", "input_schema": COMMAND}


async def main(directives: list[str]) -> None:
    """Say something, then fork one child per directive off the conversation."""
    client = AsyncAnthropic()
    captured = capture(client)
    await client.messages.create(
        model="claude-opus-4-8",
        max_tokens=4_000,
        cache_control={"type": "ephemeral"},
        tools=[BASH],
        messages=[{"role": "user", "content": "We will work in parts. " + "A long conversation. " * 1_000}],
    )
    async with connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222")) as forks:
        params = ForkParams(cache_safe=captured.snapshot(), prompt_messages="")
        async for result in as_completed(await forks.fork_each(params, directives)):
            shared = f"{result.usage.hit_ratio:.0%} from the cache"
            print(f"{result.status} on {result.daemon}, {shared}: {result.final_text}")


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:] or ["Look around, and say what you see."]))
    except BusError as exc:
        print(exc, file=sys.stderr)
        sys.exit(3)
