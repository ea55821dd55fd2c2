"""`examples/wordle_grpo.py` on TextArena's own Wordle, behind a server of the openenv package."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abut.envs.task import RolloutTask
from abut.openenv import OpenEnv, Serve
from abut.openenv.target import servers_of
from tests.kit.checkout import ROOT
from tests.kit.stage.rollouts import Recording, Stage, assert_done

PYTHON = os.environ.get("ABUT_OPENENV_PYTHON", "")

pytestmark = [
    pytest.mark.openenv,
    pytest.mark.skipif(
        not PYTHON, reason="ABUT_OPENENV_PYTHON is unset: make test-openenv sets it"
    ),
]


@pytest.fixture(scope="module")
def wordle() -> Iterator[str]:
    """The address of a server whose only words are crane, slate and audio."""
    folder = ROOT / "tests" / "openenv" / "servers"
    (host,) = servers_of(Serve("wordle_server:app", python=PYTHON, cwd=folder))
    yield asyncio.run(host.url())
    host.end()


def test_a_group_guesses_one_word_and_is_told_only_what_is_new(stage: Stage, wordle: str) -> None:
    words = ["Perhaps [crane]?", "[slate]", "audio"]

    def says(request: Any) -> Any:
        return stage.says(words[request.turn])(request)

    with OpenEnv(wordle) as env:
        tasks = [
            RolloutTask(i, f"r{i}", env, [], "s", 100 + i // 4, group=i // 4) for i in range(16)
        ]
        # One by one: the seed is that of the server's whole process.
        rollouts = stage.engine(Recording(says), retries=0, max_rollouts=1).run(tasks)
    for rollout in rollouts:
        assert_done(rollout)
        assert rollout.reward == 1.0
        told = [message["content"] for message in rollout.messages if message["role"] == "user"]
        assert told[0].startswith("[GAME] You are Playing Wordle.\n")
        assert all(text.count("Feedback:") == 1 for text in told[1:-1])
    turns = [len(rollout.turns) for rollout in rollouts]
    assert all(len({*turns[at : at + 4]}) == 1 for at in range(0, 16, 4)), turns
    assert len({*turns}) > 1, "other groups have other words"


def test_the_example_trains(
    wordle: str,
    tiny_model: Any,
    hf_tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("trl")
    from tests.kit.training.example_run import CPU, SMALL, run_example

    tiny_model().save_pretrained(tmp_path / "model")
    hf_tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    trainer, _ = run_example(
        monkeypatch,
        *("wordle_grpo.py", "--model", str(tmp_path / "model"), "--env", wordle),
        *("--max-steps", "1"),
        **CPU | SMALL | {"use_vllm": False},
    )
    logged = trainer.state.log_history[0]
    # Two guesses in a row that are none end a game.
    assert (logged["rollout/turns/mean"], logged["rollout/stop/env_done"]) == (2, 1)
    assert (logged["rollout/error_frac"], logged["reward"]) == (0, 0)
