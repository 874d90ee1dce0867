from __future__ import annotations

from datetime import UTC, date, datetime
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork import ForkStatus
from nexofork.core.usage import Usage
from nexofork.economics.prices import (
    cost_usd,
    current_prices,
    family_of,
    input_cost_usd,
    load_prices,
    model_facts,
    price_of,
    unshared_input_cost_usd,
)
from nexofork.errors import BadPrices, UnknownModelPrice
from nexofork.simulator.catalog import CATALOG
from tests.support.parents import fork

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent

ENTRY = """
[[price]]
model = "{model}"
from = {day}
source = "our contract"
input = {input}
read = 0.5
output = 9
minimum_tokens = 100
"""


def entry(model: str = "claude-opus-5-5", day: str = "2026-01-01", price: float = 3) -> str:
    """One good entry of a price file."""
    return ENTRY.format(model=model, day=day, input=price)


def written(folder: Path, text: str | bytes) -> Path:
    """A price file with this text."""
    path = folder / "prices.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-5-5",
        "claude-opus-5-5-20260901",
        "claude-opus-5-5-latest",
        "claude-opus-5-5@20260901",
        "anthropic.claude-opus-5-5",
        "anthropic.claude-opus-5-5-20260901-v1:0",
        "us.anthropic.claude-opus-5-5-20260901-v1:0",
        "us-gov.anthropic.claude-opus-5-5-v2",
        "global.anthropic.claude-opus-5-5-20260901-v1:0:200k",
    ],
)
def test_every_name_of_a_model_has_its_familys_price(model: str) -> None:
    """A date and a platform's way of writing it make no other model."""
    assert family_of(model) == "claude-opus-5-5"
    assert price_of(model, 1).input == 4


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-5-7",
        "claude-opus-5-5-5",
        "claude-opus-5-5-turbo",
        "claude-opus",
        "claude-opus-5-5-2026090",
        "my-claude-opus-5-5",
        "xanthropic.claude-opus-5-5",
        "CLAUDE-OPUS-5-5",
        "",
    ],
)
def test_a_name_that_no_entry_means_has_no_price(model: str) -> None:
    """A newer or otherwise different model is not billed as its neighbour; the error names what is known."""
    assert model_facts(model) is None
    with pytest.raises(UnknownModelPrice, match="NEXOFORK_PRICES") as refused:
        price_of(model, 1)

    assert "claude-opus-5-5" in refused.value.known


@given(st.text(max_size=80))
def test_any_name_has_a_price_or_none(model: str) -> None:
    """Whatever a request calls its model, asking for the price does no harm."""
    assert model_facts(model) is None or family_of(model) in current_prices().models


@pytest.mark.parametrize("model", sorted(set(CATALOG) & set(current_prices().models)))
@pytest.mark.parametrize("prompt_tokens", [1, 100_000, 100_001])
def test_the_simulator_bills_what_we_say(model: str, prompt_tokens: int) -> None:
    """Two lists kept apart agree on every model both know: prices, writes and the shortest prefix that is cached."""
    ours, theirs = price_of(model, prompt_tokens), CATALOG[model].price(prompt_tokens)
    facts = model_facts(model)

    assert (ours.input, ours.read, ours.output) == (theirs.input, theirs.read, theirs.output)
    assert ours.write_5m == pytest.approx(theirs.of(fresh=0, read=0, write_5m=10**6, write_1h=0, output=0))
    assert ours.write_1h == pytest.approx(theirs.of(fresh=0, read=0, write_5m=0, write_1h=10**6, output=0))
    assert facts is not None
    assert facts.minimum_tokens == CATALOG[model].minimum_cacheable_tokens


def test_every_shipped_price_is_one_the_simulator_knows() -> None:
    """The comparison leaves none of ours out, and those whose minimum nobody documents say so."""
    models = current_prices().models
    unverified = {model for model in models if not (facts := model_facts(model)) or not facts.minimum_verified}

    assert set(models) <= set(CATALOG)
    assert unverified == {"claude-fable-5-1", "claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"}


def test_a_call_is_billed_by_hand() -> None:
    """Fresh, read, both writes and output, each at its own price."""
    usage = Usage(
        input_tokens=1_000,
        cache_read_tokens=100_000,
        cache_write_5m_tokens=10_000,
        cache_write_1h_tokens=20_000,
        output_tokens=500,
    )

    # Opus 5.5: 4 in, 0.20 read, 5 and 8 to write, 20 out.
    assert input_cost_usd(usage, "claude-opus-5-5") == pytest.approx(0.004 + 0.02 + 0.05 + 0.16)
    assert cost_usd(usage, "claude-opus-5-5") == pytest.approx(0.004 + 0.02 + 0.05 + 0.16 + 0.01)
    assert unshared_input_cost_usd(usage, "claude-opus-5-5") == pytest.approx(0.131 * 4)


