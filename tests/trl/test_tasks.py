"""What each prompt stands for: history, seed, columns, group."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

from abut.envs.source import question_of
from abut.envs.task import RolloutTask
from abut.gym import GymEnv
from abut.trl import make_rollout_func
from abut.trl.route import EnvRoute
from abut.trl.tasks import Tasks
from tests.kit.stage.rollouts import Recording, Stage, Talk, env
from tests.kit.training.trl_run import Columns, Run, a_trainer, user


def test_the_prompts_text_is_the_seed(called: Any) -> None:
    cls = env(Columns, got=[])
    called(["a", "a", [user("b")], [user("first"), user("c")]], cls)
    assert sorted(seed for seed, _, _ in cls.got) == ["a", "a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "seed"),
    [([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"), (None, ""), ("", "")],
)
def test_the_seed_is_what_the_last_user_message_says(
    stage: Stage, hf_tokenizer: Any, content: Any, seed: str
) -> None:
    prompts = [[user("first"), {"role": "user", "content": content}]]
    tasks = Tasks(EnvRoute(Talk), seed=0, system_prompt=None)
    (task,) = tasks.of_batch(prompts, a_trainer(hf_tokenizer), "train")
    assert task.seed == question_of(task) == seed


def test_what_arrow_filled_with_null_is_in_no_call(hf_tokenizer: Any) -> None:
    arguments = {"city": "Bonn", "unit": None, "near": {"x": 1, "y": None}, "days": [1, None]}
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "name": None}
    prompt = [user("a", tool_calls=None), said, {"role": "tool", "content": "b"}]
    tasks = Tasks(EnvRoute(Talk), seed=0, system_prompt=None)
    (task,) = tasks.of_batch([prompt], a_trainer(hf_tokenizer), "train")
    arguments = {"city": "Bonn", "near": {"x": 1}, "days": [1, None]}
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert task.messages == [user("a"), said, {"role": "tool", "content": "b"}]


def test_a_string_prompt_is_a_seed_and_nothing_else(called: Any, hf_tokenizer: Any) -> None:
    out = called(["a secret seed"])
    text = "<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n"
    assert hf_tokenizer.decode(out["prompt_ids"][0]) == text


def test_rows_are_in_the_order_of_the_prompts_whoever_is_first(
    called: Any, stage: Stage, hf_tokenizer: Any
) -> None:
    prompts = [f"number {k}" for k in range(6)]
    sampler = Recording(
        stage.says(), delay_s=lambda r: 0.05 - 0.01 * int(r.rollout_id.split("-")[-2])
    )
    out = called(prompts, env(reset=lambda self, seed: (self, seed)), sampler=sampler)
    for prompt, ids in zip(prompts, out["prompt_ids"], strict=True):
        assert prompt in hf_tokenizer.decode(ids)


def test_the_row_reaches_reset_and_not_the_messages(called: Any) -> None:
    cls = env(Columns, got=[])
    prompt = [user("text", row={"level": 4, "seed": "from the row", "unused": 1})]
    out = called([prompt], cls)
    ((seed, _, level),) = cls.got
    assert (seed, level) == ("from the row", 4)
    assert out["messages"][0][0] == user("text")
    assert "row" in prompt[0], "the trainer's prompt stays as it was"


class Seeded:
    """Gym-style: one step."""

    def reset(self, *, seed: Any) -> Any:
        return seed, {}

    def step(self, action: str) -> Any:
        return "done", 1.0, True, False, {}


def test_a_gym_style_reset_gets_the_seed_as_the_row_has_it(called: Any) -> None:
    def opening(env: Any) -> list[str]:
        out = called([[user("go", row={"seed": 3, "level": 1})]] * 2, env)
        assert out["error"] == [None, None]
        return [messages[1]["content"] for messages in out["messages"]]

    by_row = GymEnv(Seeded, reset=lambda columns: {"seed": columns["seed"] + columns["level"]})
    assert opening(by_row) == ["4", "4"]
    one, other = opening(GymEnv(Seeded))
    assert one == other != "3", "the group's seed"


def test_a_group_shares_its_episode_seed_and_groups_and_steps_differ(
    stage: Stage, hf_tokenizer: Any
) -> None:
    cls = env(Columns, got=[])
    rollout_func = make_rollout_func(cls, sampler=Recording(stage.says()))
    trainer = a_trainer(hf_tokenizer)
    seeds = []
    for _ in range(2):
        cls.got.clear()
        rollout_func(["a", "a", "b", "b"], trainer)
        by_prompt = {p: {s for q, s, _ in cls.got if q == p} for p in "ab"}
        assert {len(s) for s in by_prompt.values()} == {1}
        seeds += [s for group in by_prompt.values() for s in group]
    assert len(set(seeds)) == 4


def test_a_group_that_two_ranks_share_has_one_seed(stage: Stage, hf_tokenizer: Any) -> None:
    seeds: list[Any] = []
    ids: list[str] = []
    for rank, prompts in enumerate((["a", "a", "a"], ["a", "b", "b"])):
        cls = env(Columns, got=[])
        trainer = a_trainer(
            hf_tokenizer,
            num_generations=4,
            accelerator=SimpleNamespace(process_index=rank, num_processes=2),
        )
        rollout_func = make_rollout_func(cls, sampler=Recording(stage.says()))
        ids += rollout_func(prompts, trainer)["rollout_id"]
        seeds += [{s for p, s, _ in cls.got if p == prompt} for prompt in sorted(set(prompts))]
    assert [len(group) for group in seeds] == [1, 1, 1]
    assert seeds[0] == seeds[1] != seeds[2]
    assert len(set(ids)) == 6


def test_evaluation_has_groups_of_its_own_size(stage: Stage, hf_tokenizer: Any) -> None:
    cls = env(Columns, got=[])
    trainer = a_trainer(hf_tokenizer)
    trainer.model.training = False
    make_rollout_func(cls, sampler=Recording(stage.says()))(["a", "a"], trainer)
    assert len({seed for _, seed, _ in cls.got}) == 2


def test_evaluations_have_the_same_episodes_and_seeds_whatever_the_step(
    stage: Stage, hf_tokenizer: Any
) -> None:
    """Two batches each, all "Start task": as many episodes as groups, and in training others."""
    cls = env(Columns, got=[])
    sampler = Recording(stage.says())
    rollout_func = make_rollout_func(cls, sampler=sampler)
    trainer = a_trainer(hf_tokenizer, num_generations_eval=2)
    names: list[str] = []

    def drawn() -> tuple[list[int], list[int]]:
        cls.got.clear()
        sampler.calls.clear()
        for _ in range(2):
            names.extend(rollout_func(["Start task"] * 4, trainer)["rollout_id"])
        seeds = sorted(request.seed for request, _ in sampler.calls)
        return sorted(seed for _, seed, _ in cls.got), seeds

    trained = drawn()
    trainer.model.training = False
    evaluations = []
    for step in (10, 10, 20):
        trainer.state.global_step = step
        evaluations.append(drawn())
        trainer.state.log_history.append({"eval_loss": 0.0, "step": step})
    episodes, seeds = evaluations[0]
    assert [len(set(episodes)), len(episodes)] == [4, 8]
    assert len(set(seeds)) == len(seeds) == 8 * Columns.turns
    assert evaluations[1] == evaluations[2] == evaluations[0]
    assert not {*episodes, *seeds} & {*trained[0], *trained[1]}
    assert len(set(names)) == len(names), "records tell the evaluations apart"


@pytest.mark.parametrize("how", ["evaluate", "predict"])
def test_equal_weights_give_equal_evaluations(
    how: str, hf_tokenizer: Any, tiny_model: Any, tmp_path: Any
) -> None:
    """In TRL's own loop, at two steps; `predict`, which logs nothing, is an evaluation too."""
    run = Run(
        hf_tokenizer,
        tiny_model(),
        tmp_path,
        Talk,
        prompts=("go",) * 4,
        per_device_eval_batch_size=4,
        num_generations_eval=2,
    )
    evaluate = {
        "evaluate": run.trainer.evaluate,
        "predict": lambda: run.trainer.predict(run.trainer.eval_dataset),
    }[how]
    for _ in range(2):
        evaluate()
    run.trainer.state.global_step = 7
    evaluate()
    assert len(run.outputs) == 6, "three evaluations of four prompts, each twice, in fours"
    first, *others = (run.outputs[at : at + 2] for at in (0, 2, 4))
    for other in others:
        for name in ("completion_ids", "env_reward"):
            assert [out[name] for out in other] == [out[name] for out in first]
    assert first[0]["completion_ids"] != first[1]["completion_ids"]


