"""Tools that other packages bring, by the entry-point group ``nexofork.tools``.

An entry point names a factory. It is called once per run with the place the run works in, and returns a dispatcher and
the names of the tools it serves::

    from nexofork import FunctionTools

    async def weather(arguments):
        return f"Sunny in {arguments['city']}."

    def tools(place):
        return FunctionTools({"Weather": weather}, read_only=["Weather"]), ["Weather"]

with ``[project.entry-points."nexofork.tools"]`` and ``weather = "my_package:tools"`` in the package's pyproject.toml.
A package that cannot be loaded, or whose factory fails, is named in the log and left out; built-in tools are never
replaced.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from nexofork.tools.dispatch import NamedTools
from nexofork.tools.tool_names import AGENT_TOOL, BUILTIN_TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nexofork.tools.place import Place

__all__ = ["GROUP", "Plugin", "load_plugins", "plugged"]

log = logging.getLogger(__name__)

GROUP = "nexofork.tools"
_METHODS = ("dispatch", "parallel", "read_only")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A factory of tools, and where it came from."""

    name: str
    make: Callable[[Place], Any]


def load_plugins() -> list[Plugin]:
    """Return what is installed, in the order of the names."""
    found = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)):
        try:
            make = point.load()
        except Exception:
            # Whatever a package does when it is imported, the daemon has other work.
            log.exception("the tools of plug-in %s (%s) cannot be loaded", point.name, point.value)
            continue
        found.append(Plugin(name=point.name, make=make))
    return found


def plugged(plugins: Iterable[Plugin], place: Place) -> list[NamedTools]:
    """Return the plug-ins' tools for a run; of two tools with one name the first counts."""
    routes: list[NamedTools] = []
    taken: dict[str, str] = dict.fromkeys((*BUILTIN_TOOLS, AGENT_TOOL), "nexofork itself")
    for plugin in plugins:
        try:
            dispatcher, names = _made(plugin, place)
        except Exception:
            log.exception("plug-in %s gives no tools", plugin.name)
            continue
        for name in names:
            if name in taken:
                log.warning("the tool %s of plug-in %s is hidden by that of %s", name, plugin.name, taken[name])
        own = [name for name in names if name not in taken]
        taken.update(dict.fromkeys(own, plugin.name))
        routes.append(NamedTools(dispatcher, own))
    return routes


def _made(plugin: Plugin, place: Place) -> tuple[Any, list[str]]:
    dispatcher, names = plugin.make(place)
    missing = [method for method in _METHODS if not callable(getattr(dispatcher, method, None))]
    if missing:
        raise TypeError(f"its dispatcher has no {' and no '.join(missing)}")
    names = [names] if isinstance(names, str) else list(names)
    if not all(isinstance(name, str) and name for name in names):
        raise TypeError(f"its tools are named {names!r}; give non-empty strings")
    return dispatcher, names
