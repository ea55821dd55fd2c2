"""docs/integrations/eval_protocol.md says what is true."""

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("eval_protocol")

import eval_protocol.pytest as package

from abut.eval_protocol import create_openenv_vllm_rollout_func, eval_test
from abut.eval_protocol.players import _REFUSED
from tests.kit.training.example_run import blocks_of

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
PAGE = (PAGES / "eval_protocol.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks_of("eval_protocol.md"))
def test_the_code_of_the_page_is_python(block: str) -> None:
    compile(block, "eval_protocol.md", "exec")


def test_all_arguments_of_the_helper_are_named() -> None:
    section = PAGE.partition("## Replace Eval Protocol's helper")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    prefixes = [name[:-2] for name in re.findall(r"`(\w+_\*)`", section)]
    for name in inspect.signature(create_openenv_vllm_rollout_func).parameters:
        assert name in named or any(map(name.startswith, prefixes)), name


def test_the_signature_is_the_one_of_the_page() -> None:
    shown = re.search(r"`eval_test\((.*?)\)`", PAGE)
    assert shown is not None
    names = re.findall(r"(\w+)(?==|,|$)", shown[1].replace("*, ", ""))
    assert names[: len(inspect.signature(eval_test).parameters)][0] == "test"
    for name in inspect.signature(eval_test).parameters:
        assert name in shown[1]


def test_the_processors_of_the_page_are_those_of_the_package() -> None:
    table = PAGE.partition("## Processors")[2].partition("One rollout is")[0]
    named = set(re.findall(r"`(\w+RolloutProcessor)`", table))
    there = {name for name in package.__all__ if name.endswith("RolloutProcessor")}
    assert there - {"RolloutProcessor"} <= named
    assert set(_REFUSED) <= named
