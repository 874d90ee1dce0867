"""Bundles are git's own form, and what is none is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.workspace.bundle import BadBundle, Bundle, decode_bundle, encode_bundle
from tests.support.repositories import Repo
from tests.unit.engine.workspace.travel import sent

if TYPE_CHECKING:
    from pathlib import Path

OIDS = st.text("0123456789abcdef", min_size=40, max_size=40)
NAMES = st.text("abcdefgh/-_0", min_size=1).map(lambda name: f"refs/{name}")


@given(pack=st.binary(), refs=st.dictionaries(NAMES, OIDS), needs=st.lists(OIDS, max_size=5))
def test_what_was_put_together_is_taken_apart(pack: bytes, refs: dict[str, str], needs: list[str]) -> None:
    """Whatever it holds."""
    bundle = Bundle(pack=b"PACK" + pack, refs=refs, needs=tuple(needs))
    assert decode_bundle(encode_bundle(bundle)) == bundle


@given(st.binary() | st.binary().map(lambda data: b"# v2 git bundle\n" + data))
def test_any_bytes_are_a_bundle_or_a_named_error(data: bytes) -> None:
    """Never anything else."""
    try:
        assert decode_bundle(data).pack.startswith(b"PACK")
    except BadBundle as exc:
        problem = str(exc)
    else:
        return
    assert problem.startswith("The bundle cannot be used: ")


@pytest.mark.parametrize("data", [b"", b"# v3 git bundle\n", b"# v2 git bundle\nabc\n", b"# v2 git bundle\n\nnothing"])
def test_what_is_none_is_named(data: bytes) -> None:
    """Not taken for an empty one."""
    with pytest.raises(BadBundle):
        decode_bundle(data)


async def test_git_itself_reads_them(tmp_path: Path) -> None:
    """`git bundle verify` finds the base complete and the thin one in need of it."""
    repo = Repo(tmp_path / "repo")
    repo.write("a.txt", "changed")
    spec, base, thin = await sent(repo.path)
    assert thin is not None
    for name, data in (("base", base), ("thin", thin)):
        (tmp_path / name).write_bytes(data)
    assert "refs/nexofork/base" in repo.git("bundle", "verify", str(tmp_path / "base"))
    assert spec.head in repo.git("bundle", "verify", str(tmp_path / "thin"))
