"""The page on distillation says what was measured, and its code is that of today."""

import ast
import inspect
import json
import re
from statistics import fmean

import pytest

import abut.trl
from scripts import distill_curves
from tests.kit.training.example_run import DOCS, blocks_of

PAGE = (DOCS / "how-to" / "distillation.md").read_text(encoding="utf-8")


def test_the_curve_is_the_one_that_was_measured() -> None:
    curves = json.loads((DOCS / "how-to" / "distillation.json").read_text(encoding="utf-8"))
    drawn = (DOCS / "how-to" / "distillation.svg").read_text(encoding="utf-8")
    assert drawn == distill_curves.picture_of(curves)
    students, last = curves["student"], distill_curves.LAST
    first, end = (
        fmean(fmean(one[part]) for one in students) for part in (slice(last), slice(-last, None))
    )
    assert f"from {first:.2f} to {end:.2f}" in PAGE
    assert f"over {len(students[0])} steps" in PAGE


def test_what_the_page_calls_takes_what_it_gives() -> None:
    pytest.importorskip("trl")
    called = [
        node
        for block in blocks_of("distillation.md")
        for node in ast.walk(ast.parse(block.replace("…,", "").replace(", …", "")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    checked = 0
    for call in called:
        function = getattr(abut.trl, call.func.id, None)  # type: ignore[attr-defined]
        if function is not None:
            names = [keyword.arg for keyword in call.keywords]
            inspect.signature(function).bind_partial(*call.args, **dict.fromkeys(names))
            checked += 1
    assert checked >= 3


def test_the_options_of_the_page_are_options() -> None:
    worker = inspect.signature(abut.trl.make_distillation_worker).parameters
    teacher = inspect.signature(abut.trl.VllmTeacher).parameters
    for name, default in re.findall(r"^\| `(\w+)` \((\w+)\) \|", PAGE, re.MULTILINE):
        assert str(worker[name].default) == default
    for name in re.findall(r"`VllmTeacher\((\w+)=…\)`", PAGE):
        assert name in teacher
    for name in "give_up_s", "max_requests":
        assert f"`{name}` ({teacher[name].default:g}" in PAGE
