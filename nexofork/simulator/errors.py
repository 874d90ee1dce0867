"""The refusals of the simulated provider, with the statuses and type names of the real one.

Every module that finds a fault in a request raises :class:`ApiError`; only the endpoint turns it into bytes, so the
shape of an error body exists once. Invariant: an `ApiError` is raised before the first byte of a response.
"""

from __future__ import annotations

__all__ = ["ERROR_TYPES", "ApiError", "error_body", "invalid"]

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Type name by HTTP status; other statuses are reported as `api_error`."""


class ApiError(Exception):
    """A request that is answered with an error instead of a message."""

    def __init__(
        self, status: int, message: str, *, kind: str | None = None, retry_after_s: float | None = None
    ) -> None:
        self.status = status
        self.message = message
        self.kind = kind or ERROR_TYPES.get(status, "api_error")
        self.retry_after_s = retry_after_s
        super().__init__(f"{status} {self.kind}: {message}")


def invalid(message: str) -> ApiError:
    """A 400 with this text."""
    return ApiError(400, message)


def error_body(kind: str, message: str, request_id: str) -> dict[str, object]:
    """The JSON value of an error, the same for a response and for an `error` event."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
