"""Real servers of NeMo Gym under a real `GRPOTrainer`: what was said is trained, to the token."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.rollout.config import RolloutConfig
from tests.kit.stage.nemo_gym import AGENTS, Gym, Plays, gym_servers, versions
from tests.kit.stage.rollouts import check_exact, env
from tests.kit.training.models import forced_policy
from tests.kit.training.trl_run import Run, Vowels

pytestmark = pytest.mark.nemo_gym

GENERATIONS = 4
BATCH = 64
NAMES = {agent: environment for environment, agent in AGENTS.items()}


def is_scripted(rollout_id: str) -> bool:
    """The second half of each group says a script; the first what the model draws."""
    return int(rollout_id.split("-")[3]) % GENERATIONS >= GENERATIONS // 2


class Trained(Run):
    """A run, with what its servers were asked and what its model said."""

    gym: Gym
    calls: list[Any]


@pytest.fixture(scope="module", params=versions() or ["none"])
def run(
    request: pytest.FixtureRequest, hf_tokenizer: Any, tokenizer: Any, tiny_model: Any,
    tmp_path_factory: Any,
) -> Iterator[Trained]:  # fmt: skip
    """Two steps of 64 rollouts at once, of six agents and an environment of ours."""
    folder = tmp_path_factory.mktemp("trained")
    gateway = Gateway()
    gateway.start()
    plays = Plays(tokenizer, hf_tokenizer.eos_token_id, is_scripted)
    with (
        gym_servers(request.param, gateway.base_url, gateway.key, folder / "gym") as servers,
        forced_policy(plays, drawn_tokens=8) as calls,
    ):
        gym = NemoGym(servers.head_url)
        dataset = gym.dataset([servers.file(name) for name in AGENTS], agent=list(AGENTS.values()))
        rows = [*dataset, {"prompt": "go", "environment": "vowels"}]
        names = dataset.column_names
        run = Trained(
            hf_tokenizer,
            tiny_model(max_position_embeddings=8192),
            folder,
            {gym.name: gym, "vowels": env(Vowels, made=3)},
            prompts=[row["prompt"] for row in rows],
            columns={n: [row.get(n) for row in rows] for n in names if n != "prompt"},
            make={"config": RolloutConfig(retries=0), "gateway": gateway},
            per_device_train_batch_size=BATCH,
            num_generations=GENERATIONS,
            max_completion_length=700,
        )
        run.gym, run.calls = servers, calls
        run.trainer.train()
        yield run
        gateway.stop()


def rollouts(run: Run) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each rollout's row of the dataset beside its columns; those of NeMo Gym."""
    for output, inputs in zip(run.outputs, run.inputs, strict=True):
        for k, row in enumerate(inputs):
            if row["environment"] == "nemo_gym":
                yield row, {name: column[k] for name, column in output.items()}


def test_no_rollout_fails_and_each_has_a_score(run: Trained) -> None:
    found = Counter(r["nemo_gym_outcome"] for _, r in rollouts(run))
    assert {*found} <= {"ok", "truncated"}
    assert found["ok"] >= BATCH // 2
    assert [r["error"] for _, r in rollouts(run) if r["error"] is not None] == []
    assert None not in [r["env_reward"] for _, r in rollouts(run)]
    assert sum(len(output["error"]) for output in run.outputs) == 2 * BATCH


def test_each_row_is_exactly_what_the_model_saw_and_sampled(run: Trained) -> None:
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    turns = Counter()
    for row, rollout in rollouts(run):
        columns = abut.Columns(**{name: rollout[name] for name in names})
        own = [c for c in run.calls if c[0].rollout_id.startswith(f"{rollout['rollout_id']}.")]
        assert len(own) == rollout["num_turns"]
        check_exact(columns, own)
        turns[row["nemo_gym_agent"], len(own)] += 1
    assert {agent for agent, _ in turns} == {*AGENTS.values()}
    assert {agent for agent, count in turns if count >= 2} == {*AGENTS.values()} - {
        "mcqa_simple_agent"
    }


