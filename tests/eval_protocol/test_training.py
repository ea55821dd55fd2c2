"""Tests of Eval Protocol, unmodified, under a real `GRPOTrainer`: what was said is trained."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import abut
from abut.eval_protocol import eval_test
from abut.gateway.ledger.ledger import Ledger
from abut.rollout.config import RolloutConfig
from abut.trl import scored_only
from tests.kit.servers.ep_server import ChatServer, says
from tests.kit.stage.rollouts import check_exact
from tests.kit.training.trl_run import Run, recorded_calls

HERE = Path(__file__).parent
DATA = os.environ.get("ABUT_EVAL_PROTOCOL")
SHARED = (
    "ep_tests.single_turn:test_sum",
    "ep_tests.single_turn:test_shortest",
    "ep_tests.single_turn:test_all_right",
    "ep_tests.openenv_guess",
    "ep_tests.custom_agent",
)
OWN = (
    "ep_own.mcp_tools",
    "ep_own.graph",
    "ep_own.adapted",
    "ep_own.wayward",
    "ep_own.two_tests:test_length",
)
# Of which plain pytest says the same each time: a game on a server does not, a whole batch is no
# run of pytest, and what the wayward body raises ends it.
COMPARED = {
    "test_sum": 3,
    "test_shortest": 3,
    "test_multiply": 2,
    "test_adds": 1,
    "test_weather": 1,
    "test_judged": 2,
    "test_length": 2,
}
"""With how many rows each has."""
GENERATIONS = 4


@contextmanager
def recorded_answers() -> Iterator[list[Any]]:
    """What each request of an agent was answered, as `(rollout, messages, message)`."""
    answers: list[Any] = []
    heard = Ledger._heard

    async def recording(self: Any, branch: Any, call: Any, *args: Any) -> Any:
        answer = await heard(self, branch, call, *args)
        answers.append((self.rollout_id, call.request.messages, answer.message))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_heard", recording)
        yield answers


@pytest.fixture(scope="module")
def judge() -> Iterator[ChatServer]:
    with ChatServer(says("0.25")) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", server.url)
        patch.setenv("OPENAI_API_KEY", "a judge's")
        yield server


@pytest.fixture(scope="module")
def run(
    hf_tokenizer: Any, tiny_model: Any, tmp_path_factory: Any, judge: Any, guess_server: Any
) -> Iterator[Any]:
    """Two steps of 16 rows, four rollouts each: 64 at once, of ten tests."""
    if DATA is None:
        pytest.skip("ABUT_EVAL_PROTOCOL is unset: it names a folder that has ep_tests")
    tests = [eval_test(name, log=None) for name in (*SHARED, *OWN)]
    rows = [row for test in tests for row in test.dataset()]
    rows += rows[: 32 - len(rows)]
    with recorded_calls() as calls, recorded_answers() as answers:
        run = Run(
            hf_tokenizer,
            tiny_model(max_position_embeddings=4096),
            tmp_path_factory.mktemp("trained"),
            {test.name: test for test in tests},
            prompts=[row["prompt"] for row in rows],
            columns={name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
            make={"config": RolloutConfig(max_turn_tokens=8, retries=0)},
            per_device_train_batch_size=64,
            max_completion_length=400,
            num_generations=GENERATIONS,
        )
        run.trainer.train()
    run.calls, run.answers = calls, answers  # type: ignore[attr-defined]
    yield run
    run.rollout_func._tasks.route.gateway.stop()


def rollouts(run: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each rollout's columns of the dataset beside its row."""
    for output, inputs in zip(run.outputs, run.inputs, strict=True):
        for k, row in enumerate(inputs):
            yield row, {name: column[k] for name, column in output.items()}


def test_no_rollout_fails(run: Any) -> None:
    errors = [r["error"] for _, r in rollouts(run)]
    assert [error for error in errors if error is not None] == []
    assert len(errors) == 128


