"""The built-in tools: their dispatcher, and ``FileRead``, ``FileWrite`` and ``FileEdit``.

A file may be changed only as the fork has seen it. What it has seen is a SHA-256 per canonical path, begun with what
its parent had seen: a file that is the same here counts as read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.sandbox.mounts import within
from nexofork.tools.arguments import Arguments, Unable
from nexofork.tools.bash import BashTool
from nexofork.tools.dispatch import ToolOutcome, judged
from nexofork.tools.file_read import DEFAULT_LINES, read_file
from nexofork.tools.file_write import Edit, edit_file, encoded, write_file
from nexofork.tools.named_file import find_path
from nexofork.tools.place import Place
from nexofork.tools.search import SearchTools
from nexofork.tools.threads import in_thread
from nexofork.tools.tool_names import BUILTIN_TOOLS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from nexofork.sandbox.mounts import View
    from nexofork.sandbox.run_sandbox import Enclosure
    from nexofork.tools.dispatch import ToolCall
    from nexofork.tools.file_write import Written
    from nexofork.tools.named_file import FilePath
    from nexofork.tools.threads import Stop

__all__ = ["BuiltinTools", "FileTools"]

_CHANGING = frozenset({"Bash", "FileWrite", "FileEdit"})


class BuiltinTools:
    """Runs the built-in tools, all of them in one place; whatever else is called is answered as not available here."""

    def __init__(self, place: Place | None = None, *, search: SearchTools | None = None) -> None:
        place = place or Place()
        self.cwd = place.shown_cwd
        """Where relative paths start; None is where this process runs."""
        self._bash = BashTool(cwd=place.cwd, home=place.home, limits=place.limits, sandbox=place.sandbox)
        files = FileTools.at(place)
        search = search or SearchTools(cwd=place.cwd, sandbox=place.sandbox, view=place.view)
        self._tools: dict[str, Callable[[ToolCall], Awaitable[ToolOutcome]]] = {
            "Bash": self._run_bash,
            "FileRead": files.read,
            "FileWrite": files.write,
            "FileEdit": files.edit,
            "Glob": search.glob,
            "Grep": search.grep,
        }
        assert tuple(self._tools) == BUILTIN_TOOLS

    async def dispatch(self, call: ToolCall) -> ToolOutcome:
        """Run a call."""
        tool = self._tools.get(call.name)
        if tool is None:
            said = f"There is no tool {call.name!r} on this host. Tools: {', '.join(self._tools)}."
            return ToolOutcome(content=said, is_error=True)
        try:
            return await tool(call)
        except Unable as exc:
            return ToolOutcome(content=str(exc), is_error=True)

    def parallel(self, call: ToolCall) -> bool:
        """Whether nothing is changed: commands and changes may depend on each other, so they run in order."""
        return call.name not in _CHANGING

    def read_only(self, call: ToolCall) -> bool:
        """Whether the tool only looks; a command may change anything."""
        return call.name not in _CHANGING

    async def _run_bash(self, call: ToolCall) -> ToolOutcome:
        return await self._bash.within(call.environment).run(call.input)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTools:
    """The tools that show and change files."""

    cwd: Path | None = None
    """Where relative paths start; None is where the daemon runs."""
    sandbox: Enclosure | None = None
    """What files may be reached; None is all that the daemon's user may."""
    view: View | None = None
    """How to read paths without a sandbox; None is as they stand."""
    returned: tuple[str, ...] = ()
    """The canonical folders of the host whose files the parent gets; empty where that is not told."""
    limit_s: float = 60.0
    """How long one call may take."""

    @classmethod
    def at(cls, place: Place) -> FileTools:
        """Return the tools of a run."""
        roots = (place.checkout.root, *place.shared) if place.checkout else ()
        return cls(cwd=place.cwd, sandbox=place.sandbox, view=place.view, returned=tuple(map(os.path.realpath, roots)))

    async def read(self, call: ToolCall) -> ToolOutcome:
        """``{"file_path": …, "offset": …, "limit": …}``: lines with their numbers, from `offset` on."""
        arguments = Arguments("FileRead", call.input)
        offset = arguments.count("offset", default=1) or 1
        limit = arguments.count("limit", default=DEFAULT_LINES, least=1)
        path = await self._path(call, arguments)
        shown = await in_thread(
            lambda stop: read_file(path, offset=offset, limit=limit, stop=stop), limit_s=self.limit_s
        )
        if shown.digest is not None:
            call.context.file_state[path.shown] = shown.digest
        return ToolOutcome(content=shown.text)

    async def write(self, call: ToolCall) -> ToolOutcome:
        """``{"file_path": …, "content": …}``: a whole file, new or in the place of one that was read."""
        arguments = Arguments("FileWrite", call.input)
        content = encoded(arguments.text("content", empty=True), "content")
        path = await self._path(call, arguments)
        known = _known(call, path)
        return await self._changed(call, path, lambda stop: write_file(path, content, known=known, stop=stop))

    async def edit(self, call: ToolCall) -> ToolOutcome:
        """``{"file_path": …, "old_string": …, "new_string": …, "replace_all": …}``: one text in another's place."""
        arguments = Arguments("FileEdit", call.input)
        old, new = (arguments.text(name, empty=True) for name in ("old_string", "new_string"))
        if not old:
            raise Unable("`old_string` is empty; use FileWrite to create a file or to write it anew.")
        if old == new:
            raise Unable("`old_string` and `new_string` are the same; nothing would change.")
        edit = Edit(
            old=encoded(old, "old_string"),
            new=encoded(new, "new_string"),
            everywhere=arguments.flag("replace_all"),
        )
        path = await self._path(call, arguments)
        known = _known(call, path)
        return await self._changed(call, path, lambda stop: edit_file(path, edit, known=known, stop=stop))

    async def _path(self, call: ToolCall, arguments: Arguments) -> FilePath:
        """Resolve the path, and have the filter judge what it leads to."""
        given = arguments.text("file_path")
        path = await in_thread(
            lambda _: find_path(given, cwd=self.cwd, sandbox=self.sandbox, view=self.view), limit_s=self.limit_s
        )
        if denial := await judged(call.deny, call.name, {**call.input, "file_path": path.shown}):
            raise Unable(f"{call.name} was not run: {denial}")
        return path

    async def _changed(self, call: ToolCall, path: FilePath, change: Callable[[Stop], Written]) -> ToolOutcome:
        if not path.writable:
            raise Unable(f"{path} may be read here and not changed.")
        written = await in_thread(change, limit_s=self.limit_s)
        call.context.file_state[path.shown] = written.digest
        if self.returned and not any(within(path.real, folder) for folder in self.returned):
            scratch = "It is outside the checkout: this is scratch space, and it is not returned to the parent."
            return ToolOutcome(content=f"{written.text} {scratch}")
        return ToolOutcome(content=written.text)


def _known(call: ToolCall, path: FilePath) -> str | None:
    """What was last seen of a file; a parent may know it by the path it was named by."""
    state = call.context.file_state
    return state.get(path.shown) or state.get(call.input["file_path"])
