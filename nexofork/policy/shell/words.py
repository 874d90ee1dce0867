"""Read the words of a shell command the way bash does, for the few constructs that are allowed at all.

This reader knows lists, pipes, subshells, simple commands, redirections and here-documents, and lists the characters
that may stand in a word outside quotes. What is not listed is refused. It runs before the grammar (see ``tree``), which
then has to find the same words: two readers that must agree are harder to fool than one.

Every step moves forward in the text, so reading takes time in proportion to the length of the command.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass, field
from typing import NoReturn

__all__ = ["Redirection", "SimpleCommand", "Unreadable", "Word", "read_commands"]

_MOST_TOKENS = 2_000
_DEEPEST = 20
_MOST_HERE_DOCUMENTS = 4
_META = frozenset(" \t\n;&|<>()")
_OPERATORS = re.compile(r"&>>|<<<|<<-|&&|\|\||\|&|;;|&>|<<|<&|<>|<\(|>>|>&|>\||>\(|\(\(|[;&|<>()]")
_REDIRECTING = frozenset(("<", ">", ">>", "&>", "&>>", ">&", "<<", "<<-", "<<<"))
_REFUSED_OPERATORS = {
    "&": "A command in the background (&) is not allowed; run it in the foreground.",
    "<(": "Process substitution <(…) is not allowed; run the inner command on its own first.",
    ">(": "Process substitution >(…) is not allowed.",
    "((": "Arithmetic ((…)) is not allowed; with subshells, put a space between the brackets.",
    ";;": "case is not allowed; run the commands one by one.",
    "<>": "Opening a file for writing (<>) is not allowed.",
    ">|": "Writing to a file (>|) is not allowed.",
    "<&": "Duplicating a descriptor with <& is not allowed.",
}
_LOOP = "A loop is not allowed; name the files in one command, or use a wildcard."
_RESERVED = {
    **dict.fromkeys(("for", "while", "until", "select", "do", "done"), _LOOP),
    **dict.fromkeys(("if", "then", "elif", "else", "fi"), "if is not allowed; use && and ||."),
    **dict.fromkeys(("case", "in", "esac"), "case is not allowed; run the commands one by one."),
    **dict.fromkeys(("{", "}"), "A group { … } is not allowed; use ( … ), or quote the brace."),
    **dict.fromkeys(("[[", "]]"), "[[ … ]] is not allowed; use [ … ]."),
    "!": "! before a command is not allowed; leave it out.",
    "time": "time is not allowed; call the program itself.",
    "coproc": "coproc is not allowed; run the command itself.",
    "function": "Defining a function is not allowed.",
}
"""The words that are no program to bash where a command begins."""
_PLAIN = frozenset(string.ascii_letters + string.digits + "_-./:,=+@%^!#]{}~")
"""What may stand in a word outside quotes, next to wildcards. Braces and tildes are looked at once more."""
_WILDCARDS = frozenset("*?[")
_BRACES = re.compile(r"[^{}]*+(?:\{[A-Za-z0-9_-]*+\}[^{}]*+)*+")
"""Braces that bash leaves as they are, like those of ``HEAD@{1}``: no comma, no dots, nothing nested, nothing open."""
_BEFORE_REDIRECTION = re.compile(r"[A-Za-z0-9_./-]+")
"""Words that may touch a redirection. To bash ``{name}>`` sets a variable and ``{a[i]}>`` evaluates the index."""
_VARIABLE = re.compile(r"\$(?:(HOME|PWD)(?![A-Za-z0-9_])|\{(HOME|PWD)\})")
_DOLLAR_IS_TEXT = frozenset('" |)\\/,:;.%&')
_NAME = "[A-Za-z_][A-Za-z0-9_]{0,39}"
_DELIMITER = re.compile(rf"""({_NAME})|'({_NAME})'|"({_NAME})\"""")
_INVALID = "The command is not valid shell syntax."


