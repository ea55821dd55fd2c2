"""Calls of gpt-oss: messages to a function.

By hand, because its template writes one order of the header and the model another: the recipient
stands before the channel or behind it, and a `<|constrain|>` may stand before `json`.
"""

import re
from collections.abc import Iterator

from abut.tool_calls.bodies import arguments_of
from abut.tool_calls.call import Found, ToolCall, Wrong
from abut.tool_calls.schemas import Schemas
from abut.tool_calls.values import read_json

_TAG = re.compile(r"<\|(start|message|call|end|return)\|>")
_RECIPIENT = re.compile(r"(?<![^\s>])to=(functions\.)?+([^\s<]*+)")


def read_harmony(text: str, schemas: Schemas) -> Iterator[Found]:
    """The places of calls, in order; see `Found`."""
    tags = list(_TAG.finditer(text))
    begin = free = 0  # the header of a message begins here
    for k, tag in enumerate(tags):
        if tag.start() < free:
            continue
        if tag[1] != "message":
            begin = tag.start() if tag[1] == "start" else tag.end()
            if tag[1] != "start":
                yield tag.start(), tag.end(), []
            continue
        recipient = _RECIPIENT.search(text, begin, tag.start())
        channel = text.find("<|channel|>", begin, tag.start()) >= 0
        if recipient is None or not (recipient[1] or channel):  # else prose that says `to=`
            begin, start = tag.end(), begin
            yield start, tag.end(), []
            continue
        limit = tags[k + 1].start() if k + 1 < len(tags) else len(text)
        start = begin
        try:
            if not recipient[2]:
                raise Wrong(recipient.end(), "the call has no name")
            value, end = read_json(text, tag.end())
            free = begin = end + len("<|call|>") * text.startswith("<|call|>", end)
            yield start, free, [ToolCall(recipient[2], arguments_of(value, tag.end()))]
        except Wrong as wrong:
            free = begin = max(free, limit)
            yield start, free, [wrong]