class Counting:
    """A pool that notes the groups of its tasks."""

    def __init__(self) -> None:
        self.groups: list[int] = []

    async def lend(self, task: RolloutTask) -> Any:
        self.groups.append(task.group)
        return Talk()


@pytest.mark.parametrize("rank", [0, 1])
def test_groups_are_numbered_over_ranks_and_batches(
    stage: Stage, hf_tokenizer: Any, rank: int
) -> None:
    """Two ranks, three prompts each, groups of two: the second group is on both."""
    pool = Counting()
    rollout_func = make_rollout_func(pool, sampler=Recording(stage.says()))
    trainer = a_trainer(
        hf_tokenizer, accelerator=SimpleNamespace(process_index=rank, num_processes=2)
    )

    def groups() -> list[int]:
        pool.groups.clear()
        rollout_func(["a", "b", "c"], trainer)
        return pool.groups.copy()

    first = [[0, 0, 1], [1, 2, 2]][rank]
    assert groups() == first
    trainer.state.global_step = 1
    assert groups() == [group + 3 for group in first]
    trainer.model.training = False
    for step in (1, 1, 2):  # each evaluation begins anew, here with two batches in groups of one
        trainer.state.global_step = step
        assert groups() == [3 * rank, 3 * rank + 1, 3 * rank + 2]
        assert groups() == [3 * rank + 6, 3 * rank + 7, 3 * rank + 8]
        trainer.state.log_history.append({"eval_loss": 0.0, "step": step})
    trainer.model.training = True
    assert groups() == [group + 6 for group in first]