def test_a_long_prompt_has_its_own_price() -> None:
    """Haiku 5.5 costs five times as much for every token of a prompt above 100,000."""
    short = Usage(cache_read_tokens=90_000, input_tokens=10_000, output_tokens=100)
    long = Usage(cache_read_tokens=90_000, input_tokens=10_001, output_tokens=100)

    assert cost_usd(short, "claude-haiku-5-5") == pytest.approx((900 + 1_000 + 50) / 1e6)
    assert cost_usd(long, "claude-haiku-5-5") == pytest.approx((4_500 + 5_000.5 + 250) / 1e6)


def test_the_newest_entry_that_holds_on_the_day_applies(tmp_path: Path) -> None:
    """A price change is an entry more: calls before it keep their price, whatever the order in the file."""
    days = [entry(day="2026-06-01", price=7), entry(day="2026-03-01", price=8), entry(day="2026-09-01", price=6)]
    prices = load_prices(written(tmp_path, "".join(days)))

    def on(day: str) -> float:
        return prices.price("claude-opus-5-5", 1, date.fromisoformat(day)).input

    assert [on("2026-03-01"), on("2026-05-31"), on("2026-06-01"), on("2026-08-31"), on("2026-12-24")] == [8, 8, 7, 7, 6]
    assert on("2026-02-28") == 4  # the file says nothing of that day, ours does


def test_a_model_has_no_price_before_its_first_entry(tmp_path: Path) -> None:
    """What it cost on a day that no entry covers is not known."""
    prices = load_prices(written(tmp_path, entry("claude-novel-9", day="2026-06-01")))

    assert prices.facts("claude-novel-9", date(2026, 5, 31)) is None
    with pytest.raises(UnknownModelPrice):
        prices.price("claude-novel-9", 1, date(2026, 5, 31))


def test_today_is_the_day_unless_one_is_named(tmp_path: Path) -> None:
    """An entry that begins in the future is not used yet."""
    today = datetime.now(UTC).date()
    ahead = today.replace(year=today.year + 2, day=1)
    prices = load_prices(written(tmp_path, entry(day=str(ahead), price=99)))

    assert prices.price("claude-opus-5-5", 1).input == 4
    assert prices.price("claude-opus-5-5", 1, ahead).input == 99


def test_a_file_comes_before_ours_and_leaves_the_rest(tmp_path: Path) -> None:
    """A contract's price replaces the public one, a new model is added, all others stay."""
    text = entry(price=3.5) + entry("claude-novel-9") + "write_5m = 1\nwrite_1h = 1.5\n"
    text += "long = { above_tokens = 10, input = 30, read = 5, output = 90 }"
    prices = load_prices(written(tmp_path, text))

    novel, long = prices.price("claude-novel-9-20270101", 10), prices.price("claude-novel-9", 11)
    assert prices.price("claude-opus-5-5", 1).input == 3.5
    assert (novel.input, novel.write("5m"), novel.write("1h")) == (3, 3, 4.5)
    assert (long.input, long.read, long.output, long.write_1h) == (30, 5, 90, 45)
    assert prices.price("claude-opus-5", 1).input == 5


def test_an_entry_may_mean_one_dated_model(tmp_path: Path) -> None:
    """The full name comes before the family."""
    prices = load_prices(written(tmp_path, entry("claude-opus-5-5-20260901", price=1) + entry(price=2)))

    assert prices.price("claude-opus-5-5-20260901", 1).input == 1
    assert prices.price("claude-opus-5-5-20260902", 1).input == 2


def test_the_environment_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NEXOFORK_PRICES is in force for every bill, without a call to anything."""
    monkeypatch.setenv("NEXOFORK_PRICES", str(written(tmp_path, entry(price=3))))
    assert cost_usd(Usage(input_tokens=1_000_000), "claude-opus-5-5") == 3

    monkeypatch.setenv("NEXOFORK_PRICES", "")
    assert cost_usd(Usage(input_tokens=1_000_000), "claude-opus-5-5") == 4


def test_a_bad_file_in_the_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never passed over for the prices we ship."""
    monkeypatch.setenv("NEXOFORK_PRICES", str(tmp_path / "none.toml"))

    with pytest.raises(BadPrices, match=r"none\.toml cannot be used: it cannot be read \(No such file"):
        cost_usd(Usage(), "claude-opus-5-5")


async def test_a_fork_under_a_bad_file_fails_before_it_calls(
    sim: Simulator,
    parent: Parent,
    llm: AnthropicProvider,
    forks: DefaultForkSubagent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is sent that could not be accounted for, and the result names the file."""
    snapshot = await parent.ask()
    monkeypatch.setenv("NEXOFORK_PRICES", str(written(tmp_path, "price = 1")))
    result = await (await forks.fork(fork(snapshot, llm))).result()

    assert (result.status, result.end, sim.request_count) == (ForkStatus.FAILED, "BadPrices", 1)
    assert "begin every entry with [[price]]" in (result.error or "")


def test_a_price_is_not_read_from_disk_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of every fork asks for prices: they are there although the file has gone."""
    file = tmp_path / "prices.toml"
    file.write_bytes(files("nexofork.economics").joinpath("prices.toml").read_bytes())
    monkeypatch.setenv("NEXOFORK_PRICES", str(file))
    first = price_of("claude-opus-5-5", 1)

    file.unlink()

    assert price_of("claude-opus-5-5", 1) == first
