"""Guess what made two requests differ, from how they do.

A table of small tests, tried in order; the first that fits names the cause. Every entry is a break somebody met in the
field. A name is stable: scripts may branch on it. What it says is a likelihood, never more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nexofork.core.symptoms import (
    DATE,
    DATED,
    ID,
    SURROUNDINGS,
    TEMPORARY,
    TIME,
    Case,
    about,
    calls_dropped,
    compacted,
    duplicated,
    in_text,
    injected,
    off,
    one_sided,
    reminds,
    reshaped,
    result_cut,
    same_result,
    sliced,
    subset,
    thinking_kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from nexofork.core.divergence import Difference
    from nexofork.core.side_by_side import Side

__all__ = ["LIKELY_CAUSES", "LikelyCause", "likely_cause"]


class LikelyCause(NamedTuple):
    """One way in which caches break."""

    name: str
    says: str
    """What happened, as a sentence."""
    todo: str
    fits: Callable[[Case], bool]


def likely_cause(found: Difference, a: Side, b: Side) -> LikelyCause:
    """Return the entry that fits a difference best; the last of each dimension fits always."""
    case = Case(found=found, a=a, b=b)
    return next(entry for entry in LIKELY_CAUSES if entry.fits(case))


_SEND_RECORDED = "Send the recorded bytes again instead of rendering them anew; capture(client) records them."
_MOVE_BEHIND = "Keep it out of the shared prompt, or put it behind everything that is shared."
_SAME_LIST = "Send the parent's tool list byte for byte and refuse calls when they are made, with a filter."
_APPEND = "Only append to a history that was sent; never rewrite it."

LIKELY_CAUSES: tuple[LikelyCause, ...] = (
    LikelyCause(
        "respelt",
        "Both sides are the same JSON in different bytes: something re-serialised it (white space, escapes).",
        "The provider may read both alike, but nothing promises it. " + _SEND_RECORDED,
        lambda case: case.found.respelt,
    ),
    # Parameters.
    LikelyCause(
        "model_alias",
        "One side names the model by an alias, the other by its date; each name has a cache of its own.",
        "Use the parent's model name as it was sent.",
        lambda case: (
            case.found.dimension == "model"
            and DATED.sub("", str(case.found.leaf_a)) == DATED.sub("", str(case.found.leaf_b))
        ),
    ),
    LikelyCause(
        "model_swapped",
        "Another model was asked; every model has a cache of its own.",
        "Run the child on the parent's model, and look for a router or a default that changes it.",
        about("model"),
    ),
    LikelyCause(
        "version_header",
        "The anthropic-version headers differ.",
        "Send the parent's headers with the child's request.",
        about("version"),
    ),
    LikelyCause(
        "beta_header",
        "The sets of betas differ.",
        "Send the parent's anthropic-beta header with the child's request.",
        about("betas"),
    ),
    LikelyCause(
        "mcp_servers",
        "The lists of remote tool servers differ.",
        "Send the parent's list.",
        about("mcp_servers"),
    ),
    LikelyCause(
        "budget_clamped",
        "The thinking budgets differ, as they do when an output limit clamps one of them.",
        "Keep the parent's budget_tokens and max_tokens.",
        lambda case: case.found.dimension == "thinking" and case.found.path.endswith("budget_tokens"),
    ),
    LikelyCause(
        "thinking_dropped",
        "The parent thinks and the child does not.",
        "Keep the parent's thinking setting on the fork's path.",
        lambda case: case.found.dimension == "thinking" and off(case.found.leaf_b),
    ),
    LikelyCause(
        "thinking_differs",
        "The thinking settings differ; a default of the child's own may have been filled in.",
        "Send the parent's thinking setting, or leave it out on both sides.",
        about("thinking"),
    ),
    LikelyCause(
        "effort_differs",
        "The effort differs; a default of the child's own may have been filled in.",
        "Send the parent's output_config.",
        about("effort"),
    ),
    LikelyCause(
        "tool_choice_differs",
        "The tool choice differs.",
        "Send the parent's tool_choice and say what to do in the directive.",
        about("tool_choice"),
    ),
    LikelyCause(
        "output_format_differs",
        "The output format differs.",
        "Ask for the format in the directive instead.",
        about("output_format"),
    ),
    LikelyCause("speed_differs", "The speed setting differs.", "Send the parent's setting.", about("speed")),
    LikelyCause(
        "context_management",
        "The context management differs; clearing or compaction by the API rewrites the history.",
        "Send the parent's setting.",
        about("context_management"),
    ),
    LikelyCause(
        "images_toggled",
        "One side has an image and the other has none; the first image loses the cached messages.",
        "Describe the image in words, or give the parent one too.",
        about("images"),
    ),
    LikelyCause(
        "citations_toggled",
        "One side asks for citations and the other does not.",
        "Give the document without citations, or let the parent ask for them too.",
        about("citations"),
    ),
    # Tools.
    LikelyCause(
        "tools_reordered",
        "The tools are the same in another order; a list made from a set or by several servers has none of its own.",
        "Keep the order of the request that was sent; sort once, before the first.",
        lambda case: case.found.dimension == "tools" and sorted(case.tools[0]) == sorted(case.tools[1]),
    ),
    LikelyCause(
        "tool_keys_reordered",
        "A tool has the same members in another order: its schema was rendered anew.",
        _SEND_RECORDED,
        lambda case: case.found.dimension == "tools" and case.found.reordered,
    ),
    LikelyCause(
        "tools_missing",
        "The child lacks tools of the parent's: the list was narrowed, or a tool server did not answer in time.",
        _SAME_LIST,
        lambda case: case.found.dimension == "tools" and subset(case.names[1], case.names[0]),
    ),
    LikelyCause(
        "tools_added",
        "The child has tools that the parent lacks: they were injected after its request.",
        _SAME_LIST,
        lambda case: case.found.dimension == "tools" and subset(case.names[0], case.names[1]),
    ),
    LikelyCause(
        "tool_changed",
        "A tool of the same name is described in other words or has another schema.",
        _SAME_LIST,
        lambda case: case.found.dimension == "tools" and case.names[0] == case.names[1],
    ),
    LikelyCause("tools_replaced", "The tool lists differ.", _SAME_LIST, about("tools")),
    # The system prompt.
    LikelyCause(
        "system_missing",
        "The system prompt was not sent again.",
        "Send the parent's system prompt with every request.",
        lambda case: case.found.dimension == "system" and not case.b.layout.system and bool(case.a.layout.system),
    ),
    LikelyCause(
        "reshaped",
        "The same text is given as a plain string on one side and as a content block on the other.",
        "Give it in one form from the first request on; a block can carry a marker.",
        reshaped,
    ),
    # The history.
    LikelyCause(
        "input_keys_reordered",
        "The arguments of a tool call are the same in another order, which is another prefix.",
        "Send assistant messages back as the bytes they came in; a parsed and re-serialised call loses its order.",
        lambda case: case.found.reordered and ".input" in case.found.path,
    ),
    LikelyCause(
        "block_keys_reordered",
        "A block has the same members in another order, as when a response object is echoed through an SDK.",
        "Send assistant messages back as the bytes they came in.",
        lambda case: case.found.reordered,
    ),
    LikelyCause(
        "tool_results_reordered",
        "The results of parallel calls are the same in another order.",
        "Answer in the order of the calls, and keep what was sent.",
        lambda case: (
            case.found.dimension == "messages"
            and case.bags[0] == case.bags[1]
            and len(case.bags[0]) > 1
            and "tool_result" in case.kinds
        ),
    ),
    LikelyCause(
        "tool_result_truncated",
        "A tool result that was already sent is shorter in the child.",
        "Shorten a result before it is first sent, and never afterwards.",
        result_cut,
    ),
    LikelyCause(
        "tool_result_replaced",
        "A tool result that was already sent has other content in the child.",
        "Replace a result before it is first sent, and never afterwards.",
        same_result,
    ),
    LikelyCause(
        "context_duplicated",
        "Something stands in the child's history twice: start-up context was added once more.",
        "Take the parent's history as it is and add nothing in front.",
        duplicated,
    ),
    LikelyCause(
        "reminder_scrubbed",
        "A reminder of the parent's history is not in the child's.",
        _APPEND,
        lambda case: case.found.dimension == "messages" and reminds(case, added=False),
    ),
    LikelyCause(
        "reminder_injected",
        "A reminder stands in the child's history that the parent did not send there.",
        "Put reminders behind the directive.",
        lambda case: case.found.dimension == "messages" and reminds(case, added=True),
    ),
    LikelyCause(
        "tool_calls_dropped",
        "Tool calls or their results are missing in the child's history.",
        "Answer open calls with a placeholder instead of leaving them out; keep the others.",
        lambda case: case.found.dimension == "messages" and calls_dropped(case),
    ),
    LikelyCause(
        "history_sliced",
        "The child's history begins, or goes on, with what came later in the parent's: messages were cut off.",
        "Send the whole history; a shorter one costs more than the cached long one.",
        lambda case: case.found.dimension == "messages" and sliced(case),
    ),
    LikelyCause(
        "thinking_modified",
        "A thinking block was changed or left out; it is bound to its exact bytes.",
        "Send assistant messages back as the bytes they came in.",
        thinking_kind,
    ),
    LikelyCause(
        "history_compacted",
        "A summary stands where the parent had its messages.",
        "Fork from the request that was sent last, before or after the compaction.",
        lambda case: case.found.dimension == "messages" and compacted(case),
    ),
    LikelyCause(
        "message_injected",
        "A message stands in the child's history that the parent did not send there.",
        "Append it behind the parent's messages.",
        lambda case: case.found.dimension == "messages" and injected(case),
    ),
    # Text that changes by itself, in the system prompt or in a message.
    LikelyCause(
        "temporary_path",
        "A temporary path in the text is another one every time.",
        _MOVE_BEHIND,
        in_text(lambda case: case.both(TEMPORARY)),
    ),
    LikelyCause(
        "timestamp",
        "A time of day in the text is another one every time.",
        _MOVE_BEHIND,
        in_text(lambda case: case.both(TIME)),
    ),
    LikelyCause(
        "date", "A date in the text is another one every day.", _MOVE_BEHIND, in_text(lambda case: case.both(DATE))
    ),
    LikelyCause(
        "session_id",
        "An id in the text (of a session, a run, a request) is another one every time.",
        _MOVE_BEHIND,
        in_text(lambda case: case.both(ID)),
    ),
    LikelyCause(
        "environment",
        "The text describes where it runs (directory, git, system), and the child runs elsewhere.",
        _MOVE_BEHIND,
        in_text(lambda case: bool(SURROUNDINGS.search(" ".join(case.changed[0].split()))) and bool(case.changed[0])),
    ),
    LikelyCause(
        "text_in_front",
        "Something of the child's own (a tag, an environment block) stands in front of the shared text.",
        _MOVE_BEHIND,
        one_sided(added=True, at_start=True),
    ),
    LikelyCause(
        "text_added",
        "The child's text has a part more: it was composed by other code, or a flag was switched in between.",
        _SEND_RECORDED,
        one_sided(added=True),
    ),
    LikelyCause(
        "text_missing",
        "The child's text lacks a part: it was composed by other code, or from a copy made too early.",
        _SEND_RECORDED,
        one_sided(added=False),
    ),
    LikelyCause(
        "prompt_rebuilt",
        "The system prompt was rendered anew instead of being sent again.",
        _SEND_RECORDED,
        about("system"),
    ),
    LikelyCause("history_rewritten", "The history was rewritten.", _APPEND, lambda case: True),
)