def test_logprobs_are_those_of_a_forward_pass_over_the_row(run: Trained) -> None:
    assert run.worst() < 1e-3
    assert run.worst(roll=1) > 0.01  # the negative control: each logprob one token late


def test_groups_have_prompts_of_their_own(run: Trained, hf_tokenizer: Any) -> None:
    """The published way multiplies prompts that are multiplied already."""
    for output, inputs in zip(run.outputs, run.inputs, strict=True):
        assert len(output["prompt_ids"]) == len(inputs) == BATCH
    asked: dict[Any, set[str]] = {}
    for row, rollout in rollouts(run):
        said = json.loads(row["nemo_gym_row"])["responses_create_params"]["input"][-1]["content"]
        assert said.strip() in hf_tokenizer.decode(rollout["prompt_ids"])
        *batch, index, _ = rollout["rollout_id"].split("-")
        asked.setdefault((*batch, int(index) // GENERATIONS), set()).add(row["nemo_gym_row"])
    assert all(len(rows) == 1 for rows in asked.values())
    assert len({next(iter(rows)) for rows in asked.values()}) > len(asked) / 2


def test_sessions_of_64_rollouts_at_once_are_kept_apart(run: Trained) -> None:
    """A counter that got another rollout's calls would say another number."""
    counted = [
        (is_scripted(rollout["rollout_id"]), rollout["env_reward"])
        for row, rollout in rollouts(run)
        if row["nemo_gym_agent"] == AGENTS["example_session_state_mgmt"]
    ]
    assert {*counted} == {(True, 1.0), (False, 0.0)}


def test_user_turns_of_a_gymnasium_agent_are_env_tokens(run: Trained, hf_tokenizer: Any) -> None:
    agent = AGENTS["example_multi_turn_gymnasium"]
    played = [
        (json.loads(row["nemo_gym_row"]), rollout)
        for row, rollout in rollouts(run)
        if row["nemo_gym_agent"] == agent and is_scripted(rollout["rollout_id"])
    ]
    assert played
    for row, rollout in played:
        ids, mask = rollout["completion_ids"], rollout["env_mask"]
        unsampled = hf_tokenizer.decode(
            [i for i, sampled in zip(ids, mask, strict=True) if not sampled]
        )
        assert all(text in unsampled for text in row["follow_ups"])
        assert rollout["num_turns"] == len(row["follow_ups"]) + 1


def test_parts_of_a_reward_are_columns_and_their_sum_the_reward(run: Trained) -> None:
    agent = AGENTS["example_tool_call_multireward"]
    parts = ("reward_correctness", "reward_schema_valid", "reward_format")
    found = [
        (rollout["env_reward"], [rollout[name] for name in parts])
        for row, rollout in rollouts(run)
        if row["nemo_gym_agent"] == agent
    ]
    assert any(reward > 1 for reward, _ in found)
    assert all(reward == sum(said) for reward, said in found)
    others = [r for row, r in rollouts(run) if row["nemo_gym_agent"] != agent]
    assert {r[name] for r in others for name in parts} == {None}


def test_each_agent_has_metrics_of_its_own(run: Trained) -> None:
    log = run.trainer.state.log_history[0]
    rewards = {agent: log[f"nemo_gym/{agent}/reward"] for agent in NAMES}
    for agent in NAMES:
        own = [r for row, r in rollouts(run) if row["nemo_gym_agent"] == agent][:BATCH]
        assert own
        shares = [log[f"nemo_gym/{agent}/{o}_frac"] for o in ("ok", "truncated", "failed")]
        assert sum(shares) == pytest.approx(1.0)
        assert log[f"nemo_gym/{agent}/turns"] >= 1
    assert len({*rewards.values()}) > 2


def test_there_is_something_to_learn_from(run: Trained) -> None:
    assert any(log.get("grad_norm", 0) > 0 for log in run.trainer.state.log_history)
    assert any(log.get("reward_std", 0) > 0 for log in run.trainer.state.log_history)
