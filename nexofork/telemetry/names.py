"""Every name that leaves the process in a span or a metric, and what a value may be.

The GenAI conventions still change; they are followed here. A metric's name and unit are chosen so that Prometheus shows
the same name whichever way it comes there: scraped from a daemon, or through a collector (``nexofork.queue.wait`` in
``s`` is ``nexofork_queue_wait_seconds``). Values from outside are cut to what can be exported: one value that cannot be
encoded loses a whole batch.
"""

from __future__ import annotations

from typing import Any

__all__ = ["exportable", "exportable_count", "exportable_text"]

SCOPE = "nexofork"

# Spans and events
FORK = "fork.subagent"
AUDIT = "fork.audit"
CACHE_BREAK = "fork.cache_break_detected"
TOOL_FILTER = "fork.tool_filter"
CALL_RETRIED = "fork.call_retried"
CHAT = "chat"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
SEND = "send"
PROCESS = "process"

# What a fork is
RUN_ID = "fork_run_id"
PARENT_AGENT = "parent_agent"
LABEL = "fork_label"
QUERY_SOURCE = "query_source"
MODE = "mode"
SKIP_TRANSCRIPT = "skip_transcript"
CACHE_KEY_HASH = "cache_key_hash"
STATUS = "status"
TURN = "nexofork.turn"
TURNS = "nexofork.turns"
ATTEMPTS = "nexofork.attempts"
SUMMARY = "nexofork.summary"
COST_USD = "nexofork.cost_usd"

# What its events say
CACHE_READ = "cache_read"
CACHE_CREATION = "cache_creation"
HIT_RATIO = "hit_ratio"
CAUSE = "cause"
TOOL = "tool"
REASON = "reason"
CHANGES = "changes"
PATHS = "paths"
DELAY_S = "delay_s"

# OpenTelemetry's own
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_write.input_tokens"
TOKEN_TYPE = "gen_ai.token.type"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
ERROR_TYPE = "error.type"
CANCELLED = "cancelled"
MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGING_DESTINATION = "messaging.destination.template"
DELIVERY_ATTEMPT = "messaging.nats.delivery.attempt"

# Content, which is exported only where it is switched on
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
TOOL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_RESULT = "gen_ai.tool.call.result"

# What a process is
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"
HOST_NAME = "host.name"
DAEMON = "nexofork.daemon"
POOL = "nexofork.pool"

# Metrics and their labels
RUNS = "nexofork.runs"
QUEUE_WAIT = "nexofork.queue.wait"
FIRST_BYTE = "nexofork.first_byte"
TOKENS = "nexofork.tokens"
CACHE_HIT_RATIO = "nexofork.cache.hit_ratio"
COST = "nexofork.cost"
SLOTS = "nexofork.slots"
SLOTS_USED = "nexofork.slots.used"
ABORT_LATENCY = "nexofork.abort.latency"
REDELIVERIES = "nexofork.redeliveries"
PERMISSION_ASKS = "nexofork.permission.asks"
CALL_DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"
AGENT_DURATION = "gen_ai.invoke_agent.duration"
TOOL_DURATION = "gen_ai.execute_tool.duration"
MODEL_LABEL = "model"
STATUS_LABEL = "status"
KIND_LABEL = "kind"
DECISION_LABEL = "decision"
_CHARS = 1000
_MOST = 2**53


def exportable_text(text: str, *, most_chars: int = _CHARS) -> str:
    """Return a text that is valid UTF-8 and not too long."""
    text = text[:most_chars]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def exportable_count(count: int) -> int:
    """Return a count that fits 64 bits, whatever a server made up."""
    return min(max(count, 0), _MOST)


def exportable(value: Any) -> Any:
    """Return an attribute's value as it can be exported."""
    return exportable_text(value) if isinstance(value, str) else value
