"""What somebody's functions import, imported before their first call.

A factory or a test's body often imports inside. From many threads at once, beside others that
import, CPython 3.11 fails there (`SystemError: AST constructor recursion depth mismatch`), and
packages that import lazily then lack names for good. In evaluation nothing of this is seen: there
one environment plays after the other.

Invariant: nothing is called, and what cannot be imported is left to the function itself.
"""

import dis
import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any


def import_for(functions: Iterable[Callable[..., Any] | None]) -> None:
    """Import what these functions would; blocks."""
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        package = getattr(function, "__globals__", {}).get("__package__")
        for level, module, name in imports_of(code):
            with suppress(Exception):
                found = importlib.import_module("." * level + module, package)
                if name is not None:
                    getattr(found, name, None)  # a lazy one is imported by that


def imports_of(code: CodeType) -> Iterator[tuple[int, str, str | None]]:
    """The imports of a function and of those inside it, as `(level, module, name)`."""
    level, module = 0, ""
    before: list[Any] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            level = next((value for value in reversed(before) if isinstance(value, int)), 0)
            module = instruction.argval
            yield level, module, None
        elif instruction.opname == "IMPORT_FROM":
            yield level, module, instruction.argval
        # The level and the names are pushed just before.
        before = [*before[-1:], instruction.argval]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_of(constant)
