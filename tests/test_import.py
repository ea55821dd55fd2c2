"""`import abut` brings what assembles tokens, and nothing that other processes never use.

Modules are counted and not milliseconds: a clock says more about the machine.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import abut

OWN = ["abut", "abut._native", "abut.errors", "abut.parts", "abut.removed"]
# Beyond NumPy's: `traceback`, and what it imports in other versions of Python.
MOST_OTHERS = 5


def imported_by(statement: str) -> tuple[list[str], list[str]]:
    """The modules of abut that a statement imports, and all others that NumPy does not."""
    program = (
        "import json, sys, numpy; before = {*sys.modules}; "
        f"{statement}; print(json.dumps(sorted({{*sys.modules}} - before)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    names = json.loads(done.stdout)
    own = [name for name in names if name.split(".")[0] == "abut"]
    return own, [name for name in names if name not in own]


def test_importing_abut_imports_little() -> None:
    own, others = imported_by("import abut")
    assert own == OWN
    assert len(others) <= MOST_OTHERS, others


def test_encoding_imports_no_more() -> None:
    own, others = imported_by(
        "import abut; "
        "t = abut.Trajectory(abut.Tokenizer.from_str('''" + '{"version": "1.0", "model": '
        '{"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}' + "''')); "
        "t.append_text('a'); t.request(); t.append_sampled([0], [0.0]); t.columns()"
    )
    assert own == OWN
    assert len(others) <= MOST_OTHERS, others


def test_what_is_asked_for_is_imported_then() -> None:
    own, others = imported_by("import abut; abut.agent")
    assert "abut.agents" in own
    assert "asyncio" in others


def test_every_name_is_there_and_is_that_of_its_module() -> None:
    for name in abut.__all__:
        value = getattr(abut, name)
        assert getattr(abut, name) is value
        assert name in dir(abut)
    assert not hasattr(abut, "no_such_name")


def test_a_folder_of_the_table_needs_no_import_of_its_own() -> None:
    own, _ = imported_by("import abut; abut.records, abut.rollout")
    assert "abut.records" in own


def test_type_checkers_and_programs_see_the_same_names() -> None:
    tree = ast.parse(Path(abut.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = {
        node.module: tuple(sorted(alias.name for alias in node.names))
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
    }
    assert {module: tuple(sorted(names)) for module, names in abut._MODULES.items()} == imports
