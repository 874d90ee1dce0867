"""Read which MCP servers a daemon has, from a file in the shape that is common: ``{"mcpServers": {NAME: {…}}}``.

A server is a program (``command``, ``args``, ``env``, ``cwd``) or an address (``url``, ``headers``). What looks like a
secret has to be a reference to a file, ``{"file": PATH}``, so that the configuration can be shown to anybody; the file
is read anew whenever the server is started.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nexofork.errors import ForkRefused

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["ServerSpec", "read_mcp_config"]

_NAME = re.compile(r"[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*")
_SECRET = re.compile(r"token|secret|passw|credential|auth|cookie|api_?-?key|access_?-?key|private|_key$|^key$", re.I)
_KNOWN = {"command", "args", "env", "cwd", "url", "headers", "type", "transport"}
_TYPES = {"stdio": "command", "http": "url", "streamable-http": "url", "streamable_http": "url"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One MCP server: a command, or an address."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    cwd: str | None = None
    url: str = ""
    values: Mapping[str, str | Path] = field(default_factory=dict)
    """The environment of a command, the headers of an address; a path is a file that holds the value."""

    def resolved(self) -> dict[str, str]:
        """Return the values, with what is in files read from them.

        Raises:
            ForkRefused: A file cannot be read.
        """
        found = {}
        for name, value in self.values.items():
            try:
                found[name] = value if isinstance(value, str) else value.read_text().rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as exc:
                reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
                raise ForkRefused(f"{name} of MCP server {self.name!r} cannot be read from {value}: {reason}.") from exc
        return found


def read_mcp_config(path: Path) -> list[ServerSpec]:
    """Return the servers that a file names; JSON, or TOML where it is called so.

    Raises:
        ForkRefused: The file cannot be read or used; the message names what is wrong with which server.
    """
    try:
        text = path.read_text()
        plain = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as exc:
        raise ForkRefused(f"The MCP configuration {path} cannot be read: {exc.strerror}.") from exc
    except (ValueError, RecursionError) as exc:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ForkRefused(f"The MCP configuration {path} is not {kind}: {exc}.") from exc
    servers = plain.get("mcpServers") if isinstance(plain, dict) else None
    if not isinstance(servers, dict):
        raise ForkRefused(f'The MCP configuration {path} has no "mcpServers" object; write {{"mcpServers": {{…}}}}.')
    return [_spec(name, server, path) for name, server in servers.items()]


def _spec(name: str, server: Any, path: Path) -> ServerSpec:
    where = f"The MCP server {name!r} in {path}"
    if not _NAME.fullmatch(name):
        raise ForkRefused(f"{where} needs a name of letters, digits, `-` and single `_`.")
    if not isinstance(server, dict):
        raise ForkRefused(f"{where} is no object.")
    if unknown := sorted(set(server) - _KNOWN):
        raise ForkRefused(
            f"{where} has {', '.join(unknown)}, which is not known; known are {', '.join(sorted(_KNOWN))}."
        )
    command, url = server.get("command", ""), server.get("url", "")
    if not isinstance(command, str) or not isinstance(url, str) or bool(command) == bool(url):
        raise ForkRefused(f"{where} needs either a `command` or a `url`, as a string.")
    kind = server.get("type", server.get("transport"))
    if kind is not None and _TYPES.get(kind) != ("command" if command else "url"):
        raise ForkRefused(f"{where} has the type {kind!r}; known are stdio with a command, and http with a url.")
    if url and not url.startswith(("http://", "https://")):
        raise ForkRefused(f"{where} has the url {url!r}; give one of http or https.")
    if wrong := sorted({"args", "env", "cwd"} & set(server) if url else {"headers"} & set(server)):
        raise ForkRefused(f"{where} has {', '.join(wrong)}, which goes with the other kind of server.")
    args, cwd = server.get("args", []), server.get("cwd")
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise ForkRefused(f"{where} needs `args` as a list of strings.")
    if cwd is not None and not isinstance(cwd, str):
        raise ForkRefused(f"{where} needs `cwd` as a string.")
    values = _values(server.get("headers" if url else "env", {}), where, path.parent)
    return ServerSpec(name=name, command=command, args=tuple(args), cwd=cwd, url=url, values=values)


def _values(given: Any, where: str, folder: Path) -> dict[str, str | Path]:
    if not isinstance(given, dict):
        raise ForkRefused(f"{where} needs its env or headers as an object.")
    found: dict[str, str | Path] = {}
    for name, value in given.items():
        if isinstance(value, dict) and set(value) == {"file"} and isinstance(value["file"], str) and value["file"]:
            found[name] = folder / value["file"]
        elif not isinstance(value, str):
            raise ForkRefused(f'{where} needs {name} as a string, or as {{"file": PATH}}.')
        elif _SECRET.search(name):
            raise ForkRefused(
                f"{where} has a value for {name}, which looks like a secret; put it into a file and write "
                '{"file": PATH}.'
            )
        else:
            found[name] = value
    return found
