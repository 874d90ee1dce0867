"""A run's log against its model: whatever daemons and parents try, only what the model allows stands on the log."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from nexofork.bus.failures import RunAborted
from nexofork.bus.jetstream import store
from nexofork.bus.provisioning import provision
from nexofork.bus.reading import read_subject
from nexofork.bus.run_log import RunLog
from nexofork.errors import RunLost
from nexofork.wire.messages import AbortEvent, CallStarted, Claimed, Daemon, Final, Payload, Turn, encode
from nexofork.wire.subjects import events, run_filter
from tests.support.nats import SMALL, a_request, connected
from tests.support.run_model import Logged, RunModel, check_history

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nexofork.bus.connection import Bus
    from nexofork.bus.embedded import EmbeddedServer
    from nexofork.wire.messages import Report

DAEMONS = st.sampled_from(("d0", "d1", "d2"))


class _Writer:
    """One daemon's view of the run."""

    def __init__(self, bus: Bus, run_id: str) -> None:
        self.log = RunLog(bus, run_id)
        self.epoch = 0
        self.seq = 0
        self.turn = 0
        self.aborted = False
        """Whether it has been told that the parent ended the run."""

    def claims(self, model: RunModel) -> None:
        """Prepare a claim after what was read."""
        self.epoch, self.seq, self.turn, self.aborted = model.epoch + 1, model.tip, model.turns, False

    @property
    def works(self) -> bool:
        return self.epoch > 0 and not self.aborted


