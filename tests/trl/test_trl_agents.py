"""Agents under a real `GRPOTrainer`: what they said is what is trained."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut import AgentResult, agent
from abut.gateway import Gateway
from abut.records.read import read_records
from abut.rollout.config import RolloutConfig
from abut.trl import make_rollout_func
from abut.trl.metrics import (
    log_rollout_metrics,
    note_rewards_by_name,
    rewards_by_name,
    rollout_stats,
)
from tests.kit.data.records import a_rollout
from tests.kit.stage.agents import LOOKUP, Client, user
from tests.kit.stage.rollouts import Talk, check_exact
from tests.kit.training.trl_run import Run, Vowels, recorded_calls


@agent
async def talks(endpoint: Any, question: str, episode_seed: int) -> AgentResult:
    """Two turns; the third question of each eight breaks it."""
    async with Client(endpoint) as client:
        messages = [user(question)]
        for text in ("and?", "well?"):
            messages += [await client.ask(messages, stop=["zz"]), user(text)]
        if question.endswith("2"):
            raise ValueError("boom")
    said = "".join(message["content"] for message in messages if message["role"] == "assistant")
    return AgentResult(sum(c in "aeiou" for c in said) / 8, {"said": len(said)})


@agent
def talks_until_refused(endpoint: Any, question: str) -> float:
    import json
    import urllib.request

    messages = [user(question)]
    while True:
        body = json.dumps({"messages": messages}).encode()
        headers = {"Authorization": f"Bearer {endpoint.api_key}"}
        url = f"{endpoint.base_url}/chat/completions"
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
            message = json.load(reply)["choices"][0]["message"]
        messages += [message, user("go on")]


@pytest.fixture(scope="module")
def run(hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """Two steps of 8 prompts, four rollouts each: agents, and an environment beside them."""
    folder = tmp_path_factory.mktemp("agents")
    kinds = ["talks"] * 5 + ["refused", "env", "talks"]
    with recorded_calls() as calls:
        run = Run(
            hf_tokenizer,
            tiny_model(),
            folder,
            {"talks": talks, "refused": talks_until_refused, "env": Vowels},
            prompts=[f"p{k}" for k in range(8)],
            columns={"question": [f"q{k}" for k in range(8)], "environment": kinds},
            make={
                "config": RolloutConfig(max_turn_tokens=5, retries=0),
                "recorder": str(folder / "rollouts.jsonl"),
            },
            per_device_train_batch_size=32,
            max_completion_length=100,
        )
        run.trainer.train()
    run.calls, run.folder = calls, folder  # type: ignore[attr-defined]
    yield run
    run.rollout_func._tasks.route.gateway.stop()


def test_each_row_is_exactly_what_the_model_saw_and_sampled(run: Any) -> None:
    checked = 0
    for output in run.outputs:
        for k, rollout_id in enumerate(output["rollout_id"]):
            if output["error"][k] is not None:
                continue
            names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
            columns = abut.Columns(**{name: output[name][k] for name in names})
            own = [call for call in run.calls if call[0].rollout_id.startswith(rollout_id)]
            check_exact(columns, own)
            checked += 1
    assert checked >= 2 * 24


def test_logprobs_are_those_of_a_forward_pass_over_the_row(run: Any) -> None:
    assert run.worst() < 1e-3
    assert run.worst(roll=1) > 0.01  # the negative control: each logprob one token late


def test_a_failing_agent_costs_its_rows_alone(run: Any) -> None:
    for output, prompts in zip(run.outputs, run.prompts, strict=True):
        failed = [error is not None for error in output["error"]]
        of_agent = [prompt == "p2" for prompt in prompts]
        assert [f for f, own in zip(failed, of_agent, strict=True) if own] == [True] * 4
        for k, own in enumerate(of_agent):
            if own:
                assert (output["env_reward"][k], sum(output["env_mask"][k])) == (None, 0)


def test_an_agent_that_raises_at_its_budget_keeps_its_row(run: Any) -> None:
    for output, prompts in zip(run.outputs, run.prompts, strict=True):
        rows = [k for k, prompt in enumerate(prompts) if prompt == "p5"]
        for k in rows:
            assert output["error"][k] is None
            assert output["stop_reason"][k] == "max_completion_tokens"
            assert output["num_turns"][k] > 2
            assert output["env_reward"][k] is None


def test_extras_are_columns(run: Any) -> None:
    for output, prompts in zip(run.outputs, run.prompts, strict=True):
        said = [value is not None for value in output["said"]]
        of_talks = [error is None for error in output["error"]]
        kinds = [p not in ("p5", "p6") for p in prompts]
        assert said == [a and b for a, b in zip(of_talks, kinds, strict=True)]


def test_agents_can_pass_on_the_trainer_s_sampling(run: Any) -> None:
    sampling, args = run.rollout_func._tasks.route.gateway.sampling, run.trainer.args
    assert sampling == {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p or 0.0,
        "max_tokens": 100,
    }
    with pytest.raises(TypeError):
        sampling["temperature"] = 2.0
    assert Gateway().sampling == {}


def test_records_have_what_agents_said(run: Any) -> None:
    records = list(read_records(run.folder / "rollouts.jsonl"))
    assert len(records) == 64
    well = [r for r in records if r["error"] is None and r["extras"]]
    assert well
    assert all(r["extras"]["said"] >= 0 and r["branches"] == [] for r in well)


def test_metrics_have_what_branches_cost(run: Any) -> None:
    logged = [log for log in run.trainer.state.log_history if "rollout/branches/mean" in log]
    assert logged
    assert logged[0]["rollout/dropped_sampled_frac"] == 0.0
    assert logged[0]["rollout/client_rewrites/text_lost"] == 0.0


@agent
async def plans_and_works(endpoint: Any) -> float:
    """Two conversations, of one turn and of three."""
    async with Client(endpoint) as client:
        await client.ask([user("plan")])
        messages = [user("work")]
        for _ in range(3):
            messages += [await client.ask(messages), user("go on")]
    return 1.0


def run_of(branch: Any, hf_tokenizer: Any, tiny_model: Any, folder: Any, loss_type: str) -> Run:
    config = RolloutConfig(max_turn_tokens=5, retries=0, branch=branch)
    options = {"max_steps": 1, "loss_type": loss_type, "logging_steps": 1}
    make = {"config": config}
    return Run(hf_tokenizer, tiny_model(), folder, plans_and_works, make=make, **options)


@pytest.mark.parametrize(("loss_type", "by_tokens"), [("grpo", True), ("dapo", False)])
def test_random_rows_are_drawn_as_the_loss_needs_it(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Any, loss_type: str, by_tokens: bool
) -> None:
    run = run_of("random", hf_tokenizer, tiny_model, tmp_path, loss_type)
    run.trainer.train()
    route = run.rollout_func._tasks.route
    route.gateway.stop()
    assert [source.draws_by_tokens for source in route.agents] == [by_tokens]
    assert set(run.outputs[0]["num_turns"]) == {1, 3}
    assert run.worst() < 1e-3


def test_all_conversations_are_refused_under_trls_own_class(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Any
) -> None:
    run = run_of("all", hf_tokenizer, tiny_model, tmp_path, "grpo")
    with pytest.raises(TypeError) as raised:
        run.trainer.train()
    assert str(raised.value) == (
        "RolloutConfig(branch='all') does not work with TRL's own GRPOTrainer, which takes one "
        "row for each rollout\n"
        "hint: train with abut.trl.GRPOTrainer, or call abut.trl.extend(trainer) before train()"
    )


def test_what_writes_conversations_is_refused_beside_agents() -> None:
    with pytest.raises(ValueError, match="system_prompt= does not work with an agent"):
        make_rollout_func(talks, system_prompt="You are …")
    with pytest.raises(ValueError, match="with an agent: it writes plain text"):
        make_rollout_func({"a": talks, "b": Talk}, processor=TextProcessor())
    with pytest.raises(TypeError, match="gateway must be a Gateway"):
        make_rollout_func(talks, gateway="http://a")  # type: ignore[arg-type]


class TextProcessor:
    def init_system_input(self, prompt: str) -> str:
        return prompt

    def append_user_input(self, prompt: str) -> str:
        return prompt

    def parse_agent_output(self, completion: str) -> tuple[str, str]:
        return "", completion


def test_a_function_that_is_no_agent_is_told_how_to_be_one() -> None:
    with pytest.raises(
        TypeError, match="talks is a function with the arguments endpoint, question"
    ) as e:
        make_rollout_func(talks.function)
    assert "decorate it with @abut.agent" in str(e.value)


def test_a_column_that_an_agent_needs_and_the_row_lacks(called: Any) -> None:
    gateway = Gateway()
    with pytest.raises(ValueError, match="talks needs the column 'question'"):
        called(["p"], talks, gateway=gateway)
    gateway.stop()


@agent
async def two_players(endpoint: Any, episode_seed: int) -> AgentResult:
    """Two seats of one game, and a judge; the title is auxiliary."""
    rewards: dict[str, float | None] = {}
    for name in ("white", "black"):
        async with Client(endpoint.named(name)) as client:
            said = await client.ask([user("play")], tools=[LOOKUP])
            rewards[name] = len(said["content"] or "") * (1.0 if name == "white" else -1.0)
    async with Client(endpoint.named("judge", train=False)) as client:
        await client.ask([user("who won?")], max_tokens=3)
    async with Client(endpoint) as client:
        await client.ask([user("a title")], max_tokens=3)
    return AgentResult(1.0, rewards=rewards)


def test_metrics_have_the_rewards_of_names_and_what_is_auxiliary(
    hf_tokenizer: Any, tiny_model: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """And under TRL's own class, which does not use these rewards, a warning says so."""
    records = tmp_path / "rollouts.jsonl"
    config = RolloutConfig(max_turn_tokens=5, retries=0)
    make = {"config": config, "recorder": records}
    run = Run(hf_tokenizer, tiny_model(), tmp_path, two_players, make=make, max_steps=1)
    run.trainer.train()
    run.rollout_func._tasks.route.gateway.stop()
    (log,) = (log for log in run.trainer.state.log_history if "rollout/auxiliary_frac" in log)
    read = list(read_records(records))
    assert len(read) == 8
    for name in ("white", "black"):
        given = [record["given_rewards"][name] for record in read]
        assert log[f"rollout/reward/{name}/mean"] == pytest.approx(np.mean(given))
        assert log[f"rollout/reward/{name}/std"] == pytest.approx(np.std(given, ddof=1))
    assert "rollout/reward/judge/mean" not in log
    tokens: Counter[str] = Counter()
    for record in read:
        for row in ({**record, "auxiliary": False}, *record["branches"]):
            tokens["auxiliary" if row["auxiliary"] else "others"] += sum(row["env_mask"])
    assert tokens["auxiliary"] > 0
    frac = tokens["auxiliary"] / tokens.total()
    assert log["rollout/auxiliary_frac"] == pytest.approx(frac)
    warned = [
        r.message for r in caplog.records if "which TRL's own GRPOTrainer ignores" in r.message
    ]
    assert warned == [
        "agents return AgentResult(rewards={…}), which TRL's own GRPOTrainer ignores: it uses "
        "only its reward functions\n"
        "hint: train with abut.trl.GRPOTrainer"
    ]


