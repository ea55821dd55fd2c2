"""Environments of verifiers' own repository, unmodified."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import RolloutConfig
from abut.verifiers import verifiers_env
from tests.kit.stage.agents import a_call
from tests.kit.training.episode_run import EpisodeRun
from tests.kit.training.image_run import ImageRun
from tests.kit.training.models import rank_model

FOLDER = os.environ.get("ABUT_VERIFIERS_ENVIRONMENTS")
pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="ABUT_VERIFIERS_ENVIRONMENTS is unset: it names `environments` of verifiers",
)
CONFIG = RolloutConfig(retries=0, max_failed_frac=1.0, rollout_timeout_s=400.0)
NAMES = ["AdaLovelace", "AlanTuring", "GraceHopper", "EmmyNoether", "KurtGoedel", "MaryCartwright"]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each environment is a package of its own, also for the servers of tools."""
    folders = [str(path.parent) for path in Path(str(FOLDER)).glob("*/pyproject.toml")]
    assert folders, FOLDER
    monkeypatch.setattr(sys, "path", [*sys.path, *folders])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*folders, os.environ["PYTHONPATH"]]))


def policy(reply: Any) -> Any:
    """A policy that says what `reply(prompt, number of the call)` returns."""
    hf_tokenizer, _ = rank_model()
    calls = iter(range(10**6))

    def says(request: Any) -> list[int]:
        prompt = hf_tokenizer.decode(request.prompt_ids.tolist())
        text = reply(prompt, next(calls))
        return [*hf_tokenizer(text).input_ids, hf_tokenizer.eos_token_id]

    return says


def played(name: str, folder: Path, reply: Any, *, tasks: int = 4, **settings: Any) -> EpisodeRun:
    env = verifiers_env(name, **settings)
    run = EpisodeRun(
        env,
        env.dataset(tasks),
        folder,
        config=CONFIG,
        says=policy(reply),
        per_device_train_batch_size=2 * tasks,
        max_completion_length=4096,
    ).train()
    assert run.errors() == [None] * 2 * tasks
    assert run.worst() < 1e-5
    for rollout in run.played:
        rows = [rollout.main_row, *rollout.branches]
        assert len({one.session for one in rows}) == len(rows)
        print(name, [(one.name, one.reward, len(one.turns)) for one in rows], rollout.extras)
    return run


def test_kuhn_poker(tmp_path: Path) -> None:
    def move(prompt: str, call: int) -> str:
        legal = re.findall(r"\[(\w+)\]", prompt.rpartition("legal actions:")[2])
        return f"[{legal[call % 2]}]"

    run = played("kuhn_poker", tmp_path, move)
    for rollout in run.played:
        rows = {one.name: one for one in [rollout.main_row, *rollout.branches]}
        assert sorted(rows) == ["player0", "player1"]
        assert rows["player0"].reward == -rows["player1"].reward
        assert abs(rows["player0"].reward) in (1, 2)
        assert rollout.extras["kuhn_poker/player0/forfeit"] == 0


def test_alphabet_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import alphabet_sort.taskset

    monkeypatch.setattr(
        alphabet_sort.taskset, "load_dataset", lambda *_, **__: [{"names": NAMES}] * 4
    )
    config = {"taskset": {"min_turns": 2, "max_names_per_turn": 2}}
    reply = "<alphabetical_sorted>\nAdaLovelace\n</alphabetical_sorted>"
    run = played("alphabet_sort", tmp_path, lambda *_: reply, config=config)
    assert {len(rollout.turns) for rollout in run.played} <= {2, 3}
    assert all(rollout.reward is not None and not rollout.branches for rollout in run.played)


def test_code_golf(tmp_path: Path) -> None:
    programs = ("```python\nprint(5050)\n```", "```python\nprint(2 + 2 * 2524)\n```", "no program")
    run = played("code_golf", tmp_path, lambda _, call: programs[call % 3], tasks=2)
    for rollout in run.played:
        assert [one.name for one in [rollout.main_row, *rollout.branches]] == ["golfer"] * 2
        assert len(rollout.rewards) == 2
    rewards = {reward for rollout in run.played for reward in rollout.rewards.values()}
    assert len(rewards) > 1


def test_glossary(tmp_path: Path) -> None:
    def reply(prompt: str, call: int) -> str:
        name = re.search(r'look up "(.*?)"', prompt)
        assert name is not None
        if "<tool_response>" in prompt or "<|im_start|>tool" in prompt:
            return "<answer>it</answer>"
        return a_call("facts_lookup", name=name[1])

    run = played("glossary", tmp_path, reply, tasks=1)
    for rollout in run.played:
        assert [m["role"] for m in rollout.messages] == ["user", "assistant", "tool", "assistant"]
        assert rollout.messages[2]["content"] != "no entry found"


def test_color_codeword(tmp_path: Path) -> None:
    codeword = verifiers_env("color_codeword")
    rows = [*codeword.dataset(4)]
    run = ImageRun("llava", tmp_path, env=codeword, rows=rows, max_steps=1).train()
    run.trainer.rollout_func._tasks.route.gateway.stop()
    assert max(run.worst("train loss")) < 1e-5
    print("color_codeword", {compared.images for compared in run.trainer.compared})
