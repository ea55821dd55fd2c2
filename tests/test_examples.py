"""Every example runs alone, from any folder, offline."""

import asyncio
import functools
import gc
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import abut
from tests.kit.checkout import EXAMPLES
from tests.kit.forks import python

UNDER_PYTEST = ["certify_tokenizer.py"]  # tests/test_pytest_plugin.py runs it
ALONE = ["exact_tokens.py"]
EVAL_PROTOCOL = [
    "eval_protocol_grpo.py",
    "eval_protocol_sums.py",
]  # tests/eval_protocol/test_example.py
CODING = ["repair_cpu.py"]  # tests/gateway/clients/test_coding.py
# tests/nemo_gym/test_submit.py, tests/test_ray_parts.py, tests/test_slurm_*.py
FOLDERS = {"nemo_gym", "ray", "slurm"}
IN_FOLDERS = ["nemo_gym/train.py", "ray/train.py", "ray/cluster_is_up.py"]
TRAINING = [
    "agent_openai.py",
    "async_grpo.py",
    "bargain.py",
    "custom_env_grpo.py",
    "distill_cpu.py",
    "find_square_cpu.py",
    "wordle_cpu.py",
    "wordle_grpo.py",
    "wordle_rewards_cpu.py",
]


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(python(*command), cwd=cwd, capture_output=True, text=True, timeout=300)


def source(name: str) -> str:
    return (EXAMPLES / name).read_text(encoding="utf-8")


def test_no_example_is_forgotten() -> None:
    assert sorted(file.name for file in EXAMPLES.glob("*.py")) == sorted(
        [*ALONE, *CODING, *EVAL_PROTOCOL, *TRAINING, *UNDER_PYTEST]
    )
    folders = {file.parent.name for file in EXAMPLES.glob("*/*") if file.suffix != ".pyc"}
    assert folders == FOLDERS


