"""The arguments of calls as Claude Code sends them back: not as the policy wrote them, but as read.

Invariant: each rule is exact and covers only changes observed in Claude Code 2.1, so an edited
argument never matches. Claude Code runs the call as it sends it back, so the call is still the
policy's.
"""

import re
from collections.abc import Mapping
from typing import Any

from abut.gateway.ledger.comparable import arguments_of, comparable, comparable_call
from abut.gateway.ledger.entry import Calls

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SWITCHES = {"true": True, "false": False}
# Written without the white space at the end of lines; in Markdown that is a line break.
_WRITTEN = {("Write", "content"), ("Edit", "new_string")}
_MARKDOWN = (".md", ".mdx")
# JavaScript's \s, which is not Python's.
_EN_QUAD_TO_HAIR_SPACE = "".join(map(chr, range(0x2000, 0x200B)))
_SPACE = f"\t\v\f \u00a0\u1680{_EN_QUAD_TO_HAIR_SPACE}\u2028\u2029\u202f\u205f\u3000\ufeff"
_LINE_END = re.compile("([\r\n])")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {"Edit": {"replace_all": False}}


def reads_as(own: Calls, theirs: Calls) -> bool:
    """Return whether these calls are the policy's calls as Claude Code rewrites them.

    Args:
        own: the calls of the policy.
        theirs: the calls as the client sent them back; equally many, with the same ids.
    """
    return all(
        comparable_call(call) == comparable_call(mine) or _read(mine["function"], call["function"])
        for mine, call in zip(own, theirs, strict=True)
    )


def _read(mine: Mapping[str, Any], function: Mapping[str, Any]) -> bool:
    name = mine.get("name")
    said, came = arguments_of(mine.get("arguments")), arguments_of(function.get("arguments"))
    if name != function.get("name") or not (isinstance(said, dict) and isinstance(came, dict)):
        return False
    said = {**_DEFAULTS.get(str(name), {}), **said}
    is_markdown = str(said.get("file_path", "")).lower().endswith(_MARKDOWN)
    return said.keys() == came.keys() and all(
        comparable(came[key]) == comparable(value)
        or (isinstance(value, str) and _reads(value, came[key]))
        or (
            (name, key) in _WRITTEN
            and not is_markdown
            and isinstance(value, str)
            and came[key] == _without_trailing_space(value)
        )
        for key, value in said.items()
    )


def _without_trailing_space(text: str) -> str:
    # A pattern for blanks before a line's end takes a run of n blanks elsewhere n times.
    return "".join(piece.rstrip(_SPACE) for piece in _LINE_END.split(text))


def _reads(text: str, value: Any) -> bool:
    """Return whether a value is the number or boolean that a string spells."""
    if isinstance(value, bool):
        return _SWITCHES.get(text) is value
    if not isinstance(value, int | float) or not _NUMBER.fullmatch(text := text.strip()):
        return False
    return float(text) == value
