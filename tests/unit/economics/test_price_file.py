from __future__ import annotations

import string
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nexofork.economics.prices import load_prices
from nexofork.errors import BadPrices, ForkRefused
from tests.unit.economics.test_prices import entry, written

if TYPE_CHECKING:
    from pathlib import Path


def refusal(folder: Path, text: str | bytes) -> BadPrices:
    """What is said about such a file."""
    with pytest.raises(BadPrices) as refused:
        load_prices(written(folder, text))
    return refused.value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("input = 3", ""), "entry 1 (claude-opus-5-5): `input` is missing"),
        (("from = 2026-01-01", ""), "entry 1 (claude-opus-5-5): `from` is missing"),
        (('model = "claude-opus-5-5"', ""), "entry 1: `model` is missing"),
        (("minimum_tokens = 100", ""), "`minimum_tokens` is missing"),
        (('source = "our contract"', 'source = "  "'), "`source` is '  '; give a text in quotes"),
        (("input = 3", "input = -3"), "`input` is -3; give dollars per million tokens"),
        (("input = 3", "input = nan"), "`input` is nan; give dollars"),
        (("input = 3", "input = inf"), "`input` is inf; give dollars"),
        (("input = 3", "input = 1e300"), "`input` is 1e+300; give dollars"),
        (("input = 3", "input = " + "9" * 400), "`input` is far too large; give dollars"),
        (("input = 3", "input = true"), "`input` is True; give dollars"),
        (("input = 3", 'input = "3"'), "`input` is '3'; give dollars"),
        (("minimum_tokens = 100", "minimum_tokens = 1.5"), "`minimum_tokens` is 1.5; give a whole number"),
        (("minimum_tokens = 100", "minimum_tokens = -1"), "`minimum_tokens` is -1; give a whole number"),
        (("from = 2026-01-01", 'from = "January"'), "`from` is 'January'; give a day, such as 2026-11-01"),
        (("from = 2026-01-01", "from = 2026-01-01T00:00:00Z"), "give a day, such as 2026-11-01"),
        (("from = 2026-01-01", "from = 2026"), "`from` is 2026; give a day"),
        (("input = 3", "imput = 3"), "`imput` is not a key (did you mean `input`?)"),
        (("read = 0.5", "read = 0.5\nzzz = 1"), "`zzz` is not a key (the keys are model, from, source"),
        (("read = 0.5", "read = 0.5\nwrite_5m = -1"), "`write_5m` is -1; give a multiple of the input price"),
        (("read = 0.5", "read = 0.5\nminimum_verified = 1"), "`minimum_verified` is 1; give true or false"),
        (("read = 0.5", "read = 0.5\nlong = 5"), "`long` is 5; give a table"),
        (("read = 0.5", "read = 0.5\nlong = {}"), "`long` is {}; give a table"),
        (("read = 0.5", "read = 0.5\nlong = {above = 1}"), "`above` is not a key (did you mean `above_tokens`?)"),
        (("[[price]]", "[price]"), "`price` is not a list of tables; begin every entry with [[price]]"),
        (("[[price]]", "[[prices]]"), "`prices` is not a key (did you mean `price`?) at the top"),
        (("input = 3", "input = "), "it is not TOML (Invalid value (at line 6"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    """File, entry, field, what stands there and what should."""
    assert change[0] in entry()
    error = refusal(tmp_path, entry().replace(*change))

    assert said in str(error)
    assert str(error).startswith(f"The price file {tmp_path}/prices.toml cannot be used: ")
    assert str(error).endswith("Correct the file, or leave it out.")
    assert isinstance(error, ForkRefused)


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    """Nobody has to correct a file one error at a time."""
    bad = entry().replace("input = 3", "imput = 3").replace("2026-01-01", '"soon"') + "[[price]]\ninput = -1\n"
    error = refusal(tmp_path, bad + entry("claude-novel-9") + entry("claude-novel-9"))

    said = " ".join(error.problems)
    assert len(error.problems) == 3 + 7 + 1
    for part in ("`imput`", "`from` is 'soon'", "entry 2: `input` is -1", "entry 2: `read`", "claude-novel-9 has two"):
        assert part in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "there is no [[price]] entry"),
        (b"price = 5", "`price` is not a list"),
        (b"price = [1]", "`price` is not a list"),
        (b"\xff\xfe", "it is not TOML"),
        (b"{}", "it is not TOML"),
        (b"price = " + b"[" * 100_000, "nested too deeply"),
        (b"#" * 1_000_001, "longer than 1,000,000 bytes"),
        (b"price = " + b"9" * 10_000, "it is not TOML"),
    ],
)
def test_what_is_no_price_file_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    """Whatever the bytes are, there is one error of ours."""
    assert said in str(refusal(tmp_path, data))


def test_a_folder_is_no_price_file(tmp_path: Path) -> None:
    """Nor is anything else that cannot be read."""
    with pytest.raises(BadPrices, match="Is a directory"):
        load_prices(tmp_path)
    with pytest.raises(BadPrices, match="null"):
        load_prices("a\0b")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.one_of(st.binary(max_size=200), st.text(string.printable, max_size=200).map(str.encode)))
def test_any_bytes_are_read_or_refused(tmp_path: Path, data: bytes) -> None:
    """No file makes anything but `BadPrices` come out."""
    with suppress(BadPrices):
        load_prices(written(tmp_path, data))
