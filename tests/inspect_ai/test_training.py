"""Tasks of Inspect, unmodified, under a real `GRPOTrainer`: what was said is trained."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")
pytest.importorskip("inspect_ai")

from inspect_ai import Task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample, example_dataset
from inspect_ai.log import read_eval_log
from inspect_ai.scorer import includes, model_graded_qa
from inspect_ai.solver import chain_of_thought, generate, self_critique
from inspect_ai.tool import bash

from abut import RolloutConfig
from abut.inspect_ai import inspect_task
from tests.kit.stage.evals import call_text, last_user
from tests.kit.stage.inspect_tasks import JUDGED
from tests.kit.training.replayed_run import ReplayedRun, ScriptedModel

CLOSE = 1e-5
"""Nats between a row's logprobs and a forward pass over it; float32 on a CPU gives 5e-6."""


@pytest.fixture(scope="module")
def model_of(tiny_model: Any) -> Any:
    """Builds models as flat as at initialization: sharp ones multiply float32's errors."""
    import torch

    def build() -> Any:
        model = tiny_model(max_position_embeddings=8192)
        with torch.no_grad():
            model.lm_head.weight.div_(20)
        return model

    return build


def trained(
    hf_tokenizer: Any, model: Any, folder: Path, *agents: Any, config: Any, **make: Any
) -> ReplayedRun:
    """One step over two rows of each task, four rollouts each, and an evaluation."""
    rows = [row for agent in agents for row in agent.dataset(2)]
    run = ReplayedRun(
        hf_tokenizer,
        model,
        folder,
        {agent.name: agent for agent in agents},
        prompts=[row["prompt"] for row in rows],
        columns={name: [row[name] for row in rows] for name in rows[0] if name != "prompt"},
        make={"config": config, **make},
        max_steps=1,
        per_device_train_batch_size=4 * len(rows),
        per_device_eval_batch_size=4 * len(rows),
        num_generations=4,
        max_completion_length=1500,
        temperature=0.7,
    )
    try:
        run.trainer.train()
        run.evaluated = run.trainer.evaluate()  # type: ignore[attr-defined]
    finally:
        run.rollout_func._tasks.route.gateway.stop()
    return run


@pytest.fixture(scope="module")
def sampled(hf_tokenizer: Any, model_of: Any, tmp_path_factory: Any) -> ReplayedRun:
    """Three tasks at once, 24 rollouts, drawn by the trainer's own model."""
    folder = tmp_path_factory.mktemp("sampled")
    mind, guide = example_dataset("theory_of_mind"), example_dataset("security_guide")
    thinks = [chain_of_thought(), generate()]
    tasks = [
        Task(name="mind", dataset=mind, solver=thinks, scorer=includes()),
        Task(name="critic", dataset=mind, solver=[generate(), self_critique()], scorer=includes()),
        Task(name="graded", dataset=guide, solver=generate(), scorer=model_graded_qa()),
    ]
    agents = [
        inspect_task(task, log_dir=str(folder / "logs"), model_roles={"grader": "judge/x"})
        for task in tasks
    ]
    JUDGED.clear()
    config = RolloutConfig(max_turn_tokens=8, retries=0)
    return trained(hf_tokenizer, model_of(), folder, *agents, config=config)


@pytest.fixture(scope="module")
def scripted(
    hf_tokenizer: Any, tokenizer: Any, processor: Any, model_of: Any, tmp_path_factory: Any
) -> ReplayedRun:
    """Tools: a shell on this machine, and a task of inspect-evals."""
    folder = tmp_path_factory.mktemp("scripted")
    samples = [Sample(input=f"{k}+{k}?", target=str(2 * k)) for k in (2, 3)]
    shell = Task(
        name="shell", dataset=samples, solver=react(tools=[bash(timeout=60)]), scorer=includes()
    )
    agents = [
        inspect_task(shell, log_dir=str(folder / "logs"), sandbox="local"),
        inspect_task(
            "inspect_evals/agent_threat_bench_memory_poison",
            log_dir=str(folder / "logs"),
            reward=lambda scores: sum(scores.values()),
            limit=2,
        ),
    ]
    model = model_of()
    sampler = ScriptedModel(model, tokenizer, processor.close_token_id, script, 0.7)
    config = RolloutConfig(retries=0, max_turns=6)
    return trained(hf_tokenizer, model, folder, *agents, config=config, sampler=sampler)


