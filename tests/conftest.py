from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from nexofork import AnthropicProvider, DefaultForkSubagent
from nexofork.simulator import Simulator, SimulatorConfig, ThreadedSimulator, simulator_thread
from tests.support.parents import Parent, open_llm
from tests.support.witness import Witness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_FOREIGN = ("ANTHROPIC_", "NATS_", "NEXOFORK_PRICES")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker that exempts a test from the prefix check."""
    config.addinivalue_line(
        "markers", "breaks_prefix(reason): the test's forks give up their parent's prefix on purpose"
    )


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
