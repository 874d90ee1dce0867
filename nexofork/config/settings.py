"""Settings: flag before environment before file before default, and every problem in one message.

Nothing here reads the process's own environment; the caller passes it. Variables that look like ours and that nothing
reads are most likely mistyped, and are reported. Every command reads settings, so reading looks at paths alone; whether
a daemon could start with what is in those files is a separate check. Invariant: no message shows a value that may be a
secret.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

from nexofork.bus.admission import trust
from nexofork.bus.credentials import read_login
from nexofork.config.keys import DAEMON_KEYS, INLINE_SECRETS
from nexofork.config.kinds import WrongValue, looks_secret, shown, toml_type
from nexofork.config.secrets import find_provider_key
from nexofork.economics.settings import PRICES_VARIABLE
from nexofork.errors import BadSettings, BusError, ForkRefused, SettingProblem
from nexofork.telemetry.settings import CONTENT_VARIABLE
from nexofork.tools.mcp_config import read_mcp_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from nexofork.config.keys import Key

__all__ = [
    "KNOWN_VARIABLES",
    "Level",
    "Setting",
    "Settings",
    "Surroundings",
    "content_problems",
    "missing_key",
    "read_settings",
    "unread_variables",
]

Level = Literal["flag", "environment", "file", "credential", "default"]
_LEVELS: tuple[Level, ...] = ("default", "credential", "file", "environment", "flag")
_WHO = ("nats.creds_file", "nats.nkey_file")
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
_OPENED: tuple[tuple[str, Callable[[Path], Any], str], ...] = (
    ("nats.creds_file", lambda path: read_login(path, None), "Name a file that holds a user's seed."),
    ("nats.nkey_file", lambda path: read_login(None, path), "Name a file that holds a user's seed."),
    ("nats.ca_file", trust, "Name a certificate in PEM form."),
    ("tools.mcp_config", read_mcp_config, "Correct the file."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A value and where it came from."""

    key: Key
    value: Any
    level: Level
    source: str
    """The flag, the variable, the file or the credential; empty for a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is in force."""

    by_path: Mapping[str, Setting]
    warnings: tuple[str, ...] = ()
    """What is no error and should be changed."""
    file: Path | None = None
    """The file that was read."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """What was given by flag, to read the same again."""

    def __getitem__(self, path: str) -> Any:
        return self.by_path[path].value

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.by_path.values())

    def given(self, path: str) -> bool:
        """Whether anybody said it."""
        return self.by_path[path].level != "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a process finds when it starts."""

    environment: Mapping[str, str]
    file: Path | None = None
    """The settings file, if there is to be one."""
    credentials: Path | None = None
    """Where systemd put credentials."""


def read_settings(keys: Sequence[Key], flags: Mapping[str, Any], around: Surroundings) -> Settings:
    """Return the value of every key.

    Args:
        keys: The settings there are.
        flags: What was given by flag, by key path; None is not given. A list where a key takes several.
        around: Environment, file and credentials.

    Raises:
        BadSettings: With everything that is wrong.
    """
    work = _Reading(keys, around)
    if around.file is not None:
        work.read_file(around.file)
    work.read_environment()
    work.read_flags(flags)
    found = work.settle()
    if work.problems:
        raise BadSettings(work.problems, tuple(unread_variables(around.environment)))
    return Settings(by_path=found, warnings=tuple(work.warnings), file=around.file, flags=flags)