def test_a_resumed_run_does_not_begin_with_the_first_tasks(stage: Stage, hf_tokenizer: Any) -> None:
    pool = Counting()
    trainer = a_trainer(hf_tokenizer)
    trainer.state.global_step = 10
    make_rollout_func(pool, sampler=Recording(stage.says()))(["a"] * 4, trainer)
    assert pool.groups == [20, 20, 21, 21]


def test_no_two_batches_share_a_name(stage: Stage, hf_tokenizer: Any) -> None:
    """Also of two trainers in turn, and of a second `train()`, which counts its steps from 0."""
    rollout_func = make_rollout_func(Talk, sampler=Recording(stage.says()))
    one, other = a_trainer(hf_tokenizer), a_trainer(hf_tokenizer)
    names: list[str] = []
    for trainer, step in ((one, 0), (other, 1), (one, 0), (one, 1), (one, 0)):
        trainer.state.global_step = step
        names += rollout_func(["a"], trainer)["rollout_id"]
    of_step = [name.rpartition("-")[0] for name in names]
    assert of_step == ["train-0-0-0", "train-1-0-0", "train-0-1-0", "train-1-1-0", "train-0-2-0"]
    assert len({name.rpartition("-")[2] for name in names}) == 1


def test_the_same_config_gives_the_same_rows(called: Any) -> None:
    one, two = called(["a"] * 4), called(["a"] * 4)
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        assert one[name] == two[name]
    both = zip(one["rollout_id"], two["rollout_id"], strict=True)
    assert all(a != b and a.rpartition("-")[0] == b.rpartition("-")[0] for a, b in both)


def test_a_video_in_a_prompt_is_refused_before_anything_is_played(called: Any) -> None:
    cls = env(Columns, got=[])
    video = [{"type": "text", "text": "what is it?"}, {"type": "video"}]
    with pytest.raises(ValueError, match="does not accept video") as raised:
        called(["a", [user("b"), {"role": "user", "content": video}]], cls)
    assert not cls.got
    assert str(raised.value) == (
        "prompt 1 has content of the type 'video', but abut does not accept video\nhint: leave "
        "such rows out, or send single frames of the video as images"
    )


def test_a_system_message_and_a_system_prompt_are_an_error(called: Any) -> None:
    with pytest.raises(ValueError, match="system") as raised:
        called(["a", [{"role": "system", "content": "S"}, user("b")]], system_prompt="T")
    assert str(raised.value) == (
        "prompt 1 has a system message, but make_rollout_func also has a system_prompt\n"
        "hint: leave one of the two out"
    )
