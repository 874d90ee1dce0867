"""What a daemon's runs may spend: their own budgets, and those they share with runs on other hosts.

A run that was taken over goes on with what its earlier daemons spent: the log says how far it was before the last
call, what was set aside for that, and whether its answer came. What they left open in the group's account is booked
once the run is ours, and again once it is over; before that they may still be at work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.bus.group_budget import GroupBudgets, LeftBehind
from nexofork.run.budget import LocalTill, RunPurse, cost_of
from nexofork.wire.budget import Account
from nexofork.wire.messages import Amount, BudgetLimit

if TYPE_CHECKING:
    from nexofork.bus.connection import Bus
    from nexofork.bus.group_budget import GroupBudget
    from nexofork.run.budget import Purse
    from nexofork.run.params import ForkParams
    from nexofork.wire.messages import Requested
    from nexofork_daemon.run_state import BudgetedCall, RunState

__all__ = ["Budgets", "RunBudget"]


class Budgets:
    """The budgets that one daemon's runs have a part in."""

    def __init__(self, bus: Bus, *, pool: str) -> None:
        self._groups = GroupBudgets(bus, pool=pool)

    async def run(self) -> None:
        """Keep the groups' accounts, until cancelled."""
        await self._groups.run()

    def of_run(self, request: Requested, run_id: str, state: RunState) -> RunBudget:
        """Return what limits a run that is about to be claimed; nothing is read or written yet."""
        group = None
        if request.group and request.group_budget:
            group = self._groups.of_group(request.group, request.group_budget)
        return RunBudget(run_id, earlier=state.epoch, calls=state.budgeted, group=group)


class RunBudget:
    """What one run may spend, as the daemon that has it sees it."""

    def __init__(
        self, run_id: str, *, earlier: int = 0, calls: tuple[BudgetedCall, ...] = (), group: GroupBudget | None = None
    ) -> None:
        """Prepare.

        Args:
            run_id: The run.
            earlier: How many epochs it had before this one.
            calls: What the log says of the calls made in them.
            group: The account it shares.
        """
        self._run_id = run_id
        self._earlier = earlier
        self._group = group
        self._sent = {call.budget.key: _actual(call) for call in calls}
        last = calls[-1] if calls else None
        self._spent = last.budget.spent + (_actual(last) or last.budget.reserved) if last else Amount()

    def purse(self, params: ForkParams) -> Purse | None:
        """Return what pays for the claimed run's calls; None where nothing is limited."""
        self._book_earlier(before=self._earlier + 1)
        if params.budget is None and self._group is None:
            return None
        limit = params.budget.limit if params.budget else BudgetLimit()
        own = LocalTill(Account(limit=limit, spent=self._spent))
        name = f"{self._run_id}.{self._earlier + 1}"
        return RunPurse(own, name=name, cost=cost_of(params.model), group=self._group)

    async def flushed(self) -> None:
        """Return when what the run settled is written."""
        if self._group is not None:
            await self._group.flushed()

    async def ended(self) -> None:
        """Leave nothing open of a run that is over; a daemon it was taken from may have been late."""
        self._book_earlier(before=self._earlier + 2)
        await self.flushed()

    def _book_earlier(self, *, before: int) -> None:
        if self._group is not None and self._earlier:
            self._group.book(LeftBehind(run_id=self._run_id, epoch=before, sent=self._sent))


def _actual(call: BudgetedCall) -> Amount | None:
    return None if call.usage is None else cost_of(call.model)(call.usage)
