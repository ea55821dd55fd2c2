"""The example of docs/integrations/openenv.md does what it says, on a real OpenEnv server."""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from abut.envs.task import RolloutTask
from abut.openenv import InvalidAction
from tests.kit.stage.rollouts import Recording, Stage, assert_done
from tests.kit.training.example_run import blocks_of, run_block

PYTHON = os.environ.get("ABUT_OPENENV_PYTHON", "")

pytestmark = [
    pytest.mark.openenv,
    pytest.mark.skipif(
        not PYTHON, reason="ABUT_OPENENV_PYTHON is unset: make test-openenv sets it"
    ),
]


def test_the_example_trains_and_plays(
    stage: Stage,
    hf_tokenizer: Any,
    tiny_model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("trl")
    server, train = blocks_of("openenv.md")[:2]
    (tmp_path / "count_server.py").write_text(server)
    monkeypatch.chdir(tmp_path)
    names, outputs = run_block(
        monkeypatch,
        train.replace(".venv-server/bin/python", PYTHON),
        hf_tokenizer,
        tiny_model(),
        max_steps=2,
        per_device_train_batch_size=8,
        num_generations=4,
    )
    assert names["trainer"].state.global_step == 2
    assert [output["error"] for output in outputs] == [[None] * 8] * 2
    for output in outputs:  # two groups, two tasks
        first = [messages[0]["content"] for messages in output["messages"]]
        limits = [re.findall(r"to (\d+)", text) for text in first]
        assert limits == [["20"]] * 4 + [["50"]] * 4

    assert names["guess"]("I say 3, no: 14.") == {"number": 14}
    with pytest.raises(InvalidAction):
        names["guess"]("I do not know.")

    def says(request: Any) -> Any:
        number = random.Random(100 + int(request.rollout_id[1:]) // 2).randint(1, 20)
        return stage.says([str(number - 1), "none", str(number)][request.turn])(request)

    with names["env"] as env:
        tasks = [
            RolloutTask(i, f"r{i}", env, [], "s", 100 + i // 2, group=i // 2 * 2) for i in range(8)
        ]
        for rollout in stage.engine(Recording(says)).run(tasks):
            assert_done(rollout)
            assert [m["content"] for m in rollout.messages if m["role"] != "assistant"] == [
                "Guess a number from 1 to 20.",
                "The number is higher.",
                "Answer with a number.",
                "Right.",
            ]
            assert rollout.step_rewards == [0.0, 0.0, 1.0]
