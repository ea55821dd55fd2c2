"""The tutorial on a policy that does not learn, with its page in a browser and the copied test."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.clients.page import Shown
from tests.kit.page_run import Check, numbers_of, page_blocks, run_page, same_but_for_numbers

PAGE = "why_it_fails.md"


def steps(expected: Callable[[list[float]], bool]) -> Check:
    """`abut show --steps`: the same table, with the rewards that are expected."""

    def check(shown: str, printed: str) -> None:
        table = printed[printed.index("step  ") :].splitlines()
        assert len(table) == len(shown.splitlines())
        assert table[0].split() == shown.splitlines()[0].split()
        rewards = [float(line.split()[3]) for line in table[1:]]
        assert expected(rewards), rewards

    return check


def listed(shown: str, printed: str) -> None:
    title, first, *_ = printed.splitlines()
    assert title.split() == shown.splitlines()[0].split()
    assert first.split()[3:5] == ["0", "4"]


def read(shown: str, printed: str) -> None:
    """The policy wrote a 7, and nothing but "Say a digit." was the answer."""
    sampled = printed.split("⟦")[1:]
    assert any("7" in text.partition("⟧")[0] for text in sampled)
    assert printed.count("Say a digit.") == shown.count("Say a digit.") == 3


def last_line(shown: str, printed: str) -> None:
    same_but_for_numbers(shown, printed.splitlines()[-1] + "\n")
    assert numbers_of(shown)[:2] == numbers_of(printed.splitlines()[-1])[:2]


def test_a_policy_that_does_not_learn_is_understood_and_repaired(
    show: Callable[..., Shown], tmp_path: Path
) -> None:
    if "ABUT_DEMO_PYTHON" not in os.environ:
        pytest.skip("ABUT_DEMO_PYTHON is unset: make test-browser")
    copied: list[str] = []

    def copy_as_test(folder: Path) -> None:
        if not copied:
            shown = show(folder / "runs" / "first.html")
            shown.page.click("text=Copy as test")
            text = shown.page.input_value("#test-text")
            (edit,) = (b.text for b in page_blocks(PAGE) if b.language == "python" and not b.title)
            assert text.count("ENVIRONMENT = Recorded\n") == 1
            copied.append(text.replace("ENVIRONMENT = Recorded\n", edit))
            (folder / "test_rollout.py").write_text(copied[0], encoding="utf-8")

    run_page(
        PAGE,
        tmp_path,
        before={"pytest": copy_as_test},
        may_fail=["pytest"],
        differs={
            "abut show runs/first --steps": steps(lambda rewards: not any(rewards)),
            "abut show runs/first --where 'columns.secret:7 text:7' --index": read,
            "abut show runs/first --where": listed,
            "pytest": last_line,
            "python train.py runs/second": steps(lambda rewards: rewards[0] < 0.35 < rewards[-1]),
        },
    )
    assert copied
