"""docs/integrations/inspect_ai.md says what is true."""

import inspect
import re
from pathlib import Path

import pytest

from abut.inspect_ai import inspect_task
from tests.kit.training.example_run import blocks_of

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
PAGE = (PAGES / "inspect_ai.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks_of("inspect_ai.md"))
def test_the_code_of_the_page_is_python(block: str) -> None:
    compile(block, "inspect_ai.md", "exec")


def test_all_options_are_named_and_no_others() -> None:
    table = PAGE.partition("## Options")[2].partition("\n\n`task.dataset(")[0]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", table, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"\w+", cell)]
    assert sorted(named) == sorted(inspect.signature(inspect_task).parameters)


def test_the_task_of_the_page_is_there_and_has_its_reward() -> None:
    pytest.importorskip("inspect_evals")
    from inspect_ai.util import registry_info

    name, reward = re.findall(r'inspect_task\("([\w/]+)", reward="([\w/]+)"\)', PAGE)[0]
    task = inspect_task(name)._task
    scorer, part = reward.split("/")
    (only,) = task.scorer
    assert registry_info(only).name.split("/")[-1] == scorer
    assert part in registry_info(only).metadata["metrics"]
