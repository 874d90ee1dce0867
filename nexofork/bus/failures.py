"""What can go wrong on the bus, each with the facts to act on.

All are a ``BusError``: ``retryable`` says whether the same call may succeed later. A refusal by the server keeps the
server's own words, because a timeout in its place would send the reader to look in the wrong direction.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nexofork.errors import BusError
from nexofork.wire.subjects import DEFAULT_POOL

if TYPE_CHECKING:
    from nexofork.wire.messages import AbortEvent, BlobRef

__all__ = [
    "AlreadyStored",
    "BusDenied",
    "BusUnreachable",
    "CannotChange",
    "ConnectionLost",
    "CorruptBlob",
    "JetStreamRefused",
    "MissingBlob",
    "NoAnswer",
    "NoResponders",
    "NoSuchPool",
    "NotPermitted",
    "NotStored",
    "PayloadTooLarge",
    "RunAborted",
    "RunExists",
    "ServerFailed",
    "ServerNotTrusted",
    "StoreFull",
    "StreamsDiffer",
    "WrongTip",
    "provision_command",
]


class BusUnreachable(BusError):
    """No NATS server answered at any of the URLs."""

    def __init__(self, urls: tuple[str, ...], reason: str) -> None:
        self.urls = urls
        self.reason = reason
        super().__init__(
            f"No NATS server was reached at {', '.join(urls)}: {reason}. "
            "Start one (`nexofork serve`), or name the right one with --nats or NATS_URL.",
            retryable=True,
        )


class BusDenied(BusError):
    """The server, or the credentials file itself, did not let us in."""

    def __init__(self, reason: str, *, fix: str = "Give credentials of the right role with --creds or --nkey.") -> None:
        self.reason = reason
        super().__init__(f"NATS did not accept the credentials: {reason}. {fix}", retryable=False)


class ServerNotTrusted(BusError):
    """The server's certificate is not one that we accept, or the server has none where one is needed."""

    def __init__(self, urls: tuple[str, ...], reason: str) -> None:
        self.urls = urls
        self.reason = reason
        if "expired" in reason:
            fix = "Let its operator renew it and reload the server."
        elif "issuer" in reason or "self-signed" in reason or "self signed" in reason:
            fix = "Name the authority that signed it with --nats-ca or NATS_CA."
        else:
            fix = "Use the name the certificate was made for, or another server."
        super().__init__(f"The NATS server at {', '.join(urls)} is not trusted: {reason}. {fix}", retryable=False)


class NotPermitted(BusError):
    """The server does not let this role publish or subscribe there."""

    def __init__(self, action: str, subject: str, identity: str) -> None:
        self.action = action
        self.subject = subject
        self.identity = identity
        super().__init__(
            f"NATS does not permit {identity} this: permissions violation for {action} to {subject!r}. "
            "Use credentials of the role that may.",
            retryable=False,
        )


class PayloadTooLarge(BusError):
    """The message does not fit the server's limit; it was not sent."""

    def __init__(self, subject: str, *, size: int, limit: int) -> None:
        self.subject = subject
        self.size = size
        """Bytes, headers included."""
        self.limit = limit
        super().__init__(
            f"The message for {subject!r} has {size} bytes with its headers and the server takes {limit}. "
            "Nothing was sent; put the content in a blob, or raise the server's max_payload.",
            retryable=False,
        )


class NoAnswer(BusError):
    """Nothing came back in time; whether the request was taken is unknown."""

    def __init__(self, subject: str, timeout_s: float, *, state: str = "") -> None:
        self.subject = subject
        self.timeout_s = timeout_s
        self.state = state
        """What is the matter with the connection; empty where it is up."""
        why = f"; {state}" if state else ""
        super().__init__(f"No answer on {subject!r} within {timeout_s:g} s{why}.", retryable=True)


class NotStored(BusError):
    """NATS answers for the stream and does not confirm what it is to store; whether it is stored is unknown."""

    def __init__(self, subject: str, *, stream: str, timeout_s: float) -> None:
        self.subject = subject
        self.stream = stream
        super().__init__(
            f"NATS does not store {subject!r}: stream {stream} is there and confirms nothing within {timeout_s:g} s. "
            "Look at the disk and the log of the NATS server; after a full disk, make room and restart the server, "
            "because the stream takes nothing before.",
            retryable=True,
        )


class ConnectionLost(BusError):
    """The connection broke before the answer came; whether the request was taken is unknown."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"The connection to NATS broke before the answer on {subject!r} came.", retryable=True)


class NoResponders(BusError):
    """Nobody listens there: no such stream or consumer, no leader, or not imported by this account."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(
            f"Nobody answers on {subject!r}: the stream or consumer does not exist, has no leader at the moment, "
            "or this account does not import it. The server needs JetStream (`nexofork serve` has it).",
            retryable=True,
        )


