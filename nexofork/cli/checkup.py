"""The checks of ``nexofork doctor``. Each looks at one thing and leaves nothing behind that a daemon would not.

To add one, write a function that returns a `Finding` and name it in `CHECKS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from nexofork.config.secrets import find_provider_key
from nexofork.core.rope import Rope
from nexofork.economics.prices import current_prices
from nexofork.economics.settings import prices_file
from nexofork.errors import BadSettings, ForkRefused, NexoforkError, ProviderError, SandboxUnavailable
from nexofork.providers.anthropic import AnthropicProvider
from nexofork.providers.provider import ModelRequest
from nexofork.sandbox.sandbox import open_sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexofork.config.settings import Settings
    from nexofork.sandbox.sandbox import SandboxSettings

__all__ = ["CHECKS", "Finding", "Patient"]

_PYTHON = (3, 11)
_GIT = (2, 31)
_FREE_BYTES = 1024**3
_GIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    name: str
    state: Literal["ok", "note", "wrong"]
    said: str
    """Without a full stop."""
    fix: str = ""
    """What to do, as a sentence; empty where nothing is to be done."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    """What is checked: this host, as a daemon with these options would find it."""

    settings: Settings
    sandbox: SandboxSettings
    environment: Mapping[str, str]
    model: str
    """Whose price is looked up, and who is called."""
    live: bool = False
    """Whether the provider may be called."""

    @property
    def nats_given(self) -> bool:
        """Whether somebody said where NATS is; else it need not be there."""
        return self.settings.given("nats.url")


Check = Callable[[Patient], Awaitable[Finding]]


async def check_python(_: Patient) -> Finding:
    """Whether the interpreter is new enough; it starts nothing otherwise."""
    said = f"Python {platform.python_version()}, uvloop {version('uvloop')}"
    if sys.version_info < _PYTHON:
        return Finding(name="python", state="wrong", said=said, fix="Use Python 3.11 or newer.")
    return Finding(name="python", state="ok", said=said)


async def check_git(_: Patient) -> Finding:
    """Whether there is a git that can make worktrees of bundles."""
    program = shutil.which("git")
    if program is None:
        return Finding(name="git", state="wrong", said="git is not installed", fix="Run: apt install git.")
    try:
        said = await _version_of(program)
    except TimeoutError:
        said = f"{program} said nothing for {_GIT_S:g} s"
        return Finding(name="git", state="wrong", said=said, fix="Try `git --version`, and repair or install git.")
    except OSError as exc:
        said = f"{program} cannot be run ({exc.strerror})"
        return Finding(name="git", state="wrong", said=said, fix="Repair or install git.")
    found = re.search(r"(\d+)\.(\d+)", said)
    if found is None or (int(found[1]), int(found[2])) < _GIT:
        wanted = ".".join(map(str, _GIT))
        return Finding(name="git", state="wrong", said=f"{said!r} is too old", fix=f"Install git {wanted} or newer.")
    return Finding(name="git", state="ok", said=said)


async def _version_of(program: str) -> str:
    """Return what it says of itself.

    Raises:
        TimeoutError: Nothing in time; it was ended.
        OSError: It cannot be run.
    """
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        async with asyncio.timeout(_GIT_S):
            return (await process.communicate())[0].decode(errors="replace").strip()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)  # a script's own children hold the pipe, too
        await process.wait()
        raise


async def check_sandbox(patient: Patient) -> Finding:
    """Whether commands can be kept apart from this host; really tries."""
    try:
        async with open_sandbox(patient.sandbox) as sandbox:
            if sandbox.name == "none":
                return Finding(name="sandbox", state="note", said="commands run bare, as --sandbox none says")
            network = "with the host's network" if patient.sandbox.network else "without network"
            return Finding(name="sandbox", state="ok", said=f"{sandbox.name} works, {network}")
    except SandboxUnavailable as exc:
        return Finding(name="sandbox", state="wrong", said=exc.problem, fix=exc.fix)


async def check_ripgrep(_: Patient) -> Finding:
    """Whether searches are quick."""
    if (program := shutil.which("rg", path="/usr/local/bin:/usr/bin:/bin")) is None:
        return Finding(
            name="ripgrep",
            state="note",
            said="ripgrep is not installed, so Grep is slower",
            fix="Run: apt install ripgrep.",
        )
    return Finding(name="ripgrep", state="ok", said=program)


async def check_disk(patient: Patient) -> Finding:
    """Whether runs have room to work."""
    folder = await asyncio.to_thread(_nearest, patient.sandbox.state_dir)
    free = shutil.disk_usage(folder).free
    said = f"{free / 1024**3:.1f} GiB free for {patient.sandbox.state_dir}"
    if free < _FREE_BYTES:
        return Finding(name="disk", state="wrong", said=said, fix="Make room, or give another --state-dir.")
    return Finding(name="disk", state="ok", said=said)


def _nearest(path: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


async def check_settings(patient: Patient) -> Finding:
    """Which settings a daemon would start with; wrong ones end the doctor before."""
    settings = patient.settings
    given = sum(setting.level == "environment" for setting in settings)
    said = f"{settings.file or 'no settings file'}, {given} from the environment"
    if settings.warnings:
        first, _, fix = settings.warnings[0].rstrip(".").partition(". ")
        return Finding(name="settings", state="note", said=f"{said}; {first}", fix=fix + "." if fix else "")
    return Finding(name="settings", state="ok", said=said)


async def check_key(patient: Patient) -> Finding:
    """Whether there is a key for the provider, which is never shown; with --live, whether the provider takes it."""
    try:
        key = find_provider_key(patient.settings, patient.environment)
    except BadSettings as exc:
        problem = exc.problems[0]
        return Finding(name="key", state="wrong", said=f"{problem.where} {problem.said}", fix=problem.fix)
    except ForkRefused as exc:
        said, _, fix = str(exc).partition(": ")
        return Finding(name="key", state="wrong", said=said, fix=fix[:1].upper() + fix[1:])
    said = f"the provider's key comes from {key.source}"
    if not patient.live:
        return Finding(name="key", state="ok", said=f"{said}; --live tries it, for less than a cent")
    base_url = patient.settings["provider.base_url"]
    try:
        async with AnthropicProvider.from_env(base_url=base_url, api_key=key.value) as provider:
            async with aclosing(provider.stream(_smallest(patient.model))) as events:
                async for _ in events:
                    pass
            workspace = provider.workspace_id or "not named"
    except ProviderError as exc:
        said, _, fix = str(exc).partition(". ")
        return Finding(name="key", state="wrong", said=said.rstrip("."), fix=fix)
    return Finding(name="key", state="ok", said=f"{said}; it works for {patient.model}, workspace {workspace}")


def _smallest(model: str) -> ModelRequest:
    body = {"model": model, "max_tokens": 1, "stream": True, "messages": [{"role": "user", "content": "Say ok."}]}
    return ModelRequest(body=Rope([json.dumps(body).encode()]))


async def check_prices(patient: Patient) -> Finding:
    """Whether the price file, ours or the operator's, can be used, and knows the model."""
    try:
        models = len(current_prices().models)
        known = current_prices().facts(patient.model) is not None
    except NexoforkError as exc:
        said, _, fix = str(exc).rpartition(". ")
        return Finding(name="prices", state="wrong", said=said, fix=fix)
    if not known:
        fix = "Add it to a file of prices and name that by NEXOFORK_PRICES; until then dollars are not known."
        return Finding(name="prices", state="note", said=f"there is no price for {patient.model}", fix=fix)
    return Finding(name="prices", state="ok", said=f"{models} models from {prices_file() or 'our own file'}")


CHECKS: tuple[Check, ...] = (
    check_python,
    check_git,
    check_sandbox,
    check_ripgrep,
    check_disk,
    check_settings,
    check_key,
    check_prices,
)
"""In the order they are shown; those of NATS come after them."""