@pytest.mark.parametrize("limit", ["max_calls", "max_rollout_tokens"])
def test_a_limit_of_an_agent_s_rollout_is_refused_for_environments(limit: str) -> None:
    config = RolloutConfig(**{limit: 9})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limits the conversations") as raised:
        make_rollout_func(Vowels, config=config)
    assert str(raised.value) == (
        f"RolloutConfig({limit}=…) limits the conversations of an agent, but env has no agent\n"
        "hint: to limit the conversation of an environment, use max_turns and "
        "max_completion_tokens"
    )
    make_rollout_func({"talks": talks, "env": Vowels}, config=config)


def test_metrics_have_the_rewards_of_each_environment(run: Any) -> None:
    logs = [log for log in run.trainer.state.log_history if "loss" in log]
    for log, output, prompts in zip(logs, run.outputs, run.prompts, strict=True):
        rewards = output["env_reward"]
        of_env = [r for r, prompt in zip(rewards, prompts, strict=True) if prompt == "p6"]
        of_talks = [r for r, p in zip(rewards, prompts, strict=True) if p not in ("p5", "p6")]
        for name, found in (("env", of_env), ("talks", of_talks)):
            scored = [reward for reward in found if reward is not None]
            assert log[f"rollout/reward/{name}/mean"] == pytest.approx(np.mean(scored))
        assert log["rollout/reward/refused/mean"] is None  # none of them has a reward


