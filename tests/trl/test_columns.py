"""The dataset's columns reach `reset`, those of the first batch too, and each prompt its own."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.kit.stage.rollouts import Talk, env
from tests.kit.training.trl_run import Columns, Run, a_trainer, user


class Batch:
    """Has a batch as `GRPOTrainer` has it, and calls the rollout_func as it does."""

    def __init__(self, trainer: Any, called: Any, env: Any, **make: Any) -> None:
        vars(self).update(vars(trainer))
        self._called, self._env, self._make = called, env, make

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return self._generate([row["prompt"] for row in inputs])

    def _generate(self, prompts: Any) -> Any:
        return self._called(prompts, self._env, self, **self._make)


class Fewer(Batch):
    """Leaves out prompts."""

    def _generate(self, prompts: Any) -> Any:
        return super()._generate(prompts[1:])


@pytest.fixture
def batch(called: Any, hf_tokenizer: Any) -> Any:
    """Plays a batch of rows; returns what `reset` got."""

    def play(rows: Any, cls: Any = Batch, base: Any = Columns) -> list[Any]:
        noted = env(base, got=[])
        cls(a_trainer(hf_tokenizer), called, noted)._generate_and_score_completions(rows)
        return sorted(noted.got)

    return play


def test_columns_reach_reset_from_the_first_batch_on(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """With the real trainer, in training and in evaluation, for string and message prompts."""
    names = [f"row {k}" for k in range(4)]
    prompts = [name if k % 2 else [user(name)] for k, name in enumerate(names)]
    for kind in (str, list):
        noted = env(Columns, got=[])
        chosen = [k for k, prompt in enumerate(prompts) if isinstance(prompt, kind)]
        run = Run(
            hf_tokenizer,
            tiny_model(),
            tmp_path,
            noted,
            prompts=[prompts[k] for k in chosen],
            columns={"level": [k * 10 for k in chosen], "seed": [None, chosen[1]]},
            max_steps=1,
        )
        expected = [(str(chosen[1]), chosen[1] * 10), (f"row {chosen[0]}", chosen[0] * 10)]
        run.trainer.train()
        assert sorted({(seed, level) for seed, _, level in noted.got}) == sorted(expected)
        assert len(noted.got) == 8
        noted.got.clear()
        run.trainer.evaluate()
        assert sorted({(seed, level) for seed, _, level in noted.got}) == sorted(expected)


class Says(Talk):
    """Says its level."""

    def reset(self, seed: str, *, level: int) -> Any:
        return self, f"level {level}"


def test_each_prompt_has_its_own_row(called: Any, hf_tokenizer: Any) -> None:
    rows = [{"prompt": "same", "level": k} for k in (3, 3, 1, 1, 2, 2)]
    trainer = Batch(a_trainer(hf_tokenizer), called, Says)
    out = trainer._generate_and_score_completions(rows)
    said = [messages[0]["content"] for messages in out["messages"]]
    assert said == [f"level {row['level']}" for row in rows]


class Everything(Talk):
    """Takes all there is."""

    got: list[Any]

    def reset(self, seed: str, **columns: Any) -> Any:
        columns.pop("episode_seed")
        self.got.append(tuple(columns.items()))
        return super().reset(seed)


class Optional(Talk):
    """Would play without its column, and something else."""

    def reset(self, seed: str, *, level: int = 1) -> Any:
        return super().reset(seed)


class ForTRL:
    """As TRL takes it."""

    def reset(self, level: int = 1) -> str:
        return "go"

    def look(self) -> str:
        """Look around."""
        return "nothing"


REMOVED = {
    "a default": (Optional, "Optional.reset needs the column 'level'"),
    "all": (env(Everything, got=[]), "Everything.reset needs the column 'level'"),
    "a class for TRL": (ForTRL, "ForTRL.reset needs the column 'level'"),
    "the route": ({"a": Talk}, "the dataset has a column 'environment'"),
    "the seed": (Talk, "the dataset has a column 'seed'"),
}


@pytest.mark.parametrize("what", REMOVED)
def test_columns_that_the_trainer_took_away_are_an_error(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path, what: str
) -> None:
    column = {"the route": "environment", "the seed": "seed"}.get(what, "level")
    cls, text = REMOVED[what]
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        cls,
        columns={column: ["a"] * 8},
        remove_unused_columns=True,
    )
    with pytest.raises(ValueError, match="remove_unused_columns=True") as raised:
        run.trainer.train()
    assert str(raised.value).startswith(text)
    assert str(raised.value).endswith(
        "\nhint: leave remove_unused_columns out; GRPOConfig's default is False"
    )


def test_columns_that_nobody_takes_may_be_removed(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        Talk,
        columns={"level": [1] * 8},
        remove_unused_columns=True,
        max_steps=1,
    )
    run.trainer.train()
    assert run.outputs[0]["error"] == [None] * 8


def test_the_row_in_the_prompt_wins_where_it_has_a_value(batch: Any) -> None:
    prompt = [user("p", row={"level": 1, "name": None, "only": None})]
    (got,) = batch([{"prompt": prompt, "level": 2, "name": "n"}], base=Everything)
    assert dict(got) == {"level": 1, "name": "n", "only": None, "prompt": prompt}


def test_a_subclass_around_the_method_changes_nothing(batch: Any) -> None:
    class Around(Batch):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return super()._generate_and_score_completions(inputs[:1])

    rows = [{"prompt": "p", "level": 5}, {"prompt": "p", "level": 6}]
    assert [level for _, _, level in batch(rows, Around)] == [5]


def test_another_trainers_batch_is_not_read(
    called: Any, hf_tokenizer: Any, batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer that is called inside the batch of another one, as an evaluation may be."""
    noted = env(Columns, got=[])
    inner = Batch(a_trainer(hf_tokenizer), called, noted)

    class Outer(Batch):
        def _generate(self, prompts: Any) -> Any:
            return inner._generate(prompts)

    batch([{"prompt": "p", "level": 5}], Outer)
    assert [level for _, _, level in noted.got] == [0]
    assert caplog.messages == [
        "rollout_func was not called by Batch._generate_and_score_completions on this thread, so "
        "environments get only the dataset columns in prompt[-1]['row']"
    ]


def test_rows_that_are_not_the_prompts_are_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match="rows") as raised:
        batch([{"prompt": "a", "level": 1}, {"prompt": "b", "level": 2}], Fewer)
    assert str(raised.value) == (
        "Fewer._generate_and_score_completions has 2 rows, but rollout_func got 1 prompts: abut "
        "cannot tell which row belongs to which prompt\n"
        "hint: call rollout_func with the prompts of the batch exactly as TRL passes them"
    )
