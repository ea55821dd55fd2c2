"""docs/tutorials/agent.md is run as a reader runs it; the agent learns."""

import sys
from pathlib import Path

import pytest

from tests.kit.page_run import numbers_of, run_page

pytest.importorskip("openai")
pytest.importorskip("trl")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a shell")

PAGE = "tutorials/agent.md"


def test_what_trains_nothing_prints_what_the_page_shows(tmp_path: Path) -> None:
    typed = run_page(PAGE, tmp_path, not_run=["python train.py", "abut show"])
    assert [one.commands for one in typed] == ["python try_agent.py", "python team.py"]


def learns(shown: str, printed: str) -> None:
    """Assert that the last lines match the page except for numbers, and that the numbers rise."""
    lines = printed.splitlines()[-3:]
    steps = [numbers_of(line) for line in lines]
    assert [step[0] for step in steps] == [numbers_of(line)[0] for line in shown.splitlines()]
    assert steps[0][1] < 0.5 < 0.7 < steps[-1][1], printed


def shows_tokens(shown: str, printed: str) -> None:
    """Assert that the prompt equals the page's, and that the same two turns are in brackets."""
    prompt = shown[shown.index("<|im_start|>system") : shown.index("⟦")]
    assert prompt in printed
    for text in (shown, printed):
        assert text.count("⟦<tool_call>") == 1
        assert text.count("⟦") == text.count("<|im_end|>⟧") == 2


@pytest.mark.docs
def test_the_agent_learns(tmp_path: Path) -> None:
    run_page(PAGE, tmp_path, differs={"python train.py": learns, "abut show": shows_tokens})
