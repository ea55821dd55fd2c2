"""A row for each conversation of a rollout: the gradient is that of an independent calculation.

These are some of the cases. `make test-trl-matrix` has all of them, on each version of TRL.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import Columns  # noqa: E402
from abut.rollout.config import RolloutConfig  # noqa: E402
from abut.trl.rows import spread as spreading  # noqa: E402
from abut.trl.rows.row_weights import weigh_gradient  # noqa: E402
from tests.kit.training.row_cases import (  # noqa: E402
    OTHER_CASES,
    WORST,
    check_gradients,
    errors_of,
)
from tests.kit.training.row_oracle import relative_error  # noqa: E402
from tests.kit.training.scripted_rows import (  # noqa: E402
    RowsRun,
    alone,
    columns_of,
    kept_outputs,
    random_columns,
    rollout_of,
)


@pytest.mark.parametrize(
    ("loss_type", "accumulation", "iterations"),
    [("grpo", 4, 2), ("dapo", 2, 1), ("dr_grpo", 1, 2), ("cispo", 8, 1), ("sapo", 2, 2)],
)
def test_the_gradient_is_that_of_each_token_trained_once(
    tmp_path: Path, loss_type: str, accumulation: int, iterations: int
) -> None:
    check_gradients(
        tmp_path, loss_type=loss_type, accumulation=accumulation, num_iterations=iterations
    )


@pytest.mark.parametrize(
    "case", ["beta-grpo", "vllm-sequence_mask-grpo", "pieces", "truncated", "sequence-level"]
)
def test_the_gradient_under_other_settings(tmp_path: Path, case: str) -> None:
    check_gradients(tmp_path, **OTHER_CASES[case])


# ---- controls: what must not pass


def test_main_rows_alone_are_far_off(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, config=RolloutConfig(branch="longest")).train()
    assert not run.trainer.abut_rows.has_others
    assert errors_of(run)[0] > 0.1


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_a_vote_for_each_row_is_far_off(tmp_path: Path, monkeypatch: Any, beta: float) -> None:
    monkeypatch.setattr(
        spreading,
        "row_weights",
        lambda loss_type, trained, rollout_of, rollouts: torch.ones_like(trained).double(),
    )
    assert errors_of(RowsRun(tmp_path, beta=beta).train())[0] > 0.1


def test_rows_without_old_logprobs_are_off(tmp_path: Path) -> None:
    """In the second iteration ratios are not 1, and some are clipped."""
    run = RowsRun(tmp_path, num_iterations=2, max_steps=2).train()
    first, second = errors_of(run, old=None)
    assert first < WORST
    assert second > 0.01


# ---- any division


@st.composite
def divisions(draw: Any) -> list[int]:
    """For each of five turns, the conversation that it is in; they are consecutive."""
    cuts = draw(st.lists(st.booleans(), min_size=4, max_size=4))
    rows = [0]
    for cut in cuts:
        rows.append(rows[-1] + cut)
    return rows


def divided(rng: random.Random, task: Any, rows: list[int]) -> Any:
    """One conversation of five turns, as a rollout whose turns are in these rows."""
    whole = random_columns(rng, turns=len(rows))
    ids = [*whole.prompt_ids.tolist(), *whole.completion_ids.tolist()]
    mask = [*[0] * len(whole.prompt_ids), *whole.env_mask.tolist()]
    turn_of, turn = [], -1
    for k, one in enumerate(mask):
        turn += bool(one and not (k and mask[k - 1]))
        turn_of.append(turn)
    every: list[Columns] = []
    for row in sorted({*rows}):
        own = [k for k, one in enumerate(mask) if one and rows[turn_of[k]] == row]
        start, end = own[0], own[-1] + 1
        every.append(columns_of(ids[:start], ids[start:end], mask[start:end], rng))
    longest = max(every, key=lambda columns: int(columns.env_mask.sum()))
    others = [columns for columns in every if columns is not longest]
    return rollout_of(task, round(rng.random(), 2), longest, *others)


@settings(max_examples=6)
@given(divisions(), st.sampled_from(["grpo", "sapo", "dr_grpo", "dapo", "cispo"]), st.booleans())
def test_any_division_of_a_rollout_into_rows_has_the_same_gradient(
    tmp_path_factory: Any, rows: list[int], loss_type: str, kl: bool
) -> None:
    beta = 0.3 if kl else 0.0
    found = []
    for of_turns in ([0] * 5, rows):
        run = RowsRun(
            tmp_path_factory.mktemp("divided"),
            lambda rng, task, of_turns=of_turns: divided(rng, task, of_turns),
            loss_type=loss_type,
            beta=beta,
            accumulation=2,
        ).train()
        found.append(run.gradients[0])
    assert relative_error(found[1], found[0]) < WORST


def test_a_gradient_in_bfloat16_is_weighed_by_the_exact_weight() -> None:
    logprobs = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True) * 1
    weigh_gradient(logprobs, torch.tensor([1.003, 1.0]))
    logprobs.retain_grad()
    (logprobs * 1.9921875).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.dtype == torch.bfloat16
    # 1.998 is nearer to 2 than to 1.992, the next smaller number; 1.003 itself would round to 1.
    assert logprobs.grad.tolist() == [[2.0], [1.9921875]]


# ---- without branches, TRL's own numbers


def numbers_of(run: RowsRun) -> tuple[list[Any], list[dict[str, Any]]]:
    """The weights, and what was logged, but for times."""
    logs = [
        {name: value for name, value in log.items() if not is_own(name)}
        for log in run.trainer.state.log_history
    ]
    return [p.detach().clone() for p in run.trainer.model.parameters()], logs


def is_own(name: str) -> bool:
    """The name of a time, or of a metric that TRL's class does not have."""
    times = ("step_time", "model_preparation_time")
    name = name.removeprefix("eval_")
    ours = name.startswith(("rollout/time", "rollout/rows"))
    return ours or "runtime" in name or "per_second" in name or name in times


