"""Read a call's flat arguments; what is wrong with them is an answer the model can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nexofork.errors import NexoforkError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Arguments", "Unable"]


class Unable(NexoforkError):
    """A tool cannot do what it was asked for; its text is the tool's answer."""


class Arguments:
    """One call's arguments, by name; null is taken as left out, and names nobody asks for are ignored."""

    def __init__(self, tool: str, values: dict[str, Any]) -> None:
        self._tool = tool
        self._values = values

    def text(self, name: str, *, empty: bool = False) -> str:
        """Return a string that has to be there.

        Raises:
            Unable: It is not, or is empty where it must not be.
        """
        value = self._values.get(name)
        if not isinstance(value, str) or not (value or empty):
            raise Unable(f"{self._tool} needs a `{name}` that is a {'' if empty else 'non-empty '}string.")
        return value

    def argument(self, name: str) -> str:
        """Return a non-empty string that can be given to a program.

        Raises:
            Unable: It is not there, or it cannot.
        """
        value = self.text(name)
        if "\0" in value:
            raise Unable(f"`{name}` of {self._tool} must not hold a NUL.")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None.

        Raises:
            Unable: It is something else.
        """
        return None if self._values.get(name) is None else self.text(name)

    def count(self, *names: str, default: int, least: int = 0) -> int:
        """Return a whole number, by the first of its names that is given.

        Raises:
            Unable: It is something else, or too small.
        """
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise Unable(f"`{name}` of {self._tool} has to be a whole number from {least} on.")
            return value
        return default

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return a truth value, by the first of its names that is given.

        Raises:
            Unable: It is something else.
        """
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if not isinstance(value, bool):
                raise Unable(f"`{name}` of {self._tool} has to be true or false.")
            return value
        return default

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, the first where none is given.

        Raises:
            Unable: It is none of them.
        """
        value = self._values.get(name)
        if value is None:
            return choices[0]
        if value not in choices:
            raise Unable(f"`{name}` of {self._tool} has to be one of {', '.join(choices)}.")
        return str(value)
