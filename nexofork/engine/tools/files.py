"""The ``FileRead``, ``FileWrite`` and ``FileEdit`` tools.

A file may be changed only as the fork has seen it. What it has seen is a SHA-256 per canonical path, begun with what
its parent had seen: a file that is the same here counts as read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nexofork.engine.dispatch import ToolOutcome, judged
from nexofork.engine.sandbox.view import within
from nexofork.engine.tools.arguments import Arguments, Unable
from nexofork.engine.tools.paths import find_path
from nexofork.engine.tools.reading import DEFAULT_LINES, read_file
from nexofork.engine.tools.threads import in_thread
from nexofork.engine.tools.writing import Edit, edit_file, encoded, write_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nexofork.engine.dispatch import ToolCall
    from nexofork.engine.sandbox.enclosure import Enclosure
    from nexofork.engine.sandbox.view import View
    from nexofork.engine.tools.paths import FilePath
    from nexofork.engine.tools.place import Place
    from nexofork.engine.tools.threads import Stop
    from nexofork.engine.tools.writing import Written

__all__ = ["FileTools"]


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
