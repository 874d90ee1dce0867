from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest
from hypothesis import HealthCheck, settings

from nexofork import AnthropicProvider, DefaultForkSubagent
from nexofork.simulator import Simulator, SimulatorConfig, ThreadedSimulator, simulator_thread
from tests.support.parents import Parent, open_llm
from tests.support.witness import Witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

_FOREIGN = (
    *("ANTHROPIC_", "NATS_", "XDG_CONFIG_HOME", "NEXOFORK_PRICES", "NEXOFORK_FORK_SUBAGENT", "NEXOFORK_COORDINATOR"),
    *("NEXOFORK_NON_INTERACTIVE", "NEXOFORK_AUTO_BACKGROUND", "NEXOFORK_KEEP_", "NEXOFORK_TELEMETRY", "OTEL_"),
    *("NEXOFORK_DAEMON_", "NEXOFORK_NATS_", "NEXOFORK_PROVIDER_", "NEXOFORK_SANDBOX_", "NEXOFORK_TOOLS_"),
    *("NEXOFORK_WORKSPACE_", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET"),
)
_LONG = {
    "chaos": "crashes at length",
    "fuzz": "200,000 shell commands, judged and run by bash in a jail",
    "ops": "what is billed, what outlives a cluster's leader, what an operator installs, at length",
}


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that exempts a test from the prefix check, and those of the long tests."""
    for variable in ("NEXOFORK_CONFIG", "NEXOFORKD_CONFIG"):
        os.environ[variable] = os.devnull  # nobody's settings file takes part, nor in processes that tests start
    config.addinivalue_line(
        "markers", "breaks_prefix(reason): the test's forks give up their parent's prefix on purpose"
    )
    # How long an example takes says nothing on a busy machine.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
    config.addinivalue_line("markers", "alone: compares times or traffic, so it runs while nothing else does")
    for name, what in _LONG.items():
        how = f"run with `-m {name}` or NEXOFORK_{name.upper()}=1"
        config.addinivalue_line("markers", f"{name}: {what}; takes minutes; {how}")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Leave the long tests out unless they are asked for."""
    for name in _LONG:
        if name in config.option.markexpr or os.environ.get(f"NEXOFORK_{name.upper()}"):
            continue
        for item in items:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"takes minutes; run with -m {name}"))


class StartSimulator(Protocol):
    """Starts a simulator that ends with the test."""

    async def __call__(self, config: SimulatorConfig | None = None) -> Simulator:
        """Start one."""


@pytest.fixture(autouse=True)
def _clean_environment() -> Iterator[None]:
    """Nobody's credentials or servers leak into a test."""
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_FOREIGN)}
    yield
    os.environ.update(kept)


@pytest.fixture(autouse=True)
def witness(request: pytest.FixtureRequest) -> Iterator[Witness]:
    """Checks, after the test, that every fork it made kept its parent's prefix and its own."""
    found = Witness()
    yield found
    if request.node.get_closest_marker("breaks_prefix") is None:
        found.check()


@pytest.fixture
async def start_simulator(witness: Witness) -> AsyncIterator[StartSimulator]:
    """Simulators with a configuration of their own."""
    async with AsyncExitStack() as running:

        async def start(config: SimulatorConfig | None = None) -> Simulator:
            simulator = await running.enter_async_context(Simulator(config))
            witness.watch(lambda: _bodies(simulator))
            return simulator

        yield start


@pytest.fixture
async def sim(start_simulator: StartSimulator) -> Simulator:
    """A fresh simulator."""
    return await start_simulator()


@pytest.fixture
def threaded_sim(witness: Witness) -> Iterator[ThreadedSimulator]:
    """A fresh simulator in a thread, for a parent without an event loop."""
    with simulator_thread() as simulator:
        witness.watch(lambda: _bodies(simulator))
        yield simulator


@pytest.fixture
async def parent(sim: Simulator) -> AsyncIterator[Parent]:
    """An agent that talks to the simulator."""
    async with Parent(sim.url) as agent:
        yield agent


@pytest.fixture
async def llm(sim: Simulator) -> AsyncIterator[AnthropicProvider]:
    """What the children call the model with."""
    async with open_llm(sim.url) as provider:
        yield provider


@pytest.fixture
async def forks(llm: AnthropicProvider) -> AsyncIterator[DefaultForkSubagent]:
    """The factory; it ends before the provider its forks use."""
    async with DefaultForkSubagent() as factory:
        yield factory


def _bodies(simulator: Simulator | ThreadedSimulator) -> list[bytes]:
    answered = (record.index for record in list(simulator.log) if record.status == 200)
    return [body for index in answered if (body := simulator.body(index)) is not None]
