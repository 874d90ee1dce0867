"""Read the grammar of a shell command with tree-sitter, and let through only the kinds of nodes that are known.

Whatever the grammar has and this table has not (loops, functions, assignments, substitutions) is refused, so a newer
grammar cannot let anything new through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import tree_sitter_bash
from tree_sitter import Language, Parser

from nexofork.engine.shell.words import Unreadable

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Shape", "read_shape"]

Span = tuple[int, int]

_DEEPEST = 40
_NODES = (
    "program list pipeline command command_name redirected_statement subshell comment "
    "file_redirect heredoc_redirect herestring_redirect heredoc_start heredoc_body heredoc_content heredoc_end "
    "file_descriptor word number concatenation string string_content raw_string "
    "simple_expansion expansion variable_name special_variable_name"
)
_TOKENS = '&& || | |& ; ( ) < > >> &> &>> >& << <<- <<< " $ ${ }'
_KNOWN = frozenset((*_NODES.split(), *_TOKENS.split(), "\n"))
_REDIRECTS = frozenset(("file_redirect", "heredoc_redirect", "herestring_redirect"))
_SAID = {
    "command_substitution": "Command substitution is not allowed; run the inner command on its own first.",
    "process_substitution": "Process substitution is not allowed; run the inner command on its own first.",
    "variable_assignment": "Setting a variable is not allowed; write its value where it is used.",
    "variable_assignments": "Setting variables is not allowed; write their values where they are used.",
    "declaration_command": "Declaring variables is not allowed.",
    "unset_command": "Unsetting variables is not allowed.",
    "function_definition": "Defining a function is not allowed.",
    "arithmetic_expansion": "Arithmetic $((…)) is not allowed; write the number.",
    "ansi_c_string": "$'…' is not allowed; write the characters themselves in single quotes.",
    "translated_string": '$"…" is not allowed; use plain quotes.',
    "brace_expression": "Brace expansion is not allowed; write the words out.",
    "for_statement": "A loop is not allowed; name the files in one command, or use a wildcard.",
    "c_style_for_statement": "A loop is not allowed; run the commands one by one.",
    "while_statement": "A loop is not allowed; run the commands one by one.",
    "if_statement": "if is not allowed; use && and ||.",
    "case_statement": "case is not allowed; run the commands one by one.",
    "compound_statement": "A group { … } is not allowed; use ( … ).",
    "negated_command": "! before a command is not allowed; leave it out.",
    "test_command": "[[ … ]] is not allowed; use [ … ].",
}


@dataclass(slots=True)
class Shape:
    """Where the grammar sees commands and redirections; spans count bytes."""

    commands: list[tuple[Span, ...]] = field(default_factory=list)
    """The words of every simple command; a test in single brackets is one span."""
    redirections: list[tuple[int, tuple[Span, ...]]] = field(default_factory=list)
    """Where the operator stands, and its targets."""


# The grammar's scanner looks characters up in a table of 256 and reads past its end for others: a crash of the whole
# process. To bash a byte above 127 is a part of a word like any letter, so it is given one.
_PLAIN = bytes(byte if byte < 128 else ord("x") for byte in range(256))


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def read_shape(raw: bytes) -> Shape:
    """Return the commands that the grammar finds.

    Raises:
        Unreadable: It is no shell command, or it holds a construct that is not known to be harmless.
    """
    root = _parser().parse(raw.translate(_PLAIN)).root_node
    shape = Shape()
    # By hand and not by recursion: what nests too deeply is refused, not a crash.
    todo: list[tuple[Node, int]] = [(root, 0)]
    while todo:
        node, depth = todo.pop()
        if depth > _DEEPEST:
            raise Unreadable("The command nests too deeply; write it more simply.")
        _check(node)
        if node.type == "test_command":
            shape.commands.append(((node.start_byte, node.end_byte),))
            continue
        if node.type == "command":
            shape.commands.append(tuple(_span(child) for child in node.children if child.type not in _REDIRECTS))
        elif node.type in _REDIRECTS:
            shape.redirections.append(_redirection(node))
        todo += [(child, depth + 1) for child in node.children]
    if root.has_error:
        raise Unreadable("The command is not valid shell syntax.")
    shape.commands.sort()
    shape.redirections.sort()
    return shape


def _check(node: Node) -> None:
    if node.type == "test_command" and node.children and node.children[0].type == "[":
        return
    if node.is_error or node.is_missing:
        raise Unreadable("The command is not valid shell syntax, or holds a construct that is not allowed.")
    if node.type not in _KNOWN:
        said = _SAID.get(node.type, f"The construct {node.type!r} is not allowed; use plain commands and pipes.")
        raise Unreadable(said)


def _redirection(node: Node) -> tuple[int, tuple[Span, ...]]:
    rest = [child for child in node.children if child.type != "file_descriptor"]
    operator, targets = rest[0], rest[1:]
    if node.type == "heredoc_redirect":
        targets = [child for child in targets if child.type == "heredoc_start"]
    return operator.start_byte, tuple(_span(child) for child in targets)


def _span(node: Node) -> Span:
    return node.start_byte, node.end_byte
