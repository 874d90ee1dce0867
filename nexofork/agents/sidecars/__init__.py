"""Runs beside a session that serve it: they read its cache, keep no transcript, and never enter its conversation."""

from __future__ import annotations

from nexofork.agents.sidecars.dream import DreamResult, dream
from nexofork.agents.sidecars.launch import SidecarHost
from nexofork.agents.sidecars.notes import NotesResult, session_memory
from nexofork.agents.sidecars.speech import away, btw, suggest

__all__ = ["DreamResult", "NotesResult", "SidecarHost", "away", "btw", "dream", "session_memory", "suggest"]