class _Reading:
    def __init__(self, keys: Sequence[Key], around: Surroundings) -> None:
        self._keys = {key.path: key for key in keys}
        self._around = around
        self._found: dict[tuple[str, Level], Setting] = {}
        self.problems: list[SettingProblem] = []
        self.warnings: list[str] = []

    def read_file(self, path: Path) -> None:
        try:
            sections = tomllib.loads(path.read_bytes().decode())
        except OSError as exc:
            self._wrong(str(path), f"cannot be read ({exc.strerror})", "Name a file that this user can read.")
            return
        except UnicodeDecodeError:
            self._wrong(str(path), "is not UTF-8 text", "Save it as UTF-8.")
            return
        except tomllib.TOMLDecodeError as exc:
            self._wrong(str(path), f"is not TOML: {exc}", "Correct that place; text needs quotes.")
            return
        for section, values in sections.items():
            self._read_section(path, section, values)

    def _read_section(self, path: Path, section: str, values: Any) -> None:
        known = {key.section for key in self._keys.values()}
        if section not in known:
            self._unknown_section(path, section, values, known)
        elif not isinstance(values, dict):
            self._wrong(f"{path}: {section}", f"is {toml_type(values)}", f"Write it as a section, [{section}].")
        else:
            for name, value in values.items():
                self._read_entry(path, f"{section}.{name}", value)

    def _unknown_section(self, path: Path, section: str, values: Any, known: set[str]) -> None:
        if not isinstance(values, dict) and (home := self._home_of(section)):
            self._wrong(f"{path}: {section}", "is in no section", f"It belongs in [{home}].")
            return
        near = get_close_matches(section, known, 1)
        fix = f"Did you mean [{near[0]}]?" if near else f"The sections are {', '.join(sorted(known))}."
        self._wrong(f"{path}: [{section}]" if isinstance(values, dict) else f"{path}: {section}", "is unknown", fix)

    def _read_entry(self, file: Path, path: str, value: Any) -> None:
        where = f"{file}: {path}"
        key = self._keys.get(path)
        if key is None and path in INLINE_SECRETS:
            named = INLINE_SECRETS[path]
            said = "would put a secret into the settings file, which gets copied and shown"
            self._wrong(where, said, f"Put it into a file of mode 600 and name that as {named}.")
        elif key is None:
            self._wrong(where, "is unknown", self._nearest(path))
        elif path == "nats.url" and any(map(looks_secret, value if isinstance(value, list) else [value])):
            said = "holds a password, which does not belong into the settings file"
            self._wrong(where, said, "Name a file with credentials as nats.creds_file or nats.nkey_file.")
        else:
            try:
                self._take(key, key.kind.of_toml(value, file.parent), "file", str(file))
            except WrongValue as exc:
                self._wrong_value(where, value, key, exc)

    def _nearest(self, path: str) -> str:
        section, _, name = path.partition(".")
        if (home := self._home_of(name)) and home != section:
            return f"It belongs in [{home}]."
        names = [key.name for key in self._keys.values() if key.section == section]
        near = get_close_matches(name, names, 1)
        return f"Did you mean {near[0]}?" if near else f"[{section}] knows {', '.join(sorted(names))}."

    def _home_of(self, name: str) -> str | None:
        return next((key.section for key in self._keys.values() if key.name == name), None)

    def read_environment(self) -> None:
        environment = self._around.environment
        for key in self._keys.values():
            for variable in (*reversed(key.also), key.variable):
                if text := environment.get(variable):
                    self._read_text(key, text, "environment", variable)
        self.warnings += unread_variables(environment)

    def read_flags(self, flags: Mapping[str, Any]) -> None:
        for path, value in flags.items():
            key = self._keys[path]
            if value is None or value == ():
                continue
            if isinstance(value, bool):
                self._take(key, value, "flag", key.flag)
                continue
            for one in value if isinstance(value, tuple) else (value,):
                self._read_text(key, one, "flag", key.flag, more=isinstance(value, tuple))

    def _read_text(self, key: Key, text: str, level: Level, source: str, *, more: bool = False) -> None:
        try:
            value = (key.kind.read(text),) if more else key.kind.of_text(text)
        except WrongValue as exc:
            self._wrong_value(source, text, key, exc)
            return
        before = self._found.get((key.path, level))
        self._take(key, before.value + value if more and before else value, level, source)

    def _take(self, key: Key, value: Any, level: Level, source: str) -> None:
        self._found[key.path, level] = Setting(key=key, value=value, level=level, source=source)

    def settle(self) -> dict[str, Setting]:
        settled = {path: self._settled(key) for path, key in self._keys.items()}
        self._settle_who(settled)
        self._compare(settled)
        for setting in settled.values():
            if setting.key.kind.secret and setting.value is not None:
                self._look_at(setting)
        return settled

    def _settled(self, key: Key) -> Setting:
        for level in reversed(_LEVELS):
            if found := self._found.get((key.path, level)):
                return found
        folder = self._around.credentials
        if key.credential and folder is not None and (folder / key.credential).exists():
            try:
                value = key.kind.of_text(str(folder / key.credential))
                return Setting(key=key, value=value, level="credential", source=key.credential)
            except WrongValue as exc:
                self._wrong_value(f"credential {key.credential}", str(folder / key.credential), key, exc)
        return Setting(key=key, value=key.fallback(), level="default", source="")

    def _settle_who(self, settled: dict[str, Setting]) -> None:
        """Credentials and a seed both say who we are: the one said at the higher level stands."""
        if not set(_WHO) <= set(settled) or any(settled[path].value is None for path in _WHO):
            return
        creds, nkey = (settled[path] for path in _WHO)
        if creds.level == nkey.level:
            self._wrong(
                f"{creds.source}: {creds.key.path}" if creds.level == "file" else creds.source,
                f"and {nkey.source if creds.level != 'file' else nkey.key.path} both say who you are",
                "Give one of them.",
            )
            return
        lower = min((creds, nkey), key=lambda setting: _LEVELS.index(setting.level))
        settled[lower.key.path] = Setting(key=lower.key, value=None, level="default", source="")

    def _compare(self, settled: dict[str, Setting]) -> None:
        """One git workspace cannot take more than all of them."""
        one, every = settled.get("workspace.one_mb"), settled.get("workspace.all_mb")
        if one is not None and every is not None and one.value > every.value:
            given = one if one.level != "default" else every
            self._wrong(
                f"{given.source}: {given.key.path}" if given.level == "file" else given.source,
                f"does not go with the other: one workspace may take {one.value} MB and all of them {every.value}",
                f"Give {every.key.path} at least {one.key.path}.",
            )

    def _look_at(self, setting: Setting) -> None:
        path: Path = setting.value
        if setting.level != "credential" and path.stat().st_mode & 0o004:
            self.warnings.append(f"{path} ({setting.key.path}) can be read by every user. Run: chmod 600 {path}.")

    def _wrong_value(self, where: str, value: Any, key: Key, exc: WrongValue) -> None:
        why = f", which {exc}" if str(exc) else ""
        self._wrong(where, f"is {shown(value)}{why}", f"Give {key.kind.wanted}.")

    def _wrong(self, where: str, said: str, fix: str) -> None:
        self.problems.append(SettingProblem(where=where, said=said, fix=fix))


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
