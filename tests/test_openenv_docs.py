"""The complete example of docs/openenv.md does what it says, on a server of the openenv package."""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

import abut.trl
from abut.openenv import InvalidAction
from abut.rollout import RolloutTask
from stage import Recording, Stage, assert_done

PYTHON = os.environ.get("ABUT_OPENENV_PYTHON", "")
DOCS = Path(__file__).parents[1] / "docs" / "openenv.md"

pytestmark = [
    pytest.mark.openenv,
    pytest.mark.skipif(
        not PYTHON, reason="ABUT_OPENENV_PYTHON is unset: make test-openenv sets it"
    ),
]


class Trainer:
    """Keeps what the example makes."""

    made: Any = None

    def __init__(self, **settings: Any) -> None:
        type(self).made = settings

    def train(self) -> None: ...


def test_the_example_plays(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl")
    server, train = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)[:2]
    (tmp_path / "count_server.py").write_text(server)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trl, "GRPOTrainer", Trainer)
    names: dict[str, Any] = {}
    exec(train.replace(".venv-server/bin/python", PYTHON), names)
    assert Trainer.made["reward_funcs"] is abut.trl.env_reward
    assert isinstance(Trainer.made["rollout_func"], abut.trl.RolloutFunc)
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
