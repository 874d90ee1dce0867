"""Errors of the operating system that are no defect of ours. Nothing heavy is imported: every command needs this."""

from __future__ import annotations

import errno

__all__ = ["is_taken", "is_unwritten"]

_UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def is_taken(error: BaseException | None) -> bool:
    """Whether it says that somebody else listens on an address."""
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def is_unwritten(error: BaseException | None) -> bool:
    """Whether output could not be written: the disk behind it is full, or whoever read it has left."""
    # What is opened by its name is not our output.
    return isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITTEN
