"""Get a finished child's work: its bundle from NATS, into a repository on this host."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from nexofork.engine.workspace.fetching import fetch_bundle
from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from nexofork.bus.blobs import BlobStore
    from nexofork.engine.result import ForkResult
    from nexofork.engine.workspace.fetching import Fetched

__all__ = ["fetch_work"]


async def fetch_work(result: ForkResult, blobs: BlobStore, *, root: str | os.PathLike[str] | None = None) -> Fetched:
    """Take the work of a finished run into ``refs/forks/<run_id>`` of a repository.

    Args:
        result: The run's.
        blobs: Where the bundle is.
        root: The repository; where the run was forked from unless said.

    Raises:
        MissingBase: The repository lacks the commit the fork began with.
        ForkRefused: There is nothing to fetch, or what came back is not what it should be.
        BusError: The bundle could not be fetched.
    """
    work = result.workspace
    if work is None:
        raise ForkRefused(f"Run {result.run_id} ({result.status}) had no git workspace; there is nothing to fetch.")
    if work.bundle is None:
        if work.problem:
            raise ForkRefused(f"Nothing of the work of run {result.run_id} can be fetched: {work.problem}")
        raise ForkRefused(f"Run {result.run_id} changed nothing; there is nothing to fetch.")
    target = os.fspath(root) if root is not None else work.root
    if root is None and not await asyncio.to_thread(os.path.isdir, target):
        raise ForkRefused(f"The repository {target} of run {result.run_id} is not on this host; name a clone of it.")
    return await fetch_bundle(target, result.run_id, work, await blobs.get(work.bundle))
