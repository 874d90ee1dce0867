"""A name from elsewhere is one that git takes, or it is refused."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nexofork.errors import BadMessage
from nexofork.wire.messages import BlobRef, Checkpoint, Payload, Requested, decode_event, decode_report, encode
from nexofork.wire.ref_names import is_ref_name
from nexofork.wire.workspace import GitSpec, TreeState

OID = "a" * 40
NOWHERE = BlobRef(owner="parent", name="x", sha256="0" * 64, size=1, chunks=1)
GOOD = ["main", "feature/x", "é/ü", "a.b", "-x", "@", "x@y", "HEAD"]
BAD = [
    "..",
    "../../x",
    "a/../b",
    "/a",
    "a/",
    "a//b",
    ".a",
    "a/.b",
    "a.lock",
    "a.lock/b",
    "x\n[evil]",
    "a b",
    "a:b",
    "a@{1",
]


@settings(max_examples=60, deadline=None)
@given(name=st.text("ab/.@{-lock~^:?*[\\ \x01é", min_size=1, max_size=8))
def test_the_rules_are_gits(name: str) -> None:
    """Whatever git refuses is refused, and nothing else is."""
    done = subprocess.run(["git", "check-ref-format", f"refs/heads/{name}"], check=False)
    assert is_ref_name(f"refs/heads/{name}") == (done.returncode == 0)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_name_travels(name: str) -> None:
    """As a branch and as a reference."""
    state = TreeState(head=OID, branch=name, refs={f"refs/heads/{name}": OID}, index=OID, tree=OID)
    sent = Checkpoint(epoch=1, turn=1, state=state)
    assert decode_report(encode(sent)) == sent


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_a_bad_message(name: str) -> None:
    """In a checkpoint and in a request alike."""
    state = TreeState(head=OID, index=OID, tree=OID)
    for update in ({"branch": name}, {"refs": {f"refs/heads/{name}": OID}}):
        with pytest.raises(BadMessage):
            decode_report(encode(Checkpoint(epoch=1, turn=1, state=state.model_copy(update=update))))
    with pytest.raises(BadMessage):
        decode_event(encode(_request(branch=name)))


@pytest.mark.parametrize("folder", ["..", "../../..", "/etc", "a/../../b", "a//b", "./a", "a\0"])
def test_a_folder_that_leads_out_is_a_bad_message(folder: str) -> None:
    """A child works below its root or nowhere."""
    with pytest.raises(BadMessage):
        decode_event(encode(_request(folder=folder)))
    with pytest.raises(ValidationError):
        GitSpec(kind="git", root="/r", base=OID, bundle=NOWHERE, head=OID, commit=OID, folder=folder)


def _request(**update: str) -> Requested:
    spec = GitSpec(kind="git", root="/r", base=OID, bundle=NOWHERE, head=OID, commit=OID)
    return Requested(snapshot=Payload(text="{}"), directive="x", workspace=spec.model_copy(update=update))
