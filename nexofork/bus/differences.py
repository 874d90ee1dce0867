"""What the design needs of streams and of the consumer, compared with what the server has.

Size, age and copies are the admin's: they differ without being wrong, and only an age that is short enough to lose runs
is worth a word. A stream without any limit works too, so it stops no process; but one key can fill the store by it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "changes",
    "consumer_needs",
    "differences",
    "forgets_early",
    "missing_limits",
    "stream_needs",
    "without_limits",
]

_NEEDED = (
    "subjects",
    "retention",
    "discard",
    "discard_new_per_subject",
    "allow_direct",
    "deny_purge",
    "allow_rollup_hdrs",
    "republish",
)
_CONSUMER_NEEDED = ("filter_subject", "ack_policy", "max_deliver", "deliver_policy")
_LEAST_MESSAGE = 1 << 20
_LIMITS = {"max_bytes": "bytes", "max_msgs": "messages", "max_msg_size": ""}
"""What bounds a stream, with what of its state counts against it."""
_LEAST_PENDING = 1000
"""Runs of all daemons together; further ones would wait although slots are free."""
_SECOND_NS = 10**9


class _Least(int):
    """A limit that may be higher, or none at all."""


def stream_needs(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the design needs of a stream, from the settings of a new one."""
    needed = {key: wanted[key] for key in _NEEDED if key in wanted}
    needed["max_msg_size"] = _Least(_LEAST_MESSAGE)
    if wanted.get("max_msgs_per_subject") == 1:  # write-once, or latest value: part of what the stream means
        needed["max_msgs_per_subject"] = 1
    if wanted["discard"] == "new":  # what is only the latest value is soon said again after a restart
        needed["storage"] = wanted["storage"]
    return needed


def consumer_needs(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the design needs of the consumer, from the settings of a new one."""
    return {key: wanted[key] for key in _CONSUMER_NEEDED} | {"max_ack_pending": _Least(_LEAST_PENDING)}


def changes(current: Mapping[str, Any], needed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the needed settings that are otherwise now."""
    return {key: value for key, value in needed.items() if not _same(current.get(key), value)}


def differences(what: str, current: Mapping[str, Any], needed: Mapping[str, Any]) -> list[str]:
    """Return a sentence's part for each needed setting that is otherwise now."""
    return [
        f"{what} has {key} {json.dumps(current.get(key))} and needs {_words(value)}"
        for key, value in changes(current, needed).items()
    ]


def forgets_early(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return what a stream loses by an age below the designed one; empty where it has none."""
    age, usual = int(current.get("max_age", 0)), int(wanted["max_age"])
    if not 0 < age < usual:
        return ""
    return f"stream {wanted['name']} forgets after {age / _SECOND_NS:g} s, where {usual / _SECOND_NS:g} s are usual"


def missing_limits(info: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, int]:
    """Return the limits to give a stream that has none, from the settings of a new one.

    A stream that holds more than a new one may is given a quarter more than it holds: nothing stored is lost, and
    nothing is refused from now on that was taken before.
    """
    return {
        key: max(int(wanted[key]), int(info["state"][counted]) * 5 // 4 if counted else 0)
        for key, counted in _LIMITS.items()
        if key in wanted and int(info["config"].get(key) or -1) <= 0
    }


def without_limits(info: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return which limits a stream lacks, as a sentence's part; empty where it has all."""
    missing = missing_limits(info, wanted)
    return f"stream {wanted['name']} has no {', '.join(missing)}" if missing else ""


def _words(value: Any) -> str:
    return f"{'at least ' if isinstance(value, _Least) else ''}{json.dumps(value)}"


def _same(current: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool):
        return bool(current) == wanted
    if isinstance(wanted, _Least):
        return current is None or current <= 0 or current >= wanted
    if isinstance(wanted, list):
        return sorted(current or []) == sorted(wanted)
    if isinstance(wanted, dict):
        return isinstance(current, dict) and all(current.get(key) == value for key, value in wanted.items())
    return bool(current == wanted)