def test_an_environment_without_a_reward_is_logged_on_each_rank() -> None:
    """TRL up to 1.12 hangs at a name that another rank lacks."""
    names = ["duel", "math"]
    ranks = [
        [rollout_stats(a_rollout(reward=r), environment=name, environments=names)]
        for name, r in (("math", 1.0), ("duel", None))
    ]
    every = [rewards_by_name(stats) for stats in ranks]
    for stats in ranks:
        logged: dict[str, float] = {}
        note_rewards_by_name(stats, every)
        log_rollout_metrics(stats, logged.__setitem__)
        assert logged["rollout/reward/math/mean"] == 1.0
        assert np.isnan(logged["rollout/reward/duel/mean"])


def test_a_name_of_an_agent_that_is_an_environment_s_does_not_count_there() -> None:
    rollout = a_rollout(reward=3.0, name="white", row_reward=1.0)
    for names, expected in (
        (["game"], {"game": [3.0], "white": [1.0]}),
        (["white"], {"white": [3.0]}),
    ):
        stats = [rollout_stats(rollout, agents=True, environment=names[0], environments=names)]
        assert rewards_by_name(stats) == expected


def test_each_rank_logs_the_named_rewards_of_all() -> None:
    """TRL up to 1.12 hangs at a name that another rank lacks, and takes means of ranks' means."""
    ranks = [
        [rollout_stats(a_rollout(name="white", row_reward=r), agents=True) for r in rewards]
        for rewards in ([1.0, 2.0, 6.0], [None], [None, 3.0])
    ]
    every = [rewards_by_name(stats) for stats in ranks]
    for stats in ranks:
        logged: dict[str, float] = {}
        note_rewards_by_name(stats, every)
        log_rollout_metrics(stats, logged.__setitem__)
        assert logged["rollout/reward/white/mean"] == 3.0
        assert logged["rollout/reward/white/std"] == pytest.approx(np.std([1, 2, 6, 3], ddof=1))
