"""Read the words of a shell command the way bash does, for the few constructs that are allowed at all.

The grammar of the command is another module's business (see ``tree``). This reader exists because a word's *meaning* is
what is judged (``-"d"elete`` is ``-delete``) and because two readers that must agree on every border are harder to fool
than one. What it does not know it refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

__all__ = ["Redirection", "SimpleCommand", "Unreadable", "Word", "read_commands"]

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
_BRACES = re.compile(r"\{.*(?:,|\.\.).*\}", re.DOTALL)
"""What bash may expand: a brace that closes behind a comma or two dots, whatever stands between."""
_VARIABLE = re.compile(r"\$(?:(HOME|PWD)(?![A-Za-z0-9_])|\{(HOME|PWD)\})")
_DOLLAR_IS_TEXT = frozenset('" |)\\/,:;.%&')
_DELIMITER = re.compile(r"""([A-Za-z_][A-Za-z0-9_]*)|'([A-Za-z_][A-Za-z0-9_]*)'|"([A-Za-z_][A-Za-z0-9_]*)\"""")


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


def read_commands(raw: bytes) -> list[SimpleCommand]:
    """Return the simple commands of a command line, in the order they are written.

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

    def read(self) -> list[SimpleCommand]:
        while self._at < len(self._text):
            self._token()
        if self._here_documents:
            _refuse("The here-document has no end; close it with its delimiter on a line of its own.")
        self._close()
        return self._commands

    def _token(self) -> None:
        char = self._text[self._at]
        if char in " \t":
            self._at += 1
        elif char == "\n":
            self._at += 1
            self._close()
            self._skip_here_documents()
        elif self._text.startswith("\\\n", self._at):
            if self._at and self._text[self._at - 1] not in " \t\n":
                _refuse("A line is continued inside a word or an operator; put a space before the backslash.")
            self._at += 2
        elif char == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
        elif operator := _OPERATORS.match(self._text, self._at):
            self._operator(operator[0], "")
        else:
            word = self._word()
            following = self._text[self._at : self._at + 1]
            if following in ("<", ">") and word.bare and word.text.isdigit():
                operator = _OPERATORS.match(self._text, self._at)
                assert operator is not None
                self._operator(operator[0], word.text)
            else:
                self._open.words.append(word)

    def _close(self) -> None:
        if self._open.words or self._open.redirections:
            self._commands.append(self._open)
            self._open = SimpleCommand()

    def _operator(self, operator: str, descriptor: str) -> None:
        if operator in _REFUSED_OPERATORS:
            _refuse(_REFUSED_OPERATORS[operator])
        start = self._at
        self._at += len(operator)
        if operator not in _REDIRECTING:
            self._close()
            return
        while self._text[self._at : self._at + 1] in (" ", "\t"):
            self._at += 1
        if self._at >= len(self._text) or self._text[self._at] in _META:
            _refuse(f"The redirection {operator} has no target.")
        redirection = Redirection(start=start, operator=operator, descriptor=descriptor, target=self._word())
        self._open.redirections.append(redirection)
        if operator in ("<<", "<<-"):
            self._here_documents.append(redirection)

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
            _refuse("A word goes over the line that a here-document begins behind; write the word on one line.")
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
        unquoted = "".join(self._unquoted)
        if _BRACES.search(unquoted):
            _refuse("Brace expansion {…} is not allowed; write the words out, or quote the braces.")
        text = self._so_far()
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
        elif ord(char) > 126:
            _refuse("A character beyond ASCII stands outside quotes; put the word in single quotes.")
        else:
            if char in "*?[":
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
