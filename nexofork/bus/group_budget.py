"""The budget that runs of a group share across hosts: an account in the log's stream, changed by compare-and-set.

Every entry holds the whole account, but any daemon of the tenant can write one, and nothing tells which did. So each
process follows all entries and takes from them what an honest writer can have changed (`AccountHistory`). Where there
is no room, it looks at the runs in the way: what is booked for a run that no parent asked for in this group, or set
aside for one that is over, does not count. A limit other than that of the request at hand counts if a request set it.

Each process writes one change of an account at a time; what comes meanwhile goes with the next write, so that a crowd
of calls costs a few writes. A reservation belongs to a run and an epoch: the daemon that takes the run over books what
the lost one left open. The account lives as long as the runs do, from its last change on.

Invariant: a call's amount is in the account before the caller is told that it may go.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

from nexofork.bus.failures import AlreadyStored, StoreFull, WrongTip
from nexofork.bus.jetstream import expect_last, pause_s, store
from nexofork.bus.reading import first_of, last_of, read_subject
from nexofork.bus.run_log import read_facts
from nexofork.errors import BadMessage, BusError
from nexofork.wire.budget import Account, AccountHistory, Room, budget_run_id, decode_account, run_of_key
from nexofork.wire.messages import Amount, encode
from nexofork.wire.streams import log_stream
from nexofork.wire.subjects import DEFAULT_POOL, reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nexofork.bus.connection import Bus
    from nexofork.bus.reading import Stored
    from nexofork.wire.messages import BudgetLimit

__all__ = ["GroupBudget", "GroupBudgets", "LeftBehind"]

log = logging.getLogger(__name__)

_WAIT_S = 600.0
_LOOK_S = 0.25
"""How often the account is read while somebody waits for others to settle."""
_FLUSH_S = 10.0
_LOOK_AT_RUNS_S = 1.0
"""How long a look at the runs in the way holds; a run counts as invented after two looks."""
_RUNS_AT_ONCE = 32
_MOST_RUNS = 1_000
"""How many runs one look is at."""


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
        self._history = AccountHistory()
        self._seq = 0
        """The newest entry that the history has."""
        self._granted: dict[str, Amount] = {}
        """What this process set aside and has not settled."""
        self._taken: dict[str, Amount] = {}
        """Of these, what was booked by an entry that closed them."""
        self._runs = _RunsInTheWay(bus, group, pool)
        self._allowed: BudgetLimit | None = None
        """A limit other than ours that a request was found to have set."""
        self._asked_at = -math.inf
        self._is_current = False
        """Whether no other daemon has written since, as far as we know."""
        self._unsure = False
        """Whether a write may still arrive that nobody waits for."""
        self._failures = 0
        """How often NATS did not answer since it last did."""

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
        await self._read()
        return self._history.account or self._opened(())

    def give_up(self, error: Exception) -> None:
        """Tell everybody who waits that it will not be written."""
        self._is_current = False
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
            was_current = self._is_current
            if not was_current:
                await self._read()
            account = self._history.account or self._opened(wishes)
            limit = await self._limit_in_force(account)
            changed, answers, again = self._applied(account, bookings, wishes, limit)
            if len(answers) < len(wishes) and (was_current or await self._runs.look(self._history)):
                self._is_current = False  # what has changed by now may make room
                return False
            if changed is not account or self._unsure or not self._seq:
                # An earlier write of ours that is still on its way cannot land after this one.
                entry = encode(changed.model_copy(update={"at": time.time()}))
                seq = await store(self._bus, self._subject, entry, headers=expect_last(self._seq, self._subject))
                self._unsure = False
                self._take(changed, seq)
        except WrongTip:
            self._is_current = False
            return False
        except AlreadyStored:
            full = "its log takes no more changes. Go on under another group name"
            await self._failed(self._unusable(full), bookings, wishes)
            return True
        except BusError as exc:
            self._is_current, self._unsure = False, True
            await self._failed(exc, bookings, wishes)
            return True
        self._failures = 0
        # While a call waits, the next look is at what others have written.
        self._is_current = len(answers) == len(wishes)
        self._over(bookings)
        for booking in bookings:
            if isinstance(booking, _Settled) and booking.key not in {one.key for one in again}:
                self._granted.pop(booking.key, None)
                self._taken.pop(booking.key, None)
        self._bookings += again
        for wish, answer in answers:
            self._answer(wish, answer)
        return True

    async def _failed(self, error: BusError, bookings: Sequence[_Booking], wishes: Sequence[_Wish]) -> None:
        """Try again later, or tell that this would not help."""
        self._failures += 1
        if self._failures == 1 or not error.retryable:
            log.warning("the budget of group %r was not written: %s", self._group, error)
        if not error.retryable:
            self._over(bookings)
        if not error.retryable or isinstance(error, StoreFull):
            for wish in wishes:
                self._answer(wish, error)
        await asyncio.sleep(pause_s(self._failures))

    def _over(self, bookings: Sequence[_Booking]) -> None:
        del self._bookings[: len(bookings)]
        self._booked += len(bookings)
        self._written.set()
        self._written = asyncio.Event()

    def _applied(
        self, account: Account, bookings: Sequence[_Booking], wishes: Sequence[_Wish], limit: BudgetLimit
    ) -> tuple[Account, list[tuple[_Wish, Amount | Exception]], list[_Settled]]:
        """Return the account after all that can be done, answers to the wishes that need not wait, and what to settle.

        The last are our own calls that an entry of another process closed below what they cost. The difference is set
        aside again, and settled with the next write.
        """
        again: list[_Settled] = []
        for booking in bookings:
            if isinstance(booking, _Settled) and (missing := self._missing(booking, account)) is not None:
                account = account.reserved(booking.key, missing)
                again.append(_Settled(booking.key, missing))
            else:
                account = booking.book(account)
        now = asyncio.get_running_loop().time()
        answers: list[tuple[_Wish, Amount | Exception]] = []
        for wish in wishes:
            if wish.key in account.open:  # written, and the answer was lost
                answers.append((wish, account.open[wish.key]))
                continue
            amount = wish.quote()
            believed = self._runs.believed(account, self._history, limit)
            room = believed.room(amount)
            if room is Room.FITS:
                account = account.reserved(wish.key, amount)
                answers.append((wish, amount))
            elif room is Room.NEVER and not self._runs.in_doubt(self._history):
                answers.append((wish, believed.over(amount)))
            elif now >= wish.give_up_at:
                answers.append((wish, believed.over(amount, waited_s=self._wait_s)))
        return account, answers, again

    def _missing(self, booking: _Settled, account: Account) -> Amount | None:
        """Return what one of our calls cost beyond what another process booked for it; None where that is nothing."""
        if booking.key in account.open or booking.key not in self._granted:
            return None
        due = self._granted[booking.key] if booking.actual is None else booking.actual
        taken = self._taken.get(booking.key, Amount())
        missing = Amount(tokens=max(due.tokens - taken.tokens, 0), usd=max(due.usd - taken.usd, 0.0))
        return None if missing == Amount() else missing

    def _answer(self, wish: _Wish, answer: Amount | Exception) -> None:
        self._drop(wish)
        if wish.granted.done():  # whoever wished was cancelled, and has settled it
            return
        if isinstance(answer, Amount):
            self._granted[wish.key] = answer
            wish.granted.set_result(answer)
        else:
            wish.granted.set_exception(answer)

    def _drop(self, wish: _Wish) -> None:
        if wish in self._wishes:
            self._wishes.remove(wish)

    def _unusable(self, why: str) -> BusError:
        return BusError(f"The budget of group {self._group!r} cannot be used: {why}.", retryable=False)

    def _opened(self, wishes: Sequence[_Wish]) -> Account:
        return Account(name=self._group, limit=self._limit, set_by=run_of_key(wishes[0].key) if wishes else "")

    async def _limit_in_force(self, account: Account) -> BudgetLimit:
        """Return the limit of the account if a request set it; else that of the request at hand."""
        if account.limit == self._limit:
            return self._limit
        now = asyncio.get_running_loop().time()
        if self._allowed is None and now - self._asked_at > _LOOK_AT_RUNS_S:
            if await self._runs.have_set(account.limit, self._history.founders):
                log.info("the budget of group %r was set by its first fork to %s", self._group, account.limit)
                self._allowed = account.limit
            self._asked_at = now
        return self._allowed or self._limit

    async def _read(self) -> None:
        """Follow the account up to its newest entry, as the stream's leader knows it."""
        tip = await last_of(self._bus, self._stream, self._subject)
        if tip is None or tip.seq < self._seq:  # expired, or the stream was made anew
            self._history, self._seq, self._allowed = AccountHistory(), 0, None
        if tip is not None and tip.seq > self._seq:
            found = await read_subject(self._bus, self._stream, self._subject, start_seq=self._seq + 1)
            # A replica may not have the newest yet; the leader has.
            while (known := found[-1].seq if found else self._seq) < tip.seq:
                newer = await first_of(self._bus, self._stream, self._subject, start_seq=known + 1)
                if newer is None:
                    break
                found.append(newer)
            for stored in found:
                if stored.seq > self._seq:
                    self._follow(stored)
        if self._seq and self._history.account is None:
            raise self._unusable("it cannot be read. Use another group name")
        self._is_current = True

    def _follow(self, stored: Stored) -> None:
        try:
            self._take(decode_account(stored.data), stored.seq)
        except BadMessage as exc:
            log.warning("the budget of group %r: entry %d was ignored: it %s", self._group, stored.seq, exc.problem)
            self._seq = stored.seq

    def _take(self, entry: Account, seq: int) -> None:
        self._seq = seq
        gone, booked = self._history.add(entry)
        for key in gone & self._granted.keys():
            self._taken[key] = self._taken.get(key, Amount()) + booked


