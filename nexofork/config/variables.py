"""Environment variables that look like ours and that nothing reads: most likely mistyped, so somebody should know."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from nexofork.config.keys import DAEMON_KEYS
from nexofork.economics.settings import PRICES_VARIABLE
from nexofork.telemetry.settings import CONTENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["KNOWN_VARIABLES", "unread_variables"]

_ELSEWHERE = {
    PRICES_VARIABLE,
    CONTENT_VARIABLE,
    "NEXOFORK_CONFIG",
    "NEXOFORKD_CONFIG",
    "NEXOFORK_FORK_SUBAGENT",
    "NEXOFORK_COORDINATOR",
    "NEXOFORK_NON_INTERACTIVE",
    "NEXOFORK_AUTO_BACKGROUND",
    "NEXOFORK_KEEP_PROJECT_CONVENTIONS",
    "NEXOFORK_KEEP_GIT_STATUS",
}
"""What is read apart from settings: the paths of files, and what parents are told about agents."""
KNOWN_VARIABLES = frozenset({key.variable for key in DAEMON_KEYS} | _ELSEWHERE)

_OURS = re.compile(r"NEXOFORKD?(?:_(.*))?")
# Orchestrators make variables of their own from the names of services, as NEXOFORK_SERVICE_HOST.
_OF_A_SERVICE = re.compile(r".*_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


def unread_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence or two on each variable that nothing reads, with what may have been meant."""
    for name in sorted(environment):
        found = _OURS.fullmatch(name)
        if found is None or name in KNOWN_VARIABLES or _of_a_service(name, environment[name]):
            continue
        meant = _meant(name, found[1] or "")
        yield f"{name} is no setting of ours and is ignored." + (f" Did you mean {meant}?" if meant else "")


def _of_a_service(name: str, value: str) -> bool:
    return _OF_A_SERVICE.fullmatch(name) is not None or _ADDRESS.match(value) is not None


def _meant(name: str, rest: str) -> str | None:
    """The variable with the section that was left out, else the nearest."""
    whole = (key.variable for key in DAEMON_KEYS if rest in (key.name.upper(), key.variable.removeprefix("NEXOFORK_")))
    return next(whole, None) or next(iter(get_close_matches(name, KNOWN_VARIABLES, 1)), None)
