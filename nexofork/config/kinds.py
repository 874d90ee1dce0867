"""What a setting's value may be, and how it is read from TOML, a variable or a flag.

TOML has types, so a number in quotes is wrong there; a variable or a flag is always text. Whatever is wrong is said
with what to give instead, and never by showing something that may be a secret.
"""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nexofork.errors import BadMessage
from nexofork.wire.subjects import check_token

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Kind", "WrongValue", "looks_secret", "shown", "toml_type"]

_URL = re.compile(r"(?:(?:nats|tls|ws|wss)://)?(?:[^\s@/]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@\[\]]+)(?::(\d{1,5}))?/?")
_HTTP = re.compile(r"https?://[^\s/@]+(?:/\S*)?")
_SECRET = re.compile(r"sk-[\w-]{4,}|S[UAO][A-Z2-7]{50,}|-----BEGIN|//[^/@\s]+@")
_TOML_TYPES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a section",
}
_CEILING = 1 << 30
"""Of megabytes that is a petabyte."""
_WEEK_S = 7 * 86_400.0
_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


class WrongValue(ValueError):
    """The value cannot be used; the words say why, and are empty where what is wanted says enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of value."""

    wanted: str
    """What to give, as the end of a sentence."""
    types: tuple[type, ...]
    """What it is in TOML."""
    read: Callable[[Any], Any]
    """Returns the value from one of the types or, for flags and variables, from text; raises `WrongValue`."""
    split: str = ""
    """Between the values of a list in a variable; empty where there is one value only."""
    least: int = 0
    """How many values a list needs."""
    is_path: bool = False
    """Whether a relative one in a file is relative to the file."""
    secret: bool = False
    """Whether it names a file with a secret in it."""
    is_flag: bool = False

    def of_toml(self, value: Any, folder: Path) -> Any:
        """Read a value of a file in this folder.

        Raises:
            WrongValue: It is none.
        """
        if self.split:
            one_or_more = value if isinstance(value, list) else [value]
            if len(one_or_more) < self.least:
                raise WrongValue("is empty")
            return tuple(self._one(one, folder) for one in one_or_more)
        return self._one(value, folder)

    def of_text(self, text: str) -> Any:
        """Read a value of a variable or a flag.

        Raises:
            WrongValue: It is none.
        """
        if self.split:
            return tuple(map(self.read, text.split(self.split)))
        return self.read(text)

    def _one(self, value: Any, folder: Path) -> Any:
        # A bool is an int to Python, and nowhere else.
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            raise WrongValue(f"is {toml_type(value)}")
        if self.is_path:
            value = str(folder / Path(str(value)).expanduser())
        return self.read(value)


def shown(value: Any) -> str:
    """Return a value for a message; what looks like a secret is not shown."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    if looks_secret(text):
        return "(not shown: it looks like a secret)"
    return repr(text if len(text) <= 80 else text[:77] + "...") if isinstance(value, str) else text[:80]


def looks_secret(value: Any) -> bool:
    """Whether a value is, or holds, what nobody else may see."""
    return isinstance(value, str) and _SECRET.search(value) is not None


def toml_type(value: Any) -> str:
    """Return what a value of a TOML file is, in words."""
    return _TOML_TYPES.get(type(value), "a date or time")


def whole(least: int, *, most: int | None = None, ceiling: int = _CEILING) -> Kind:
    """A whole number.

    Args:
        least: The smallest.
        most: The greatest, where that is part of what it means.
        ceiling: What is surely a mistake above.
    """

    def read(value: Any) -> int:
        try:
            number = int(value)
        except ValueError:
            raise WrongValue from None
        if number < least or (most is not None and number > most):
            raise WrongValue
        if number > ceiling:
            raise WrongValue(f"is more than {ceiling}")
        return number

    limit = f"of {least} or more" if most is None else f"from {least} to {most}"
    return Kind(wanted=f"a whole number {limit}", types=(int,), read=read)


def seconds(*, least: float = 0.0, zero: bool = False, ceiling: float = _WEEK_S) -> Kind:
    """A time in seconds; above the ceiling it is surely a mistake."""

    def read(value: Any) -> float:
        try:
            number = float(value)
        except ValueError:
            raise WrongValue from None
        if not math.isfinite(number) or number < least or (number == 0 and not zero):
            raise WrongValue
        if number > ceiling:
            raise WrongValue(f"is more than {ceiling:g}")
        return number

    limit = f"of {least:g} or more" if least or zero else "above 0"
    return Kind(wanted=f"a number of seconds {limit}", types=(int, float), read=read)


def yes_no() -> Kind:
    """A switch."""

    def read(value: Any) -> bool:
        text = str(value).lower()
        if text not in _YES | _NO:
            raise WrongValue
        return text in _YES

    return Kind(wanted="true or false", types=(bool,), read=read, is_flag=True)


def text() -> Kind:
    """Any text that is not empty."""

    def read(value: Any) -> str:
        if not value.strip() or not value.isprintable():
            raise WrongValue
        return str(value)

    return Kind(wanted="some text on one line", types=(str,), read=read)


def one_of(*words: str) -> Kind:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in words:
            raise WrongValue
        return str(value)

    return Kind(wanted=f"one of {', '.join(words)}", types=(str,), read=read)


def token() -> Kind:
    """A name that can be part of a subject."""

    def read(value: Any) -> str:
        try:
            return check_token(value, "value")
        except BadMessage:
            raise WrongValue("cannot be used in a subject") from None

    return Kind(wanted="letters, digits, - and _", types=(str,), read=read)


def nats_urls() -> Kind:
    """Where NATS is."""

    def read(value: Any) -> str:
        found = _URL.fullmatch(value)
        if found is None or int(found[1] or 0) > 65535:
            raise WrongValue("is not a NATS URL")
        return str(value)

    return Kind(wanted="URLs such as nats://127.0.0.1:4222", types=(str,), read=read, split=",", least=1)


def http_url() -> Kind:
    """Where an HTTP API is."""

    def read(value: Any) -> str:
        if not _HTTP.fullmatch(value):
            raise WrongValue
        return str(value)

    return Kind(wanted="an address such as https://api.anthropic.com", types=(str,), read=read)


def folder() -> Kind:
    """A folder, there already or to be made."""

    def read(value: Any) -> Path:
        path = Path(value)
        if not value or (path.exists() and not path.is_dir()):
            raise WrongValue("is no folder")
        return path

    return Kind(wanted="the path of a folder", types=(str,), read=read, is_path=True)


def folders() -> Kind:
    """Folders that are there."""

    def read(value: Any) -> Path:
        path = Path(value)
        if not path.is_absolute() or not path.is_dir():
            raise WrongValue("is no absolute path of a folder here")
        return path

    return Kind(wanted="absolute paths of folders that exist", types=(str,), read=read, split=os.pathsep)


def file(*, secret: bool = False) -> Kind:
    """A file that is there and can be read."""

    def read(value: Any) -> Path:
        if looks_secret(value):
            raise WrongValue("is a secret itself, where the path of a file with it belongs")
        path = Path(value)
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                raise WrongValue("is a folder")
            with path.open("rb"):
                pass
        except OSError as exc:
            who = f" as user {os.geteuid()}" if isinstance(exc, PermissionError) else ""
            raise WrongValue(f"cannot be read{who} ({exc.strerror})") from None
        return path

    wanted = "the path of a file that this user can read"
    return Kind(wanted=wanted, types=(str,), read=read, is_path=True, secret=secret)
