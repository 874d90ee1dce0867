"""Say with the claim of a run that its first call goes out at once, where it does.

Most children of a fan-out find their snapshot on the shelf and their prefix warm: nothing stands between claim and
call. One message for both spares each of them a write and a kilobyte on the wire.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from nexofork.engine.abort import AbortToken
from nexofork.engine.dispatch import NoTools
from nexofork.engine.filters import build_filter, memory_folders
from nexofork.engine.outlook import plan_fan_out, prefix_key
from nexofork.engine.params import prepare
from nexofork.wire.messages import FirstCall
from nexofork.wire.needs import unknown_needs
from nexofork_daemon.request import fork_params

if TYPE_CHECKING:
    from nexofork.wire.messages import Requested
    from nexofork_daemon.host import Host

__all__ = ["first_call"]

log = logging.getLogger(__name__)


def first_call(request: Requested, host: Host) -> FirstCall | None:
    """Return the first call of a fresh run; None where it may have to wait, or something has to be fetched first."""
    try:
        return _planned(request, host)
    except Exception:
        # The run is not claimed yet; what is wrong with it is found again, and reported, once it is.
        log.debug("the first call of a run was not planned", exc_info=True)
        return None


def _planned(request: Requested, host: Host) -> FirstCall | None:
    snapshot = host.shelf.held(request)
    beside = request.answers or request.workspace or memory_folders(request.filters) or unknown_needs(request)
    if snapshot is None or request.budget or request.group_budget or beside:
        return None
    params = fork_params(
        request,
        snapshot,
        llm=host.provider,
        tools=NoTools(),
        tool_filter=build_filter(request.filters),
        token=AbortToken(),
        on_message=_unseen,
    )
    base, _ = prepare(params)
    prefix = prefix_key(params, base)
    decision = plan_fan_out(
        params,
        base,
        times=host.warmth.times,
        is_warm=host.warmth.is_warm(prefix),
        wait_s=host.warmth.wait_s,
        now=time.time(),
    )
    if decision.plan != "all_at_once":
        return None
    return FirstCall(model=params.model, prefix=prefix, decision={**decision.to_json(), "role": "free"})


def _unseen(_: object) -> None:
    pass
