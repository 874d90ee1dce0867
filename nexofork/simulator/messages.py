"""Answer `POST /v1/messages`: wait as the script says, begin, stream, and go wrong where it was told to.

The one moment that matters is the first byte: there the cache entries become readable and the message id known, in
the same step of the loop that hands the byte to the socket. Invariant: a request that is refused, hangs or loses its
client before that moment has written nothing.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from nexofork.simulator.errors import ApiError, error_body
from nexofork.simulator.events import Event, encode_event, stop_details, stream_events
from nexofork.simulator.faults import Fault
from nexofork.simulator.http import ClientGone, Connection, HttpRequest

if TYPE_CHECKING:
    from nexofork.simulator.clock import Clock
    from nexofork.simulator.config import Tenant
    from nexofork.simulator.gates import Gates
    from nexofork.simulator.intake import Accepted, Intake
    from nexofork.simulator.log import RequestLog, RequestRecord

__all__ = ["MessagesEndpoint"]

JSON_TYPE = ("content-type", "application/json")
NO_FAULT = Fault()


class MessagesEndpoint:
    """The Messages API and its token counter."""

    def __init__(self, *, intake: Intake, log: RequestLog, clock: Clock, gates: Gates) -> None:
        self._intake = intake
        self._log = log
        self._clock = clock
        self._gates = gates

    async def create(self, http: HttpRequest, connection: Connection) -> None:
        """Answer one request and write its record.

        Raises:
            ClientGone: after the record was closed.
        """
        record = self._log.open(
            method=http.method, path=http.path, body=http.body or b"", headers=http.headers, now=self._clock.now()
        )
        record.request_id = f"req_{uuid.uuid4().hex[:24]}"
        tenant = None
        try:
            record.key_fingerprint, tenant = self._intake.authenticate(http.headers)
            record.organization, record.workspace = tenant.organization, tenant.workspace
            accepted = self._intake.accept(_body(http), http.headers, tenant, record)
            await self._answer(accepted, tenant, record, connection)
        except ApiError as error:
            record.status, record.error_type, record.error_message = error.status, error.kind, error.message
            record.first_byte_at = self._clock.now()
            await self._refuse(error, tenant, record.request_id, connection)
        except ClientGone:
            record.closed_early = True
            raise
        finally:
            self._log.finish(record, now=self._clock.now())

    async def count_tokens(self, http: HttpRequest, connection: Connection) -> None:
        """Answer a `count_tokens` request; it is not logged."""
        request_id = f"req_{uuid.uuid4().hex[:24]}"
        tenant = None
        try:
            _, tenant = self._intake.authenticate(http.headers)
            tokens = self._intake.count(_body(http), http.headers)
        except ApiError as error:
            await self._refuse(error, tenant, request_id, connection)
            return
        body = json.dumps({"input_tokens": tokens}).encode()
        await connection.respond(200, [JSON_TYPE, *self._headers(tenant, request_id)], body)

    async def _answer(self, accepted: Accepted, tenant: Tenant, record: RequestRecord, connection: Connection) -> None:
        turn, fault = accepted.turn, accepted.turn.fault or NO_FAULT
        await connection.pause(turn.delay_s + fault.first_byte_s)
        if turn.hold is not None and (turn.hold.after_events == 0 or not record.stream):
            await connection.hold(self._gates.named(turn.hold.gate))
        if fault.hang or (fault.hang_after_events is not None and not record.stream):
            await connection.wait_gone()
        if fault.status is not None:
            raise ApiError(fault.status, fault.text, kind=fault.kind, retry_after_s=fault.retry_after_s)
        headers = self._headers(tenant, record.request_id)
        if record.stream:
            await self._stream(accepted, headers, record, connection)
        elif fault.cut_after_events is not None:
            await connection.cut()
        elif fault.error_event_after is not None:
            raise ApiError(fault.event_status, fault.text, kind=fault.event_kind)
        else:
            await self._whole(accepted, headers, record, connection)

    async def _whole(
        self, accepted: Accepted, headers: list[tuple[str, str]], record: RequestRecord, connection: Connection
    ) -> None:
        reply = accepted.reply
        message = _message(accepted, output_tokens=reply.output_tokens) | {
            "content": reply.content(),
            "stop_reason": reply.stop_reason,
            "stop_sequence": reply.stop_sequence,
            **stop_details(reply),
        }
        self._begin(accepted, record)
        self._charge(accepted, record, reply.output_tokens)
        record.stop_reason = reply.stop_reason
        body = json.dumps(message, ensure_ascii=accepted.escape).encode()
        await connection.respond(200, [JSON_TYPE, *headers], body)

    async def _stream(
        self, accepted: Accepted, headers: list[tuple[str, str]], record: RequestRecord, connection: Connection
    ) -> None:
        events = list(
            stream_events(
                accepted.reply,
                message=_message(accepted, output_tokens=1),
                usage=_usage(accepted, accepted.reply.output_tokens),
                deltas=accepted.turn.deltas,
                escape=accepted.escape,
            )
        )
        self._begin(accepted, record)
        connection.start(
            200, [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache"), *headers]
        )
        for sent, event in enumerate(events):
            if await self._go_wrong(accepted, sent, record, connection):
                return
            await self._send_event(accepted, event, record, connection, last=sent == len(events) - 1)

    async def _go_wrong(self, accepted: Accepted, sent: int, record: RequestRecord, connection: Connection) -> bool:
        """Do what the script wants after so many events; True when the response is over."""
        hold, fault = accepted.turn.hold, accepted.turn.fault or NO_FAULT
        if hold is not None and hold.after_events == sent:
            await connection.hold(self._gates.named(hold.gate))
        if fault.cut_after_events == sent:
            await connection.cut()
            return True
        if fault.error_event_after == sent:
            record.error_type, record.error_message = fault.event_kind, fault.text
            body = error_body(fault.event_kind, fault.text, record.request_id)
            await connection.send(encode_event(body), last=True)
            return True
        if fault.hang_after_events == sent:
            await connection.wait_gone()
        return False

    async def _send_event(
        self, accepted: Accepted, event: Event, record: RequestRecord, connection: Connection, *, last: bool
    ) -> None:
        if event.delta:
            await connection.pause(accepted.turn.delta_delay_s)
        self._charge(accepted, record, event.output_tokens)
        if last:
            # Before sending: whoever has read the last event finds it in the log.
            record.stop_reason = accepted.reply.stop_reason
        await connection.send(event.data, last=last)

    def _begin(self, accepted: Accepted, record: RequestRecord) -> None:
        """The first byte is about to be sent: entries become readable now."""
        self._intake.cache.commit(accepted.plan)
        self._intake.memory.remember(accepted.message_id, accepted.print_)
        bill = accepted.plan.bill
        record.status = 200
        record.message_id = accepted.message_id
        record.read, record.fresh = bill.read, bill.fresh
        record.write_5m, record.write_1h = bill.write_5m, bill.write_1h
        record.hit_position = accepted.plan.hit_position
        record.first_byte_at = self._clock.now()
        self._charge(accepted, record, 0)
        self._log.begun()

    def _charge(self, accepted: Accepted, record: RequestRecord, output_tokens: int) -> None:
        bill = accepted.plan.bill
        record.output = output_tokens
        record.price_usd = accepted.model.price(bill.total).of(
            fresh=bill.fresh, read=bill.read, write_5m=bill.write_5m, write_1h=bill.write_1h, output=output_tokens
        )

    async def _refuse(self, error: ApiError, tenant: Tenant | None, request_id: str, connection: Connection) -> None:
        headers = [JSON_TYPE, *self._headers(tenant, request_id)]
        if error.retry_after_s is not None:
            headers.append(("retry-after", f"{error.retry_after_s:g}"))
        body = json.dumps(error_body(error.kind, error.message, request_id)).encode()
        await connection.respond(error.status, headers, body)

    def _headers(self, tenant: Tenant | None, request_id: str) -> list[tuple[str, str]]:
        headers = [("request-id", request_id)]
        if tenant is not None:
            headers.append(("anthropic-organization-id", tenant.organization))
            headers.append(("anthropic-workspace-id", tenant.workspace))
            headers += self._intake.limiter.headers(tenant.workspace, self._clock.now())
        return headers


def _body(http: HttpRequest) -> bytes:
    if http.body is None:
        raise ApiError(413, "Request exceeds the maximum allowed number of bytes.")
    return http.body


def _message(accepted: Accepted, *, output_tokens: int) -> dict[str, Any]:
    """The message without its content, as `message_start` has it."""
    message: dict[str, Any] = {
        "id": accepted.message_id,
        "type": "message",
        "role": "assistant",
        "model": accepted.request["model"],
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(accepted, output_tokens),
    }
    if accepted.request.get("diagnostics") is not None:
        message["diagnostics"] = accepted.diagnostics
    return message


def _usage(accepted: Accepted, output_tokens: int) -> dict[str, Any]:
    bill = accepted.plan.bill
    return {
        "input_tokens": bill.fresh,
        "cache_creation_input_tokens": bill.write_5m + bill.write_1h,
        "cache_read_input_tokens": bill.read,
        "cache_creation": {"ephemeral_5m_input_tokens": bill.write_5m, "ephemeral_1h_input_tokens": bill.write_1h},
        "output_tokens": output_tokens,
        "service_tier": "standard",
    }
