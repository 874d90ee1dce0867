"""Write docs/protocol.md: the prose of its template around tables made from the wire models.

Run as ``python -m docs.reference``; with ``--check`` it changes nothing and fails where the page is not current. A
table stands where the template has ``<!-- fields Model -->``. What a field means is its docstring in the code, so a
field without one is an error here.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from nexofork.wire import budget, contents, ledger, messages, parent_tools, permissions, workspace

__all__ = ["PAGE", "Undocumented", "main", "render", "table"]

PAGE = Path(__file__).with_name("protocol.md")
TEMPLATE = Path(__file__).with_name("protocol.template.md")
_MODULES = (messages, contents, permissions, parent_tools, workspace, budget, ledger)
_PLACE = "<!-- fields "
_ENVELOPE = ("v", "kind", "id", "at", "epoch")
"""What every message, or every report, has; said once, above the tables."""
_COMMON = {
    "turn": "Which turn of the child.",
    "call_id": "The id of the tool call, as the model gave it.",
    "name": "The tool.",
    "message_id": "The provider's id of the message.",
    "usage": "What the call was billed for, in the provider's fields; what is zero is left out.",
    "stop_reason": "The provider's.",
    "sha256": "Of the bytes, in hexadecimal.",
    "size": "In bytes.",
    "daemon": "The daemon that speaks.",
    "workspace_id": "The provider's workspace that its key belongs to, once a response has said so.",
}


class Undocumented(Exception):
    """Fields that the page cannot explain."""

    def __init__(self, fields: list[str]) -> None:
        self.fields = fields
        super().__init__(f"Give these fields a docstring: {', '.join(fields)}.")


def render(template: str) -> str:
    """Return the page: the template with its tables filled in.

    Raises:
        Undocumented: A field has no docstring.
        LookupError: The template names a model that is none.
    """
    lines, missing = [], []
    for line in template.splitlines():
        if not line.startswith(_PLACE):
            lines.append(line)
            continue
        name = line.removeprefix(_PLACE).removesuffix("-->").strip()
        try:
            lines.append(table(_model(name)))
        except Undocumented as exc:
            missing += exc.fields
    if missing:
        raise Undocumented(missing)
    return "\n".join(lines) + "\n"


def table(model: type[BaseModel]) -> str:
    """Return the fields of a model as a table.

    Raises:
        Undocumented: A field has no docstring.
    """
    meanings = _docstrings(model)
    rows, missing = ["| field | type | default | meaning |", "|---|---|---|---|"], []
    hints = typing.get_type_hints(model)
    for name, field in model.model_fields.items():
        if name in _ENVELOPE and name not in inspect.get_annotations(model):
            continue
        if name == "kind" and field.default is not PydanticUndefined:
            continue
        if not (meaning := meanings.get(name, _COMMON.get(name, ""))):
            missing.append(f"{model.__name__}.{name}")
        rows.append(f"| `{name}` | {_type(hints[name])} | {_default(field)} | {_cell(meaning)} |")
    if missing:
        raise Undocumented(missing)
    return "\n".join(rows)


def _model(name: str) -> type[BaseModel]:
    for module in _MODULES:
        if isinstance(found := getattr(module, name, None), type) and issubclass(found, BaseModel):
            return found
    raise LookupError(f"there is no wire model {name}")


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return what stands below each field in the source, that of a subclass first."""
    found: dict[str, str] = {}
    for owner in reversed([owner for owner in model.__mro__ if owner.__module__.startswith("nexofork.")]):
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
                case _:
                    pass
    return found


def _type(hint: Any) -> str:
    """Return a type in words that do not presume Python."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(one) for one in arguments if one is not type(None))
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"object of {_type(arguments[1])}"
    if origin is tuple:
        return f"[{', '.join(map(_type, arguments))}]"
    if hint in _PLAIN:
        return _PLAIN[hint]
    return f"[{hint.__name__}](#{hint.__name__.lower()})"


_PLAIN: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "boolean", Any: "any", dict: "object"}


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.default_factory() if field.default_factory is not None else field.default
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "`{}`"
    return f"`{value}`".lower() if isinstance(value, bool) else f"`{value}`" if value != "" else "empty"


def _cell(text: str) -> str:
    words = " ".join(text.replace("``", "`").replace("|", "\\|").split()).removesuffix(".")
    return re.sub(r"\bNone\b", "none", words)


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is current."""
    page = render(TEMPLATE.read_text())
    if "--check" not in arguments:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    sys.stderr.write("docs/protocol.md is not current; run `python -m docs.reference`.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