def test_each_row_is_exactly_what_the_model_saw_and_sampled(run: Any) -> None:
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    measured = 0
    for _, rollout in rollouts(run):
        columns = abut.Columns(**{name: rollout[name] for name in names})
        if not rollout["measured"]:
            assert not columns.env_mask.any(), "nothing of it is trained"
            continue
        measured += 1
        own = [c for c in run.calls if c[0].rollout_id.startswith(f"{rollout['rollout_id']}.")]
        assert len(own) == rollout["num_turns"]
        check_exact(columns, own)
    assert measured == 100  # of 128: test_wayward gives seven of its eight prompts no score


def test_logprobs_are_those_of_a_forward_pass_over_the_row(run: Any) -> None:
    assert run.worst() < 1e-3
    assert run.worst(roll=1) > 0.01  # the negative control: each logprob one token late


def test_scores_are_those_of_plain_pytest_on_the_same_answers(run: Any, tmp_path: Path) -> None:
    """Each generation is a model of its own to pytest, and answers as it did in training."""
    said: dict[Any, Any] = {}
    expected: dict[Any, Any] = {}
    for row, rollout in rollouts(run):
        place = int(rollout["rollout_id"].split("-")[3]) % GENERATIONS
        key = (row["environment"].split(":")[1], row["row_id"], place)
        if key[0] not in COMPARED or key in expected:  # the same row again
            continue
        expected[key] = rollout["eval_score"]
        for rollout_id, messages, message in run.answers:
            if rollout_id.startswith(f"{rollout['rollout_id']}."):
                said[(run_of(key[0]), place, plain(messages))] = message

    def answer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        _, run, place, *_ = path.split("/")
        return said[(run, int(place), plain(body["messages"]))]

    found: dict[Any, float] = {}
    with ChatServer(answer) as server:
        for run_name, files in FILES.items():
            (tmp_path / run_name).mkdir()
            found |= scores_of_pytest(f"{server.url}/{run_name}", tmp_path / run_name, files)
    assert len(expected) == GENERATIONS * sum(COMPARED.values())
    assert {key: found.get(key) for key in expected} == expected
    assert len(set(expected.values())) > 5  # they are not all alike


def said_by(run: Any, rollout: dict[str, Any]) -> list[Any]:
    """The policy's messages in a rollout, as its client got them."""
    ours = f"{rollout['rollout_id']}."
    return [message for rollout_id, _, message in run.answers if rollout_id.startswith(ours)]


def plain(messages: Any) -> str:
    """A conversation as its key."""
    kept = ("role", "content", "tool_calls", "tool_call_id")
    said = [{k: m[k] for k in kept if m.get(k)} for m in messages]
    return json.dumps(said, sort_keys=True)


# The rows of test_sum and test_shortest are the same, so they are two runs: an answer is found by
# what was asked.
FILES = {
    "one": [
        f"{DATA}/ep_tests/single_turn.py::test_sum",
        f"{DATA}/ep_tests/custom_agent.py",
        *(f"{HERE}/ep_own/{name}.py" for name in ("mcp_tools", "graph", "adapted")),
        f"{HERE}/ep_own/two_tests.py::test_length",
    ],
    "two": [f"{DATA}/ep_tests/single_turn.py::test_shortest"],
}


def run_of(test: str) -> str:
    return "two" if test == "test_shortest" else "one"


def scores_of_pytest(url: str, folder: Path, files: list[str]) -> dict[Any, float]:
    """What `pytest` makes of the tests, by test, row and generation."""
    params = [
        {"model": "openai/m", "base_url": f"{url}/{place}/v1", "api_key": "k", "max_tokens": 16}
        for place in range(GENERATIONS)
    ]
    environ = {
        **os.environ,
        "HOME": str(folder),
        "EP_COMPLETION_PARAMS": json.dumps(params),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONPATH": f"{DATA}:{HERE}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "--ep-no-upload"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), *files]
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, timeout=280
    )
    assert (folder / ".eval_protocol").exists(), done.stdout[-3000:] + done.stderr[-3000:]
    with sqlite3.connect(folder / ".eval_protocol" / "logs.db") as db:
        rows = [json.loads(data) for (data,) in db.execute("SELECT data FROM evaluationrow")]
    scores = {
        (
            row["eval_metadata"]["name"],
            row["input_metadata"]["row_id"],
            int(row["input_metadata"]["completion_params"]["base_url"].split("/")[4]),
        ): row["evaluation_result"]["score"]
        for row in rows
        if row.get("evaluation_result")
    }
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return scores


