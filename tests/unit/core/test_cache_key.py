from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given

from nexofork.core.cache_key import DIMENSIONS, cache_key_hash, hash_without
from nexofork.core.snapshot import CacheSafeParams
from nexofork.core.spans import Span
from nexofork.core.splice import without_editable
from tests.strategies import examples, request_bodies

SMALL = b'{"model":"claude-opus-5","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}'
FULL = (
    b'{"max_tokens":4096,"messages":[{"role":"user","content":[{"type":"text","text":"na\xc3\xafve","cache_control":'
    b'{"type":"ephemeral","ttl":"1h"}}]}],"model":"claude-opus-5","output_config":{"effort":"low"},"stream":true,'
    b'"system":[{"cache_control":{"type":"ephemeral","ttl":"1h"},"type":"text","text":"be brief"}],"thinking":'
    b'{"type":"adaptive"},"tool_choice":{"type":"any"},"speed":"fast","tools":[{"name":"t","input_schema":{}}]}'
)
HEADERS = (("anthropic-version", "2026-10-21"), ("anthropic-beta", "b-2,a-1"))


def snapshot(body: bytes = FULL, **fields: Any) -> CacheSafeParams:
    """Return a snapshot with headers and a workspace."""
    return CacheSafeParams(body=body, **{"headers": HEADERS, "workspace_id": "wrk_1", **fields})


def test_golden_hashes() -> None:
    """These numbers are the protocol: another release, host or process must find the same."""
    assert CacheSafeParams(body=SMALL).cache_key_hash == 1691636144936107736
    assert snapshot().cache_key_hash == 15650225352040949221
    assert snapshot(SMALL, workspace_id=None).cache_key_hash == 14310096198543744497


def test_hash_is_the_first_64_bits_over_all_dimensions() -> None:
    """Written out by hand for the smallest body, so that the definition is pinned too."""
    empty = hashlib.sha256(b"").hexdigest()
    parts = dict.fromkeys(DIMENSIONS, empty)
    parts["model"] = hashlib.sha256(b"claude-opus-5").hexdigest()
    parts["messages"] = hashlib.sha256(b'[{"role":"user","content":"hi"}]').hexdigest()
    lines = "\n".join(f"{name}={parts[name]}" for name in DIMENSIONS)

    params = CacheSafeParams(body=SMALL)

    assert params.dimensions == parts
    assert params.cache_key_hash == int(hashlib.sha256(lines.encode()).hexdigest()[:16], 16)


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_hash_is_the_same_in_another_process(seed: str) -> None:
    """Python's own hash seed has no say in it."""
    program = (
        "import sys; from nexofork.core.snapshot import CacheSafeParams; "
        "print(CacheSafeParams(body=sys.stdin.buffer.read()).cache_key_hash)"
    )

    out = subprocess.run(
        [sys.executable, "-c", program],
        input=FULL,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )

    assert int(out.stdout) == CacheSafeParams(body=FULL).cache_key_hash


@pytest.mark.parametrize(
    ("dimension", "old", "new"),
    [
        ("model", b"claude-opus-5", b"claude-opus-4"),
        ("tools", b'"name":"t"', b'"name":"u"'),
        ("tools", b'"name":"t","input_schema":{}', b'"input_schema":{},"name":"t"'),
        ("system", b"be brief", b"be Brief"),
        ("messages", b"na\xc3\xafve", b"naive"),
        ("messages", b"na\xc3\xafve", b"na\\u00efve"),
        ("messages", b'"role":"user"', b'"role": "user"'),
        ("thinking", b'"adaptive"', b'"disabled"'),
        ("effort", b'"low"', b'"max"'),
        ("output_format", b'{"effort":"low"}', b'{"effort":"low","format":{"type":"json_schema"}}'),
        ("context_management", b'"speed":', b'"context_management":{"edits":[]},"speed":'),
        ("mcp_servers", b'"speed":', b'"mcp_servers":[],"speed":'),
        ("tool_choice", b'"any"', b'"none"'),
        ("speed", b'"fast"', b'"standard"'),
        ("ttl", b'"type":"ephemeral","ttl":"1h"}}]', b'"type":"ephemeral","ttl":"5m"}}]'),
    ],
)
def test_each_part_of_the_body_moves_its_own_dimension_only(dimension: str, old: bytes, new: bytes) -> None:
    """A change is seen in the hash, and named."""
    assert FULL.count(old) == 1
    changed = snapshot(FULL.replace(old, new))

    assert changed.cache_key_hash != snapshot().cache_key_hash
    assert differing(changed, snapshot()) == {dimension}


