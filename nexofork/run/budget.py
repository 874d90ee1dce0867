"""What a fork, or a group of forks, may cost: the call that would pass the limit is not sent.

Before a call, what it may cost with its longest possible answer is set aside; after it, what it really cost is
settled. A call whose end nobody learnt counts with all that was set aside for it. Only a cache miss that nothing
announced can make a call cost more than that; then the next one is not sent.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nexofork.core.usage import Usage
from nexofork.economics.prices import cost_usd
from nexofork.errors import ForkRefused, UnknownModelPrice
from nexofork.wire.budget import Account, Room
from nexofork.wire.messages import Amount, BudgetLimit, CallBudget

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Budget", "FreePurse", "LocalTill", "Purse", "Reservation", "RunPurse", "Till", "check_budgets", "cost_of"]

_MOST = int(sys.float_info.max)
WAIT_S = 600.0
"""How long a call waits for others to settle: as long as the longest of them may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that may be billed: dollars, tokens, or both, and then whichever is reached first."""

    usd: float | None = None
    tokens: int | None = None
    """All tokens count: fresh, read, written and output."""

    def __post_init__(self) -> None:
        for name, value in (("usd", self.usd), ("tokens", self.tokens)):
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ForkRefused(f"A budget's {name} is {value!r}; give a number above 0, or leave it out.")
            if not 0 < value <= _MOST:
                raise ForkRefused(
                    f"A budget's {name} is {value:.6g}; give a number above 0, or leave it out."
                    if isinstance(value, float) or abs(value) <= _MOST
                    else f"A budget's {name} is far too large."
                )
        if self.tokens is not None and not isinstance(self.tokens, int):
            raise ForkRefused(f"A budget's tokens is {self.tokens}; give a whole number.")
        if self.usd is None and self.tokens is None:
            raise ForkRefused("A budget limits nothing; give usd, tokens or both, or leave the budget out.")

    @property
    def limit(self) -> BudgetLimit:
        """The budget as it travels."""
        return BudgetLimit(usd=self.usd, tokens=self.tokens)


class Reservation(Protocol):
    """Money set aside for one call."""

    @property
    def record(self) -> CallBudget | None:
        """What the log keeps of it; None where nothing is limited."""

    def settle(self, usage: Usage, *, at_least_reserved: bool = False) -> None:
        """Say what the call cost: nothing (an empty usage), so much, or at least what was set aside."""


class Purse(Protocol):
    """Pays for one run's calls."""

    async def reserve(self, quote: Callable[[], Amount]) -> Reservation:
        """Set the money for a call aside; waits while only other calls' reservations stand in the way.

        Args:
            quote: Says what the call may cost; asked again after a wait, since the cache may be warm by then.

        Raises:
            OverBudget: The call would pass the limit.
        """


class Till(Protocol):
    """Keeps one account, for one run or for many."""

    async def reserve(self, key: str, quote: Callable[[], Amount]) -> Amount:
        """Set the amount aside under the key and return it; waits and raises like `Purse.reserve`."""

    def settle(self, key: str, actual: Amount | None) -> None:
        """Book what the call cost, None for all that was set aside; neither waits nor raises."""


class _Nothing:
    record = None

    def settle(self, usage: Usage, *, at_least_reserved: bool = False) -> None:
        pass


class FreePurse:
    """Pays for everything: the purse of a run without a budget."""

    async def reserve(self, quote: Callable[[], Amount]) -> Reservation:
        """Set nothing aside, and do not even ask what it may cost."""
        return _Nothing()


class LocalTill:
    """An account in this process: a fork's own, or that of a group whose forks all run here."""

    def __init__(self, account: Account, *, wait_s: float = WAIT_S) -> None:
        self.account = account
        self._wait_s = wait_s
        self._changed = asyncio.Event()

    async def reserve(self, key: str, quote: Callable[[], Amount]) -> Amount:
        """Set the amount aside; waits while only other calls' reservations stand in the way.

        Raises:
            OverBudget: There is no room, or none came free in time.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self._wait_s
        while True:
            amount = quote()
            match self.account.room(amount):
                case Room.FITS:
                    self.account = self.account.reserved(key, amount)
                    return amount
                case Room.NEVER:
                    raise self.account.over(amount)
                case Room.LATER if loop.time() >= give_up_at:
                    raise self.account.over(amount, waited_s=self._wait_s)
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self._changed.wait()
            except TimeoutError:
                continue  # to look once more

    def settle(self, key: str, actual: Amount | None) -> None:
        """Book what the call cost."""
        self.account = self.account.settled(key, actual)
        self._changed.set()
        self._changed = asyncio.Event()


class RunPurse:
    """The purse of one run: its own account and, where it has one, that of its group."""

    def __init__(
        self,
        own: LocalTill,
        *,
        name: str,
        cost: Callable[[Usage], Amount],
        group: Till | None = None,
    ) -> None:
        """Make a purse.

        Args:
            own: What this run may spend; an account without a limit only counts.
            name: Begins the keys of its reservations; no other purse may use it.
            cost: Says what was billed.
            group: What it shares with other runs.
        """
        self._own = own
        self._group = group
        self._name = name
        self._cost = cost
        self._numbers = itertools.count(1)

    async def reserve(self, quote: Callable[[], Amount]) -> Reservation:
        """Set the money for a call aside in both accounts; raises like `Purse.reserve`.

        The run's own comes first: it never waits, so that nothing is held while waiting for the group's.
        """
        key = f"{self._name}.{next(self._numbers)}"
        spent = self._own.account.spent
        amount = await self._own.reserve(key, quote)
        if self._group is not None:
            try:
                amount = await self._group.reserve(key, quote)
            except BaseException:
                self._own.settle(key, Amount())
                raise
        tills: list[Till] = [self._own] if self._group is None else [self._own, self._group]
        return _Held(tills, CallBudget(key=key, spent=spent, reserved=amount), self._cost)


class _Held:
    def __init__(self, tills: list[Till], record: CallBudget, cost: Callable[[Usage], Amount]) -> None:
        self.record = record
        self._tills = tills
        self._cost = cost

    def settle(self, usage: Usage, *, at_least_reserved: bool = False) -> None:
        actual = self._cost(usage)
        if at_least_reserved:
            held = self.record.reserved
            actual = Amount(tokens=max(actual.tokens, held.tokens), usd=max(actual.usd, held.usd))
        for till in self._tills:
            till.settle(self.record.key, actual)


def cost_of(model: str) -> Callable[[Usage], Amount]:
    """Return what says how much of a budget a bill uses up."""

    def cost(usage: Usage) -> Amount:
        try:
            usd = cost_usd(usage, model)
        except UnknownModelPrice:
            usd = 0.0  # no dollars are limited then, see `check_budgets`
        # A provider may report anything; less than nothing is nothing.
        return Amount(tokens=max(0, usage.prompt_tokens + usage.output_tokens), usd=max(0.0, usd))

    return cost


def check_budgets(model: str, *budgets: Budget | None) -> None:
    """Refuse what is no budget, and dollars for a model whose price is not known.

    Raises:
        ForkRefused: It is one of these.
    """
    for budget in budgets:
        if not isinstance(budget, Budget | None):
            raise ForkRefused(f"A budget is {budget!r}; pass Budget(usd=…) or Budget(tokens=…).")
    if all(budget is None or budget.usd is None for budget in budgets):
        return
    try:
        cost_usd(Usage(), model)
    except UnknownModelPrice as exc:
        raise ForkRefused(
            f"The budget is in dollars and the price of {model!r} is not known, so it could not be kept. "
            "Give a budget in tokens, or a price file that has the model."
        ) from exc