def test_a_judge_is_asked_where_the_process_says_and_never_the_policy(run: Any, judge: Any) -> None:
    judged = [r for row, r in rollouts(run) if row["environment"].startswith("ep_own.adapted")]
    assert [r["eval_score"] for r in judged] == [0.25] * len(judged)
    asked = [body["messages"][0]["content"] for body in judge.bodies]
    assert len(judged) >= 8
    assert sum(text.startswith("Judge: ") for text in asked) >= len(judged)
    for rollout_id, messages, _ in run.answers:
        assert "Judge: " not in json.dumps(messages), rollout_id
    assert {name for name in os.environ if name.startswith("OPENAI_")} == {
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
    }


def test_a_groups_scores_need_all_of_it(run: Any) -> None:
    """`test_shortest` gives 1 to the shortest answers of its group and 0 to the others."""
    groups: dict[Any, list[Any]] = {}
    for row, rollout in rollouts(run):
        if row["environment"].endswith(":test_shortest"):
            *batch, index, _ = rollout["rollout_id"].split("-")
            groups.setdefault((*batch, int(index) // GENERATIONS), []).append(rollout)
    assert groups
    for group in groups.values():
        assert len(group) == GENERATIONS
        lengths = [len(said_by(run, rollout)[-1]["content"] or "") for rollout in group]
        shortest = [float(length == min(lengths)) for length in lengths]
        assert [rollout["env_reward"] for rollout in group] == shortest


def test_what_gives_no_score_is_none_and_never_zero(run: Any) -> None:
    wayward = [r for row, r in rollouts(run) if row["environment"].startswith("ep_own.wayward")]
    scores = {r["messages"][0]["content"]: r["env_reward"] for r in wayward}
    assert scores.pop("well") == 0.5
    assert set(scores.values()) == {None}
    assert len(scores) == 7


def test_a_row_without_a_result_is_scored_by_no_function_that_scores_what_was_measured(
    run: Any,
) -> None:
    one = scored_only(lambda completion_ids, **_: [1.0] * len(completion_ids))
    scores = [score for out in run.outputs for score in one(**out)]
    pairs = [*zip(rollouts(run), scores, strict=True)]
    wayward = {
        r["messages"][0]["content"]: score
        for (row, r), score in pairs
        if row["environment"].startswith("ep_own.wayward")
    }
    assert len(wayward) == 8
    assert wayward.pop("well") == 1.0
    assert set(wayward.values()) == {None}
    assert [score for (_, r), score in pairs if r["env_reward"] is not None] == [1.0] * sum(
        score is not None for score in scores
    )


def test_metrics_are_columns_and_are_logged(run: Any) -> None:
    brief = [
        r["eval/brief"] for row, r in rollouts(run) if row["environment"].endswith(":test_sum")
    ]
    assert brief
    assert any("eval/brief" in log for log in run.trainer.state.log_history)


def test_step_rewards_are_a_sum_for_each_episode_and_one_for_each_turn(run: Any) -> None:
    played = [r for row, r in rollouts(run) if "guess" in row["environment"]]
    assert played
    for rollout in played:
        assert rollout["step_rewards"] == sum(rollout["env_step_rewards"])
        assert len(rollout["env_step_rewards"]) == rollout["num_turns"]
        assert rollout["env_reward"] == min(1.0, rollout["step_rewards"])
