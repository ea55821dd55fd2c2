"""Each old name of the table raises an error with its replacement, which exists."""

import importlib
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import abut
from abut.agents import Endpoint
from abut.cli.__main__ import main
from abut.envs.task import RolloutTask
from abut.removed import REPLACEMENTS, removal
from abut.rollout.rollout import Branch, Rollout, TurnRecord
from abut.samplers import Sample

IMPORTS = sorted(old for old in REPLACEMENTS if old.startswith("abut."))
NAMES = [old for old in IMPORTS if old not in ("abut.bench",) and old.count(".") == 1]
ARGUMENTS = sorted(old for old in REPLACEMENTS if old.endswith("=)"))
COMMANDS = sorted(old for old in REPLACEMENTS if old.startswith("abut "))
ATTRIBUTES = sorted({*REPLACEMENTS} - {*IMPORTS, *ARGUMENTS, *COMMANDS})
CLASSES = {
    cls.__name__: cls for cls in (Branch, Endpoint, Rollout, RolloutTask, Sample, TurnRecord)
}
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "migrate_0_3.md"


def expected(old: str) -> str:
    return f"{old} was removed in 0.3\nhint: use {REPLACEMENTS[old]}"


@pytest.mark.parametrize("old", IMPORTS)
def test_an_old_import_says_what_to_import(old: str) -> None:
    package, _, name = old.rpartition(".")
    for statement in (f"from {package} import {name}", f"import {old}", f"import {old}.inside"):
        with pytest.raises(ImportError) as raised:
            exec(statement)
        assert str(raised.value) == expected(old), statement


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_is_an_attribute_error_and_has_moved(old: str) -> None:
    name = old.removeprefix("abut.")
    assert name not in abut.__all__
    assert not hasattr(abut, name)
    with pytest.raises(AttributeError) as raised:
        getattr(abut, name)
    assert str(raised.value) == expected(old)
    module, _, new = REPLACEMENTS[old].rpartition(".")
    assert hasattr(importlib.import_module(module), new)


@pytest.mark.parametrize("old", [old for old in IMPORTS if old not in NAMES])
def test_an_old_module_has_moved(old: str) -> None:
    if re.fullmatch(r"[\w.]+", REPLACEMENTS[old]):
        importlib.import_module(REPLACEMENTS[old])


@pytest.mark.parametrize("old", ATTRIBUTES)
def test_an_old_attribute_says_what_to_read(old: str) -> None:
    name, _, attribute = old.partition(".")
    made: Any = object.__new__(CLASSES[name])
    with pytest.raises(AttributeError) as raised:
        getattr(made, attribute)
    assert str(raised.value) == expected(old)
    new = REPLACEMENTS[old].removeprefix(f"{name}.").partition("[")[0]
    assert new in {*CLASSES[name].__annotations__, *dir(CLASSES[name])}
    with pytest.raises(AttributeError, match=f"'{name}' object has no attribute 'nothing'"):
        made.nothing  # noqa: B018


@pytest.mark.parametrize("old", ARGUMENTS)
def test_an_old_argument_says_what_to_pass(old: str) -> None:
    name, argument = re.fullmatch(r"(\w+)\((\w+)=\)", old).groups()  # type: ignore[union-attr]
    with pytest.raises(TypeError) as raised:
        CLASSES[name](**{argument: None})
    assert str(raised.value) == expected(old)
    with pytest.raises(TypeError, match="nothing"):
        CLASSES[name](nothing=None)


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_says_what_to_run(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([old.removeprefix("abut "), "--quick"]) == 2
    assert capsys.readouterr().err == f"{expected(old)}\n"


def test_what_was_not_removed_fails_as_ever() -> None:
    assert removal("abut.nothing") is removal("json") is None
    with pytest.raises(ImportError, match="cannot import name 'nothing' from 'abut'"):
        exec("from abut import nothing")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'abut\.nothing'"):
        exec("import abut.nothing")


def test_a_class_with_removed_names_is_pickled() -> None:
    sample = Sample(np.array([1]), np.array([0.0], np.float32), "stop")
    assert pickle.loads(pickle.dumps(sample)).ids.tolist() == [1]


def test_the_page_of_the_migration_has_the_table() -> None:
    rows = re.findall(r"^\| `([^|]+)` \| `?([^|]+?)`? \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(REPLACEMENTS.items()) <= set(rows)
    old_names = {old for old, _ in rows if re.match(r"abut[. ]|[A-Z]\w+\.", old)}
    assert old_names <= {*REPLACEMENTS}
