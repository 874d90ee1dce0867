"""The budget that runs of a group share across hosts: an account in the log's stream, changed by compare-and-set.

Every entry holds the whole account, so only the newest one is read, from the stream's leader. Each process writes one
change of an account at a time; what comes meanwhile goes with the next write, so that a crowd of calls costs a few
writes. A reservation belongs to a run and an epoch: whoever takes the run over books what the lost daemon left open.
The account lives as long as the runs do, from its last change on.

Invariant: a call's amount is in the account before the caller is told that it may go.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from nexofork.bus.failures import AlreadyStored, StoreFull, WrongTip
from nexofork.bus.jetstream import expect_last, store
from nexofork.bus.reading import last_of
from nexofork.errors import BadMessage, BusError
from nexofork.wire.budget import Account, Room, budget_run_id, decode_account
from nexofork.wire.messages import Amount, encode
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import DEFAULT_POOL, reports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.wire.messages import BudgetLimit

__all__ = ["GroupBudget", "GroupBudgets", "LeftBehind"]

log = logging.getLogger(__name__)

_WAIT_S = 600.0
_LOOK_S = 0.25
"""How often the account is read while somebody waits for others to settle."""
_RETRY_S = 0.2
_FLUSH_S = 10.0


@dataclass(slots=True, eq=False)
class _Wish:
    """A call that wants to be made."""

    key: str
    quote: Callable[[], Amount]
    give_up_at: float
    granted: asyncio.Future[Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftBehind:
    """What earlier daemons of a run may have left open."""

    run_id: str
    epoch: int
    """Of whoever says so; reservations of its own, and of later ones, are left alone."""
    sent: Mapping[str, Amount | None] = field(default_factory=dict)
    """By reservation: what the call cost, None where that is not known. What is not here was never sent."""

    def book(self, account: Account) -> Account:
        """Return the account with none of them open."""
        for key in list(account.open):
            run_id, _, rest = key.partition(".")
            epoch = rest.partition(".")[0]
            if run_id == self.run_id and epoch.isdecimal() and int(epoch) < self.epoch:
                account = account.settled(key, self.sent[key] if key in self.sent else Amount())
        return account


@dataclass(frozen=True, slots=True)
class _Settled:
    key: str
    actual: Amount | None

    def book(self, account: Account) -> Account:
        return account.settled(self.key, self.actual)


_Booking: TypeAlias = LeftBehind | _Settled


class GroupBudget:
    """One group's account, as one process uses it; `GroupBudgets` does its writing."""

    def __init__(
        self,
        bus: Bus,
        group: str,
        limit: BudgetLimit,
        *,
        pool: str,
        changed: Callable[[GroupBudget], None],
        wait_s: float,
    ) -> None:
        self._bus = bus
        self._group = group
        self._limit = limit
        self._stream = log_stream(pool)
        self._subject = reports(budget_run_id(group), pool)
        self._changed = changed
        self._wait_s = wait_s
        self._wishes: list[_Wish] = []
        self._bookings: list[_Booking] = []
        self._booked = 0
        """How many bookings were ever written, or given up."""
        self._written = asyncio.Event()
        self._known: tuple[Account, int] | None = None
        self._unsure = False
        """Whether a write may still arrive that nobody waits for."""

    @property
    def has_work(self) -> bool:
        """Whether something wants to be written."""
        return bool(self._bookings or self._wishes)

    async def reserve(self, key: str, quote: Callable[[], Amount]) -> Amount:
        """Set the amount aside under the key and return it; waits while only other calls' stand in the way.

        While NATS does not answer it waits too: what is not written is not spent.

        Raises:
            OverBudget: There is no room, or none came free in time.
            BusError: The account cannot be read or written, and trying again would not help.
        """
        loop = asyncio.get_running_loop()
        wish = _Wish(key, quote, loop.time() + self._wait_s, loop.create_future())
        self._wishes.append(wish)
        self._changed(self)
        try:
            return await wish.granted
        except BaseException:
            # It may be on its way, or there already.
            self._drop(wish)
            self.settle(key, Amount())
            raise

    def settle(self, key: str, actual: Amount | None) -> None:
        """Book what a call cost, None for all that was set aside; neither waits nor raises."""
        self._bookings.append(_Settled(key, actual))
        self._changed(self)

    def book(self, left: LeftBehind) -> None:
        """Book what earlier daemons of a run left open."""
        self._bookings.append(left)
        self._changed(self)

    async def flushed(self) -> None:
        """Return when everything that was settled so far is written, or after a while in any case."""
        due = self._booked + len(self._bookings)
        try:
            async with asyncio.timeout(_FLUSH_S):
                while self._booked < due:
                    await self._written.wait()
        except TimeoutError:
            log.warning("the budget of group %r: what was settled is not written yet", self._group)

    async def account(self) -> Account:
        """Return the account as it stands.

        Raises:
            BusError: It cannot be read.
        """
        return (await self._read())[0]

    def give_up(self, error: Exception) -> None:
        """Tell everybody who waits that it will not be written."""
        self._known = None
        self._over(list(self._bookings))
        for wish in list(self._wishes):
            self._answer(wish, error)

    async def write(self) -> None:
        """Apply what is pending, in one compare-and-set that is tried until it wins; what has to wait stays pending."""
        tries = 0
        while not await self._try_to_write():
            tries += 1
            await asyncio.sleep(random.uniform(0, min(0.002 * tries, 0.05)))

    async def _try_to_write(self) -> bool:
        bookings, wishes = list(self._bookings), list(self._wishes)
        try:
            account, seq = self._known or await self._read()
            changed, answers = self._applied(account, bookings, wishes)
            if self._known and len(answers) < len(wishes):
                self._known = None  # nobody waits for what has changed by now
                return False
            if changed is not account or self._unsure or not seq:
                # An earlier write of ours that is still on its way cannot land behind this one.
                entry = encode(changed.model_copy(update={"at": time.time()}))
                seq = await store(self._bus, self._subject, entry, headers=expect_last(seq, self._subject))
                self._unsure = False
        except WrongTip:
            self._known = None
            return False
        except AlreadyStored:
            full = "its log takes no more changes. Go on under another group name"
            await self._failed(self._unusable(full), bookings, wishes)
            return True
        except BusError as exc:
            self._known, self._unsure = None, True
            await self._failed(exc, bookings, wishes)
            return True
        # While somebody waits, the next look is at what others have written.
        self._known = None if len(answers) < len(wishes) else (changed, seq)
        self._over(bookings)
        for wish, answer in answers:
            self._answer(wish, answer)
        return True

    async def _failed(self, error: BusError, bookings: Sequence[_Booking], wishes: Sequence[_Wish]) -> None:
        """Try again later, or tell that this would not help."""
        log.warning("the budget of group %r was not written: %s", self._group, error)
        if not error.retryable:
            self._over(bookings)
        if not error.retryable or isinstance(error, StoreFull):
            for wish in wishes:
                self._answer(wish, error)
        await asyncio.sleep(_RETRY_S)

    def _over(self, bookings: Sequence[_Booking]) -> None:
        del self._bookings[: len(bookings)]
        self._booked += len(bookings)
        self._written.set()
        self._written = asyncio.Event()

    def _applied(
        self, account: Account, bookings: Sequence[_Booking], wishes: Sequence[_Wish]
    ) -> tuple[Account, list[tuple[_Wish, Amount | Exception]]]:
        """Return the account after all that can be done, and the answers to the wishes that need not wait."""
        for booking in bookings:
            account = booking.book(account)
        now = asyncio.get_running_loop().time()
        answers: list[tuple[_Wish, Amount | Exception]] = []
        for wish in wishes:
            if wish.key in account.open:  # written, and the answer was lost
                answers.append((wish, account.open[wish.key]))
                continue
            amount = wish.quote()
            room = account.room(amount)
            if room is Room.FITS:
                account = account.reserved(wish.key, amount)
                answers.append((wish, amount))
            elif room is Room.NEVER:
                answers.append((wish, account.over(amount)))
            elif now >= wish.give_up_at:
                answers.append((wish, account.over(amount, waited_s=self._wait_s)))
        return account, answers

    def _answer(self, wish: _Wish, answer: Amount | Exception) -> None:
        self._drop(wish)
        if wish.granted.done():  # whoever wished was cancelled, and has settled it
            return
        if isinstance(answer, Amount):
            wish.granted.set_result(answer)
        else:
            wish.granted.set_exception(answer)

    def _drop(self, wish: _Wish) -> None:
        if wish in self._wishes:
            self._wishes.remove(wish)

    def _unusable(self, why: str) -> BusError:
        return BusError(f"The budget of group {self._group!r} cannot be used: {why}.", retryable=False)

    async def _read(self) -> tuple[Account, int]:
        stored = await last_of(self._bus, self._stream, self._subject)
        if stored is None:
            return Account(name=self._group, limit=self._limit), 0
        try:
            account = decode_account(stored.data)
        except BadMessage as exc:
            raise self._unusable("it cannot be read. Use another group name") from exc
        if account.limit != self._limit:
            log.info("the budget of group %r was set by its first fork to %s", self._group, account.limit)
        return account, stored.seq


