"""Measure how long parsing tool calls takes: replies of 10 kB, and 1 MB of broken tags.

python scripts/call_speed.py
"""

import json
import sys
import time
from collections.abc import Callable

from abut.tool_calls.parse import ToolCallFormat, parse_tool_calls

SIZE = 10_000
BROKEN = 1_000_000
PROSE = "I look at the file, then I change it. " * 10
FORMATS: dict[ToolCallFormat, tuple[str, str, Callable[[str, str], str]]] = {
    # the text before a call, the text after it, and an argument
    "hermes": ('<tool_call>\n{"name": "edit", "arguments": {', "}}\n</tool_call>", "{}: {}".format),
    "qwen3_coder": (
        "<tool_call>\n<function=edit>\n",
        "</function>\n</tool_call>",
        "<parameter={}>\n{}\n</parameter>\n".format,
    ),
    "glm": (
        "<tool_call>edit\n",
        "</tool_call>",
        "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n".format,
    ),
    "mistral": ("[TOOL_CALLS]edit[ARGS]{", "}", "{}: {}".format),
    "harmony": (
        " to=functions.edit<|channel|>commentary json<|message|>{",
        "}<|call|>",
        "{}: {}".format,
    ),
}


def reply(format: ToolCallFormat, calls: int) -> str:
    """Return about `SIZE` characters: some prose, and calls with a path and two texts."""
    before, behind, argument = FORMATS[format]
    line = "    total = total + price * count\n"
    text = line * ((SIZE - len(PROSE)) // calls // 2 // len(line))
    values = {"path": "src/shop.py", "old": text, "new": text}
    if "{" in before:
        written = ", ".join(argument(json.dumps(k), json.dumps(v)) for k, v in values.items())
    else:
        written = "".join(argument(k, v) for k, v in values.items())
    return PROSE + "\n".join([before + written + behind] * calls)


def milliseconds(text: str, format: ToolCallFormat, times: int) -> float:
    """Return the shortest of several times, because other processes may run."""
    taken = []
    for _ in range(times):
        began = time.thread_time()
        parse_tool_calls(text, format=format)
        taken.append(time.thread_time() - began)
    return min(taken) * 1e3


def main() -> None:
    """Print the figures."""
    out = sys.stdout.write
    for format in FORMATS:
        for calls in (1, 4, 10):
            text = reply(format, calls)
            found = parse_tool_calls(text, format=format)
            assert len(found.calls) == calls
            assert not found.malformed
            took = milliseconds(text, format, 200)
            out(f"{format:12} {calls:2} calls in {len(text):6} characters: {took:.3f} ms\n")
        tag = FORMATS[format][0].split("\n")[0].partition("edit")[0].strip()
        for unit in (tag, FORMATS[format][0]):
            half, whole = (
                milliseconds(unit * (size // len(unit)), format, 2)
                for size in (BROKEN // 2, BROKEN)
            )
            out(f"{format:12} 1 MB of {unit!r}: {whole:.0f} ms, half of it {half:.0f} ms\n")


if __name__ == "__main__":
    main()
