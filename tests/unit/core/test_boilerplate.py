from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nexofork.core.boilerplate import (
    BOILERPLATE,
    BOILERPLATE_TAG,
    check_directive,
    json_string,
    reminder,
    text_block,
    worktree_notice,
)
from nexofork.core.report import parse_report
from nexofork.errors import BadDirective
from tests.strategies import directives, examples


def test_boilerplate_stands_between_its_tags() -> None:
    """The tag opens and closes the text, once each."""
    assert BOILERPLATE.startswith(f"<{BOILERPLATE_TAG}>\n")
    assert BOILERPLATE.endswith(f"\n</{BOILERPLATE_TAG}>")
    assert BOILERPLATE.count(BOILERPLATE_TAG) == 2


@pytest.mark.parametrize("field", ["Scope:", "Result:", "Key files:", "Files changed:", "Issues:"])
def test_boilerplate_asks_for_every_field_of_a_report(field: str) -> None:
    """What the parser reads is what the child is told to write."""
    assert f"\n{field}" in BOILERPLATE


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("it is the fork, not the agent it was copied from", "From here on you are a fork: a copy of the agent above"),
        ("what the parent was told of forking is not for it", "was meant for it, not for you"),
        ("it starts no agent", "Start no other agent; the Agent tool will refuse you"),
        ("it holds no conversation", "Hold no conversation: no questions, no proposals"),
        ("it says nothing between tool calls", "no prose between tool calls"),
        ("it uses its tools itself", "Do the work yourself with the tools you have"),
        ("it stays in scope", "Stay within the directive"),
        ("it commits before it reports", "Commit what you changed before you report"),
        ("it reports once and briefly", "End with one report of under 500 words"),
        ("its report begins with its scope", 'begins with "Scope:"'),
    ],
)
def test_boilerplate_states_every_rule_of_a_fork(rule: str, words: str) -> None:
    """A child that reads nothing else knows how to behave; these words are bytes that all fleets share."""
    assert words in BOILERPLATE, rule


def test_a_report_in_the_form_that_is_asked_for_is_well_formed() -> None:
    """The lines the boilerplate shows are the ones the parser reads, in their order."""
    shown = BOILERPLATE[BOILERPLATE.rindex("\nScope:") : BOILERPLATE.index("\nThe directive follows")].strip()
    report = parse_report(shown)

    assert report.well_formed
    assert (report.scope, report.result) == ("the directive as you took it", "what you did or found")
    assert report.key_files == ("the paths that matter",)
    assert report.files_changed == ("paths and commit", "or none")
    assert report.issues == ("what is left open, or none",)


def test_boilerplate_can_be_sent_as_plain_ascii() -> None:
    """No serialiser can spell it in two ways."""
    assert BOILERPLATE.isascii()


@examples(60)
@given(directive=directives())
def test_sound_directive_passes(directive: str) -> None:
    """Any text that can be sent and says something is accepted."""
    check_directive(directive)


@pytest.mark.parametrize("directive", ["", " ", "\n\t", "\u3000"])
def test_empty_directive_is_refused(directive: str) -> None:
    """The API refuses text that is only white space, and so does the check."""
    with pytest.raises(BadDirective, match=r"is empty.*Say what the child should do"):
        check_directive(directive)


@pytest.mark.parametrize(
    "directive", [f"<{BOILERPLATE_TAG}>", f"x</{BOILERPLATE_TAG}>", f"<{BOILERPLATE_TAG} a='1'>", BOILERPLATE]
)
def test_directive_with_the_tag_is_refused(directive: str) -> None:
    """A directive cannot pass for the runtime's own words."""
    with pytest.raises(BadDirective, match=r"contains the tag"):
        check_directive(directive)


def test_directive_may_talk_about_the_boilerplate() -> None:
    """The word alone is no tag."""
    check_directive(f"grep for {BOILERPLATE_TAG} in the sources")


def test_directive_with_half_a_pair_is_refused_at_its_character() -> None:
    """It could not be sent as UTF-8."""
    with pytest.raises(BadDirective, match="half of a surrogate pair at character 2"):
        check_directive("ab\udc00")


@examples(150)
@given(text=st.text(st.characters()))
def test_text_block_is_json_in_utf8_for_any_text(text: str) -> None:
    """Quotes, control characters and half pairs come back as they went in."""
    # Two halves that meet become one character, in every JSON reader.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    assert json.loads(text_block(text).decode()) == {"type": "text", "text": whole}
    assert json.loads(json_string(text).decode()) == whole


def test_text_block_bytes() -> None:
    """Compact, type first, non-ASCII as it is, like the SDK writes it."""
    assert text_block('é "x"\n') == '{"type":"text","text":"é \\"x\\"\\n"}'.encode()


def test_worktree_notice_names_both_roots() -> None:
    """The child learns where the conversation took place, where it works, and to read again before editing."""
    notice = worktree_notice("/home/me/repo", "/var/forks/1")

    assert notice.count("/home/me/repo") == 2
    assert notice.count("/var/forks/1") == 2
    assert "read a file again before you edit it" in notice


def test_worktree_notice_of_the_same_path_says_that_paths_are_right() -> None:
    """The child learns that it need not translate, to read again before editing, and what comes back."""
    notice = worktree_notice("/home/me/repo", None)

    assert "every path above is right as it stands" in notice
    assert "Read a file again before you edit it" in notice
    assert "Only what is under /home/me/repo is returned" in notice


def test_reminder_is_wrapped() -> None:
    """A reminder is told apart from the directive by its tag."""
    assert reminder("stop") == "<system-reminder>\nstop\n</system-reminder>"
