"""Who we are to NATS: the public key of our seed.

The public key names our inbox and our presence, and the server permits nobody else to use them. Files are read and
checked here because nats-py reads a credentials file without a token in it for ever.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]

from nexofork.bus.failures import BusDenied

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LOCAL", "Login", "new_seed", "read_login"]

LOCAL = "local"
"""The identity of a client without a key, on a server that asks for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """An identity and what nats-py needs to prove it."""

    identity: str
    options: dict[str, Any]


def read_login(creds: Path | None, nkey_seed: Path | None) -> Login:
    """Read the credentials; a file with nothing but a seed is taken as one wherever it is given.

    Raises:
        BusDenied: A file cannot be read, or holds no usable seed.
    """
    path = creds or nkey_seed
    if path is None:
        return Login(identity=LOCAL, options={})
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        raise BusDenied(f"{path} cannot be read ({exc})") from exc
    seed = _seed_in(text)
    if seed is None:
        raise BusDenied(f"{path} holds no nkey seed")
    identity = _public_key(seed, path)
    if "BEGIN NATS USER JWT" in text:
        return Login(identity=identity, options={"user_credentials": str(path)})
    return Login(identity=identity, options={"nkeys_seed_str": seed})


def new_seed() -> tuple[str, str]:
    """Return a new user's seed, which is secret, and the public key it proves."""
    seed = bytes(nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER))
    return seed.decode(), bytes(nkeys.from_seed(bytearray(seed)).public_key).decode()


def _seed_in(text: str) -> str | None:
    for line in text.splitlines():
        if line.strip().startswith("SU"):
            return line.strip()
    return None


def _public_key(seed: str, path: Path) -> str:
    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        return bytes(pair.public_key).decode()
    except (nkeys.NkeysError, ValueError) as exc:
        raise BusDenied(f"the nkey seed in {path} is not valid ({exc})") from exc
