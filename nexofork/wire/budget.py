"""A budget as it is kept: a limit, what was spent, and what is set aside for calls that are under way.

The whole account is in one value, so that a change is one compare-and-set. Setting aside and settling go by the call's
key and can be repeated without harm: a write whose answer was lost is simply applied again.

Any daemon may write an entry, so no single entry is believed. `AccountHistory` takes from each entry what an honest
writer can have changed: calls set aside, and calls settled at what they cost.
Invariant: what was spent never falls, and grows only where a call was settled.
"""

from __future__ import annotations

import hashlib
import math
import re
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from nexofork.errors import BadMessage, OverBudget
from nexofork.wire.messages import Amount, BudgetLimit, Message
from nexofork.wire.subjects import RESERVED_RUN_IDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["Account", "AccountHistory", "Room", "budget_run_id", "decode_account", "run_of_key"]

_ROUNDING_USD = 1e-9
"""What sums of dollars may be off by; a thousandth of the price of one token."""


_MOST = Amount(tokens=10**15, usd=1e9)
"""No group spends more; an entry that says so is not read."""
_OVERRUN = 25
"""How many times its reservation a call can cost: a read of the cache that turns into a write costs twenty times."""
_KEY = re.compile(r"([A-Za-z0-9_-]{1,128})\.[1-9][0-9]{0,8}\.[0-9]{1,9}")


class Room(Enum):
    """Whether an account has room for a call."""

    FITS = "fits"
    LATER = "later"
    """Only calls under way stand in the way, and they may cost less than was set aside for them."""
    NEVER = "never"


class Account(Message):
    """What may be spent together, and how far it is."""

    kind: Literal["account"] = "account"
    name: str = ""
    """The group's; empty for a fork's own."""
    limit: BudgetLimit = Field(default_factory=BudgetLimit)
    """What may be billed together."""
    spent: Amount = Field(default_factory=Amount)
    """What was billed."""
    open: dict[str, Amount] = Field(default_factory=dict)
    """By call: what is set aside."""
    set_by: str = ""
    """The run whose request set the limit."""

    @cached_property
    def held(self) -> Amount:
        """What is set aside for all calls under way."""
        amounts = self.open.values()
        return Amount(tokens=sum(one.tokens for one in amounts), usd=math.fsum(one.usd for one in amounts))

    def room(self, amount: Amount) -> Room:
        """Say whether a call that may cost so much can be made."""
        if _passed(self.limit, self.spent + amount):
            return Room.NEVER
        return Room.LATER if _passed(self.limit, self.spent + self.held + amount) else Room.FITS

    def reserved(self, key: str, amount: Amount) -> Account:
        """Return the account with an amount set aside; it is not asked whether there is room."""
        return self._changed(spent=self.spent, open={**self.open, key: amount})

    def settled(self, key: str, actual: Amount | None) -> Account:
        """Return the account after a call is over; None is what was set aside. A key that is not open changes nothing.

        What a call cost beyond what was set aside for it is booked all the same: it was billed.
        """
        if key not in self.open:
            return self
        rest = {other: amount for other, amount in self.open.items() if other != key}
        return self._changed(spent=self.spent + (self.open[key] if actual is None else actual), open=rest)

    def over(self, amount: Amount, *, waited_s: float | None = None) -> OverBudget:
        """Return the error for a call there is no room for."""
        due = self.spent + amount if self.room(amount) is Room.NEVER else self.spent + self.held + amount
        usd = self.limit.usd is not None and _passed(BudgetLimit(usd=self.limit.usd), due)
        unit: Literal["usd", "tokens"] = "usd" if usd else "tokens"

        def of(value: Amount) -> float:
            return value.usd if usd else value.tokens

        return OverBudget(
            self.name,
            unit=unit,
            limit=(self.limit.usd if usd else self.limit.tokens) or 0,
            spent=of(self.spent),
            held=of(self.held),
            needed=of(amount),
            waited_s=waited_s,
        )

    def _changed(self, *, spent: Amount, open: Mapping[str, Amount]) -> Account:
        # Not validated again: a crowded account changes often.
        return Account.model_construct(
            name=self.name, limit=self.limit, spent=spent, open=dict(open), set_by=self.set_by
        )

    def without(self, spent: Amount, runs: Collection[str], limit: BudgetLimit) -> Account:
        """Return the account under a limit, less an amount and less what is set aside for some runs."""
        left = Amount(tokens=max(self.spent.tokens - spent.tokens, 0), usd=max(self.spent.usd - spent.usd, 0.0))
        kept = {key: amount for key, amount in self.open.items() if run_of_key(key) not in runs}
        return Account.model_construct(name=self.name, limit=limit, spent=left, open=kept, set_by=self.set_by)


