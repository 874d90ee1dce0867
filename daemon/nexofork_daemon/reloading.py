"""SIGHUP: read the settings again, take what can change now, and say what cannot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from nexofork.errors import BadSettings
from nexofork_daemon.logs import set_level

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.config.reading import Settings
    from nexofork_daemon.dials import Dials
    from nexofork_daemon.notify import Watch

__all__ = ["Reloader"]

log = logging.getLogger(__name__)


class Reloader:
    """Holds the settings in force. Settings that are wrong change nothing at all."""

    def __init__(self, settings: Settings, *, read: Callable[[], Settings], dials: Dials, watch: Watch) -> None:
        """Start with the settings the daemon started with.

        Args:
            settings: Those.
            read: Reads them again, with the flags of the start.
            dials: What takes new values.
            watch: Told that a reload begins and ends.
        """
        self._started = settings
        self._in_force = settings
        self._read = read
        self._dials = dials
        self._watch = watch

    def reload(self) -> None:
        """Take new settings."""
        self._watch.reloading()
        try:
            self._take(self._read())
        except BadSettings as exc:
            log.error("the settings stay as they were: %s", exc)
        finally:
            self._watch.ready()

    def _take(self, settings: Settings) -> None:
        for warning in settings.warnings:
            log.warning("%s", warning)
        changed = [
            setting.key for setting in settings if setting.value != self._in_force.by_path[setting.key.path].value
        ]
        taken = [f"{key.path} = {settings[key.path]}" for key in changed if key.reloads]
        # Against what the daemon started with: it may have been said at an earlier reload, and still waits.
        waiting = [
            setting.key.path
            for setting in settings
            if not setting.key.reloads and setting.value != self._started.by_path[setting.key.path].value
        ]
        self._in_force = settings
        set_level(settings["daemon.log_level"])
        self._dials.turn(slots=settings["daemon.slots"], drain_s=settings["daemon.drain_s"])
        log.warning("settings were read again; changed now: %s", ", ".join(taken) or "nothing")
        if waiting:
            log.warning("these take a restart: %s", ", ".join(waiting))
