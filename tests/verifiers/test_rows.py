"""Environments of verifiers under a real trainer: rows by replay, seats, rewards and names."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from abut.verifiers import verifiers_env  # noqa: E402
from tests.kit.servers.ep_server import ChatServer, says  # noqa: E402
from tests.kit.training.episode_run import EpisodeRun  # noqa: E402
from tests.kit.training.row_cases import WORST  # noqa: E402
from tests.kit.training.row_oracle import Loss, gradient_of, relative_error  # noqa: E402

EXACT = 1e-5


def conversations(rollout: Any) -> list[Any]:
    """All of a rollout, its row first."""
    return [rollout.main_row, *rollout.branches]


def check_rows(run: EpisodeRun, rollouts: int) -> None:
    """Nothing failed, each row is what was sampled, and the check finds what is not."""
    assert run.errors() == [None] * rollouts
    assert run.worst() < EXACT < 1e-2 < run.worst(roll=1)
    for rollout in run.played:
        sessions = [one.session for one in conversations(rollout)]
        assert len({*sessions}) == len(sessions), "a conversation for each trace"
        assert {*sessions} <= rollout.names.keys()


def advantages(run: EpisodeRun, group: int) -> list[list[Any]]:
    """The advantage of each trained conversation, among those of its group and name."""
    found: list[list[Any]] = []
    rollouts = run.rollouts[0]
    for begin in range(0, len(rollouts), group):
        of_group = [
            [one for one in conversations(r) if one.trained]
            for r in rollouts[begin : begin + group]
        ]
        for rows in of_group:
            found.append([_advantage(one, rows, of_group) for one in rows])
    return found


def _advantage(one: Any, own: list[Any], of_group: list[list[Any]]) -> float:
    rewards = [[c.reward for c in rows if c.name == one.name] for rows in of_group]
    scored = [values for values in rewards if values]
    n = len(scored)
    if n == 1:
        return 0.0

    def difference(value: float, own: list[float]) -> float:
        others = [sum(values) / len(values) for values in scored if values is not own]
        return (n - 1) / n * (value - sum(others) / len(others))

    squares = [sum(difference(v, values) ** 2 for v in values) / len(values) for values in scored]
    spread = (sum(squares) / (n - 1)) ** 0.5
    mine = next(values for values, rows in zip(rewards, of_group, strict=True) if rows is own)
    return difference(one.reward, mine) / (spread + 1e-4)


def check_gradient(run: EpisodeRun, group: int) -> None:
    rows = [
        [one.columns for one in conversations(rollout) if one.trained]
        for rollout in run.rollouts[0]
    ]
    right = advantages(run, group)
    assert any(abs(value) > 0.1 for values in right for value in values)
    assert relative_error(run.gradients[0], gradient_of(Loss(), run.model, rows, right)) < WORST
    # The negative control: a baseline that does not know seats and attempts apart.
    mixed = [[sum(values) / max(len(values), 1)] * len(values) for values in right]
    if any(len(values) > 1 for values in right):
        wrong = gradient_of(Loss(), run.model, rows, mixed)
        assert relative_error(run.gradients[0], wrong) > 0.01


def test_one_turn_sixteen_at_once(tmp_path: Path) -> None:
    sums = verifiers_env("abut_sums")
    run = EpisodeRun(
        sums, sums.dataset(), tmp_path, per_device_train_batch_size=16, num_generations=2
    ).train()
    check_rows(run, 16)
    for rollout in run.played:
        assert [message["role"] for message in rollout.messages] == ["system", "user", "assistant"]
        assert rollout.branches == []
        (reward,) = rollout.rewards.values()
        assert rollout.reward == reward == rollout.extras["abut_sums/agent/reward/right"]
        said = rollout.messages[-1]["content"].strip()
        assert rollout.extras["abut_sums/agent/length"] == len(said)
        assert reward == pytest.approx(2 * (len(said) % 5) / 10)
    check_gradient(run, 2)
    assert "abut_sums/agent/length" in run.trainer.state.log_history[0]


def test_three_turns_are_one_row(tmp_path: Path) -> None:
    talk = verifiers_env("abut_talk")
    run = EpisodeRun(talk, talk.dataset(), tmp_path).train()
    check_rows(run, 4)
    for rollout in run.played:
        assert len(rollout.turns) == 3
        assert rollout.branches == []
        assert "More about it." in run.text_of(rollout.columns)
    check_gradient(run, 2)


def test_two_seats_have_rows_rewards_and_baselines_of_their_own(tmp_path: Path) -> None:
    duel = verifiers_env("abut_duel")
    run = EpisodeRun(duel, duel.dataset(4), tmp_path, per_device_train_batch_size=8).train()
    check_rows(run, 8)
    for k, rollout in enumerate(run.played):
        gives_up = k // 2 % 2 == 1
        assert sorted(rollout.names.values()) == ["player0", "player1"]
        found = {one.name: one for one in conversations(rollout)}
        assert sorted(found) == (["player0"] if gives_up else ["player0", "player1"])
        for name, one in found.items():
            assert rollout.names[one.session] == name
            assert rollout.rewards[one.session] == one.reward
            assert one.trained
        won = found["player0"].reward
        assert won == -1 if gives_up else won >= 1
        if not gives_up:
            assert found["player1"].reward == -won
            assert rollout.reward == 0
            assert [len(one.turns) for one in found.values()] == [2, 2]
        assert rollout.extras["abut_duel/player1/reward/payoff"] == -won
    check_gradient(run, 2)


def test_one_seat_is_trained_if_the_user_says_so(tmp_path: Path) -> None:
    duel = verifiers_env("abut_duel", train="player1")
    run = EpisodeRun(duel, duel.dataset(4), tmp_path, per_device_train_batch_size=8).train()
    check_rows(run, 8)
    for k, rollout in enumerate(run.played):
        rewards = {rollout.names[session]: reward for session, reward in rollout.rewards.items()}
        assert rewards["player0"] is None
        trained = [one.name for one in conversations(rollout) if one.trained]
        if k // 2 % 2:  # it was never asked
            assert trained == []
            assert rollout.reward is None
            assert not rollout.measured
        else:
            assert trained == ["player1"] == [rollout.name]
            assert rollout.reward == rewards["player1"] <= -1
    check_gradient(run, 2)


def test_two_attempts_of_one_seat_are_two_rows(tmp_path: Path) -> None:
    attempts = verifiers_env("abut_attempts", config={"max_concurrent_agents": 2})
    run = EpisodeRun(attempts, attempts.dataset(), tmp_path, per_device_train_batch_size=8).train()
    check_rows(run, 8)
    for rollout in run.played:
        assert [one.name for one in conversations(rollout)] == ["writer", "writer"]
        said = [
            run.tokenizer.decode(one.columns.completion_ids.tolist(), skip_special_tokens=True)
            for one in conversations(rollout)
        ]
        lengths = [len(text.strip()) for text in said]
        shortest = [float(length == min(lengths)) for length in lengths]
        assert [one.reward for one in conversations(rollout)] == shortest
        assert rollout.reward == sum(shortest) / 2
    check_gradient(run, 2)


def test_a_simulated_user_is_never_a_row(tmp_path: Path) -> None:
    helpdesk = verifiers_env("abut_sums", env="user-sim", config={"user": {"max_turns": 2}})
    assert helpdesk.name == "user-sim+abut_sums"
    run = EpisodeRun(helpdesk, helpdesk.dataset(), tmp_path).train()
    check_rows(run, 4)
    for rollout in run.played:
        found = {one.name: one for one in conversations(rollout)}
        assert sorted(found) == ["assistant", "user"]
        assert rollout.name == "assistant"
        assert not found["user"].trained
        assert found["user"].reward is None
        assert rollout.reward == found["assistant"].reward is not None
        assert "You are role-playing a USER" in run.text_of(found["user"].columns)
    check_gradient(run, 2)


def test_a_seat_with_another_model_asks_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_API_KEY", "theirs")
    with ChatServer(says("Add two and two, please.")) as server:
        client = {"base_url": f"{server.url}/v1", "api_key_var": "THEIR_API_KEY"}
        user = {"model": "their-model", "client": client, "max_turns": 2}
        helpdesk = verifiers_env("abut_sums", env="user-sim", seats={"user": user})
        run = EpisodeRun(helpdesk, helpdesk.dataset(), tmp_path, temperature=0.9, top_k=512).train()
    check_rows(run, 4)
    for rollout in run.played:
        assert [one.name for one in conversations(rollout)] == ["assistant"]
        assert sorted(rollout.names.values()) == ["assistant", "user"]
        assert rollout.reward is not None
        assert "Add two and two, please." in run.text_of(rollout.columns)
    assert len(server.bodies) == 8
    assert {body["model"] for body in server.bodies} == {"their-model"}
    for body in server.bodies:
        assert not {"temperature", "top_k", "max_tokens"} & body.keys()


def test_trls_own_trainer_needs_one_seat(tmp_path: Path) -> None:
    duel = verifiers_env("abut_duel")
    run = EpisodeRun(duel, duel.dataset(2), tmp_path, trainer_class=trl.GRPOTrainer)
    with pytest.raises(Exception, match="abut_duel has 2 seats") as raised:
        run.train()
    assert (
        "abut_duel has 2 seats that the policy plays: player0, player1\nhint: choose one with "
        'train="player0", or use abut.trl.GRPOTrainer, which trains all of them'
    ) in str(raised.value)


def test_trls_own_trainer_gets_the_row_of_the_seat(tmp_path: Path) -> None:
    duel = verifiers_env("abut_duel", train="player1")
    run = EpisodeRun(
        duel,
        duel.dataset(4),
        tmp_path,
        trainer_class=trl.GRPOTrainer,
        per_device_train_batch_size=8,
    ).train()
    assert run.errors() == [None] * 8
    assert run.worst() < EXACT
    (output,) = run.outputs
    for k, (reward, mask) in enumerate(zip(output["env_reward"], output["env_mask"], strict=True)):
        if k // 2 % 2:
            assert reward is None
            assert not any(mask)
        else:
            assert reward <= -1
            assert any(mask)


def test_trls_own_trainer_judges_an_attempt_by_itself(tmp_path: Path) -> None:
    attempts = verifiers_env("abut_attempts")
    run = EpisodeRun(
        attempts,
        attempts.dataset(),
        tmp_path,
        trainer_class=trl.GRPOTrainer,
        per_device_train_batch_size=8,
    ).train()
    (output,) = run.outputs
    assert {*output["env_reward"]} <= {0.0, 1.0}
    assert 0.0 in output["env_reward"], "the longest attempt is the row"


def test_evaluation_plays_as_training_does(tmp_path: Path) -> None:
    duel = verifiers_env("abut_duel")
    run = EpisodeRun(duel, duel.dataset(4), tmp_path, per_device_train_batch_size=8)
    found = run.evaluate()
    assert run.errors() == [None] * 8
    assert run.worst() < EXACT
    assert "eval_reward" in found
    assert "eval_abut_duel/player0/reward/payoff" in found
