"""Take a request in: who sent it, whether it is allowed, what it finds in the cache, and what will be said.

Everything up to the first byte that needs no waiting happens here, in one step of the event loop, so that the state a
request sees is the state at its arrival. Invariant: `Intake.accept` changes nothing but the rate limits and the
counters of the script; entries are written later, by whoever sends the first byte.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from nexofork.simulator.breakpoints import find_breakpoints
from nexofork.simulator.cache import CachePlan, Prefix, PromptCache
from nexofork.simulator.canon import canonical, parse_body
from nexofork.simulator.catalog import Model, find_model
from nexofork.simulator.conversation import check_conversation
from nexofork.simulator.diagnostics import Fingerprint, RequestMemory, fingerprint
from nexofork.simulator.errors import ApiError, invalid
from nexofork.simulator.invalidation import level_digests, thinking_config
from nexofork.simulator.limits import RateLimiter
from nexofork.simulator.log import RequestRecord, key_fingerprint
from nexofork.simulator.parameters import check_parameters, check_version
from nexofork.simulator.prompt import Prompt, lay_out
from nexofork.simulator.reply import Reply, compose
from nexofork.simulator.script import Script
from nexofork.simulator.shapes import check_shape
from nexofork.simulator.signatures import Signer, bind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nexofork.simulator.clock import Clock
    from nexofork.simulator.config import SimulatorConfig, Tenant
    from nexofork.simulator.turns import Turn

__all__ = ["Accepted", "Intake"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A request that will be answered."""

    message_id: str
    request: dict[str, Any]
    model: Model
    plan: CachePlan
    print_: Fingerprint
    diagnostics: dict[str, Any] | None
    turn: Turn
    reply: Reply
    escape: bool


class Intake:
    """The provider's front: authentication, validation, cache lookup, limits and script."""

    def __init__(self, config: SimulatorConfig, clock: Clock) -> None:
        self.cache = PromptCache()
        self.memory = RequestMemory()
        self.limiter = RateLimiter(config.rate_limits)
        self.script = Script()
        self._config = config
        self._catalog = config.catalog()
        self._signer = Signer(config.signing_secret)
        self._clock = clock
        self._paused: set[bytes] = set()

    def authenticate(self, headers: Mapping[str, str]) -> tuple[str, Tenant]:
        """The key's fingerprint and its tenant.

        Raises:
            ApiError: 401 without a valid key.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
        if not key:
            raise ApiError(401, "x-api-key header is required")
        if key in self._config.invalid_keys:
            raise ApiError(401, "invalid x-api-key")
        return key_fingerprint(key), self._config.tenant(key)

    def count(self, body: bytes, headers: Mapping[str, str]) -> int:
        """The prompt tokens of a `count_tokens` request."""
        request, _model, prompt = self._validate(body, headers, counting=True)
        find_breakpoints(request, prompt)
        return prompt.tokens

    def accept(self, body: bytes, headers: Mapping[str, str], tenant: Tenant, record: RequestRecord) -> Accepted:
        """Check a request, look it up and decide on its answer; the record learns what is known.

        Raises:
            ApiError: the request is refused.
        """
        now = record.received_at
        request, model, prompt = self._validate(body, headers, counting=False)
        record.model, record.stream = request["model"], bool(request.get("stream"))
        record.prewarm = request["max_tokens"] == 0
        breakpoints = find_breakpoints(request, prompt)
        record.breakpoints = [point.position for point in breakpoints]
        self._signer.check(request, model)
        window = min(model.context_window_tokens, self._config.context_tokens or model.context_window_tokens)
        if prompt.tokens > window:
            raise invalid(f"prompt is too long: {prompt.tokens} tokens > {window} maximum")
        digests = level_digests(
            request, model=model, version=headers["anthropic-version"], betas=headers.get("anthropic-beta", "")
        )
        prefix = Prefix(
            workspace=tenant.workspace,
            chain=prompt.chain(digests),
            totals=prompt.totals(),
            breakpoints=breakpoints,
            minimum_tokens=model.minimum_cacheable_tokens,
        )
        plan = self.cache.plan(prefix, now=now)
        turn = self.script.decide(request, record.body_sha256)
        record.fault = turn.fault.name if turn.fault else None
        self.limiter.admit(tenant.workspace, plan.bill, now)
        print_ = fingerprint(request, prompt, workspace=tenant.workspace, digests=digests, bill=plan.bill)
        escape = self._config.escape_non_ascii if turn.escape is None else turn.escape
        reply = self._reply(request, model, turn, escape=escape, room=window - prompt.tokens)
        if reply.stop_reason == "pause_turn":
            self._paused.add(_said(reply.content()))
        return Accepted(
            message_id=f"msg_{uuid.uuid4().hex[:24]}",
            request=request,
            model=model,
            plan=plan,
            print_=print_,
            diagnostics=self.memory.diagnose(request, print_, plan.bill),
            turn=turn,
            reply=reply,
            escape=escape,
        )

    def reset(self) -> None:
        """Forget entries, requests, limits and script."""
        self.cache.clear()
        self.memory.clear()
        self.limiter.clear()
        self.script = Script()
        self._paused.clear()

    def _is_paused(self, message: dict[str, Any]) -> bool:
        content = message["content"]
        return message["role"] == "assistant" and not isinstance(content, str) and _said(content) in self._paused

    def _validate(
        self, body: bytes, headers: Mapping[str, str], *, counting: bool
    ) -> tuple[dict[str, Any], Model, Prompt]:
        version = headers.get("anthropic-version", "")
        check_version(version)
        request = parse_body(body)
        check_shape(request, counting=counting)
        model = find_model(request["model"], self._catalog)
        if model is None:
            raise ApiError(404, f"model: {request['model']}")
        check_parameters(request, model=model, version=version)
        check_conversation(request, model, is_paused=self._is_paused)
        return request, model, lay_out(request)

    def _reply(self, request: dict[str, Any], model: Model, turn: Turn, *, escape: bool, room: int) -> Reply:
        if request["max_tokens"] == 0:
            return Reply(blocks=(), stop_reason="max_tokens", stop_sequence=None, output_tokens=0)
        omit = thinking_config(request, model).get("display") == "omitted"
        reply = compose(
            turn,
            max_tokens=min(request["max_tokens"], room),
            bind=partial(bind, request),
            signer=self._signer,
            escape=escape,
            omit=omit,
        )
        if reply.stop_reason == "max_tokens" and turn.stop_reason != "max_tokens" and room < request["max_tokens"]:
            return replace(reply, stop_reason="model_context_window_exceeded")
        return reply


def _said(content: Sequence[dict[str, Any]]) -> bytes:
    """Names what an assistant message says, markers left out and key order aside."""
    plain = ({key: value for key, value in sorted(block.items()) if key != "cache_control"} for block in content)
    return b"".join(canonical(block) for block in plain)
