"""Eval Protocol's helper for TRL, with our import: its arguments, and rows that are right."""

import inspect
import math
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("eval_protocol")
pytest.importorskip("trl")

from ep_own.scored_game import Game, action_parser
from eval_protocol.pytest import SingleTurnRolloutProcessor
from eval_protocol.pytest.integrations import openenv_trl_vllm
from openenv.core import GenericEnvClient

import abut
from abut.errors import RolloutError
from abut.eval_protocol import create_openenv_vllm_rollout_func
from abut.eval_protocol import openenv_helper as ours
from abut.trl import env_reward
from abut.trl.version import NONE_IS_UNSCORED, trl_version
from tests.kit.servers.ep_server import openenv_server, start_server
from tests.kit.servers.free_port import free_port
from tests.kit.stage.rollouts import Recording, Stage, check_exact
from tests.kit.training.trl_run import a_trainer, recorded_calls

SERVERS = str(Path(__file__).parent / "servers")
PROMPTS = ["go"] * 4


def prompt_builder(observation: Any, step: int, history: list[str]) -> str:
    return f"{step} {observation['text']} {history}"


@pytest.fixture
def game() -> Any:
    return type("OneGame", (Game,), {"log": []})


@pytest.fixture
def play(stage: Stage, hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls the helper's rollout_func with a policy that says "abc", once or more often."""

    def call(*args: Any, prompts: Any = PROMPTS, calls: int = 1, says: Any = "abc", **given: Any):
        sampler = Recording(stage.says(says) if isinstance(says, str) else says)
        make = ours.make_rollout_func
        monkeypatch.setattr(
            ours, "make_rollout_func", lambda agent, gateway=None: make(agent, sampler=sampler)
        )
        args = (*args, *(None, prompt_builder, action_parser)[len(args) :])
        rollout_func = create_openenv_vllm_rollout_func(*args, **given)
        monkeypatch.setattr(ours, "make_rollout_func", make)
        outputs = [rollout_func(prompts, a_trainer(hf_tokenizer)) for _ in range(calls)]
        rollout_func._tasks.route.gateway.stop()
        call.sampler = sampler
        return outputs if calls > 1 else outputs[0]

    return call


def test_the_signature_is_that_of_the_helper() -> None:
    """But for `gateway`, which is ours, and `max_steps`, where None is that of the test."""

    def of(function: Any) -> list[Any]:
        parameters = inspect.signature(function).parameters.values()
        apart = {"processor_cls", "gateway"}
        given = {"max_steps": 8}  # what None means without a test
        return [
            (p.name, p.kind, p.default or given.get(p.name, p.default))
            for p in parameters
            if p.name not in apart
        ]

    theirs = openenv_trl_vllm.create_openenv_vllm_rollout_func
    assert of(create_openenv_vllm_rollout_func) == of(theirs)


def test_rows_are_exact_and_rewards_are_sums_of_steps(play: Any, game: Any) -> None:
    output = play(game)
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    for k in range(4):
        columns = abut.Columns(**{name: output[name][k] for name in names})
        rollout = output["rollout_id"][k]
        own = [c for c in play.sampler.calls if c[0].rollout_id.startswith(f"{rollout}.")]
        check_exact(columns, own)
    assert output["env_step_rewards"] == [[3.0, 3.0]] * 4
    assert output["step_rewards"] == output["env_reward"] == [6.0] * 4
    # Eval Protocol's own example says `float(s)` of each.
    assert [math.isnan(score) for score in output["eval_score"]] == [True] * 4
    assert [env.closed for env in game.log] == [True] * 4


def test_the_prompt_comes_first_and_the_history_has_its_lines(play: Any, game: Any) -> None:
    messages = play(game)["messages"][0]
    assert [message["content"] for message in messages][:4] == [
        "go",
        "1 begin []",
        "abc",
        "2 after 3.0 ['Step 1: 3.0 -> reward +3.00']",
    ]


def test_messages_are_a_prompt_too(play: Any, game: Any) -> None:
    prompt = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Begin."}]
    messages = play(game, prompts=[prompt] * 2)["messages"][0]
    assert [m["content"] for m in messages][:3] == ["Play.", "Begin.", "1 begin []"]


def test_one_group_has_one_task_and_groups_go_on(play: Any, game: Any) -> None:
    """Two groups of two, four tasks, three calls: AABB, CCDD, AABB."""
    keywords = {"env_client_cls": game, "tasks": list("ABCD"), "task_var": "TASK"}
    outputs = play(calls=3, **keywords)
    assert len(outputs) == 3
    by_call = [sorted(e.made["env_vars"]["TASK"] for e in game.log[k : k + 4]) for k in (0, 4, 8)]
    assert by_call == [list("AABB"), list("CCDD"), list("AABB")]


def test_containers_get_what_the_arguments_say(play: Any, game: Any) -> None:
    play(
        prompts=PROMPTS[:2],
        env_client_cls=game,
        docker_image="mine",
        docker_port=9000,
        env_vars={"A": "1", "BROWSERGYM_HEADLESS": "own"},
        miniwob_url="http://pages",
        headless=False,
        provider="p",
    )
    made = game.log[0].made
    assert (made["image"], made["port"], made["provider"]) == ("mine", 9000, "p")
    assert made["env_vars"] == {
        "BROWSERGYM_BENCHMARK": "miniwob",
        "BROWSERGYM_HEADLESS": "own",
        "BROWSERGYM_VIEWPORT_WIDTH": "1280",
        "BROWSERGYM_VIEWPORT_HEIGHT": "720",
        "BROWSERGYM_TIMEOUT": "10000",
        "MINIWOB_URL": "http://pages",
        "A": "1",
    }


def test_turns_are_as_long_as_completion_params_say(play: Any, game: Any) -> None:
    play(game, completion_params={"max_tokens": 2, "system_prompt": "Play well."})
    requests = [request for request, _ in play.sampler.calls]
    assert {request.max_tokens for request in requests} == {2}


def test_no_more_play_at_once_than_concurrency_says(play: Any, game: Any) -> None:
    live: list[int] = []

    class Counted(game):  # type: ignore[misc,valid-type]
        def reset(self) -> Any:
            live.append(sum(not hasattr(env, "closed") for env in game.log))
            return super().reset()

    play(Counted, prompts=["go"] * 8, concurrency=1)
    # One may be closing while the next one begins.
    assert max(live) <= 2
    play(Counted, prompts=["go"] * 8)
    assert max(live) > 2


def test_async_environments_play_too(play: Any) -> None:
    class Async(Game):
        log: ClassVar[list[Any]] = []

        async def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

        async def step(self, action: Any) -> Any:  # type: ignore[override]
            return super().step(action)

        async def close(self) -> None:  # type: ignore[override]
            super().close()

    assert play(Async)["env_reward"] == [6.0] * 4
    assert [env.closed for env in Async.log] == [True] * 4


def test_an_environment_that_fails_costs_its_rollout_alone_and_is_sent_no_step_twice(
    play: Any, game: Any
) -> None:
    class Fails(game):  # type: ignore[misc,valid-type]
        tried = 0

        def step(self, action: Any) -> Any:
            self.tried += 1
            if game.log.index(self) == 0 or (self.failing and game.log.index(self) >= 4):
                raise OSError("gone")
            return super().step(action)

        failing = True

    if trl_version() < NONE_IS_UNSCORED:
        with pytest.raises(RolloutError, match=r"failed after 2 attempts: .*OSError: gone"):
            play(Fails)
        return
    output = play(Fails)
    failed = [error is not None for error in output["error"]]
    assert sum(failed) == 1
    at = failed.index(True)
    assert output["env_reward"][at] is None
    assert np.isnan(output["step_rewards"][at])
    assert sum(output["env_mask"][at]) == 0
    assert [env.tried for env in game.log if env.tried == 1 and env.steps == 0] == [1, 1]


ENV_PATH = "ep_own.scored_game"


def test_a_test_is_environment_and_score(play: Any) -> None:
    Game.log.clear()
    output = play(None, None, None, env_path=ENV_PATH)
    assert [env.made for env in Game.log] == [{"whose": "the test's"}] * 4
    assert output["messages"][0][1]["content"] == "of the test"
    assert output["num_turns"] == [1] * 4  # the test's steps
    assert output["eval_score"] == output["env_reward"] == [0.3] * 4
    assert output["step_rewards"] == [3.0] * 4
    assert {request.max_tokens for request, _ in play.sampler.calls} == {2}  # and its params


def test_eight_steps_are_eight_where_they_are_given(play: Any) -> None:
    """The value that Eval Protocol's helper has by default, and not the test's one step."""
    output = play(None, None, None, env_path=ENV_PATH, max_steps=8)
    assert min(output["num_turns"]) > 1


def test_what_is_given_wins_over_the_test(play: Any, game: Any) -> None:
    Game.log.clear()
    output = play(game, prompt_builder, action_parser, env_path=ENV_PATH, max_steps=2)
    assert (len(Game.log), len(game.log)) == (0, 4)
    assert output["messages"][0][1]["content"] == "1 begin []"
    assert output["num_turns"] == [2] * 4
    again = play(None, env_path=ENV_PATH, processor_kwargs={"env_factory": game})
    assert (len(Game.log), len(game.log)) == (0, 8)
    assert again["error"] == [None] * 4


def test_what_cannot_be_followed_says_what_to_write() -> None:
    make = create_openenv_vllm_rollout_func
    three = (Game, prompt_builder, action_parser)
    with pytest.raises(ValueError, match="tasks= needs task_var="):
        make(None, *three[1:], env_client_cls=Game, tasks=["a"])
    with pytest.raises(ValueError, match=r"hint: leave tasks= out; .*OpenEnv\(tasks=…\)"):
        make(*three, tasks=["a"], task_var="T")
    with pytest.raises(ValueError, match="no environment: pass env_factory="):
        make(None, *three[1:])
    with pytest.raises(ValueError, match="no action_parser: pass action_parser="):
        make(Game, prompt_builder, None)
    with pytest.raises(ValueError, match="processor_cls=SingleTurnRolloutProcessor: this helper"):
        make(*three, processor_cls=SingleTurnRolloutProcessor)
    with pytest.raises(TypeError, match="processor_kwargs has 'policy_factory'"):
        make(*three, processor_kwargs={"policy_factory": 1})
    with pytest.raises(ValueError, match="SingleTurnRolloutProcessor, which has no OpenEnv env"):
        make(None, *three[1:], env_path="ep_own.wayward")


def test_containers_of_the_openenv_package_are_started_with_their_tasks(play: Any) -> None:
    """The provider starts real servers here; the client is what `from_docker_image` gives."""
    started: list[Any] = []
    processes: list[Any] = []

    class Provider:
        def start_container(self, image: str, port: Any = None, env_vars: Any = None, **_: Any):
            self.port = free_port()
            self.process = start_server("mini_web:app", SERVERS, self.port, env_vars or {})
            started.append((image, env_vars["BROWSERGYM_TASK_NAME"]))
            processes.append(self.process)
            return f"http://127.0.0.1:{self.port}"

        def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None: ...

        def stop_container(self) -> None:
            self.process.kill()
            self.process.wait()

    output = play(
        None,
        lambda observation, step, history: observation["text"],
        lambda text: {"action_str": "click('15')"},
        prompts=["go"] * 2,
        env_client_cls=GenericEnvClient,
        tasks=["click-button"],
        task_var="BROWSERGYM_TASK_NAME",
        processor_kwargs={"provider": Provider()},
    )
    assert started == [("browsergym-env:latest", "click-button")] * 2
    assert output["env_reward"] == [1.0, 1.0]
    assert [process.poll() is not None for process in processes] == [True] * 2


def test_the_script_of_the_documentation_trains(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Path
) -> None:
    """The BrowserGym example with our import, on a server of text pages."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from tests.kit.training.example_run import CPU

    def parse(text: str) -> dict[str, str]:
        found = re.search(r"[A-Za-z_]+\s*\(.*\)", text or "")
        return {"action_str": found.group(0) if found else "noop()"}

    def build(observation: Any, step: int, history: list[str]) -> str:
        return f"Step {step}\nGoal: {observation['goal']}\n{observation['text']}\n{history[-2:]}"

    told: list[dict[str, Any]] = []

    def reward(completions: Any, step_rewards: Any, **kwargs: Any) -> list[float]:
        told.append(kwargs)
        return [float(value) for value in step_rewards]

    with openenv_server("mini_web:app", SERVERS, BROWSERGYM_TASK_NAME="click-button") as url:
        rollout_func = create_openenv_vllm_rollout_func(
            env_factory=None,
            prompt_builder=build,
            action_parser=parse,
            max_steps=3,
            completion_params={"max_tokens": 12},
            env_client_cls=GenericEnvClient,
            env_base_url=url,
            request_timeout_s=60,
        )
        with recorded_calls() as calls:
            trainer = GRPOTrainer(
                model=tiny_model(max_position_embeddings=4096),
                args=GRPOConfig(
                    str(tmp_path),
                    **CPU,
                    max_steps=1,
                    per_device_train_batch_size=8,
                    num_generations=4,
                    max_completion_length=400,
                    logging_steps=1,
                ),
                processing_class=hf_tokenizer,
                reward_funcs=[reward, env_reward],
                train_dataset=Dataset.from_dict({"prompt": ["Do the task."] * 8}),
                rollout_func=rollout_func,
            )
            trainer.train()
        rollout_func._tasks.route.gateway.stop()
    assert len(calls) >= 8 * 3  # nobody hits a button by chance, mostly
    assert told[0]["error"] == [None] * 8
    assert max(told[0]["num_turns"]) <= 3
