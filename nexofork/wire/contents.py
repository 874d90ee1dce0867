"""What messages are made of: an envelope, contents beside the log, limits, and what a fork is given by name."""

from __future__ import annotations

import secrets
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

__all__ = [
    "REQUEST_VERSION",
    "VERSION",
    "Amount",
    "BlobRef",
    "BudgetLimit",
    "CallBudget",
    "Delta",
    "FilterSpec",
    "Message",
    "Payload",
    "WireModel",
]

VERSION = 1
REQUEST_VERSION = 2
"""The newest version of a request: one whose reader honours `Requested.needs`."""

_HEX = r"^[0-9a-f]{64}$"


class WireModel(BaseModel):
    """Frozen, and deaf to fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Message(WireModel):
    """What every message has."""

    v: int = Field(default=VERSION, ge=1, le=VERSION, strict=True)
    """The message's version; a reader refuses one it does not know."""
    id: str = Field(default_factory=lambda: secrets.token_hex(8), max_length=128)
    """Its own, by which its writer finds out whether it had landed."""
    at: float = 0.0
    """Unix time, for people; nothing is decided by it."""


class BlobRef(WireModel):
    """A content kept beside the log: a name to find it by, a digest to check it with."""

    owner: Literal["parent", "daemon"]
    """Which role stored it, and the second token of its subjects."""
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """Usually the digest itself, and then left out; another one where that name was taken."""
    sha256: str = Field(pattern=_HEX)
    size: int = Field(ge=0)
    chunks: int = Field(ge=1, le=100_000)
    """How many messages it is: `blob.<owner>.<name>.0` and on."""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        if isinstance(data, dict) and "name" not in data:
            return {**data, "name": data.get("sha256")}
        return data

    @model_serializer(mode="wrap")
    def _briefly(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = serialise(self)
        if self.name == self.sha256:
            plain.pop("name", None)
        return plain


class Delta(WireModel):
    """A content that keeps both ends of another one: what a parent's next turn adds to its last."""

    base: BlobRef
    """What it is made from."""
    prefix: int = Field(ge=0)
    """How many bytes of the base come first."""
    suffix: int = Field(ge=0)
    """How many bytes of the base come last."""
    middle: BlobRef | str
    """What stands between them; a string is taken as UTF-8."""
    sha256: str = Field(pattern=_HEX)
    """Of the whole."""
    size: int = Field(ge=0)


class Payload(WireModel):
    """Bytes, one way or another. Text is the bytes' UTF-8; it keeps them exactly."""

    text: str | None = None
    """The bytes themselves, where they are short."""
    blob: BlobRef | None = None
    """Where they are kept."""
    delta: Delta | None = None
    """How they are made from what is kept."""

    @model_validator(mode="after")
    def _one_way(self) -> Payload:
        if sum(way is not None for way in (self.text, self.blob, self.delta)) != 1:
            raise ValueError("give exactly one of text, blob and delta")
        return self


class BudgetLimit(WireModel):
    """The most that may be billed; what is left out is not limited."""

    usd: float | None = Field(default=None, gt=0)
    """Dollars."""
    tokens: int | None = Field(default=None, gt=0)
    """All tokens count: fresh, read, written and output."""


class Amount(WireModel):
    """Tokens and dollars; both are counted, whichever of them is limited."""

    tokens: int = Field(default=0, ge=0)
    """All tokens count: fresh, read, written and output."""
    usd: float = Field(default=0.0, ge=0)
    """0 where the model's price is not known; no dollars are limited then."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(tokens=self.tokens + other.tokens, usd=self.usd + other.usd)


class CallBudget(WireModel):
    """What the log keeps of the money set aside for a call, so that whoever takes the run over knows what it cost."""

    key: str
    """Names the reservation in the group's account."""
    spent: Amount
    """By the run, before this call."""
    reserved: Amount
    """For this call: what it may cost with its longest answer."""


class FilterSpec(WireModel):
    """A filter by its name, and what it is made with."""

    name: str = Field(max_length=128)
    """`readonly`, `automem`, `profile` or `tools`."""
    args: list[str] = Field(default_factory=list)
    """For `automem` a folder, for `profile` a name, for `tools` the names of all that may run."""
