"""Consolidate memory: a sidecar goes through the notes of a folder with the conversation in mind.

It may write in that folder alone. Its filter sees to that, and what really changed is compared with what was allowed
when it is over. One dream runs at a time, and none where nothing is new; both is known from files in the folder, so it
holds among all processes and hosts that share it.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nexofork.agents.sidecars.launch import Sidecar
from nexofork.agents.sidecars.lock import MemoryLock
from nexofork.agents.sidecars.seen import Seen, digest_of_folder, digest_of_session
from nexofork.agents.sidecars.words import dream_prompt
from nexofork.core.query_source import QuerySource
from nexofork.errors import ForkRefused
from nexofork.policy.filters import BOOKKEEPING, AutoMemFilter, may_change
from nexofork.run.abort import AbortReason
from nexofork.run.audit import changes, list_tree
from nexofork.telemetry.spans import changed_despite_filter
from nexofork.tools.arguments import Unable
from nexofork.tools.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.agents.sidecars.launch import SidecarHost
    from nexofork.run.audit import Change, Listing
    from nexofork.run.result import ForkResult
    from nexofork.tools.threads import Stop

__all__ = ["DreamResult", "dream"]

log = logging.getLogger(__name__)

_TURNS = 30
_LOOKING_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DreamResult:
    """What came of a dream."""

    outcome: Literal["ran", "locked", "nothing_new"]
    reason: str = ""
    """Why it did not run: who holds the lock, or since when nothing is new."""
    changed: tuple[Change, ...] = ()
    """What is not as it was in the memory folder, whatever the run's status."""
    audit: tuple[dict[str, str], ...] = ()
    """What changed although the dream may not change it: path, and whether it was added, changed or removed."""
    audited: bool = True
    """Whether everything could be looked at; where not, an empty `audit` says nothing."""
    result: ForkResult | None = None
    """The run; None where it was skipped."""

    @property
    def skipped(self) -> bool:
        """Whether nothing was run, and nothing paid."""
        return self.outcome != "ran"

    @property
    def ok(self) -> bool:
        """Whether it completed and changed nothing it may not, or there was no need for it."""
        return not self.audit and (self.result is None or self.result.ok)

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "outcome": self.outcome,
            "reason": self.reason,
            "ok": self.ok,
            "changed": [asdict(change) for change in self.changed],
            "audit": list(self.audit),
            "audited": self.audited,
            "result": self.result.to_json() if self.result else None,
        }


async def dream(
    host: SidecarHost,
    memory_dir: str | Path,
    *,
    watched: Sequence[Path] = (),
    owner: str = "",
    stale_s: float = 120.0,
    timeout_s: float = 600.0,
    force: bool = False,
) -> DreamResult:
    """Consolidate the notes in a folder of this host's, unless somebody does already or nothing is new.

    Args:
        host: Starts it.
        memory_dir: The folder with the notes; it has to exist.
        watched: Further folders in which nothing may change meanwhile; what anybody changes there is reported.
        owner: Who dreams, for whoever finds the lock.
        stale_s: After how long without a sign of life a lock is taken from its holder.
        timeout_s: When the run is given up.
        force: Run also where nothing is new; a lock is respected all the same.

    Raises:
        EmptySlot: The session has not made a request yet.
        ForkRefused: The folder is none or cannot be written, or the run cannot be started as it is.
        BusError: NATS was not reached.
    """
    snapshot = host.source.snapshot()
    tool_filter = AutoMemFilter(memory_dir)
    lock = MemoryLock(tool_filter.memory_dir, owner=owner, stale_s=stale_s)
    if (holder := lock.acquire()) is not None:
        return DreamResult(outcome="locked", reason=f"another dream has the folder: {holder}")
    abort = host.token(snapshot)
    with lock.kept(lambda: abort.abort(AbortReason.LEASE_LOST, "another dream took the memory folder's lock")):
        folder = tool_filter.memory_dir
        seen, session = Seen.read(folder), digest_of_session(snapshot)
        if not force and seen.has(session, await _digest(folder)):
            return DreamResult(outcome="nothing_new", reason="neither conversation nor notes changed since a dream")
        watch = _Watch(tool_filter, (folder, *watched))
        await watch.begin()
        result = await host.run(_sidecar(tool_filter, timeout_s), snapshot=snapshot, abort=abort)
        found = await watch.end(result)
        if result.ok:
            seen.having(session, await _digest(folder)).write(folder)
        return found


def _sidecar(tool_filter: AutoMemFilter, timeout_s: float) -> Sidecar:
    return Sidecar(
        label="auto_dream",
        query_source=QuerySource.AUTO_DREAM,
        prompt=(dream_prompt(tool_filter.memory_dir),),
        tool_filter=tool_filter,
        max_turns=_TURNS,
        timeout_s=timeout_s,
    )


async def _digest(folder: Path) -> str:
    try:
        return await in_thread(lambda stop: digest_of_folder(folder, stop), limit_s=_LOOKING_S)
    except Unable as exc:
        raise ForkRefused(f"The notes in {folder} cannot be read through in {_LOOKING_S:g} s; keep fewer.") from exc


class _Watch:
    """Some folders before and after a dream."""

    def __init__(self, tool_filter: AutoMemFilter, roots: Sequence[Path]) -> None:
        self._filter = tool_filter
        whole = [Path(root).resolve() for root in roots]
        self._roots = [root for root in whole if not any(other in root.parents for other in whole)]
        self._before: Listing | None = None

    async def begin(self) -> None:
        """Look before the run."""
        self._before = await self._look()

    async def end(self, result: ForkResult) -> DreamResult:
        """Look after the run, and say what it changed; what its own host found is told as well."""
        after = await self._look()
        known = list(result.audit)
        if self._before is None or after is None:
            return DreamResult(outcome="ran", audit=tuple(known), audited=False, result=result)
        found = [change for change in changes(self._before, after) if not self._own(change.path)]
        wrong = [change for change in found if not may_change(self._filter, change.path)]
        if wrong:
            changed_despite_filter(run_id=result.run_id, changes=[(change.what, change.path) for change in wrong])
        known += [told for change in wrong if (told := {"path": change.path, "what": change.what}) not in known]
        return DreamResult(
            outcome="ran",
            changed=tuple(change for change in found if may_change(self._filter, change.path)),
            audit=tuple(known),
            audited=self._before.complete and after.complete,
            result=result,
        )

    async def _look(self) -> Listing | None:
        def look(stop: Stop) -> Listing:
            return list_tree(self._roots, stop)

        try:
            return await in_thread(look, limit_s=_LOOKING_S)
        except (Unable, OSError) as exc:
            log.warning("what the dream changes cannot be looked at: %s", exc)
            return None

    def _own(self, path: str) -> bool:
        found = Path(path)
        return found.parent == self._filter.memory_dir and found.name in BOOKKEEPING
