"""How calls are written, as data: what a template's render says about it.

A turn with calls is `begin`, then calls with `between` between them, then `end`. A call is `open`,
a body and `close`. Texts are as the template writes them; whitespace in them counts only where it
touches a value that is written as plain text.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class ObjectBody:
    """A call as one object: `{"name": …, "arguments": {…}}`."""

    name: str | None = "name"
    """The key of the name; None: the name is itself the key of the arguments."""
    arguments: str = "arguments"
    id: str | None = None
    path: tuple[str, ...] = ()
    """The keys that lead to the object with these keys."""
    language: Literal["json", "python"] = "json"


Slot: TypeAlias = Literal["name", "id", "number"]


@dataclass(frozen=True)
class Piece:
    """A slot in the header of a call, and the text behind it."""

    slot: Slot
    text: str


@dataclass(frozen=True)
class Mark:
    """What stands between a parameter's key and its value, for values of some kinds.

    Attributes:
        text: that.
        close: what ends the value.
        strings: whether strings are written so.
        others: whether numbers, booleans, null, lists and objects are.
        syntax: `text` as it is up to `close`; `literal`: JSON or Python, which end themselves;
            `bare`: Python where it is that, else text; `notation`: objects with bare keys and
            strings between quotes of their own.
        quote: of that notation.
    """

    text: str
    close: str
    strings: bool = True
    others: bool = True
    values: Literal["text", "literal", "bare", "notation"] = "text"
    quote: str = '"'


@dataclass(frozen=True)
class Parameters:
    """Arguments one by one."""

    open: str
    """What stands before each key."""
    marks: tuple[Mark, ...]
    between: str = ""


@dataclass(frozen=True)
class NamedBody:
    """A call as a header with the name, and arguments."""

    header: tuple[Piece, ...]
    arguments: Parameters | None = None
    """None: one JSON object."""
    before_id: str = ""
    """What an id stands behind that may follow the name, where a call may have one or not."""
    id_begin: str | None = None
    """What an id begins with that is made of the name and the number, `functions.f:0`; None: there
    is no such id."""


@dataclass(frozen=True)
class CallSyntax:
    """How the calls of a turn are written."""

    body: ObjectBody | NamedBody
    begin: str = ""
    open: str = ""
    close: str = ""
    between: str = ""
    end: str = ""
    ordinary: frozenset[str] = field(default=frozenset())
    """Tags that stand in turns without calls as well: where one stands, no call begins yet."""
    text_before: bool = True
    """Whether text may stand before calls that no tag begins."""
    marks: tuple[str, ...] = ()
    """Tags that may stand before calls that no tag begins; behind them stand only calls."""
    leads: tuple[str, ...] = ()
    """What may stand directly before calls and is no text: the close of the text before them, or
    the header of a message of their own."""
    text_open: str = ""
    """The tag that opens the text before calls, and no other text (Llama 4's <|python_start|>)."""
    control: frozenset[str] = field(default=frozenset())
    """The control tokens of the tokenizer. Where they stand directly before calls, or behind the
    last up to the end, they are no text, and calls that no tag begins may begin behind one."""
