"""The examples of docs/how-to/conversations.md do what the page says."""

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from scripts import bargain_curves, credit_task
from tests.kit.training.example_run import DOCS, blocks_of, run_block

pytest.importorskip("trl")
pytest.importorskip("openai")
pytest.importorskip("aiohttp")

from abut.trl.credit import ScoredConversation, ScoredRollout, ScoredTurn, credited
from abut.trl.rows.row_weights import CONSTANTS_DIVIDE, ROLLOUTS_VOTE, TOKENS_VOTE


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # its client lives to the end
def test_both_conversations_of_the_example_are_trained(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, _ = blocks_of("conversations.md")
    monkeypatch.chdir(tmp_path)
    variables, _ = run_block(
        monkeypatch,
        block,
        hf_tokenizer,
        tiny_model(),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        logging_steps=1,
    )
    trainer = variables["trainer"]
    (logged, _) = trainer.state.log_history
    assert logged["rollout/rows/mean"] == 2
    assert logged["rollout/error_frac"] == 0
    trainer.rollout_func._tasks.route.gateway.stop()


def test_the_function_gives_each_conversation_its_rollouts_advantage() -> None:
    _, block = blocks_of("conversations.md")
    variables: dict[str, Any] = {}
    exec(block, variables)
    turns = [ScoredTurn(2), ScoredTurn(1)]
    conversations = [
        ScoredConversation(None, None, turns),
        ScoredConversation("a", None, turns[:1]),
    ]
    failed = [ScoredConversation(None, None, [])]
    group = [
        ScoredRollout("r", 1.0, 0.5, conversations),
        ScoredRollout("s", None, 0.0, failed),
    ]
    found = credited(
        variables["all_to_the_last_turn"], group, num_generations=2, scale_rewards="group"
    )
    assert found.advantages == [[[0.0, 0.5], [0.5]], [[]]]


def test_the_figures_of_the_task_are_those_that_were_measured() -> None:
    curves = json.loads((DOCS / "how-to" / "credit_task.json").read_text(encoding="utf-8"))
    drawn = (DOCS / "how-to" / "credit_task.svg").read_text(encoding="utf-8")
    assert drawn == credit_task.picture_of(curves)
    page = (DOCS / "how-to" / "conversations.md").read_text(encoding="utf-8")
    for name, (mean, spread) in credit_task.ends(curves).items():
        line = rf"^\| .*{re.escape(name)}.* \| {mean:.3f} \| {spread:.3f} \|$"
        assert re.search(line, page, re.MULTILINE)


def test_the_figures_of_the_bargain_are_those_that_were_measured() -> None:
    curves = json.loads((DOCS / "how-to" / "bargain.json").read_text(encoding="utf-8"))
    drawn = bargain_curves.picture_of(curves)
    assert (DOCS / "how-to" / "bargain.svg").read_text(encoding="utf-8") == drawn
    page = (DOCS / "how-to" / "conversations.md").read_text(encoding="utf-8")
    first, second = (
        fmean(step for seed in curves[name] for step in seed[-bargain_curves.LAST :])
        for name in bargain_curves.PLAYERS
    )
    assert f"{first:.2f} coins to {second:.2f}" in page
    yes = {step: fmean(seed[step] for seed in curves["agreed"]) for step in (0, 4)}
    assert f"{100 * yes[4]:.0f} of 100 bargains" in page
    assert f"instead\nof {100 * yes[0]:.0f}." in page


def test_the_table_of_votes_has_every_loss_on_its_line() -> None:
    page = (DOCS / "how-to" / "conversations.md").read_text(encoding="utf-8")
    table = page.partition("| `loss_type` |")[2].partition("\n\n")[0]
    lines = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    named = [set(re.findall(r"`(\w+)`", line)) for line in lines]
    assert named == [ROLLOUTS_VOTE, TOKENS_VOTE, CONSTANTS_DIVIDE]