@pytest.mark.parametrize("how", ["class", "extend"])
def test_without_branches_every_number_is_trls(tmp_path: Path, how: str) -> None:
    import trl

    ways = {"class": {}, "extend": {"extend": True}, "trl": {"trainer_class": trl.GRPOTrainer}}
    numbers = []
    for name in (how, "trl"):
        run = RowsRun(
            tmp_path / name,
            alone,
            accumulation=2,
            num_iterations=2,
            max_steps=3,
            beta=0.1,
            **ways[name],  # type: ignore[arg-type]
        ).train()
        run.trainer.evaluate()
        numbers.append(numbers_of(run))
    (weights, logs), (of_trl, logs_of_trl) = numbers
    assert all(torch.equal(a, b) for a, b in zip(weights, of_trl, strict=True))
    assert logs == logs_of_trl
    assert "eval_reward" in logs[-1]


def test_evaluation_has_main_rows_alone(tmp_path: Path) -> None:
    import trl

    logs = []
    for name, trainer_class in (("ours", None), ("trl", trl.GRPOTrainer)):
        run = RowsRun(tmp_path / name, trainer_class=trainer_class)
        kept = kept_outputs(run.trainer)
        run.trainer.evaluate()
        numbers = [output.get("abut_row") for output in kept]
        if name == "ours":
            assert [rows.tolist() for rows in numbers] == [list(range(8))] * 4
            assert run.trainer.abut_eval_rows.places == [(k, 0) for k in range(8)]
            assert run.trainer.abut_rows is None
        run.rollout_func._tasks.route.gateway.stop()
        logs.append(numbers_of(run)[1])
    assert logs[0] == logs[1]
    assert not [name for name in logs[0][0] if "dropped" in name], "nothing is trained"


def test_a_resumed_run_has_the_same_weights(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "accumulation": 2,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "optim": "adamw_torch",
        "learning_rate": 1e-3,
    }
    whole = RowsRun(tmp_path, **settings).train()
    resumed = RowsRun(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert len(resumed.gradients) == 2
    for a, b in zip(numbers_of(whole)[0], numbers_of(resumed)[0], strict=True):
        assert torch.equal(a, b)
