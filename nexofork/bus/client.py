"""nats-py with the doors closed through which one message could end a connection for good.

Anybody who may publish can choose the bytes of a subject and of a header block. nats-py (2.16) stops reading when they
are not UTF-8, splits a subject at a vertical tab, and closes itself for ever on an error line of the server that it
does not know. A stored message would do that to every daemon it is delivered to, again after each reconnect.
Invariant: whatever the server sends, the client either hands it on or reconnects.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any

from nats.aio.client import DEFAULT_BUFFER_SIZE, Client
from nats.aio.transport import TcpTransport
from nats.errors import Error, ProtocolError
from nats.protocol.parser import PERMISSIONS_ERR, STALE_CONNECTION, Parser

if TYPE_CHECKING:
    import ssl
    from urllib.parse import ParseResult

    from nats.aio.client import Srv
    from nats.aio.msg import Msg

__all__ = ["NoTls", "SturdyClient"]

# The protocol separates by space and tab only; \s would also split at \v and \f, which may stand in a subject.
_MESSAGE = re.compile(rb"\A(H?)MSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)((?:[ \t]+[^ \t\r\n]+)*)[ \t]*\r\n")
_BLANKS = re.compile(rb"[ \t]+")
_MAX_LINE = 64 * 1024
_CRLF = b"\r\n"


class NoTls(Error):
    """The server offers no TLS to a client that was told whom to trust."""


class SturdyClient(Client):
    """A client that no message and no error line of the server can end."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _SturdyParser(self)

    async def _connect_to_server(self, s: Srv) -> None:
        if s.uri.scheme in ("ws", "wss"):
            await super()._connect_to_server(s)
            return
        s.last_attempt = time.monotonic()
        if not self._transport:
            self._transport = _TcpTransport()  # type: ignore[no-untyped-call]
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    def _connect_command(self) -> bytes:
        # Called before anything is said on every connection; nats-py leaves it to the server whether there is TLS.
        if "tls" in self.options and not self._server_info.get("tls_required"):
            raise NoTls("nats: the server offers no TLS")
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        try:
            await super()._close(status, do_cbs)
        except OSError:
            # The last flush met a broken connection, and nats-py stopped there with an empty buffer: close the rest.
            self._status = Client.DISCONNECTED
            await super()._close(status, do_cbs)

    async def _process_err(self, err_msg: str) -> None:
        if PERMISSIONS_ERR in err_msg or STALE_CONNECTION in err_msg:
            await super()._process_err(err_msg)
            return
        error = Error(f"nats: {err_msg}")
        await self._error_cb(error)
        await self._process_op_err(error)

    async def _process_headers(self, headers: Any) -> dict[str, str] | None:
        if not headers:
            return None
        first, _, lines = bytes(headers).partition(_CRLF)
        _, _, status = first.partition(b" ")
        found: dict[str, str] = {}
        if status:
            code, _, description = status.strip().decode("utf-8", "replace").partition(" ")
            found = {"Status": code, "Description": description}
        # The server's own lines stand last, so they win over what a publisher wrote under the same names.
        return found | self._parse_header_lines(lines)

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return self.msg_class(
            subject=bytes(subject).decode("utf-8", "backslashreplace"),
            reply=bytes(reply).decode("utf-8", "backslashreplace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )


class _TcpTransport(TcpTransport):
    """Closes what a failed try left, does not half close TLS, and can be waited for by several tasks."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.close()
        await super().connect(uri, buffer_size, connect_timeout)

    async def wait_closed(self) -> None:
        try:
            await super().wait_closed()  # type: ignore[no-untyped-call]
        except asyncio.CancelledError:
            # All who wait share one future, and nats-py cancels a task of its own that waits for it.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: float
    ) -> None:
        assert self._io_writer is not None
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        protocol = _TlsProtocol(reader)
        host = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(self._io_writer.transport, protocol, ssl_context, server_hostname=host)
        assert transport is not None
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class _TlsProtocol(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        super().eof_received()
        return False


class _SturdyParser(Parser):
    async def parse(self, data: bytes = b"") -> None:
        self.buf.extend(data)
        while self.buf:
            if found := _MESSAGE.match(self.buf):
                if not await self._take(found):
                    return
            elif (end := self.buf.find(_CRLF)) >= 0:
                await self._take_line(end + len(_CRLF))
            elif len(self.buf) > _MAX_LINE:
                raise ProtocolError("nats: a control line without an end")
            else:
                return

    async def _take(self, found: re.Match[bytes]) -> bool:
        """Hand on one message; False when it is not complete yet."""
        sizes = _BLANKS.split(found[4])[1:]
        has_headers = bool(found[1])
        reply = sizes.pop(0) if len(sizes) == (3 if has_headers else 2) else b""
        if len(sizes) != (2 if has_headers else 1) or not all(size.isdigit() for size in sizes):
            raise ProtocolError("nats: malformed MSG")
        start, total = found.end(), int(sizes[-1])
        if len(self.buf) < start + total + len(_CRLF):
            return False
        body = start + (int(sizes[0]) if has_headers else 0)
        headers = bytes(self.buf[start:body]) if has_headers else None
        payload = bytes(self.buf[body : start + total])
        subject, sid = found[2], int(found[3])
        del self.buf[: start + total + len(_CRLF)]
        await self.nc._process_msg(sid, subject, reply, payload, headers)
        return True

    async def _take_line(self, end: int) -> None:
        """Let nats-py read one control line; an error in it may reset the buffer, which then stays so."""
        rest = self.buf[end:]
        del self.buf[end:]
        line = self.buf
        await super().parse(b"")
        if self.buf is line:
            self.buf = rest
