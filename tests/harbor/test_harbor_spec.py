"""TRL's `HarborSpec`: the class of its `environment_factory`, played by abut."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor")
pytest.importorskip("trl.experimental.harbor")

from harbor.environments import factory
from harbor.models.environment_type import EnvironmentType
from trl.experimental.harbor import HarborSpec

from abut import RolloutConfig
from abut.demo.model import load_demo_tokenizer
from abut.trl import from_environment_factory
from tests.harbor.local_environment import LocalEnvironment
from tests.harbor.task_folders import CHECKS, write_task
from tests.kit.stage.agents import a_call
from tests.kit.training.episode_run import EpisodeRun


@pytest.mark.slow
def test_its_environment_plays_the_same_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It names an environment of Harbor's: there is no Docker here.
    load = factory._load_environment_class
    monkeypatch.setattr(
        factory,
        "_load_environment_class",
        lambda kind: LocalEnvironment if kind is EnvironmentType.DOCKER else load(kind),
    )
    write_task(tmp_path / "tasks", test=CHECKS.replace("/app", "/workdir"))
    spec = HarborSpec(str(tmp_path / "tasks"))
    tokenizer = load_demo_tokenizer()
    call = a_call("bash", command="echo done > /workdir/answer.txt; cat /workdir/answer.txt")

    def says(request: Any) -> list[int]:
        text = (call, "It is written.")[min(request.turn, 1)]
        return [*tokenizer(text).input_ids, tokenizer.eos_token_id]

    made = from_environment_factory(spec.environment_factory, reward=lambda env: env.reward)
    run = EpisodeRun(
        made,
        spec.train_dataset,
        tmp_path,
        says=says,
        config=RolloutConfig(retries=0),  # turns of any length
        context=8192,
        per_device_train_batch_size=2,
        max_completion_length=2000,
        temperature=1.0,
    ).train(stop=False)
    assert run.errors() == [None] * 2
    assert run.worst() < 1e-5 < 1e-2 < run.worst(roll=1)
    for rollout in run.played:
        assert (rollout.reward, len(rollout.turns)) == (1.0, 2)
        said = [str(message["content"]) for message in rollout.messages]
        assert said[0].startswith("Write 'done' into /app/answer.txt. (write)\n")
        assert "done\n" in said
    (output,) = run.outputs
    assert spec.reward_funcs(environments=output["environments"]) == [1.0] * 2
