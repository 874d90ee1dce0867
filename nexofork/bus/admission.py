"""Whether NATS lets us in: at the first connection, and again after each one that was lost.

A key can be changed or removed under a process that uses it. Access may come back (a server that reads half a
configuration, a token that is renewed in its file), so refusals are borne for a while, with growing pauses. After that,
or at once where the file holds another key by now, they are final: the public key names our inbox and our presence, so
another key is another client, and that takes a new start.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from nats import errors as nats_errors

from nexofork.bus.client import NoTls
from nexofork.bus.credentials import read_login
from nexofork.bus.failures import BusDenied, BusUnreachable, ServerNotTrusted
from nexofork.errors import BusError

if TYPE_CHECKING:
    from pathlib import Path

    from nexofork.bus.connection import BusSettings

__all__ = ["FIRST_PAUSE_S", "Admission", "is_denial", "not_connected", "spoken", "trust"]

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
"""Between two tries to restore a connection."""
_LONGEST_PAUSE_S = 5.0


class Admission:
    """What the server said to a connection that it had let in before."""

    def __init__(self, settings: BusSettings, identity: str) -> None:
        self.pause_s = FIRST_PAUSE_S
        """How long to wait before the next try."""
        self.refusal: BusDenied | None = None
        """Set once refusals are final, until the server lets us in after all."""
        self._settings = settings
        self._identity = identity
        self._since: float | None = None
        self._words = ""

    @property
    def state(self) -> str:
        """What a request that waits for the connection waits for, as a part of a sentence."""
        if self._since is None:
            return "the connection is down and is being restored"
        return f"NATS does not let {self._identity} in any more ({self._words})"

    def refused(self, words: str) -> BusDenied | None:
        """Take note of a refused try; returns the error once, when it is final."""
        now, self._words = asyncio.get_running_loop().time(), words
        if self._since is None:
            self._since = now
            log.warning(
                "NATS does not let %s in any more (%s); trying again for %g s. If its key was changed or removed, give "
                "this host the new one, and start again",
                self._identity,
                words,
                self._settings.denied_s,
            )
        self.pause_s = min(2 * self.pause_s, _LONGEST_PAUSE_S)
        if self.refusal is not None or not (self._key_changed() or now - self._since >= self._settings.denied_s):
            return None
        self.refusal = self._final()
        return self.refusal

    def let_in(self) -> None:
        """Forget what was refused."""
        self.pause_s, self.refusal, self._since = FIRST_PAUSE_S, None, None

    def _key_changed(self) -> bool:
        try:
            return read_login(self._settings.creds, self._settings.nkey_seed).identity != self._identity
        except BusDenied:
            return False

    def _final(self) -> BusDenied:
        file = self._settings.creds or self._settings.nkey_seed
        if self._key_changed():
            fix = f"{file} holds another key by now: start again, to use that."
        else:
            fix = "Give this host the new key if it was changed, or let an admin add it again; then start again."
        return BusDenied(f"{self._words}, for {self._identity}, which was let in before", fix=fix)


def is_denial(problem: Exception | None) -> bool:
    """Whether it is the server's word on who we are, and not on whether it can be reached."""
    words = str(problem).lower()
    return isinstance(problem, nats_errors.AuthorizationError) or "authorization" in words or "authentication" in words


def not_connected(settings: BusSettings, error: Exception, noticed: Exception | None) -> BusError:
    """Return why the first connection did not come about, from how it ended and what was noticed before."""
    cause = noticed or error
    words = spoken(cause)
    if is_denial(cause):
        return BusDenied(words)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ServerNotTrusted(settings.urls, cause.verify_message.rstrip("."))
    if isinstance(cause, NoTls):
        return ServerNotTrusted(settings.urls, "it offers no TLS, and an authority was named")
    if isinstance(error, TimeoutError) and noticed is None:
        words = f"no answer within {settings.connect_timeout_s:g} s"
    return BusUnreachable(settings.urls, words or type(cause).__name__)


def spoken(error: Exception) -> str:
    """Return the server's own words of an error."""
    return str(error).removeprefix("nats: ").strip("'")


def trust(ca: Path | None) -> dict[str, ssl.SSLContext]:
    """Return what nats-py needs to check the server's certificate.

    Raises:
        BusError: The file is no authority.
    """
    if ca is None:
        return {}
    try:
        return {"tls": ssl.create_default_context(cafile=ca)}
    except OSError as exc:
        raise BusError(
            f"{ca} cannot be used as a certificate authority ({exc.strerror or exc}). Give it in PEM form.",
            retryable=False,
        ) from exc
