"""A real model on an environment that pays its steps: what is trained is what the formula says."""

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from datasets import Dataset  # noqa: E402

import abut.trl  # noqa: E402
from abut.records.read import read_records  # noqa: E402
from abut.trl import Returns, env_reward, make_rollout_func, scored_only  # noqa: E402
from tests.kit.stage.rollouts import Talk  # noqa: E402
from tests.kit.training.example_run import CPU  # noqa: E402
from tests.kit.training.models import rank_model  # noqa: E402
from tests.kit.training.trl_run import CONFIG  # noqa: E402

DISCOUNT, GROUP = 0.5, 4
WEIGHTS = [2.0, 0.25]
"""Of the environment's reward, whose parts the rewards of turns are, and of another function's."""


class Pays(Talk):
    """Ends after 1 to 4 turns, and pays by what is said; the reward is a running score or a pay."""

    runs = False

    def step(self, action: str) -> Any:
        before, result = self.reward, super().step(action)
        chance = random.Random(f"{action} {len(self.actions)}")
        pay = chance.choice([-1.0, 0.0, 0.5, 2.0])
        self.reward = before + pay if self.runs else pay
        self.alive = len(self.actions) < 4 and chance.random() < 0.7
        return result


class Runs(Pays):
    """The same with a running score."""

    runs = True


@scored_only
def length(num_turns: Sequence[int], **_: Any) -> list[float]:
    """Another reward, which no turn is paid."""
    return [float(turns) for turns in num_turns]


def advantages_of(group: Sequence[Any], scale: str) -> list[list[float]]:
    """The formula, for the records of a group that has one conversation each."""
    returns = []
    for record in group:
        paid = [turn["reward"] for turn in record["turns"]]
        if record["columns"]["kind"] == "runs":
            paid = [b - a for a, b in zip([0.0, *paid], paid, strict=False)]
        paid = [WEIGHTS[0] * pay for pay in paid]
        paid[-1] += record["total"] - sum(paid)
        returns.append(
            [
                sum(DISCOUNT ** (k - t) * paid[k] for k in range(t, len(paid)))
                for t in range(len(paid))
            ]
        )
    differences = [
        [
            (GROUP - 1)
            / GROUP
            * (value - fmean(o[min(t, len(o) - 1)] for o in returns if o is not own))
            for t, value in enumerate(own)
        ]
        for own in returns
    ]
    squares = sum(fmean(d * d for d in of_one) for of_one in differences)
    divisor = (squares / (GROUP - 1)) ** 0.5 + 1e-4 if scale == "group" else 1.0
    return [[d / divisor for d in of_one] for of_one in differences]


@pytest.mark.parametrize("scale", ["none", "group"])
@pytest.mark.parametrize("reward", ["last", "sum"])
def test_each_sampled_token_has_the_advantage_of_its_turn(
    tmp_path: Path, reward: str, scale: str
) -> None:
    tokenizer, model = rank_model()
    kind = {"last": "runs", "sum": "pays"}[reward]
    trainer = abut.trl.GRPOTrainer(
        model=model,
        args=trl.GRPOConfig(
            str(tmp_path / "out"),
            **CPU,
            max_steps=1,
            per_device_train_batch_size=8,
            num_generations=GROUP,
            max_completion_length=128,
            scale_rewards=scale,
            reward_weights=WEIGHTS,
        ),
        processing_class=tokenizer,
        reward_funcs=[env_reward, length],
        train_dataset=Dataset.from_dict({"prompt": ["go"] * 8, "kind": [kind] * 8}),
        rollout_func=make_rollout_func(
            {"last": Runs, "sum": Pays}[reward],
            config=dataclasses.replace(CONFIG, reward=reward),
            credit=Returns(DISCOUNT),
            recorder=str(tmp_path / "r.jsonl"),
        ),
    )
    outputs: list[Any] = []
    score = trainer._generate_and_score_completions

    def keep(inputs: Any) -> Any:
        outputs.append(score(inputs))
        return outputs[-1]

    trainer._generate_and_score_completions = keep
    trainer.train()
    records = list(read_records(tmp_path / "r.jsonl"))
    (output,) = outputs
    lengths = set()
    for k in range(0, 8, GROUP):
        group = records[k : k + GROUP]
        for record, right, row in zip(
            group, advantages_of(group, scale), output["advantages"][k : k + GROUP], strict=True
        ):
            lengths.add(len(right))
            ((trained),) = record["rows"]
            assert trained["advantages"] == pytest.approx(right, abs=1e-5)
            start = len(record["prompt_ids"])
            spread = torch.zeros(len(row))
            for turn, advantage in zip(record["turns"], right, strict=True):
                spread[turn["start"] - start : turn["end"] - start] = advantage
            assert torch.allclose(row, spread, atol=1e-5)
    assert len(lengths) > 1
    assert len({float(a) for a in output["advantages"].unique()}) > 8
