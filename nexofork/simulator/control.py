"""The `/_sim/` routes: the same control a test has in process, for other processes.

``GET /_sim/health``, ``GET /_sim/log``, ``GET /_sim/requests/<i>/body``, ``POST /_sim/clock``, ``POST /_sim/script``,
``POST /_sim/release``, ``POST /_sim/reset``. Invariant: nothing here counts as a request to the provider.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

from nexofork.simulator.errors import ApiError, error_body, invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nexofork.simulator.clock import Clock
    from nexofork.simulator.http import Connection, HttpRequest
    from nexofork.simulator.log import RequestRecord

__all__ = ["Controlled", "control"]

BODY_PATH = re.compile(r"^/_sim/requests/(?P<index>\d+)/body$")
JSON_TYPE = ("content-type", "application/json")


class Controlled(Protocol):
    """What the routes act on."""

    @property
    def clock(self) -> Clock:
        """The movable clock."""

    @property
    def log(self) -> Sequence[RequestRecord]:
        """The records so far."""

    def body(self, index: int) -> bytes | None:
        """The bytes of a request."""

    def load_script(self, value: Any) -> None:
        """Replace the rules."""

    def release(self, gate: str) -> None:
        """Open a gate."""

    def reset(self) -> None:
        """Forget everything."""


async def control(simulator: Controlled, http: HttpRequest, connection: Connection) -> None:
    """Answer one control request."""
    try:
        body_path = BODY_PATH.match(http.path)
        if body_path is not None and http.method == "GET":
            raw = simulator.body(int(body_path["index"]))
            if raw is None:
                raise ApiError(404, "no such request, or its body was dropped")
            await connection.respond(200, [("content-type", "application/octet-stream")], raw)
            return
        answer = _get(simulator, http.path) if http.method == "GET" else _post(simulator, http)
    except ApiError as error:
        answer = error_body(error.kind, error.message, "")
        await connection.respond(error.status, [JSON_TYPE], json.dumps(answer).encode())
        return
    await connection.respond(200, [JSON_TYPE], json.dumps(answer).encode())


def _get(simulator: Controlled, path: str) -> Any:
    match path:
        case "/_sim/health":
            return {"status": "ok", "requests": len(simulator.log), "time": simulator.clock.now()}
        case "/_sim/log":
            return [record.as_json() for record in simulator.log]
    raise ApiError(404, f"no control route {path}")


def _post(simulator: Controlled, http: HttpRequest) -> Any:
    try:
        value = json.loads(http.body or b"null")
        match http.path, value:
            case "/_sim/clock", {"advance_s": int() | float() as seconds}:
                return {"time": simulator.clock.advance(seconds)}
            case "/_sim/script", _:
                simulator.load_script(value if value is not None else [])
                return {"status": "ok"}
            case "/_sim/release", {"gate": str(gate)}:
                simulator.release(gate)
                return {"status": "ok"}
            case "/_sim/reset", _:
                simulator.reset()
                return {"status": "ok"}
    except ValueError as exc:
        raise invalid(str(exc)) from exc
    raise ApiError(404, f"no control route {http.path} for this body")