class LogMachine(RuleBasedStateMachine):
    """Daemons that claim, report, freeze and come back; parents that ask and abort."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._bus: Bus = self._run(self._stack.enter_async_context(connected(self.url)))
        self._run_id = uuid.uuid4().hex
        self._parent = RunLog(self._bus, self._run_id)
        self._writers = {name: _Writer(self._bus, self._run_id) for name in ("d0", "d1", "d2")}

    def teardown(self) -> None:
        """Close the connection."""
        self._run(self._stack.aclose())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    def _history(self) -> list[Logged]:
        stored = self._run(read_subject(self._bus, "FORK", run_filter(self._run_id)))
        return [
            Logged.read(seq=one.seq, subject=one.subject, data=one.data, headers=dict(one.headers)) for one in stored
        ]

    def _model(self) -> RunModel:
        model = RunModel()
        for message in self._history():
            model.take(message)
        return model

    def _append(self, writer: _Writer, report: Report) -> str:
        """Append as a daemon does, and say what became of it."""
        try:
            writer.seq = self._run(writer.log.append(report, after=writer.seq))
        except RunAborted as aborted:
            writer.seq, writer.aborted = aborted.seq, True
            return "aborted"
        except RunLost:
            writer.epoch = 0
            return "lost"
        return "stored"

    def _expected(self, writer: _Writer, model: RunModel) -> str:
        """What the model says becomes of a report of a daemon that thinks it has the run."""
        if model.final or writer.epoch != model.epoch:
            return "lost"
        return "aborted" if model.aborting else "stored"

    @rule()
    @precondition(lambda self: not self._model().requested and not self._model().aborting)
    def ask(self) -> None:
        """A parent asks for the run."""
        self._run(self._parent.request(a_request()))

    @rule(name=DAEMONS)
    @precondition(lambda self: self._model().may_start())
    def look_and_claim(self, name: str) -> None:
        """A daemon reads the log and claims the run."""
        writer = self._writers[name]
        writer.claims(self._model())
        assert self._append(writer, Claimed(epoch=writer.epoch, daemon=Daemon(instance=name))) == "stored"

    @rule(first=DAEMONS, second=DAEMONS)
    @precondition(lambda self: self._model().may_start())
    def two_claim(self, first: str, second: str) -> None:
        """Two daemons have read the same log; the first to write has the run."""
        if first == second:
            return
        model = self._model()
        for name in (first, second):
            self._writers[name].claims(model)
        outcomes = [
            self._append(self._writers[name], Claimed(epoch=model.epoch + 1, daemon=Daemon(instance=name)))
            for name in (first, second)
        ]
        assert outcomes == ["stored", "lost"]

    @rule(name=DAEMONS)
    @precondition(lambda self: any(writer.epoch for writer in self._writers.values()))
    def report(self, name: str) -> None:
        """A daemon announces a call and records its turn, whether or not the run is still its own."""
        writer = self._writers[name]
        if not writer.works:
            return
        turn, expected = writer.turn + 1, self._expected(writer, self._model())
        outcome = self._append(writer, CallStarted(epoch=writer.epoch, turn=turn))
        assert outcome == expected
        if outcome == "stored":
            writer.turn = turn
            assert self._append(writer, Turn(epoch=writer.epoch, turn=turn, content=Payload(text="[]"))) == "stored"

    @rule(name=DAEMONS, steps=st.integers(min_value=1, max_value=6))
    @precondition(lambda self: any(writer.epoch for writer in self._writers.values()))
    def interrupted(self, name: str, steps: int) -> None:
        """A daemon's append is cancelled on its way; it does not know whether it landed, and goes on."""
        writer = self._writers[name]
        if not writer.works or self._expected(writer, self._model()) != "stored":
            return

        async def cut_off() -> None:
            async with asyncio.TaskGroup() as tasks:
                report = CallStarted(epoch=writer.epoch, turn=writer.turn + 1)
                appending = tasks.create_task(writer.log.append(report, after=writer.seq))
                for _ in range(steps):
                    await asyncio.sleep(0)
                appending.cancel()
            await self._bus.request("$SYS.REQ.USER.INFO", b"", timeout_s=5)  # what was sent has arrived

        self._run(cut_off())
        assert self._append(writer, CallStarted(epoch=writer.epoch, turn=writer.turn + 1)) == "stored"

    @rule(name=DAEMONS, status=st.sampled_from(("completed", "failed", "timed_out")))
    @precondition(lambda self: any(writer.epoch for writer in self._writers.values()))
    def end(self, name: str, status: str) -> None:
        """A daemon ends the run; where the parent came first, it ends as aborted."""
        writer, model = self._writers[name], self._model()
        if not writer.epoch:
            return
        if writer.works:
            expected = self._expected(writer, model)
            final = Final(epoch=writer.epoch, status=status, result=Payload(text="{}"))
            assert self._append(writer, final) == expected
        if writer.aborted and writer.epoch:
            ours = not model.final and writer.epoch == model.epoch
            final = Final(epoch=writer.epoch, status="aborted", result=Payload(text="{}"))
            assert self._append(writer, final) == ("stored" if ours else "lost")
        writer.epoch = 0

    @rule()
    @precondition(lambda self: self._model().requested)
    def abort(self) -> None:
        """A parent ends the run."""
        model = self._model()
        outcome = self._run(self._parent.abort(AbortEvent(note="enough")))
        assert outcome.how == ("ended" if model.final else "already" if model.aborting else "logged")

    @rule()
    @precondition(lambda self: self._model().requested and not self._model().final)
    def abort_plainly(self) -> None:
        """A parent in another language publishes an abort without a compare-and-set."""
        self._run(store(self._bus, events(self._run_id), encode(AbortEvent(note="plain"))))

    @invariant()
    def the_log_is_one_that_may_be(self) -> None:
        """Nothing stands on the log that the model does not allow."""
        assert check_history(self._history()) == []


def test_a_log_only_holds_what_its_model_allows(nats_server: EmbeddedServer) -> None:
    """Claims, reports, cancelled appends, ends and aborts in any order keep to the model."""

    async def make() -> None:
        async with connected(nats_server.url) as bus:
            await provision(bus, max_bytes=SMALL)

    asyncio.run(make())
    LogMachine.url = nats_server.url
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=40,
            stateful_step_count=15,
            deadline=None,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes with a real server
            suppress_health_check=list(HealthCheck),
        ),
    )