def test_exact_tokens_runs_alone(tmp_path: Path) -> None:
    done = run(EXAMPLES / "exact_tokens.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "19 of 79 completion tokens are trained"
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_an_environment_of_your_own_takes_thirty_lines_and_wordle_less_than_fifty() -> None:
    code = source("custom_env_grpo.py").partition("\nclass ")[2].splitlines()
    assert len([line for line in code if line.strip() and '"""' not in line]) <= 30
    assert len(source("wordle_grpo.py").splitlines()) < 50


@pytest.fixture
def trains(tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs an example that trains, in an empty folder, on one thread."""
    pytest.importorskip("trl")
    from tests.kit.training.example_run import run_example

    monkeypatch.chdir(tmp_path)
    return functools.partial(run_example, monkeypatch)


def test_an_environment_of_your_own_trains(trains: Any, tmp_path: Path, capsys: Any) -> None:
    trainer, _ = trains("custom_env_grpo.py", disable_tqdm=True)
    assert trainer.state.global_step == 3
    assert re.search(r"^step 3: mean reward 0\.\d{3}\n\Z", capsys.readouterr().out, re.MULTILINE)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_the_digit_is_the_same_for_a_group_and_worth_less_each_time() -> None:
    pytest.importorskip("trl")
    make = runpy.run_path(str(EXAMPLES / "custom_env_grpo.py"))["GuessTheDigit"]
    one, other = make(), make()
    for env in (one, other):
        env.reset("play", episode_seed=3)
    assert one.secret == other.secret
    secret = int(one.secret)
    said = [one.step(text)[1] for text in ("?", "0", "9", f"It is {secret}.")]
    hints = ["Lower." if guess > secret else "Higher." for guess in (0, 9)]
    assert secret not in (0, 9)
    assert said == ["That is not a digit.", *hints, "Right."]
    assert (one.reward, one.alive, other.reward, other.alive) == (0.125, False, 0.0, True)


def test_the_small_model_plays_words(trains: Any, tmp_path: Path, capsys: Any) -> None:
    trainer, asked = trains("wordle_cpu.py", "--max-steps", "1", disable_tqdm=True)
    logged = trainer.state.log_history[0]
    assert logged["rollout/turns/mean"] == 3
    assert logged["rollout/sampled_tokens/mean"] > 10
    assert logged["rollout/error_frac"] == 0
    assert asked["per_device_train_batch_size"] == 64
    assert capsys.readouterr().out.endswith(f"step    1: mean reward {logged['reward']:.3f}\n")
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_the_small_model_plays_words_for_three_rewards(
    trains: Any, tmp_path: Path, capsys: Any
) -> None:
    trainer, _ = trains("wordle_rewards_cpu.py", "--max-steps", "1", disable_tqdm=True)
    logged = trainer.state.log_history[0]
    env, position, format = (
        logged[f"rewards/{name}_reward/mean"] for name in ("env", "position", "format")
    )
    assert 0 < format < 1
    assert logged["game/format"] == pytest.approx(format)
    assert logged["reward"] == pytest.approx(env + 0.5 * position + 0.2 * format)
    assert f"step    1: env {env:.3f} position {position:.3f}" in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_a_student_learns_from_a_teacher(trains: Any, tmp_path: Path, capsys: Any) -> None:
    words = ["--max-steps", "2", "--teacher-steps", "1"]
    teacher, _ = trains("distill_cpu.py", *words, disable_tqdm=True)
    assert teacher.state.global_step == 1
    assert re.search(r"^step    1: mean reward 0\.\d{3}\n\Z", capsys.readouterr().out, re.MULTILINE)
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # its client lives to the end
def test_an_agent_with_the_openai_client_plays(trains: Any, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("openai")
    trainer, _ = trains("agent_openai.py", "--max-steps", "1", "--shown", "100", disable_tqdm=True)
    logged = trainer.state.log_history[0]
    assert logged["rollout/turns/mean"] > 1.5
    assert (logged["rollout/error_frac"], logged["rollout/branches/mean"]) == (0, 1)
    trainer.rollout_func._tasks.route.gateway.stop()  # else it ends with the process
    del trainer
    gc.collect()
    assert logged["reward"] > 0
    assert capsys.readouterr().out.endswith(f"step    1: mean reward {logged['reward']:.3f}\n")
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # its client lives to the end
def test_two_players_have_a_row_and_a_reward_each(trains: Any, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("openai")
    trainer, asked = trains("bargain.py", "--max-steps", "1", "--shown", "100", disable_tqdm=True)
    logged = trainer.state.log_history[0]
    assert asked["loss_type"] == "grpo"
    assert logged["rollout/error_frac"] == 0
    assert logged["rollout/rows/mean"] > 1.5
    first, second = (logged[f"rollout/reward/{name}/mean"] for name in ("first", "second"))
    assert 0 < logged["reward"] < 1
    assert 0 < first < 9
    assert 0 < second < 9
    rows = trainer.abut_rows
    for bargain, conversations in zip(rows.rollouts, rows.conversations, strict=True):
        paid = {conversation.name: conversation.reward for conversation in conversations}
        assert paid == bargain.rewards
        assert sum(paid.values()) in (0, 10)
    assert len({tuple(turns) for turns in rows.advantages}) > 4
    trainer.rollout_func._tasks.route.gateway.stop()  # else it ends with the process
    del trainer, rows, bargain, conversations
    gc.collect()
    assert capsys.readouterr().out.endswith(f"step    1: mean coins {first:.2f} and {second:.2f}\n")
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize(
    ("said", "answer", "rewards"),
    [
        ("7", "yes", {"first": 7, "second": 3}),
        ("7", "no", {"first": 0, "second": 0}),
        ("9", "perhaps", {"first": 0, "second": 0}),
        ("10", None, {"first": 0}),
        ("seven", None, {"first": 0}),
    ],
)
def test_a_bargain_pays_what_was_agreed(said: str, answer: str | None, rewards: Any) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("trl")
    example = runpy.run_path(str(EXAMPLES / "bargain.py"))
    bargains = example["bargains"]
    told: list[tuple[str, str]] = []

    async def ask(player: str, content: str) -> str | None:
        told.append((player, content))
        return {"first": said, "second": answer}[player]

    bargains.function.__globals__["ask"] = ask
    result = asyncio.run(bargains(SimpleNamespace(named=str)))
    assert result.rewards == rewards
    assert result.reward == (answer == "yes")
    assert [player for player, _ in told] == [*rewards]
    assert f" {said}." in told[-1][1] or len(told) == 1


def test_training_on_gym_takes_what_its_file_says() -> None:
    pytest.importorskip("trl")
    script = runpy.run_path(str(EXAMPLES / "nemo_gym" / "train.py"))
    words = ["--config", str(EXAMPLES / "nemo_gym" / "train.yaml"), "--heads", "a=http://h:1"]
    words += ["http://h:2", "--bf16", "false", "--use_cpu", "--temperature", "0.5"]
    given, limits, training, model = script["make_parser"]().parse_args_and_config(words)
    assert given.heads == ["a=http://h:1", "http://h:2"]
    assert [script["gym_of"](head, None).name for head in given.heads] == ["a", "h:2"]
    assert isinstance(limits, abut.RolloutConfig)
    assert limits.max_failed_frac == 0.6
    # Ranks that have played wait for the others.
    assert limits.rollout_timeout_s < given.batch_timeout_s < training.ddp_timeout
    assert (training.vllm_mode, training.temperature, model.dtype) == ("server", 0.5, "bfloat16")


def test_training_on_a_cluster_takes_what_its_file_says(monkeypatch: Any) -> None:
    pytest.importorskip("trl")
    monkeypatch.syspath_prepend(str(EXAMPLES / "ray"))
    script = runpy.run_path(str(EXAMPLES / "ray" / "train.py"))
    words = ["--config", str(EXAMPLES / "ray" / "grpo.yaml"), "--bf16", "false", "--use_cpu"]
    given, limits, training, model = script["make_parser"]().parse_args_and_config(words)
    env = script["class_of"](given.environment)()
    assert env.reset("seed", episode_seed=1)[1] == "I think of a digit. Which?"
    assert isinstance(limits, abut.RolloutConfig)
    assert (limits.retries, limits.max_failed_frac) == (2, 0.2)
    assert (given.environments, given.slots, given.env_cpus) == (256, 32, 0.5)
    assert (training.vllm_mode, model.dtype) == ("server", "bfloat16")
    assert set(script["rows_of"](given)["prompt"]) == {"Begin."}


@pytest.mark.parametrize("name", [*ALONE, *TRAINING, *UNDER_PYTEST, *IN_FOLDERS])
def test_help_is_printed_and_nothing_is_run(name: str, tmp_path: Path) -> None:
    if name not in [*ALONE, *UNDER_PYTEST]:
        pytest.importorskip("trl")
    done = run(EXAMPLES / name, "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told, _, rest = done.stdout.partition("\n\n")
    assert told.startswith(f"usage: {name.rpartition('/')[2]} [-h]")
    assert source(name).partition('"""')[2].splitlines()[0] in rest
    assert "mean reward" not in rest.rpartition("options:")[2]
    assert "tokens are trained" not in rest
    assert not list(tmp_path.iterdir())


def test_wordle_says_what_it_needs(trains: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        trains("wordle_grpo.py", "--help")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for needed in (
        "Needs two GPUs",
        "pip install 'abut[trl,vllm,openenv]'",
        "vllm serve Qwen/Qwen3-1.7B --max-logprobs -1 \\\n",
        "--logprobs-mode processed_logprobs",
        "--env docker:registry.hf.space/openenv-wordle:latest",
        "--vllm-mode {server,colocate}",
    ):
        assert needed in said


def test_wordle_trains_on_a_server_of_openenv(
    trains: Any, tiny_model: Any, hf_tokenizer: Any, tmp_path: Path
) -> None:
    from tests.kit.servers.wire_server import TEXT, WireServer
    from tests.kit.training.example_run import CPU, SMALL

    tiny_model().save_pretrained(tmp_path / "model")
    hf_tokenizer.save_pretrained(tmp_path / "model")
    fields = {"prompt": TEXT, "messages": {"type": "array"}}
    with WireServer(
        schema={"action": {"properties": {"message": TEXT}}, "observation": {"properties": fields}},
        first=lambda kwargs: "You are playing Wordle.",
        observation=lambda text: {"prompt": "Wordle-v0", "messages": [{"content": text}]},
    ) as server:
        trainer, asked = trains(
            *("wordle_grpo.py", "--model", str(tmp_path / "model"), "--env", server.url),
            *("--max-steps", "1", "--vllm-url", "http://other:8100"),
            **CPU | SMALL | {"use_vllm": False},
        )
        seeds = [reset["seed"] for reset in server.resets_sent()]
        for games in trainer.rollout_func._tasks.route.kinds:
            games.close()  # the script's process would end here
    assert (asked["use_vllm"], asked["vllm_mode"]) == (True, "server")
    assert asked["vllm_server_base_url"] == "http://other:8100"
    assert sorted(seeds) == sorted([*{*seeds}] * 4), "a group plays one game"
    assert len(seeds) == 8
    actions = [data for _, kind, data in server.frames if kind == "step"]
    assert len(actions) == 24
    assert all(set(action) == {"message"} for action in actions)
    logged = trainer.state.log_history[0]
    assert (logged["rollout/turns/mean"], logged["rollout/stop/env_done"]) == (3, 1)
    assert logged["reward"] == 3


def test_exact_tokens_needs_numpy_alone(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; "
        f"runpy.run_path({str(EXAMPLES / 'exact_tokens.py')!r}, run_name='__main__'); "
        "print(*sorted({'numpy', 'torch', 'transformers', 'trl', 'tokenizers'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "numpy"


@pytest.mark.parametrize(
    ("column", "changed", "message"),
    [
        ("prompt_ids", 0, "a request is not a prefix"),
        ("completion_ids", 0, "a sample is not in the row"),
        ("env_mask", 0, "a trained token was not sampled"),
        ("logprobs", 0, "a logprob without a sampled token"),
    ],
)
def test_the_replay_check_of_exact_tokens_notices(column: str, changed: int, message: str) -> None:
    example = runpy.run_path(str(EXAMPLES / "exact_tokens.py"))
    tokenizer = abut.Tokenizer.from_file(example["ASSETS"] / "tokenizer.json")
    trajectory, requests = example["play"](tokenizer)
    samples = [tokenizer.encode(answer) for answer in example["ANSWERS"]]
    row = trajectory.columns()
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    arrays = {name: np.array(getattr(row, name)) for name in names}
    example["check_replay"](abut.Columns(**arrays), requests, samples)

    arrays[column][changed] = 0 if arrays[column][changed] else 1
    with pytest.raises(AssertionError, match=message):
        example["check_replay"](SimpleNamespace(**arrays), requests, samples)


@pytest.mark.filterwarnings("ignore::FutureWarning:transformers")
def test_the_asynchronous_example_trains_and_goes_on(
    tiny_model: Any, hf_tokenizer: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    pytest.importorskip("trl")
    pytest.importorskip("aiohttp")
    import trl.experimental.async_grpo as async_grpo

    from tests.kit.training.async_cpu import PolicyServer, Weights, on_cpu
    from tests.kit.training.example_run import CPU

    model = tiny_model()
    model.save_pretrained(tmp_path / "model")
    hf_tokenizer.save_pretrained(tmp_path / "model")
    small = {
        **CPU,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "gradient_checkpointing": False,
        "token_budget": -1,
        "max_inflight_tasks": 4,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    trainers: list[Any] = []
    Config, Trainer = async_grpo.AsyncGRPOConfig, async_grpo.AsyncGRPOTrainer
    with PolicyServer(model, context=1024) as server, on_cpu():

        def trainer(*given: Any, **named: Any) -> Any:
            trainers.append(Trainer(*given, **named, weight_transfer=Weights(server)))
            return trainers[-1]

        def config(folder: str, **given: Any) -> Any:
            return Config(folder, **given | small)

        monkeypatch.setattr(async_grpo, "AsyncGRPOConfig", config)
        monkeypatch.setattr(async_grpo, "AsyncGRPOTrainer", trainer)
        monkeypatch.chdir(tmp_path)
        for steps, more in (("1", ()), ("2", ("--resume",))):
            words = ["--model", str(tmp_path / "model"), "--vllm-url", server.url]
            words += ["--max-steps", steps, *more]
            monkeypatch.setattr(sys, "argv", ["async_grpo.py", *words])
            runpy.run_path(str(EXAMPLES / "async_grpo.py"), run_name="__main__")
    assert [trainer.state.global_step for trainer in trainers] == [1, 2]
    records = list(abut.records.read_records(tmp_path / "async-grpo" / "rollouts"))
    assert {record["stop_reason"] for record in records} <= {"max_turns", "env_done", "stale"}
    groups = [{r["group"] for r in records if r["run_id"] == run} for run in _runs(records)]
    assert len(groups) == 2
    assert 0 in groups[0]
    assert 0 not in groups[1], "it goes on behind what was trained"


def _runs(records: Any) -> list[str]:
    return list(dict.fromkeys(record["run_id"] for record in sorted(records, key=_time)))


def _time(record: Any) -> float:
    return float(record["time"])
