"""docs/integrations/nemo_gym.md says what is true."""

import inspect
import re
from pathlib import Path

import pytest

from abut.nemo_gym import NemoGym
from abut.nemo_gym.rows import AGENT, ROW
from abut.nemo_gym.run_result import Outcome
from tests.kit.training.example_run import blocks_of

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
PAGE = (PAGES / "nemo_gym.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks_of("nemo_gym.md"))
def test_the_code_of_the_page_is_python(block: str) -> None:
    compile(block, "nemo_gym.md", "exec")


def test_the_outcomes_are_those_of_the_table_and_each_has_its_metric() -> None:
    table = PAGE.partition("## How a rollout ends")[2].partition("None is not 0")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(Outcome)
    for outcome in Outcome:
        assert f"`{outcome}_frac`" in PAGE


def test_the_signature_of_dataset_is_the_one_of_the_page() -> None:
    shown = re.search(r"`gym\.dataset\((.*?)\)`", PAGE)
    assert shown is not None
    parameters = inspect.signature(NemoGym.dataset).parameters
    assert shown[1] == "jsonl, *, agent=None, weights=None"
    assert [*parameters] == ["self", "jsonl", "agent", "weights"]


def test_the_options_and_columns_of_the_page_exist() -> None:
    parameters = inspect.signature(NemoGym).parameters
    for name in re.findall(r"NemoGym\((\w+)=", PAGE):
        assert name in parameters
    assert {ROW, AGENT, "nemo_gym_outcome"} <= {*re.findall(r"`(\w+)`", PAGE)}
