"""A budget as it is kept: a limit, what was spent, and what is set aside for calls that are under way.

The whole account is in one value, so that a change is one compare-and-set and only the newest entry is ever read.
Setting aside and settling go by the call's key and can be repeated without harm: a write whose answer was lost is
simply applied again.
"""

from __future__ import annotations

import hashlib
import math
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationError

from nexofork.errors import BadMessage, OverBudget
from nexofork.wire.messages import Amount, BudgetLimit, Message
from nexofork.wire.subjects import RESERVED_RUN_IDS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Account", "Room", "budget_run_id", "decode_account"]

_ROUNDING_USD = 1e-9
"""What sums of dollars may be off by; a thousandth of the price of one token."""


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
        return Account.model_construct(name=self.name, limit=self.limit, spent=spent, open=dict(open))


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
        return Account.model_validate_json(data)
    except ValidationError as exc:
        raise BadMessage("is not a budget's account", fix="Use another group name.") from exc


def _passed(limit: BudgetLimit, amount: Amount) -> bool:
    usd = limit.usd is not None and amount.usd > limit.usd + _ROUNDING_USD
    return usd or (limit.tokens is not None and amount.tokens > limit.tokens)