class _RunsInTheWay:
    """Tells which of the runs that an account names are real; asked where there is no room."""

    def __init__(self, bus: Bus, group: str, pool: str) -> None:
        self._bus = bus
        self._group = group
        self._pool = pool
        self._looked_at: dict[str, float] = {}
        self._missed: Counter[str] = Counter()
        """How many looks did not find the run."""
        self._over: set[str] = set()

    def in_doubt(self, history: AccountHistory) -> bool:
        """Whether a further look may make room."""
        return any(run not in self._looked_at or self._missed[run] == 1 for run in _runs_of(history))

    def believed(self, account: Account, history: AccountHistory, limit: BudgetLimit) -> Account:
        """Return the account without what was made up."""
        invented = {run for run, count in self._missed.items() if count > 1}
        if not invented and not self._over and limit == account.limit:
            return account
        amount = sum((spent for runs, spent in history.settled.items() if runs <= invented), start=Amount())
        return account.without(amount, invented | self._over, limit)

    async def look(self, history: AccountHistory) -> bool:
        """Look at the runs in the way that are due; returns whether there were any."""
        now = asyncio.get_running_loop().time()
        held = set(map(run_of_key, history.account.open)) if history.account else set()
        due = [run for run in _runs_of(history) if self._is_due(run, now, held=run in held)][:_MOST_RUNS]
        waiting = iter(due)

        async def look_at_some() -> None:
            for run in waiting:  # shared by all who look
                await self._look_at(run, held=run in held)
                self._looked_at[run] = now

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(len(due), _RUNS_AT_ONCE)):
                tasks.create_task(look_at_some())
        return bool(due)

    async def have_set(self, limit: BudgetLimit, runs: Iterable[str]) -> bool:
        """Whether the request of one of these runs named the limit for this group."""
        for run in list(runs)[:_RUNS_AT_ONCE]:
            request = (await read_facts(self._bus, run, pool=self._pool)).request
            if request is not None and (request.group, request.group_budget) == (self._group, limit):
                return True
        return False

    def _is_due(self, run: str, now: float, *, held: bool) -> bool:
        looked_at = self._looked_at.get(run)
        if looked_at is None:
            return True
        may_end = held and not self._missed[run] and run not in self._over
        return now - looked_at > _LOOK_AT_RUNS_S and (self._missed[run] == 1 or may_end)

    async def _look_at(self, run: str, *, held: bool) -> None:
        try:
            facts = await read_facts(self._bus, run, pool=self._pool, whole=held)
        except BusError as exc:
            log.info("the budget of group %r: run %s could not be looked at: %s", self._group, run, exc)
            return
        request = facts.request
        if not facts.claims or (request and (request.group != self._group or request.group_budget is None)):
            self._missed[run] += 1
        else:
            self._missed.pop(run, None)
        if facts.over:
            self._over.add(run)


def _runs_of(history: AccountHistory) -> set[str]:
    held = map(run_of_key, history.account.open) if history.account else ()
    return {*held, *(run for runs in history.settled for run in runs)}


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