def script(text: str) -> str:
    """Call the shell, say its result, and submit it; call the first tool of another task."""
    said = last_user(text)
    if "Please proceed" in said:
        return call_text("submit", answer=re.findall(r"It is (\d+)\.", text)[-1])
    if '"bash"' in text:
        if "<tool_response>" in said:
            return f"It is {re.sub('</?tool_response>', '', said).strip()}."
        left, right = re.findall(r"(\d)\+(\d)\?", said)[-1]
        return call_text("bash", command=f"expr {left} + {right}")
    if "<tool_response>" in said:
        return "I have looked it up."
    name = re.findall(r'"name": "(\w+)"', text)[0]
    return call_text(name, query="policy", key="policy")


@pytest.fixture(params=["sampled", "scripted"])
def run(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_no_rollout_fails(run: ReplayedRun) -> None:
    for output in run.outputs:
        assert [error for error in output["error"] if error is not None] == []


def test_each_row_is_exact_by_replay(run: ReplayedRun) -> None:
    assert run.replayed > 500
    assert run.worst_replay < CLOSE
    assert run.worst_shifted > 0.01  # the negative control: each logprob one token late


def test_each_batch_has_a_log_for_each_task(run: ReplayedRun) -> None:
    """That of evaluation too, with a log of its own."""
    folder = Path(run.trainer.args.output_dir) / "logs"
    headers = [read_eval_log(str(path), header_only=True) for path in folder.iterdir()]
    tasks = {name for inputs in run.inputs for name in (row["environment"] for row in inputs)}
    found = sorted(
        (h.eval.metadata["abut_environment"], h.eval.metadata["abut_mode"]) for h in headers
    )
    assert found == sorted((name, mode) for name in tasks for mode in ("eval", "train"))
    assert {h.status for h in headers} == {"success"}
    assert sum(h.results.completed_samples for h in headers) == sum(
        len(output["error"]) for output in run.outputs
    )
    assert "eval_reward" in run.evaluated  # type: ignore[attr-defined]


def test_scores_are_rewards_and_metrics(sampled: ReplayedRun) -> None:
    output, inputs = sampled.outputs[0], sampled.inputs[0]
    for row, reward, graded in zip(
        inputs, output["env_reward"], output["graded/model_graded_qa"], strict=True
    ):
        assert graded == (1.0 if row["environment"] == "graded" else None)
        assert reward == (1.0 if row["environment"] == "graded" else 0.0)
    log = sampled.trainer.state.log_history[0]
    assert log["graded/model_graded_qa"] == 1.0
    assert log["mind/limit"] == 0.0


def test_no_token_of_the_judge_is_in_a_row(sampled: ReplayedRun, hf_tokenizer: Any) -> None:
    assert len(JUDGED) == 16  # in training and in evaluation
    for output in sampled.outputs:
        for ids in output["completion_ids"]:
            assert "GRADE" not in hf_tokenizer.decode([int(id_) for id_ in ids])


def test_a_shell_is_called_and_its_answer_is_in_the_row(
    scripted: ReplayedRun, hf_tokenizer: Any
) -> None:
    output, inputs = scripted.outputs[0], scripted.inputs[0]
    own = [k for k, row in enumerate(inputs) if row["environment"] == "shell"]
    for k in own:
        result = 2 * int(json.loads(inputs[k]["inspect_sample"])) + 2
        assert output["env_reward"][k] == 1.0
        assert output["num_turns"][k] == 3
        said = hf_tokenizer.decode([int(id_) for id_ in output["completion_ids"][k]])
        assert f"<tool_response>\n{result}\n" in said


def test_a_task_of_inspect_evals_has_a_score_of_parts(scripted: ReplayedRun) -> None:
    output, inputs = scripted.outputs[0], scripted.inputs[0]
    names = [name for name in output if name.startswith("inspect_evals/agent_threat_bench")]
    assert len([name for name in names if name.endswith(("/utility", "/security"))]) == 2
    for k, row in enumerate(inputs):
        if row["environment"].startswith("inspect_evals/"):
            parts = [output[name][k] for name in names if not name.endswith("/limit")]
            assert output["env_reward"][k] == sum(parts)
            assert output["num_turns"][k] >= 2