class GroupBudgets:
    """All accounts that one process has a part in, and the one task that writes them."""

    def __init__(self, bus: Bus, *, pool: str = DEFAULT_POOL, wait_s: float = _WAIT_S) -> None:
        """Prepare to keep accounts.

        Args:
            bus: The connection.
            pool: Whose runs.
            wait_s: How long a call waits for others to settle before it counts as over budget.
        """
        self._bus = bus
        self._pool = pool
        self._wait_s = wait_s
        self._groups: WeakValueDictionary[str, GroupBudget] = WeakValueDictionary()
        self._busy: set[GroupBudget] = set()
        self._wake = asyncio.Event()

    def of_group(self, group: str, limit: BudgetLimit) -> GroupBudget:
        """Return a group's account; the limit counts if nobody has set one: the first stands."""
        budget = self._groups.get(group)
        if budget is None:
            budget = GroupBudget(self._bus, group, limit, pool=self._pool, changed=self._has_work, wait_s=self._wait_s)
            self._groups[group] = budget
        return budget

    async def run(self) -> None:
        """Write what is pending, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(_LOOK_S if self._busy else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            for budget in list(self._busy):
                try:
                    await budget.write()
                except Exception as exc:
                    # One group's defect must not end the daemon, nor keep its runs waiting.
                    log.exception("a group's budget could not be kept")
                    budget.give_up(exc)
                if not budget.has_work:
                    self._busy.discard(budget)

    def _has_work(self, budget: GroupBudget) -> None:
        self._busy.add(budget)
        self._wake.set()
