"""What is in the files that settings name: whether a daemon or a command could start with it.

Reading settings looks at paths alone, because that is done by every command; this opens what they lead to. Invariant:
no message shows what may be a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nexofork.bus.admission import trust
from nexofork.bus.credentials import read_login
from nexofork.config.secrets import find_provider_key
from nexofork.engine.tools.mcp_config import read_mcp_config
from nexofork.errors import BadSettings, BusError, ForkRefused, SettingProblem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from nexofork.config.reading import Settings

__all__ = ["content_problems", "missing_key"]

_OPENED: tuple[tuple[str, Callable[[Path], Any], str], ...] = (
    ("nats.creds_file", lambda path: read_login(path, None), "Name a file that holds a user's seed."),
    ("nats.nkey_file", lambda path: read_login(None, path), "Name a file that holds a user's seed."),
    ("nats.ca_file", trust, "Name a certificate in PEM form."),
    ("tools.mcp_config", read_mcp_config, "Correct the file."),
)


def content_problems(settings: Settings, environment: Mapping[str, str]) -> Iterator[SettingProblem]:
    """Yield what is wrong with the content of each file that is in force."""
    for path, read, fix in _OPENED:
        setting = settings.by_path.get(path)
        if setting is None or setting.value is None:
            continue
        try:
            read(setting.value)
        except (BusError, ForkRefused) as exc:
            yield SettingProblem(where=f"{path} ({setting.source})", said=f"cannot be used: {_reason(exc)}", fix=fix)
    try:
        _provider_key(settings, environment)
    except BadSettings as exc:
        yield from exc.problems
    except ForkRefused:
        return  # that there is none is no file's fault


def missing_key(settings: Settings, environment: Mapping[str, str]) -> str | None:
    """Return what is to be said where a daemon would find no key for the provider; systemd may yet give it one."""
    try:
        _provider_key(settings, environment)
    except BadSettings:
        return None
    except ForkRefused as exc:
        return str(exc)
    return None


def _provider_key(settings: Settings, environment: Mapping[str, str]) -> None:
    if "provider.api_key_file" in settings.by_path:
        find_provider_key(settings, environment)


def _reason(exc: BusError | ForkRefused) -> str:
    return getattr(exc, "reason", "") or str(exc).rstrip(".")