class Unreadable(Exception):
    """The command holds something that is not allowed, or cannot be read for certain; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word after quotes and escapes are taken away. Offsets count bytes."""

    start: int
    end: int
    text: str
    """What the program gets, but for wildcards and variables: those stand as they are written or as ``/``."""
    bare: bool = True
    """Whether nothing in it was quoted, escaped or expanded."""
    before_glob: str | None = None
    """What stands before the first wildcard; None where there is none."""
    varies: bool = False
    """Whether a variable or the home directory is in it."""
    many: bool = False
    """Whether it may become several words, or none."""

    @property
    def literal(self) -> bool:
        """Whether the program gets exactly this text."""
        return not self.varies and self.before_glob is None

    @property
    def may_become_a_flag(self) -> bool:
        """Whether a file's name alone decides if the program takes it for a flag: ``*`` matches ``-delete``."""
        return self.before_glob == ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirection:
    """Where a command reads from or writes to."""

    start: int
    """Of the operator, without the descriptor before it."""
    operator: str
    descriptor: str
    target: Word


@dataclass(slots=True)
class SimpleCommand:
    """A program's name and arguments, with its redirections."""

    words: list[Word] = field(default_factory=list)
    redirections: list[Redirection] = field(default_factory=list)


def read_commands(raw: bytes) -> tuple[list[SimpleCommand], bytes]:
    """Return the simple commands in their order, and the text with ``;`` for the line breaks that end a command.

    The grammar is given that text: it takes the word after some line breaks for an argument of the command before.

    Raises:
        Unreadable: Something in it is not allowed, or bash and this reader might not mean the same.
    """
    return _Reader(raw).read()


def _refuse(reason: str) -> NoReturn:
    raise Unreadable(reason)


