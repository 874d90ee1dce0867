"""An Anthropic-compatible server with real cache accounting: the judge of everything else in this project.

It obeys the provider's published rules to the letter and takes the pessimistic reading where they are silent. It
shares no code with the rest of nexofork, so one bug cannot hide on both sides.
Invariant: nothing in this package imports anything of nexofork outside it.
"""

from __future__ import annotations

from nexofork.simulator.canon import count_block_tokens
from nexofork.simulator.catalog import CATALOG, Model, Price
from nexofork.simulator.clock import Clock
from nexofork.simulator.config import RateLimits, SimulatorConfig, Tenant
from nexofork.simulator.faults import ScriptError
from nexofork.simulator.log import RequestRecord
from nexofork.simulator.server import Simulator
from nexofork.simulator.thread import ThreadedSimulator, simulator_thread

__all__ = [
    "CATALOG",
    "Clock",
    "Model",
    "Price",
    "RateLimits",
    "RequestRecord",
    "ScriptError",
    "Simulator",
    "SimulatorConfig",
    "Tenant",
    "ThreadedSimulator",
    "count_block_tokens",
    "simulator_thread",
]
