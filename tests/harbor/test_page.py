"""docs/integrations/harbor.md says what is true."""

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("harbor")

from harbor.agents.factory import AgentFactory

from abut.harbor import harbor_tasks
from tests.kit.training.example_run import blocks_of

PAGES = Path(__file__).parents[2] / "docs" / "integrations"
PAGE = (PAGES / "harbor.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", blocks_of("harbor.md"))
def test_the_code_of_the_page_is_python(block: str) -> None:
    compile(block, "harbor.md", "exec")


def test_the_signature_is_the_one_of_the_page() -> None:
    shown = re.search(r"`harbor_tasks\((.*?)\)`", PAGE)
    assert shown is not None
    parameters = inspect.signature(harbor_tasks).parameters
    texts = [
        name if p.default is p.empty else f"{name}={p.default!r}".replace("'", '"')
        for name, p in parameters.items()
    ]
    assert shown[1] == ", ".join([texts[0], "*", *texts[1:]])
    section = PAGE.partition("## Options")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(parameters)


def test_the_agents_of_the_page_are_harbors() -> None:
    section = PAGE.partition("## Agents")[2].partition("\n## ")[0]
    named = set(re.findall(r'`"([\w-]+)"`', section))
    assert named == {"terminus-2", "claude-code", "codex", "mini-swe-agent"}
    assert named <= set(AgentFactory.registered_names())