class _Reader:
    def __init__(self, raw: bytes) -> None:
        # One character per byte: offsets are the grammar's, and nothing beyond ASCII can pass for a separator.
        self._text = raw.decode("latin-1")
        self._at = 0
        self._commands: list[SimpleCommand] = []
        self._open = SimpleCommand()
        self._here_documents: list[Redirection] = []
        self._depth = 0
        self._due = False
        """Whether a command must follow: after an opening bracket, a pipe, && and ||."""
        self._commented = False
        self._ends: list[int] = []
        self._closed = False
        """Whether a subshell has just ended, so that only redirections may follow."""

    def read(self) -> tuple[list[SimpleCommand], bytes]:
        tokens = 0
        while self._blanks() < len(self._text):
            tokens += 1
            if tokens > _MOST_TOKENS:
                _refuse(f"The command has more than {_MOST_TOKENS} words and operators; split it.")
            self._token()
        if self._here_documents:
            _refuse("The here-document has no end; close it with its delimiter on a line of its own.")
        self._close()
        if self._due or self._depth:
            _refuse(_INVALID)
        line = bytearray(self._text, "latin-1")
        for at in self._ends:
            line[at] = ord(";")
        return self._commands, bytes(line)

    def _token(self) -> None:
        char = self._text[self._at]
        if char == "\n":
            if not (self._commented or self._here_documents or self._due or self._empty()):
                self._ends.append(self._at)
            self._at += 1
            self._close()
            self._closed = self._commented = False
            self._skip_here_documents()
        elif self._text.startswith("\\\n", self._at):
            if self._at and self._text[self._at - 1] not in " \t\n":
                _refuse("A line is continued inside a word or an operator; put a space before the backslash.")
            if self._here_documents:
                _refuse("The line of a here-document is continued; write it on one line.")
            self._at += 2
        elif char == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
            self._commented = True
        elif operator := _OPERATORS.match(self._text, self._at):
            self._operator(operator[0], "")
        else:
            self._add(self._word())

    def _blanks(self) -> int:
        """Skip blanks and return where the next token begins."""
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        return self._at

    def _add(self, word: Word) -> None:
        """Add a word to the command, or begin the redirection it is the descriptor of."""
        if self._touches_redirection():
            if word.bare and word.text.isdigit():
                operator = _OPERATORS.match(self._text, self._at)
                assert operator is not None
                self._operator(operator[0], word.text)
                return
            if not word.bare or not _BEFORE_REDIRECTION.fullmatch(word.text):
                _refuse(f"Put a space between {word.text!r} and the redirection after it.")
        if self._closed:
            _refuse(_INVALID)
        if word.bare and word.text in (_RESERVED if not self._open.words else ("{", "}")):
            _refuse(_RESERVED[word.text])
        self._open.words.append(word)
        self._due = False

    def _touches_redirection(self) -> bool:
        return self._text[self._at : self._at + 1] in ("<", ">")

    def _empty(self) -> bool:
        """Whether a command may begin here."""
        return not (self._open.words or self._open.redirections or self._closed)

    def _close(self) -> None:
        """End the simple command."""
        if self._open.words or self._open.redirections:
            self._commands.append(self._open)
            self._open = SimpleCommand()

    def _operator(self, operator: str, descriptor: str) -> None:
        """Take an operator if it may stand here."""
        if operator in _REFUSED_OPERATORS:
            _refuse(_REFUSED_OPERATORS[operator])
        if operator in _REDIRECTING:
            self._redirection(operator, descriptor)
            return
        self._at += len(operator)
        empty = self._empty()
        if operator == "(":
            self._depth += 1
            if not empty:
                _refuse("A bracket stands inside a command; put it in single quotes.")
            if self._depth > _DEEPEST:
                _refuse("The command nests too deeply; write it more simply.")
            self._due = True
            return
        if self._due or (empty and operator != ")"):
            _refuse(_INVALID)
        self._close()
        if operator == ")":
            self._depth -= 1
            if self._depth < 0:
                _refuse(_INVALID)
        self._closed = operator == ")"
        self._due = operator in ("|", "|&", "&&", "||")

    def _redirection(self, operator: str, descriptor: str) -> None:
        """Read a redirection with its target, a word that touches no other redirection."""
        start = self._at
        self._at += len(operator)
        self._blanks()
        if self._at >= len(self._text) or self._text[self._at] in _META or self._text[self._at] == "#":
            _refuse(f"The redirection {operator} has no target.")
        redirection = Redirection(start=start, operator=operator, descriptor=descriptor, target=self._word())
        if self._touches_redirection():
            _refuse("Put a space between two redirections.")
        self._open.redirections.append(redirection)
        self._due = False
        if operator in ("<<", "<<-"):
            self._here_documents.append(redirection)
            if len(self._here_documents) > _MOST_HERE_DOCUMENTS:
                _refuse("The command has too many here-documents; split it.")

    def _skip_here_documents(self) -> None:
        for document in self._here_documents:
            written = self._text[document.target.start : document.target.end]
            found = _DELIMITER.fullmatch(written)
            if found is None:
                _refuse("The delimiter of a here-document must be a plain word, in quotes or not.")
            lines: list[str] = []
            while True:
                if self._at >= len(self._text):
                    _refuse("The here-document has no end; close it with its delimiter on a line of its own.")
                end = self._text.find("\n", self._at)
                line = self._text[self._at : end if end >= 0 else len(self._text)]
                self._at = end + 1 if end >= 0 else len(self._text)
                if (line.lstrip("\t") if document.operator == "<<-" else line) == (found[1] or found[2] or found[3]):
                    break
                lines.append(line)
            if found[1] and any(char in line for line in lines for char in "$`\\"):
                _refuse("A here-document that expands ($, ` or \\) is not allowed; quote its delimiter: <<'EOF'.")
        self._here_documents = []

    def _word(self) -> Word:
        word = _WordReader(self._text, self._at).read()
        if self._here_documents and "\n" in self._text[word.start : word.end]:
            _refuse("A word goes over the line that a here-document follows; write the word on one line.")
        self._at = word.end
        return word


