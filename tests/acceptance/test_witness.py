"""The check that watches every acceptance test, shown to fail where it should."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.conversation import call, says
from tests.support.parents import fork
from tests.support.witness import check_prefixes, common_prefix, common_suffix, is_grown

if TYPE_CHECKING:
    from nexofork import AnthropicProvider, DefaultForkSubagent
    from nexofork.simulator import Simulator
    from tests.support.parents import Parent


@pytest.fixture
async def bodies(sim: Simulator, parent: Parent, llm: AnthropicProvider, forks: DefaultForkSubagent) -> list[bytes]:
    """A parent's request, a child's two turns and a sibling's one."""
    snapshot = await parent.ask(tokens=2_000)
    turns = ({"tools": [call(command="ls")]}, {"text": "Done."})
    for said in (says("One.", *turns), says("Two.", {"text": "Done."})):
        await (await forks.fork(fork(snapshot, llm, said))).result()
    found = [sim.body(index) for index in range(4)]
    return [body for body in found if body is not None]


async def test_forks_that_keep_their_prefix_pass(bodies: list[bytes]) -> None:
    """What the runtime sends is accepted, in any order of the children."""
    check_prefixes(bodies)
    parent, first, second, sibling = bodies
    check_prefixes([parent, sibling, first, second])


@pytest.mark.parametrize(
    ("index", "old", "new", "broke"),
    [
        (1, b"long session", b"lang session", "not its parent's body"),
        (3, b'"Bash"', b'"Bush"', "not its parent's body"),
        (3, b'"I fork."', b'"I fork!"', "siblings differ"),
        (2, b"One.", b"Oni.", "rewrote an earlier one"),
    ],
)
async def test_a_changed_byte_is_noticed(bodies: list[bytes], index: int, old: bytes, new: bytes, broke: str) -> None:
    """One byte in the parent's part, in the shared tail or in an earlier turn fails the check, by what it broke."""
    assert bodies[index].count(old) == 1
    bodies[index] = bodies[index].replace(old, new)

    with pytest.raises(AssertionError, match=broke):
        check_prefixes(bodies)


async def test_a_summary_may_stand_on_the_childs_own_beginning_alone(bodies: list[bytes]) -> None:
    """A compacted child starts again from its first request; any other beginning under a summary is noticed."""
    first = bodies[1]
    end = first.rindex(b"}]}]") + 1
    compacted = first[:end] + b',{"type":"text","text":"<compacted-turns>so far"}' + first[end:]
    check_prefixes([*bodies, compacted])

    said = compacted.rindex(b"One.")
    with pytest.raises(AssertionError, match="another beginning"):
        check_prefixes([*bodies, compacted[:said] + b"Oni." + compacted[said + 4 :]])


async def test_markers_and_streaming_may_differ(bodies: list[bytes]) -> None:
    """They are not part of what is cached."""
    assert bodies[1] != bodies[0]
    assert b'"stream":true' in bodies[1]
    check_prefixes([bodies[0].replace(b',"cache_control":{"type":"ephemeral"}', b""), *bodies[1:]])


def test_common_parts_are_counted_exactly() -> None:
    """Prefix and suffix are those of a plain comparison."""
    one, other = json.dumps([1, 2, 3]).encode(), json.dumps([1, 2, 7, 3]).encode()

    assert (common_prefix(one, other), common_suffix(one, other)) == (7, 4)
    assert is_grown(one, other)
    assert not is_grown(other, one)
    assert not is_grown(b"abc", b"axbxcx")