class AccountHistory:
    """An account as all its entries together tell it."""

    def __init__(self) -> None:
        self.account: Account | None = None
        self.founders: frozenset[str] = frozenset()
        """The runs that the first entry names: the request of one of them set the limit."""
        self.settled: dict[frozenset[str], Amount] = {}
        """By the runs whose calls were settled together: what was booked for them."""
        self._written: Account | None = None
        """The last entry as it was written: daemons of earlier versions go on from there."""

    def add(self, entry: Account) -> tuple[frozenset[str], Amount]:
        """Take the next entry; returns the keys it settled, and what was booked for them."""
        before, after = self._written, entry
        self._written = entry
        if self.account is None or before is None:
            self.account = entry.model_copy(update={"open": _well_named(entry.open)})
            self.founders = frozenset(run for key in (f"{entry.set_by}.1.1", *entry.open) if (run := run_of_key(key)))
            return frozenset(), Amount()
        if not _follows(self.account, after):
            if not _follows(before, after):
                return frozenset(), Amount()
        else:
            before = self.account
        gone = frozenset(before.open.keys() - after.open.keys()) & self.account.open.keys()
        booked = self._booked(gone, before, after)
        kept = {key: amount for key, amount in self.account.open.items() if key not in gone}
        new = {key: amount for key, amount in after.open.items() if key not in before.open}
        self.account = self.account._changed(spent=self.account.spent + booked, open={**_well_named(new), **kept})
        if booked != Amount():
            runs = frozenset(map(run_of_key, gone))
            self.settled[runs] = self.settled.get(runs, Amount()) + booked
        return gone, booked

    def _booked(self, gone: Collection[str], before: Account, after: Account) -> Amount:
        assert self.account is not None
        held = [self.account.open[key] for key in gone]
        return Amount(
            tokens=min(after.spent.tokens - before.spent.tokens, _OVERRUN * sum(one.tokens for one in held)),
            usd=max(0.0, min(after.spent.usd - before.spent.usd, _OVERRUN * math.fsum(one.usd for one in held))),
        )


def _follows(before: Account, after: Account) -> bool:
    """Whether an honest writer can have made one entry from the other."""
    tokens, usd = after.spent.tokens - before.spent.tokens, after.spent.usd - before.spent.usd
    if tokens < 0 or usd < -_ROUNDING_USD:
        return False
    if (tokens or usd > _ROUNDING_USD) and before.open.keys() <= after.open.keys():
        return False
    return all(after.open[key] == amount for key, amount in before.open.items() if key in after.open)


def _well_named(amounts: Mapping[str, Amount]) -> dict[str, Amount]:
    return {key: amount for key, amount in amounts.items() if run_of_key(key)}


def run_of_key(key: str) -> str:
    """Return the run that a reservation belongs to; empty where it cannot be one.

    >>> run_of_key("r1.2.7"), run_of_key("r1")
    ('r1', '')
    """
    found = _KEY.fullmatch(key)
    return found[1] if found else ""


def budget_run_id(group: str) -> str:
    """Return the name under which a group's account is kept, in the place of a run id.

    >>> budget_run_id("nightly")
    'budget-2a3b62b53ddb9f167b63d22202a36081'
    """
    return RESERVED_RUN_IDS + hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def decode_account(data: bytes) -> Account:
    """Read an account.

    Raises:
        BadMessage: It is none.
    """
    try:
        account = Account.model_validate_json(data)
    except ValidationError as exc:
        raise BadMessage("is not a budget's account", fix="Use another group name.") from exc
    if any(one.tokens > _MOST.tokens or one.usd > _MOST.usd for one in (account.spent, *account.open.values())):
        raise BadMessage("is an account with absurd amounts", fix="Use another group name.")
    return account


def _passed(limit: BudgetLimit, amount: Amount) -> bool:
    usd = limit.usd is not None and amount.usd > limit.usd + _ROUNDING_USD
    return usd or (limit.tokens is not None and amount.tokens > limit.tokens)
