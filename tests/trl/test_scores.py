"""What reward functions and TRL made of each rollout is recorded with it."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("pyarrow")

from abut.records.read import read_records
from abut.trl import env_reward, scored_only
from tests.kit.stage.rollouts import env
from tests.kit.training.trl_run import Run, Vowels


class Length:
    """A reward function that notes what it gave."""

    __name__ = "length"

    def __init__(self, fails_at: int | None = None) -> None:
        self.given: dict[str, float] = {}
        self.calls = 0
        self.fails_at = fails_at

    def __call__(self, completion_ids: Any, rollout_id: Any, **_: Any) -> list[float]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the reward function broke")
        values = [len(ids) / 8 for ids in completion_ids]
        self.given |= dict(zip(rollout_id, values, strict=True))
        return values


@pytest.mark.parametrize("form", ["rollouts.jsonl", "rollouts"])
def test_rewards_and_advantages_are_those_that_trl_took(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, form: str
) -> None:
    length = Length()
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path / "out",
        env(Vowels, made=0),
        reward_funcs=[env_reward, scored_only(length)],
        make={"recorder": str(tmp_path / form)},
        max_steps=3,
    )
    run.trainer.train()
    run.trainer.evaluate()
    records = {record["rollout_id"]: record for record in read_records(tmp_path / form)}
    ids = [rollout_id for output in run.outputs for rollout_id in output["rollout_id"]]
    assert list(records) == ids
    assert len(ids) == len(set(ids)) == 3 * 8 + 8 * 4
    advantages = [float(value) for batch in run.batches for value in batch["advantages"]]
    for rollout_id, advantage in zip(ids, advantages, strict=True):
        record = records[rollout_id]
        assert record["advantage"] == pytest.approx(advantage, abs=1e-6)
        own = record["reward"]
        of_length = None if own is None else length.given[rollout_id]
        assert record["rewards"].keys() == {"env_reward", "length"}
        assert record["rewards"]["env_reward"] == (None if own is None else pytest.approx(own))
        assert record["rewards"]["length"] == (None if own is None else pytest.approx(of_length))
    assert any(record["reward"] is None for record in records.values())


def test_a_crash_in_scoring_loses_no_rollout(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path / "out",
        env(Vowels, made=0),
        reward_funcs=[env_reward, scored_only(Length(fails_at=2))],
        make={"recorder": str(tmp_path / "rollouts")},
    )
    with pytest.raises(RuntimeError, match="the reward function broke"):
        run.trainer.train()
    run.rollout_func.flush()
    records = list(read_records(tmp_path / "rollouts"))
    assert [record["step"] for record in records] == [0] * 8 + [1] * 8
    assert [record["rewards"] is None for record in records] == [False] * 8 + [True] * 8


def test_a_record_says_where_its_rollout_belongs(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    for start in range(2):  # the second is the first, taken again
        Run(
            hf_tokenizer,
            tiny_model(),
            tmp_path / f"out{start}",
            env(Vowels, made=0),
            columns={"level": [{"hard": [k]} for k in range(8)]},
            make={"recorder": str(tmp_path / "rollouts")},
            max_steps=1,
        ).trainer.train()
    records = list(read_records(tmp_path / "rollouts"))
    assert len({record["rollout_id"] for record in records}) == 16
    assert len({record["run_id"] for record in records}) == 2
    for record in records:
        assert record["rollout_id"].endswith(record["run_id"])
        assert (record["rank"], record["step"], record["mode"]) == (0, 0, "train")
        assert record["columns"]["prompt"] == "go"
        assert list(record["columns"]["level"]) == ["hard"]
    groups: dict[Any, set[Any]] = {}
    for record in records:
        key = record["run_id"], record["group"]
        groups.setdefault(key, set()).add((record["place"], record["episode_seed"]))
    assert len(groups) == 4
    for group in groups.values():
        assert {place for place, _ in group} == {0, 1, 2, 3}
        assert len({seed for _, seed in group}) == 1
