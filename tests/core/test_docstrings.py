"""What `help()` shows of the Rust core: its docstrings, which the stub repeats for editors."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from abut import _native

STUB = Path(_native.__file__).with_name("_native.pyi").read_text(encoding="utf-8")


def stub_docstrings(stub: str) -> dict[str, str]:
    """Of the module itself, as "", and of each name in it that has one."""

    def walk(node: Any, prefix: str) -> Iterator[tuple[str, str | None]]:
        yield prefix, ast.get_docstring(node)
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef):
                yield from walk(inner, f"{prefix}.{inner.name}".removeprefix("."))

    return {name: text for name, text in walk(ast.parse(stub), "") if text}


def public(native: Any) -> dict[str, Any]:
    """The module as "", and each of its public classes, methods, properties and functions."""
    found = {"": native}
    for name, value in vars(native).items():
        if not name.startswith("_"):
            found[name] = value
            members = [m for m in vars(value) if m[0] != "_"] if inspect.isclass(value) else []
            found |= {f"{name}.{member}": getattr(value, member) for member in members}
    return found


def differences(stub: str, native: Any) -> list[str]:
    """The names whose docstring is missing on either side, or not the same."""
    written, shown = stub_docstrings(stub), public(native)
    texts = {name: inspect.cleandoc(value.__doc__ or "") for name, value in shown.items()}
    return sorted(
        name for name in written.keys() | texts if not written.get(name) == texts.get(name) != ""
    )


def test_help_shows_what_the_stub_says_of_every_public_name() -> None:
    assert differences(STUB, _native) == []
    assert len(public(_native)) > 60


def test_a_docstring_that_differs_or_is_missing_would_be_noticed() -> None:
    """The negative control, on a module of one class."""

    class Thing:
        """A thing."""

        def read(self) -> None:
            """Read it."""

        def write(self) -> None: ...

    module = ModuleType("module", "Things.")
    module.Thing = Thing  # type: ignore[attr-defined]
    same = '"""Things."""\nclass Thing:\n  """A thing."""\n  def read(self):\n    """Read it."""'
    assert differences(same, module) == ["Thing.write"]
    assert differences(same.replace("Read", "Send"), module) == ["Thing.read", "Thing.write"]
    assert differences(same + '\n  def send(self):\n    """Send it."""', module) == [
        "Thing.send",
        "Thing.write",
    ]
    assert "" in differences(same.removeprefix('"""Things."""\n'), module)
