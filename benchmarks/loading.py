"""Loads a tokenizer in a new process, and prints time and memory as one JSON object.

The row `load` starts it with the side and the file.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TEXT = "Until the first encode, wörtlich: 你好 <|im_end|>\n"


def resident_bytes(field: str = "VmRSS") -> int | None:
    """Return the memory of this process, or its peak (`VmHWM`); None if it is unknown."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return None
    (line,) = (line for line in status.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def main(arguments: Sequence[str]) -> None:
    """Load with one side, and print time and memory."""
    side, path = arguments
    load = {"abut": _abut, "tokenizers": _tokenizers}[side]()
    before = resident_bytes()
    began = time.perf_counter()
    ids = load(path)
    found: dict[str, Any] = {"time": time.perf_counter() - began, "ids": ids}
    for case, field in (("memory", "VmRSS"), ("peak memory", "VmHWM")):
        after = resident_bytes(field)
        found[case] = None if before is None or after is None else after - before
    sys.stdout.write(json.dumps(found) + "\n")


def _abut() -> Callable[[str], list[int]]:
    from abut import Tokenizer

    return lambda path: Tokenizer.from_file(path).encode(TEXT).tolist()


def _tokenizers() -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    def load(path: str) -> list[int]:
        ids: list[int] = Tokenizer.from_file(path).encode(TEXT, add_special_tokens=False).ids
        return ids

    return load


if __name__ == "__main__":
    main(sys.argv[1:])
