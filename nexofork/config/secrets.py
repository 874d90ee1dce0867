"""The provider's key: which source stands, and its value for whoever calls the provider.

A key is read from a file or a variable, given to the SDK and to nobody else; it is no part of `Settings`, so nothing
that shows settings can show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nexofork.errors import BadSettings, ForkRefused, SettingProblem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nexofork.config.settings import Settings

__all__ = ["PROVIDER_VARIABLES", "ProviderKey", "find_provider_key"]

PROVIDER_VARIABLES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
"""Where the SDK finds a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderKey:
    """Where the key comes from, and itself where it does not come from the SDK's own variables."""

    source: str
    value: str | None = field(default=None, repr=False)
    """None lets the SDK read its variable."""


def find_provider_key(settings: Settings, environment: Mapping[str, str]) -> ProviderKey:
    """Return the provider's key.

    A flag or variable that names a file comes first, then the SDK's own variables, then a file that the settings file
    or systemd names.

    Raises:
        BadSettings: The file holds no key.
        ForkRefused: There is none.
    """
    named = settings.by_path["provider.api_key_file"]
    variable = next((name for name in PROVIDER_VARIABLES if environment.get(name)), None)
    if named.value is not None and (named.level in ("flag", "environment") or variable is None):
        what = "credential" if named.level == "credential" else named.level
        return ProviderKey(source=f"{what} {named.source}, {named.value}", value=_read(named.value))
    if variable is not None:
        return ProviderKey(source=f"environment {variable}")
    raise ForkRefused(
        "There is no key for the provider: name a file with it as provider.api_key_file (--api-key-file), give systemd "
        "the credential anthropic_api_key, or set ANTHROPIC_API_KEY (and ANTHROPIC_BASE_URL for a proxy)."
    )


def _read(path: Path) -> str:
    fix = "Put the key alone into it, on one line."
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        said = f"cannot be read as a key ({exc.strerror if isinstance(exc, OSError) else 'it is not plain text'})"
        raise BadSettings([SettingProblem(where=str(path), said=said, fix=fix)]) from None
    if not key or not key.isprintable() or " " in key:
        said = "is empty" if not key else "holds more than a key"
        raise BadSettings([SettingProblem(where=str(path), said=said, fix=fix)])
    return key
