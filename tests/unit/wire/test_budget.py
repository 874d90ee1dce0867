from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.errors import BadMessage
from nexofork.wire.budget import Account, AccountHistory, Room, decode_account
from nexofork.wire.messages import Amount, BudgetLimit, encode
from nexofork.wire.subjects import check_run_id

amounts = st.builds(
    Amount, tokens=st.integers(0, 10**6), usd=st.floats(0, 5, allow_nan=False).map(lambda usd: round(usd, 6))
)
limits = st.builds(
    BudgetLimit, tokens=st.none() | st.integers(1, 10**7), usd=st.none() | st.floats(0.000001, 50, allow_nan=False)
)


@given(limit=limits, calls=st.lists(st.tuples(amounts, st.floats(0, 1), st.booleans()), max_size=40))
def test_no_order_of_calls_passes_the_limit(limit: BudgetLimit, calls: list[tuple[Amount, float, bool]]) -> None:
    """As long as no call costs more than was set aside, spent and set aside together stay within."""
    account = Account(limit=limit)
    for number, (amount, share, ends_now) in enumerate(calls):
        if account.room(amount) is Room.FITS:
            account = account.reserved(str(number), amount)
        if ends_now and account.open:
            key, held = next(iter(account.open.items()))
            cost = Amount(tokens=int(held.tokens * share), usd=held.usd * share)
            account = account.settled(key, cost if share < 1 else None)
        together = account.spent + account.held
        assert limit.tokens is None or together.tokens <= limit.tokens
        assert limit.usd is None or together.usd <= limit.usd + 1e-8


@given(limit=limits, spent=amounts, held=amounts, amount=amounts)
def test_waiting_is_for_what_others_may_give_back(
    limit: BudgetLimit, spent: Amount, held: Amount, amount: Amount
) -> None:
    """A call is told to wait exactly if it would fit once all others had cost nothing."""
    account = Account(limit=limit, spent=spent, open={"other": held})
    freed = account.settled("other", Amount())

    assert (account.room(amount) is Room.NEVER) == (freed.room(amount) is Room.NEVER)
    assert freed.room(amount) is not Room.LATER


def test_doing_it_twice_is_doing_it_once() -> None:
    """A write whose answer was lost is applied again without harm."""
    account = Account(limit=BudgetLimit(tokens=100)).reserved("a", Amount(tokens=60))
    settled = account.settled("a", Amount(tokens=20))

    assert settled.settled("a", Amount(tokens=20)) is settled
    assert (settled.spent.tokens, settled.open) == (20, {})
    assert account.reserved("a", Amount(tokens=60)).held == account.held


def test_ten_dimes_are_a_dollar() -> None:
    """Sums of dollars are not held against a call for the last binary digit."""
    account = Account(limit=BudgetLimit(usd=1.0))
    for number in range(10):
        assert account.room(Amount(usd=0.1)) is Room.FITS
        account = account.reserved(str(number), Amount(usd=0.1)).settled(str(number), None)
    assert account.room(Amount(usd=0.000001)) is Room.NEVER


def test_an_unknown_end_costs_what_was_set_aside() -> None:
    """And what was billed beyond that is booked all the same."""
    account = Account(limit=BudgetLimit(usd=1)).reserved("a", Amount(usd=0.4)).reserved("b", Amount(usd=0.4))

    assert account.settled("a", None).spent.usd == 0.4
    assert account.settled("b", Amount(usd=0.9)).spent.usd == 0.9


@pytest.mark.parametrize(
    ("account", "amount", "words"),
    [
        (
            Account(limit=BudgetLimit(usd=0.5), spent=Amount(usd=0.4)),
            Amount(usd=0.2),
            ("fork's", "$0.5", "$0.4", "$0.2"),
        ),
        (
            Account(name="night", limit=BudgetLimit(tokens=9000), spent=Amount(tokens=8000)),
            Amount(tokens=2000),
            ("'night'", "9,000 tokens", "8,000 tokens", "2,000 tokens"),
        ),
    ],
)
def test_the_error_says_whose_how_much_and_what_to_do(account: Account, amount: Amount, words: tuple[str, ...]) -> None:
    """Limit, spent and needed are all there."""
    message = str(account.over(amount))
    assert all(word in message for word in (*words, "not sent", "Raise the budget", "max_tokens"))


def test_an_account_travels_whole() -> None:
    """What is read is what was written."""
    account = Account(name="g", limit=BudgetLimit(usd=2)).reserved("r.1.1", Amount(tokens=5, usd=0.1))
    assert decode_account(encode(account)) == account


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"v":1,"kind":"claimed"}', b'{"spent":{"usd":-1}}', b'{"v":2}'])
def test_what_is_no_account_is_refused(data: bytes) -> None:
    """Whatever stands in its place."""
    with pytest.raises(BadMessage, match="account"):
        decode_account(data)


def test_no_run_may_have_the_id_of_a_budget() -> None:
    """The name is kept for the accounts."""
    assert check_run_id("budget") == "budget"
    with pytest.raises(BadMessage, match="budgets are kept"):
        check_run_id("budget-1")


keys = st.sampled_from(["a.1.1", "a.1.2", "b.1.1", "b.2.1", "no key"])
entries = st.builds(Account, limit=limits, spent=amounts, open=st.dictionaries(keys, amounts, max_size=4))


@given(written=st.lists(entries, min_size=2, max_size=12))
def test_nothing_that_is_written_takes_back_what_was_spent(written: list[Account]) -> None:
    """Nor the limit; and what grew was settled."""
    history = AccountHistory()
    history.add(written[0])
    for entry in written[1:]:
        before = history.account
        gone, booked = history.add(entry)
        after = history.account
        assert before is not None
        assert after is not None
        assert after.limit == written[0].limit
        assert after.spent.tokens == before.spent.tokens + booked.tokens >= before.spent.tokens
        assert after.spent.usd >= before.spent.usd
        assert gone or booked == Amount()
        assert gone <= before.open.keys()


@given(calls=st.lists(st.tuples(keys.filter(lambda key: "." in key), amounts, st.floats(0, 20)), max_size=30))
def test_an_honest_account_is_read_as_it_was_written(calls: list[tuple[str, Amount, float]]) -> None:
    """Calls set aside and settled one after the other, some at more than was set aside."""
    history, account = AccountHistory(), Account(limit=BudgetLimit(tokens=10**9))
    history.add(account)
    for key, amount, share in calls:
        held = account.open.get(key)
        if held is None:
            account = account.reserved(key, amount)
        else:
            account = account.settled(key, Amount(tokens=int(held.tokens * share), usd=held.usd * share))
        history.add(account)

    assert history.account is not None
    assert history.account.open == account.open
    assert history.account.spent.tokens == account.spent.tokens
    assert history.account.spent.usd == pytest.approx(account.spent.usd, abs=1e-6)