@pytest.mark.parametrize(
    ("dimension", "fields"),
    [
        ("workspace", {"workspace_id": "wrk_2"}),
        ("workspace", {"workspace_id": None}),
        ("betas", {"headers": HEADERS[:1]}),
        ("betas", {"headers": (HEADERS[0], ("anthropic-beta", "a-1"))}),
        ("version", {"headers": HEADERS[1:]}),
    ],
)
def test_what_is_not_in_the_body_counts_too(dimension: str, fields: dict[str, Any]) -> None:
    """Headers and workspace are part of what the cache depends on."""
    assert differing(snapshot(**fields), snapshot()) == {dimension}
    assert snapshot(**fields).cache_key_hash != snapshot().cache_key_hash


def differing(one: CacheSafeParams, other: CacheSafeParams) -> set[str]:
    """Return the dimensions in which two snapshots differ."""
    assert one.dimensions.keys() == other.dimensions.keys() == set(DIMENSIONS)
    return {name for name in DIMENSIONS if one.dimensions[name] != other.dimensions[name]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"stream":true', b'"stream":false'),
        (b'"stream":true,', b""),
        (b'"max_tokens":4096', b'"max_tokens":0'),
        (b'"cache_control":{"type":"ephemeral","ttl":"1h"},', b""),
        (b'"output_config":{"effort":"low"}', b'"output_config":{ "x":1,"effort":"low"}'),
        (b',"tools":', b' ,\n"tools" : '),
        (b'{"max_tokens":4096', b'{"metadata":{"user_id":"u"},"diagnostics":null,"max_tokens":4096'),
    ],
)
def test_what_the_cache_does_not_depend_on_does_not_count(old: bytes, new: bytes) -> None:
    """Markers elsewhere, streaming, limits, metadata and space between top-level members change nothing."""
    assert FULL.count(old) == 1

    assert snapshot(FULL.replace(old, new)).cache_key_hash == snapshot().cache_key_hash


def test_order_and_spacing_of_betas_do_not_count() -> None:
    """The header is a set."""
    other = snapshot(headers=(HEADERS[0], ("anthropic-beta", " a-1 , b-2,")))

    assert other.cache_key_hash == snapshot().cache_key_hash


@pytest.mark.parametrize("explicit", [b'"thinking":{"type":"disabled"},', b'"thinking":null,', b'"output_config":{},'])
def test_explicit_default_equals_leaving_it_out(explicit: bytes) -> None:
    """Disabled thinking and an effort nobody set are the defaults."""
    assert snapshot(b"{" + explicit + SMALL[1:]).cache_key_hash == snapshot(SMALL).cache_key_hash


@examples(100)
@given(body=request_bodies())
def test_markers_of_any_body_leave_every_dimension_but_the_ttl(body: bytes) -> None:
    """With everything editable taken away, only what the marker said about the TTL differs."""
    bare = b'{"max_tokens":1,' + without_editable(body).strip()[1:]

    assert differing(snapshot(body), snapshot(bare)) <= {"ttl"}


def test_very_long_integer_in_a_parameter_is_no_crash() -> None:
    """The hash of a body that can be sent can be computed."""
    body = b'{"thinking":{"type":"enabled","budget_tokens":%s},' % (b"9" * 5000) + SMALL[1:]

    assert 0 <= snapshot(body).cache_key_hash < 2**64


def test_hash_without_leaves_the_gaps_out() -> None:
    """Gaps in any order, at the edges too."""
    assert hash_without(b"xABCDEx", Span(1, 6), [Span(4, 6), Span(1, 2)]) == hashlib.sha256(b"BC").hexdigest()


def test_hash_fits_64_bits_and_needs_every_dimension() -> None:
    """A mapping that lacks one is a programming error."""
    assert 0 <= cache_key_hash(snapshot().dimensions) < 2**64
    with pytest.raises(KeyError):
        cache_key_hash({})


def test_key_order_of_the_top_level_does_not_count() -> None:
    """The provider reads tools, system and messages in its own order."""
    reordered = json.dumps(dict(reversed(json.loads(SMALL).items())), separators=(",", ":")).encode()

    assert reordered != SMALL
    assert snapshot(reordered).cache_key_hash == snapshot(SMALL).cache_key_hash
