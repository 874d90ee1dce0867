"""Prices and model ids, as a bill shows them."""

from __future__ import annotations

import pytest

from nexofork.simulator import Model, Price, Simulator, SimulatorConfig
from tests.unit.simulator.client import post, request, sim, text, user

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("model", "fresh", "read", "output"),
    [
        ("claude-fable-5-1", 10, 0.25, 50),
        ("claude-opus-5-5", 4, 0.20, 20),
        ("claude-opus-5", 5, 0.50, 25),
        ("claude-opus-4-8", 5, 0.50, 25),
        ("claude-sonnet-5-5", 2, 0.10, 10),
        ("claude-sonnet-5", 2, 0.20, 10),
        ("claude-haiku-5-5", 0.10, 0.01, 0.50),
        ("claude-haiku-4-5", 1, 0.10, 5),
    ],
)
async def test_requests_are_priced_by_the_published_table(
    provider: Simulator, model: str, fresh: float, read: float, output: float
) -> None:
    """A write, then a read, each with fresh input and output."""
    body = request(user(text(5000, ttl="5m")), sim({"text": "word ", "repeat": 100}), model=model)
    await post(provider, body)
    await post(provider, body)

    wrote, again = provider.log
    said = 100 * output
    assert wrote.price_usd == pytest.approx((5000 * 1.25 * fresh + wrote.fresh * fresh + said) / MILLION)
    assert again.price_usd == pytest.approx((5000 * read + again.fresh * fresh + said) / MILLION)


async def test_an_hour_write_costs_double(provider: Simulator) -> None:
    """The longer TTL is billed at twice the input price."""
    await post(provider, request(user(text(1000, ttl="1h")), max_tokens=0))

    assert provider.log[0].price_usd == pytest.approx(1000 * 2 * 4 / MILLION)


@pytest.mark.parametrize(("tokens", "price"), [(100_000, 0.10), (100_001, 0.50)])
async def test_haiku_5_5_has_two_tiers(provider: Simulator, tokens: int, price: float) -> None:
    """Above a hundred thousand prompt tokens everything costs more."""
    await post(provider, request(user(text(tokens)), model="claude-haiku-5-5", max_tokens=0))

    assert provider.log[0].price_usd == pytest.approx(tokens * price / MILLION)


async def test_a_dated_id_is_its_family(provider: Simulator) -> None:
    """The answer names the model as it was asked for."""
    answer = await post(provider, request(model="claude-sonnet-4-5-20250929"))

    assert answer.json["model"] == "claude-sonnet-4-5-20250929"


async def test_models_can_be_added() -> None:
    """Prices and limits are data."""
    own = Model(id="own-model", prices=(Price(input=1, read=0, output=0),), context_window_tokens=100)
    async with Simulator(SimulatorConfig(models={"own-model": own})) as provider:
        small = await post(provider, request(user(text(100)), model="own-model"))
        large = await post(provider, request(user(text(101)), model="own-model"))

    assert (small.status, large.status) == (200, 400)


@pytest.mark.parametrize(
    ("key", "workspace"),
    [
        ("sk-sim-alpha", "wrkspc_alpha"),
        ("sk-sim-alpha-2", "wrkspc_alpha"),
        ("sk-sim-wrkspc_alpha", "wrkspc_alpha"),
        ("sk-ant-real", "wrkspc_default"),
        ("listed", "wrkspc_listed"),
    ],
)
def test_a_key_belongs_to_a_workspace(key: str, workspace: str) -> None:
    """By the list, else by its shape, else to the default."""
    config = SimulatorConfig(workspaces={"listed": "wrkspc_listed"}, organizations={"wrkspc_listed": "org_two"})

    tenant = config.tenant(key)

    assert tenant.workspace == workspace
    assert tenant.organization == ("org_two" if key == "listed" else "org_default")


def test_an_unknown_setting_is_refused() -> None:
    """The error lists what exists."""
    with pytest.raises(ValueError, match=r"unknown simulator settings: prot; known are .*port"):
        SimulatorConfig.from_mapping({"prot": 1})