class _WordReader:
    def __init__(self, text: str, at: int) -> None:
        self._text, self._start, self._at = text, at, at
        self._parts: list[str] = []
        self._bare, self._varies, self._many = True, False, False
        self._before_glob: str | None = None
        self._unquoted: list[str] = []
        """What of it bash would expand braces in."""

    def read(self) -> Word:
        while self._at < len(self._text) and self._text[self._at] not in _META:
            self._piece(self._text[self._at])
        text = self._so_far()
        unquoted = "".join(self._unquoted)
        # A lone brace is left to the reader of commands, which can say what it would begin.
        if not _BRACES.fullmatch(unquoted) and not (self._bare and text in ("{", "}")):
            _refuse("Brace expansion {…} is not allowed; write the words out, or quote the braces.")
        if text == "[":
            self._before_glob, self._many = None, False
        return Word(
            start=self._start,
            end=self._at,
            text=text,
            bare=self._bare,
            before_glob=self._before_glob,
            varies=self._varies,
            many=self._many,
        )

    def _so_far(self) -> str:
        return "".join(self._parts).encode("latin-1").decode("utf-8", "replace")

    def _piece(self, char: str) -> None:
        if char == "'":
            end = self._text.find("'", self._at + 1)
            if end < 0:
                _refuse("A single quote is not closed.")
            self._parts.append(self._text[self._at + 1 : end])
            self._bare, self._at = False, end + 1
        elif char == '"':
            self._double_quoted()
        elif char == "\\":
            self._escape()
        elif char == "`":
            _refuse("Command substitution `…` is not allowed; run the inner command on its own first.")
        elif char == "$":
            self._dollar(quoted=False)
        elif char == "~" and self._at == self._start:
            self._tilde()
        elif char == "~" and self._text[self._at - 1] in "=:":
            _refuse("bash may put the home directory in place of ~ here; quote it.")
        elif char not in _PLAIN and char not in _WILDCARDS:
            _refuse("A character that is not known stands outside quotes; put the word in single quotes.")
        else:
            if char in _WILDCARDS:
                self._before_glob = self._so_far() if self._before_glob is None else self._before_glob
                self._many = True
            self._unquoted.append(char)
            self._parts.append(char)
            self._at += 1

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if not following or following == "\n" or ord(following) > 126:
            _refuse("A backslash stands before a line break, the end or a character beyond ASCII; use quotes.")
        self._parts.append(following)
        self._bare = False
        self._at += 2

    def _double_quoted(self) -> None:
        self._bare = False
        self._at += 1
        while self._at < len(self._text):
            char = self._text[self._at]
            following = self._text[self._at + 1 : self._at + 2]
            if char == '"':
                self._at += 1
                return
            if char == "`":
                _refuse("Command substitution `…` is not allowed; use single quotes for a plain backtick.")
            if char == "$":
                self._dollar(quoted=True)
                continue
            if char == "\\" and following == "\n":
                _refuse("A line is continued inside double quotes; write it on one line.")
            if char == "\\" and following and following in '$`"\\':
                char = following
                self._at += 1
            self._parts.append(char)
            self._at += 1
        _refuse("A double quote is not closed.")

    def _dollar(self, *, quoted: bool) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if found := _VARIABLE.match(self._text, self._at):
            if "PWD" in found[0] and not quoted:
                _refuse('Put "$PWD" in double quotes, or use a relative path.')
            self._parts.append("/")  # both are absolute paths
            self._varies, self._many = True, self._many or not quoted
            self._at = found.end()
        elif following == "?":
            self._parts.append("0")
            self._varies = True
            self._at += 2
        elif following in _DOLLAR_IS_TEXT if quoted and following else not following or following in _META - {"("}:
            self._parts.append("$")
            self._at += 1
        else:
            _refuse(
                f"An expansion (${following}…) is not allowed: only $HOME, $PWD and $? are known to be harmless. "
                "Write the value itself; in a pattern, use single quotes."
            )
        self._bare = False

    def _tilde(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        if following and following != "/" and following not in _META:
            _refuse("Only ~ and ~/… are expanded here; write other paths in full.")
        self._parts.append("/")
        self._bare, self._varies, self._at = False, True, self._at + 1