class JetStreamRefused(BusError):
    """JetStream answered with an error."""

    def __init__(self, subject: str, *, code: int, err_code: int, description: str) -> None:
        self.subject = subject
        self.code = code
        """Like an HTTP status."""
        self.err_code = err_code
        """The exact reason, as JetStream numbers it."""
        self.description = description
        super().__init__(
            f"JetStream refused {subject!r}: {description} (error {err_code}).", retryable=code in (408, 503)
        )


class WrongTip(JetStreamRefused):
    """A compare-and-set lost: the subject has moved on, or another write is on its way."""

    @property
    def last_seq(self) -> int | None:
        """Where the subject stands now, if the server said so; it does not while another write is on its way."""
        found = re.search(r"wrong last sequence: (\d+)", self.description)
        return int(found[1]) if found else None


class AlreadyStored(JetStreamRefused):
    """The subject is write-once, or full, and takes no more messages."""


class StoreFull(BusError):
    """The store takes no more of this."""

    def __init__(self, what: str, detail: str) -> None:
        self.what = what
        self.detail = detail
        super().__init__(
            f"The store of {what} is full: {detail}. Wait for old runs to expire, or let an admin give it more room "
            "(`nexofork provision --max-bytes N`).",
            retryable=True,
        )


def provision_command(pool: str) -> str:
    """Return the command that makes what a pool needs.

    >>> provision_command("fork"), provision_command("gpu")
    ('nexofork provision', 'nexofork provision --pool gpu')
    """
    return "nexofork provision" + ("" if pool == DEFAULT_POOL else f" --pool {pool}")


class StreamsDiffer(BusError):
    """Streams or the consumer have other settings than the design needs; nothing was changed."""

    def __init__(self, differences: tuple[str, ...], *, pool: str) -> None:
        self.differences = differences
        self.pool = pool
        super().__init__(
            f"NATS has other settings than the fleet needs: {'; '.join(differences)}. Nothing was changed; "
            f"let an admin run `{provision_command(pool)} --apply`.",
            retryable=False,
        )


class CannotChange(BusError):
    """A stream or consumer that somebody made otherwise, in a way that JetStream changes for nobody."""

    def __init__(self, lacks: str, subject: str, *, reason: str, pool: str) -> None:
        self.reason = reason
        """JetStream's own words."""
        kind, _, name = subject.partition(".CREATE." if ".CREATE." in subject else ".UPDATE.")
        remove = f"nats {kind.lower()} rm {name.replace('.', ' ')}"
        loss = "which takes all that is stored in it" if kind == "STREAM" else "its requests are handed out anew"
        super().__init__(
            f"The {lacks}, which cannot be changed while it exists: {reason}. Let an admin remove it (`{remove}`, "
            f"{loss}) and run `{provision_command(pool)}`.",
            retryable=False,
        )


class NoSuchPool(BusError):
    """A pool that nobody has made; nothing was made of it."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        super().__init__(
            f"There is no pool {pool!r} on this NATS server. Check --pool; the first daemon (`nexofork daemon --pool "
            f"{pool}`), the first fork or `nexofork provision --pool {pool}` makes it.",
            retryable=False,
        )


class RunExists(BusError):
    """The run id was used by an earlier request, of whatever content."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"Run {run_id} was already requested; `nexofork wait {run_id}` gets its result, or give another --run-id.",
            retryable=False,
        )


class RunAborted(BusError):
    """The log says that the parent ended the run."""

    def __init__(self, event: AbortEvent, seq: int) -> None:
        self.event = event
        self.seq = seq
        """Where the log ended when this was found: the place to put the final report behind."""
        by = f" by {event.by}" if event.by else ""
        super().__init__(f"The run was aborted{by}: {event.note or 'no reason given'}.", retryable=False)


class MissingBlob(BusError):
    """A blob, or a piece of it, is not stored."""

    def __init__(self, ref: BlobRef, *, found: int = 0) -> None:
        self.ref = ref
        self.found = found
        """How many of its pieces were there."""
        super().__init__(
            f"Blob {ref.owner}/{ref.name} is not stored ({found} of {ref.chunks} pieces found): it expired "
            "or was never uploaded. Ask its owner to upload it again.",
            retryable=True,
        )


class CorruptBlob(BusError):
    """What is stored under the name is not what the reference says."""

    def __init__(self, ref: BlobRef, problem: str) -> None:
        self.ref = ref
        self.problem = problem
        super().__init__(
            f"Blob {ref.owner}/{ref.name} is corrupt: {problem}. Ask its owner for a new reference.", retryable=False
        )


class ServerFailed(BusError):
    """The embedded server did not start."""

    def __init__(self, problem: str, *, fix: str) -> None:
        self.problem = problem
        self.fix = fix
        super().__init__(f"The embedded nats-server {problem}. {fix}", retryable=False)
