"""Read the grammar of a shell command with tree-sitter, and let through only the nodes that are known.

Every kind of node is listed with the kinds it may hold. What the grammar has and this table has not (loops, functions,
assignments, substitutions) is refused, so a newer grammar cannot let anything new through. The grammar only sees what
the reader of words (see ``words``) has accepted: that keeps the odd input away from a parser whose time has no bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import tree_sitter_bash
from tree_sitter import Language, Parser

from nexofork.policy.shell.words import Unreadable

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Shape", "read_shape"]

Span = tuple[int, int]

_DEEPEST = 40
_MOST_NODES = 30_000
_REDIRECTS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))
_STATEMENTS = frozenset(("list", "pipeline", "command", "redirected_statement", "subshell", "test_command"))
_WORDS = frozenset(("word", "number", "concatenation", "string", "raw_string", "simple_expansion", "expansion"))
_BLOCK = _STATEMENTS | {";", "\n", "comment"}
_HOLDS: dict[str, frozenset[str]] = {
    "program": _BLOCK,
    "subshell": _BLOCK | {"(", ")"},
    "list": _STATEMENTS | {"&&", "||"},
    "pipeline": _STATEMENTS | {"|", "|&"},
    "redirected_statement": _STATEMENTS | _REDIRECTS,
    "command": _WORDS | _REDIRECTS | {"command_name"},
    "command_name": _WORDS,
    "file_redirect": _WORDS | {"file_descriptor", "<", ">", ">>", "&>", "&>>", ">&"},
    "herestring_redirect": _WORDS | {"file_descriptor", "<<<"},
    # The grammar puts what follows on the line of a here-document inside of it.
    "heredoc_redirect": _STATEMENTS
    | _WORDS
    | _REDIRECTS
    | {"file_descriptor", "<<", "<<-", "heredoc_start", "heredoc_body", "heredoc_end", "|", "|&", "&&", "||"},
    "heredoc_body": frozenset(("heredoc_content",)),
    "concatenation": _WORDS,
    "string": frozenset(('"', "string_content", "simple_expansion", "expansion", "$")),
    "simple_expansion": frozenset(("$", "variable_name", "special_variable_name")),
    "expansion": frozenset(("${", "variable_name", "}")),
}
"""The nodes that may have children, and which. All others are leaves."""
_SAID = {
    "command_substitution": "Command substitution is not allowed; run the inner command on its own first.",
    "variable_assignment": "Setting a variable is not allowed; write its value where it is used.",
    "variable_assignments": "Setting variables is not allowed; write their values where they are used.",
    "declaration_command": "Declaring variables is not allowed.",
    "unset_command": "Unsetting variables is not allowed.",
}


@dataclass(slots=True)
class Shape:
    """Where the grammar sees commands and redirections; spans count bytes."""

    commands: list[tuple[Span, ...]] = field(default_factory=list)
    """The words of every simple command; a test in single brackets is one span."""
    redirections: list[tuple[int, Span]] = field(default_factory=list)
    """Where the operator stands, and its target."""


# The grammar's scanner looks characters up in a table of 256 and reads past its end for others: a crash of the whole
# process. To bash a byte above 127 is a part of a word like any letter, so it is given one.
_PLAIN = bytes(byte if byte < 128 else ord("x") for byte in range(256))


@cache
def _language() -> Language:
    return Language(tree_sitter_bash.language())


def read_shape(raw: bytes) -> Shape:
    """Return the commands that the grammar finds.

    Raises:
        Unreadable: It is no shell command, or it holds a construct that is not known to be harmless.
    """
    # A parser of its own: commands may be judged in several threads, and a parser is not made for that.
    root = Parser(_language()).parse(raw.translate(_PLAIN)).root_node
    if root.type != "program" or root.has_error:
        raise Unreadable("The command is not valid shell syntax, or holds a construct that is not allowed.")
    shape = Shape()
    # By hand and not by recursion: what nests too deeply is refused, not a crash.
    todo: list[tuple[Node, int]] = [(root, 0)]
    displaced: dict[int, list[Span]] = {}
    seen = 0
    while todo:
        node, depth = todo.pop()
        seen += 1
        if depth > _DEEPEST or seen > _MOST_NODES:
            raise Unreadable("The command nests too deeply, or has too many parts; write it more simply.")
        if node.type == "test_command":
            shape.commands.append(_test(node))
            continue
        children = node.children
        _check(node, children)
        if node.type == "redirected_statement":
            _displace(children, displaced)
        elif node.type == "command":
            words = [_span(child) for child in children if child.type not in _REDIRECTS]
            words += [span for child in children for span in _left_over(child)] + displaced.get(node.id, [])
            shape.commands.append(tuple(sorted(words)))
        elif node.type in _REDIRECTS:
            shape.redirections.append(_redirection(node))
        todo += [(child, depth + 1) for child in children]
    shape.commands.sort()
    shape.redirections.sort()
    return shape


def _check(node: Node, children: list[Node]) -> None:
    """Refuse a node with a child that is not listed for it."""
    allowed = _HOLDS.get(node.type, frozenset())
    for child in children:
        if child.is_missing or child.type not in allowed:
            raise Unreadable(
                _SAID.get(child.type, f"The construct {child.type!r} is not allowed; use plain commands and pipes.")
            )


def _test(node: Node) -> tuple[Span, ...]:
    """Return a test in single brackets as one span: to bash it is a command like others, so its words are not read."""
    if not node.children or node.children[0].type != "[":
        raise Unreadable("[[ … ]] is not allowed; use [ … ].")
    return (_span(node),)


def _displace(children: list[Node], displaced: dict[int, list[Span]]) -> None:
    """Note the words after a redirection, which the grammar takes for further targets, with their command."""
    words = [span for child in children for span in _left_over(child)]
    if not words:
        return
    command = children[0]
    while command.type in ("pipeline", "list") and command.children:
        command = command.children[-1]
    if command.type != "command":
        raise Unreadable("A word follows the redirection of a subshell or a test; leave it out.")
    displaced[command.id] = words


def _left_over(node: Node) -> list[Span]:
    """Return the words after the target of a redirection."""
    if node.type == "heredoc_redirect":
        words = [_span(child) for child in node.children if child.type in _WORDS]
        return words + [span for child in node.children for span in _left_over(child) if child.type in _REDIRECTS]
    return [_span(child) for child in node.children if child.type in _WORDS][1:] if node.type in _REDIRECTS else []


def _redirection(node: Node) -> tuple[int, Span]:
    rest = [child for child in node.children if child.type != "file_descriptor"]
    if len(rest) < 2:
        raise Unreadable("A redirection has no target; name it.")
    return rest[0].start_byte, _span(rest[1])


def _span(node: Node) -> Span:
    return node.start_byte, node.end_byte
