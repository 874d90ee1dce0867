from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.prompt import ForkBase
from nexofork.core.rope import Rope
from nexofork.core.snapshot import CacheSafeParams
from tests.strategies import examples

PIECES = st.lists(st.binary(max_size=4) | st.sampled_from([b"x" * 16_384, b"y" * 20_000, b"z" * 16_383]), max_size=8)


@examples(100)
@given(pieces=PIECES, views=st.booleans())
def test_rope_reads_as_the_joined_pieces(pieces: list[bytes], views: bool) -> None:
    """However it is cut, length and bytes are those of the whole."""
    rope = Rope(memoryview(piece) if views else piece for piece in pieces)

    assert bytes(rope) == b"".join(pieces)
    assert b"".join(rope) == b"".join(pieces)
    assert len(rope) == len(b"".join(pieces))


@examples(60)
@given(pieces=PIECES)
def test_small_pieces_are_joined_and_no_piece_is_empty(pieces: list[bytes]) -> None:
    """No two small pieces stand side by side: each would be a write to the socket of its own."""
    found = [len(piece) for piece in Rope(pieces)]

    assert 0 not in found
    assert len(found) <= 2 * sum(len(piece) >= 16_384 for piece in pieces) + 1


def test_long_pieces_are_not_copied() -> None:
    """A view into the parent's bytes stays a view."""
    body = b"x" * 100_000

    pieces = list(Rope([b"a", memoryview(body)[:50_000], b"b", memoryview(body)[50_000:]]))

    assert [piece.obj is body for piece in pieces if isinstance(piece, memoryview)] == [True, True]


def test_children_share_one_copy_of_the_parents_bytes() -> None:
    """What a child's body holds of its own is small; the rest is the snapshot's one buffer."""
    body = b'{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"%s"}],"stream":true}' % (b"x" * 450_000)
    base = ForkBase(CacheSafeParams(body=body))

    ropes = [base.child(f"directive {number}").body() for number in range(20)]

    shared = [piece for rope in ropes for piece in rope if isinstance(piece, memoryview)]
    assert all(piece.obj is base.snapshot.body for piece in shared)
    assert all(sum(len(piece) for piece in rope if isinstance(piece, bytes)) < 5_000 for rope in ropes)


def test_repr_says_how_long_and_how_many() -> None:
    """A rope in a log line does not print the prompt."""
    assert repr(Rope([b"abc"])) == "<Rope of 3 bytes in 1 pieces>"
