"""The reference is an oracle of its own: it shares no code with what it is compared with."""

import ast
import re
from pathlib import Path

from tests import reference

FOLDER = Path(str(reference.__file__)).parent
GROUND = {"abut.errors", "abut.parts"}


def imports(source: str) -> set[str]:
    """Return the modules of abut and of the tests that a module imports."""
    nodes = list(ast.walk(ast.parse(source)))
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {"." * node.level + (node.module or "") for node in froms}
    names |= {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    return {name for name in names if name.split(".")[0] in {"abut", "tests", ""}}


def test_a_module_imports_only_those_that_its_reader_has_read() -> None:
    listed = str(reference.__doc__).partition("Read ")[2].partition(":")[0]
    order = re.findall(r"`(\w+)`", listed)
    assert sorted(order) == sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
    for index, name in enumerate(order):
        before = {f"tests.reference.{other}" for other in order[:index]}
        assert imports((FOLDER / f"{name}.py").read_text(encoding="utf-8")) <= before | GROUND


def test_an_import_of_the_native_module_would_be_noticed() -> None:
    assert imports("from abut._native import Seam") == {"abut._native"}
    assert imports("import json, abut.parts") == {"abut.parts"}
    assert imports("from .cut import Cut") == {".cut"}
