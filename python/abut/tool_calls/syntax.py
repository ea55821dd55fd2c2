"""The syntax of calls, as data that a template's render shows.

A turn with calls is `begin`, then calls with `between` between them, then `end`. A call is `open`,
a body and `close`. Texts are as the template writes them; whitespace in them counts only if it
touches a value that is written as plain text.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class ObjectBody:
    """A call as one object: `{"name": …, "arguments": {…}}`."""

    name: str | None = "name"
    """The key of the name; None if the name is itself the key of the arguments."""
    arguments: str = "arguments"
    id: str | None = None
    path: tuple[str, ...] = ()
    """The keys that lead to the object with these keys."""
    language: Literal["json", "python"] = "json"


Slot: TypeAlias = Literal["name", "id", "number"]


@dataclass(frozen=True)
class Piece:
    """A slot in the header of a call, and the text after it."""

    slot: Slot
    text: str


@dataclass(frozen=True)
class Mark:
    """The text between a parameter's key and its value, for values of some kinds.

    Attributes:
        text: the text itself.
        close: the text that ends the value.
        strings: true if strings have this mark.
        others: true if numbers, booleans, null, lists and objects have it.
        values: the way in which values are written. `text`: as they are, up to `close`; `literal`:
            as JSON or Python, which end themselves; `bare`: as Python if it is Python, else as
            text; `notation`: objects with bare keys, and strings between quotes of their own.
        quote: the quote of that notation.
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
    """The text before each key."""
    marks: tuple[Mark, ...]
    between: str = ""


@dataclass(frozen=True)
class NamedBody:
    """A call as a header with the name, and arguments."""

    header: tuple[Piece, ...]
    arguments: Parameters | None = None
    """None if they are one JSON object."""
    before_id: str = ""
    """The text between the name and an optional id after it."""
    id_begin: str | None = None
    """The beginning of an id that is made of the name and the number, as in `functions.f:0`; None
    if there is no such id."""


@dataclass(frozen=True)
class CallSyntax:
    """The syntax of the calls of a turn."""

    body: ObjectBody | NamedBody
    begin: str = ""
    open: str = ""
    close: str = ""
    between: str = ""
    end: str = ""
    ordinary: frozenset[str] = field(default=frozenset())
    """Tags that also occur in turns without calls, so they do not begin a call."""
    text_before: bool = True
    """True if text may be before calls that no tag begins."""
    marks: tuple[str, ...] = ()
    """Tags that may be before calls that no tag begins. Only calls are after them."""
    leads: tuple[str, ...] = ()
    """Texts directly before calls that belong to them: the close of the text before the calls, or
    the header of a message of their own."""
    text_open: str = ""
    """The tag that opens the text before calls and no other text (Llama 4's <|python_start|>)."""
    control: frozenset[str] = field(default=frozenset())
    """The control tokens of the tokenizer. They are not text if they are directly before calls,
    or between the last call and the end. Calls that no tag begins may begin after one."""
