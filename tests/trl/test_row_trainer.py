"""The trainer around the rows: their numbers, pieces, metrics, tables, warnings and errors."""

import dataclasses
import functools
import random
import re
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")

from transformers.training_args import OptimizerNames  # noqa: E402

import abut.trl  # noqa: E402
from abut.errors import RolloutError  # noqa: E402
from abut.trl import trainer_checks  # noqa: E402
from abut.trl.rows import row_metrics  # noqa: E402
from abut.trl.rows.all_rows import AllRows, with_all_rows  # noqa: E402
from abut.trl.rows.row_batch import ForwardRows  # noqa: E402
from abut.trl.version import METRICS_OF_TOKENS, trl_version  # noqa: E402
from tests.kit.training.row_cases import PADDED, WORST, errors_of  # noqa: E402
from tests.kit.training.scripted_rows import (  # noqa: E402
    RowsRun,
    alone,
    branching,
    kept_outputs,
    random_columns,
    rollout_of,
)

ONE_ROW = 'RolloutConfig(branch="longest"), which trains one conversation of each rollout'


class Forward(NamedTuple):
    """A pass through a model: for the loss of a training step, for that of an evaluation, …"""

    purpose: str
    rows: ForwardRows
    input_ids: Any
    attention: Any

    def check(self) -> None:
        """Each row is the conversation that its number says."""
        numbers = self.rows.numbers
        for row, ids, real in zip(numbers, self.input_ids, self.attention, strict=True):
            if row < 0:
                assert real.sum() == 3, "a padding row is three tokens"
                continue
            k, j = self.rows.batch.places[row]
            own = self.rows.batch.conversations[k][j].columns
            right = [*own.prompt_ids.tolist(), *own.completion_ids.tolist()]
            assert ids[real.bool()].tolist() == right


class Probe(trl.GRPOTrainer):  # type: ignore[misc]
    """Notes the rows of each pass through a model, below the mixin."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        mode = "train" if self.model.training else "eval"
        of_what = "reference" if model is self.ref_model else "policy"
        batch_size = kwargs.get("batch_size", args[1] if len(args) > 1 else None)
        purpose = "loss" if batch_size is None else of_what  # a batch is scored in parts
        self.seen.append(Forward(f"{mode} {purpose}", self.abut_forward, input_ids, attention_mask))
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, *args, **kwargs
        )

    seen: list[Forward]


def probed(run: RowsRun) -> list[Forward]:
    """Train, and return each pass through a model."""
    run.trainer.seen = []
    # `pytest.warns` passes other warnings on, beyond the filters that know where they come from.
    with pytest.warns(UserWarning, match="Probe overrides") as warned:
        run.train()
    assert str(warned[0].message) == (
        "Probe overrides _get_per_token_logps_and_entropies of GRPOTrainer, which abut needs to "
        "make a row of each conversation and train it\n"
        "hint: call super()._get_per_token_logps_and_entropies(…) in the override, and expect "
        "more rows than prompts"
    )
    assert run.trainer.abut_forward is None, "between forwards"
    seen: list[Forward] = run.trainer.seen
    return seen


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_each_row_meets_its_number_through_shuffle_split_and_pieces(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, trainer_class=with_all_rows(Probe), accumulation=2, piece=3, **PADDED)
    seen = probed(run)
    batch = run.trainer.abut_rows
    chunk = batch.size // 2
    passes = [len(forward.rows.numbers) for forward in seen]
    assert passes == 2 * [*[3] * (chunk // 3), *[chunk % 3] * bool(chunk % 3)]
    for forward in seen:
        forward.check()
        assert forward.rows.batch is batch
    met = [row for forward in seen for row in forward.rows.numbers]
    assert met != sorted(met), "shuffled"
    assert sorted(row for row in met if row >= 0) == list(range(len(batch.places)))
    assert met.count(-1) == batch.padding_rows


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_each_forward_knows_its_rows(tmp_path: Path) -> None:
    """Old and reference logprobs, both iterations, and evaluations between and after them."""
    run = RowsRun(
        tmp_path,
        trainer_class=with_all_rows(Probe),
        accumulation=2,
        piece=3,
        beta=0.3,
        vllm_mode="token_truncate",
        num_iterations=2,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
    )
    seen = probed(run)
    for forward in seen:
        forward.check()
    purposes = [forward.purpose for forward in seen]
    kinds = ("policy", "reference", "loss")
    assert {*purposes} == {f"{mode} {kind}" for mode in ("train", "eval") for kind in kinds}
    first_eval = purposes.index("eval policy")
    assert "train loss" in purposes[first_eval:], "an evaluation between two steps of one batch"
    batches: dict[str, list[ForwardRows]] = {}
    for forward in seen:
        batches.setdefault(forward.purpose, []).append(forward.rows)
    trained = run.trainer.abut_rows
    assert trained.padding_rows
    for purpose in ("policy", "reference"):
        (rows,) = batches[f"train {purpose}"]
        assert rows.batch.rollouts is trained.rollouts
        assert rows.numbers == [*range(len(trained.places)), *[-1] * trained.padding_rows]
    met = sorted(row for rows in batches["train loss"] for row in rows.numbers)
    assert met == sorted(2 * batches["train policy"][0].numbers)
    assert all(rows.batch is trained for rows in batches["train loss"])
    assert all(list(rows.numbers) == list(range(8)) for rows in batches["eval loss"])
    assert batches["eval loss"][-1].batch is run.trainer.abut_eval_rows


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_pieces_are_narrow(tmp_path: Path) -> None:
    seen = probed(RowsRun(tmp_path, trainer_class=with_all_rows(Probe), accumulation=2, piece=2))
    slots = sum(forward.input_ids.numel() for forward in seen)
    tokens = sum(int(forward.attention.sum()) for forward in seen)
    assert slots < 1.3 * tokens


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_forty_conversations_in_one_rollout_cost_what_their_tokens_cost(tmp_path: Path) -> None:
    """No pass holds more rows than the trainer is set to, and no row makes others much wider."""

    def forty(rng: random.Random, task: Any) -> Any:
        main = random_columns(rng, turns=12)
        count = 39 if task.index == 2 else 0
        others = [random_columns(rng, turns=rng.randint(1, 12)) for _ in range(count)]
        return rollout_of(task, round(rng.random(), 2), main, *others)

    run = RowsRun(tmp_path, forty, trainer_class=with_all_rows(Probe), accumulation=4)
    seen = probed(run)
    assert run.logged()["rollout/rows/max"] == 40
    assert (len(run.trainer.abut_rows.places), run.trainer.abut_rows.padding_rows) == (47, 1)
    slots = [forward.input_ids.numel() for forward in seen]
    tokens = sum(int(forward.attention.sum()) for forward in seen)
    longest = max(int(forward.attention.sum(1).max()) for forward in seen)
    assert max(slots) <= 2 * (longest + 6), "two rows; prompts of 1 to 6 are padded apart"
    assert sum(slots) < 1.25 * tokens
    assert errors_of(run)[0] < WORST


# ---- metrics and tables


def test_reward_and_length_metrics_and_tables_are_of_main_rows(tmp_path: Path) -> None:
    logs, tables = [], []
    for name, trainer_class in (("ours", None), ("trl", trl.GRPOTrainer)):
        run = RowsRun(tmp_path / name, trainer_class=trainer_class, accumulation=2).train()
        logs.append(
            {
                key: value
                for key, value in run.logged().items()
                if key.startswith(("completions/", "reward", "frac_", "rollout/turns"))
            }
        )
        tables.append({key: list(run.trainer._logs[key]) for key in ("prompt", "completion")})
        tables[-1]["advantages"] = list(run.trainer._logs["advantages"])
    assert logs[0] == logs[1]
    assert len(logs[0]) > 10
    assert tables[0] == tables[1]
    assert [len(table) for table in tables[0].values()] == [8, 8, 8]


def test_other_metrics_are_over_all_rows_without_padding(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, piece=2, beta=0.3).train()
    entropy, divergence, tokens = 0.0, 0.0, 0
    for rows in run.rollouts:
        for columns in rows:
            ids = torch.tensor([[*columns.prompt_ids.tolist(), *columns.completion_ids.tolist()]])
            start, mask = len(columns.prompt_ids), torch.tensor(columns.env_mask.tolist()).bool()
            with torch.no_grad():
                logprobs, reference = (
                    model(input_ids=ids).logits[0, start - 1 : -1].log_softmax(-1)
                    for model in (run.before[0], run.reference)
                )
            entropy += float(-(logprobs.exp() * logprobs).sum(-1)[mask].sum())
            taken = ids[0, start:, None]
            difference = (reference.gather(1, taken) - logprobs.gather(1, taken))[mask]
            divergence += float((difference.exp() - difference - 1).sum())
            tokens += int(mask.sum())
    assert run.logged()["entropy"] == pytest.approx(entropy / tokens, rel=1e-5)
    assert run.logged()["kl"] == pytest.approx(divergence / tokens, rel=1e-5)
    counts = [len(rows) for rows in run.rollouts]
    assert run.logged()["rollout/rows/mean"] == sum(counts) / 8
    assert run.logged()["rollout/rows/max"] == max(counts)
    prompts = sum(len(columns.prompt_ids) for rows in run.rollouts for columns in rows)
    assert run.logged()["num_tokens"] == run.trainer.state.num_input_tokens_seen == prompts + tokens
    if trl_version() >= (1, 0):  # reward functions log from here on
        assert run.logged()["rollout/dropped_sampled_frac"] == 0


@pytest.mark.parametrize("clips", ["some", "all"])
@pytest.mark.parametrize(
    ("loss_type", "level"), [("grpo", "token"), ("grpo", "sequence"), ("cispo", "sequence")]
)
def test_metrics_of_a_chunk_are_those_without_its_padding(
    tmp_path: Path, loss_type: str, level: str, clips: str
) -> None:
    """Padding has its ratio at 1 and clips nothing, so it would be the minimum, and pull means."""

    def short(rng: random.Random, task: Any) -> Any:
        others = [random_columns(rng) for _ in range(task.index == 0)]
        return rollout_of(task, round(rng.random(), 2), random_columns(rng), *others)

    settings = {"loss_type": loss_type, "importance_sampling_level": level, "beta": 0.3}
    run = RowsRun(tmp_path, short, accumulation=4, num_iterations=2, max_steps=2, **settings)
    kept = kept_outputs(run.trainer)
    trainer, model = run.train().trainer, run.trainer.model
    chunk = kept[0]
    assert chunk["abut_row"].tolist() == [*range(9), -1, -1, -1]
    sign = -1 if loss_type == "grpo" else 1  # `cispo` clips from above alone
    noise = torch.rand(
        chunk["old_per_token_logps"].shape, generator=torch.Generator().manual_seed(1)
    )
    if clips == "all":
        chunk["old_per_token_logps"] -= sign * 2
        chunk["advantages"][:9] = sign
    else:
        chunk["old_per_token_logps"] += 2 * noise - 1
    without = {
        name: value[:9] if isinstance(value, torch.Tensor) and value.ndim else value
        for name, value in chunk.items()
    }

    def logged(compute_loss: Any, inputs: Any) -> dict[str, float]:
        trainer._metrics["train"].clear()
        compute_loss(model, inputs)
        return {name: value for name, (value,) in trainer._metrics["train"].items()}

    of_trl = trl.GRPOTrainer.compute_loss
    right = logged(functools.partial(of_trl, trainer), without)
    assert logged(functools.partial(of_trl, trainer), chunk) != right or level == "token"
    if loss_type == "grpo" and trl_version() >= METRICS_OF_TOKENS:
        assert right["clip_ratio/low_min"] == (clips == "all")
    for piece in (1, 2, 5, 12):
        trainer.args.per_device_train_batch_size = piece
        found = logged(trainer.compute_loss, chunk)
        if trl_version() < METRICS_OF_TOKENS:  # its minima are of a whole rank
            found |= {name: right[name] for name in right if name.endswith(("_min", "_max"))}
        assert found == pytest.approx(right, rel=1e-5), piece


@pytest.mark.parametrize("piece", [None, 2])
def test_ratios_and_clips_of_whole_rows_are_without_padding(
    tmp_path: Path, piece: int | None
) -> None:
    """A row of padding has a ratio of exactly 1, and clips nothing."""

    def padded(rng: random.Random, task: Any) -> Any:
        others = [random_columns(rng) for _ in range(task.index == 0)]
        return rollout_of(task, round(rng.random(), 2), random_columns(rng), *others)

    run = RowsRun(
        tmp_path,
        padded,
        accumulation=4,
        piece=piece,
        vllm_mode="sequence_truncate",
        importance_sampling_level="sequence",
    )
    kept = kept_outputs(run.trainer)
    run.train()
    assert run.trainer.abut_rows.padding_rows == 3
    ratios = kept[0]["importance_sampling_ratio"][:9, 0]
    logged = run.logged()
    assert logged["sampling/importance_sampling_ratio/mean"] == pytest.approx(float(ratios.mean()))
    assert logged["sampling/importance_sampling_ratio/min"] == pytest.approx(float(ratios.min()))


def test_many_tokens_under_sequence_mask_are_warned_of(
    tmp_path: Path, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(row_metrics, "_once", row_metrics.Once(row_metrics.logger))

    def unlikely(rng: random.Random, task: Any) -> Any:
        rollout = branching(rng, task)
        rollout.columns.logprobs[:] = -40.0
        return rollout

    for mode in ("sequence_truncate", "sequence_mask"):
        RowsRun(tmp_path / mode, unlikely, vllm_mode=mode).train()
        said = [r.getMessage() for r in caplog.records if "sequence_mask" in r.getMessage()]
        assert len(said) == (mode == "sequence_mask")
    share, _, rest = said[0].partition("% of the ")
    assert int(share) >= 10
    assert rest.partition(" ")[2] == (
        "tokens that a batch would train have weight 0: "
        'vllm_importance_sampling_mode="sequence_mask" (TRL\'s default) drops a whole row if the '
        "product of its tokens' importance ratios is too large, which is common for long rows\n"
        'hint: set GRPOConfig(vllm_importance_sampling_mode="token_truncate")'
    )


@pytest.mark.parametrize(("zeroed", "warns"), [(9, False), (10, True)])
def test_a_tenth_of_the_tokens_is_many(
    zeroed: int, warns: bool, caplog: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(row_metrics, "_once", row_metrics.Once(row_metrics.logger))
    row_metrics.warn_of_masked_rows(torch.tensor([0.0, 1.0]), torch.tensor([zeroed, 100 - zeroed]))
    assert ("token_truncate" in caplog.text) == warns


# ---- which rows


def test_a_rollout_without_a_reward_or_that_failed_has_its_main_row_alone(tmp_path: Path) -> None:
    def partly(rng: random.Random, task: Any) -> Any:
        rollout = rollout_of(task, 0.1 * task.index, random_columns(rng), random_columns(rng))
        if task.index == 1:
            rollout.reward = None
        if task.index == 2:
            rollout.measured, rollout.reward = False, None
        return rollout

    run = RowsRun(tmp_path / "env", partly).train()
    counts = [len(rows) for rows in run.trainer.abut_rows.conversations]
    assert counts == [2, 1, 1, 2, 2, 2, 2, 2]
    length = abut.trl.scored_only(lambda completion_ids, **_: [len(ids) for ids in completion_ids])
    run = RowsRun(tmp_path / "length", partly, reward_funcs=[abut.trl.env_reward, length]).train()
    counts = [len(rows) for rows in run.trainer.abut_rows.conversations]
    assert counts == [2, 2, 1, 2, 2, 2, 2, 2], "another function scores what was measured"


def test_the_lists_of_a_batch_are_freed_once_it_is_scored(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, max_steps=2)
    take, compute_loss = run.trainer.take_rows, run.trainer.compute_loss
    scorings: list[Any] = []
    are_gone: list[bool] = []

    def noted(scoring: Any) -> None:
        scorings.append(weakref.ref(scoring))
        take(scoring)

    def checked(*args: Any, **kwargs: Any) -> Any:
        are_gone.append(scorings[-1]() is None)
        return compute_loss(*args, **kwargs)

    run.trainer.take_rows, run.trainer.compute_loss = noted, checked
    run.train()
    # The first one may wait for the collector: Jinja2 has cycles of frames that build the engine.
    assert are_gone[1:] == [True]


def test_what_was_not_delivered_is_no_row(tmp_path: Path) -> None:
    def undelivered(rng: random.Random, task: Any) -> Any:
        rollout = rollout_of(
            task, rng.random(), random_columns(rng), *map(random_columns, [rng] * 2)
        )
        one, two = rollout.branches
        rollout.branches = [one, dataclasses.replace(two, delivered=False)]
        return rollout

    run = RowsRun(tmp_path, undelivered).train()
    assert [len(rows) for rows in run.trainer.abut_rows.conversations] == [2] * 8
    assert run.logged()["rollout/rows/mean"] == 2
    if trl_version() >= (1, 0):
        assert 0 < run.logged()["rollout/dropped_sampled_frac"] < 0.6


def test_a_late_fork_widens_no_prompt(tmp_path: Path) -> None:
    def forked(rng: random.Random, task: Any) -> Any:
        main = random_columns(rng, prompt=[5, 6], turns=4)
        whole = [*main.prompt_ids.tolist(), *main.completion_ids.tolist()]
        return rollout_of(task, rng.random(), main, random_columns(rng, prompt=whole))

    run = RowsRun(tmp_path, forked)
    kept = kept_outputs(run.trainer)
    run.train()
    assert kept[0]["prompt_ids"].shape == (16, 2)
    assert kept[0]["abut_row"].tolist() == list(range(16))


# ---- how to get the trainer, and what is refused


def test_the_class_is_that_of_trl_now(monkeypatch: Any) -> None:
    ours = abut.trl.GRPOTrainer
    assert ours is abut.trl.GRPOTrainer
    assert issubclass(ours, AllRows)
    assert issubclass(ours, trl.GRPOTrainer)
    assert ours.__name__ == "GRPOTrainer"
    replaced = type("UnslothGRPOTrainer", (trl.GRPOTrainer,), {})
    monkeypatch.setattr(trl, "GRPOTrainer", replaced)
    assert issubclass(abut.trl.GRPOTrainer, replaced)
    assert "GRPOTrainer" in dir(abut.trl)
    with pytest.raises(AttributeError, match="has no attribute 'NoTrainer'"):
        _ = abut.trl.NoTrainer


def test_a_trainer_is_extended_before_it_trains(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, alone, trainer_class=trl.GRPOTrainer).train()
    with pytest.raises(RuntimeError, match="hint: ") as raised:
        abut.trl.extend(run.trainer)
    assert str(raised.value) == (
        "extend(GRPOTrainer) was called after training began, so the current batch has rows made "
        "without it\n"
        "hint: call extend before trainer.train()"
    )
    fresh = RowsRun(tmp_path, extend=True)
    assert abut.trl.extend(fresh.trainer) is fresh.trainer
    assert type(fresh.trainer) is abut.trl.GRPOTrainer
    fresh.train()
    assert fresh.trainer.abut_rows.has_others
    with pytest.raises(TypeError, match="extend takes a GRPOTrainer, and SimpleNamespace has no"):
        abut.trl.extend(SimpleNamespace())


def test_a_trainer_is_extended_after_it_evaluated(tmp_path: Path) -> None:
    run = RowsRun(tmp_path, trainer_class=trl.GRPOTrainer)
    run.trainer.evaluate()
    run.source.played.clear()
    abut.trl.extend(run.trainer)
    run.train()
    assert run.trainer.abut_rows.has_others
    assert errors_of(run)[0] < WORST


def test_another_rollout_func_is_left_alone(tmp_path: Path) -> None:
    def copied(rollout_func: Any) -> Any:
        keys = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "env_reward")

        def own(prompts: Any, trainer: Any) -> Any:
            made = rollout_func(prompts, trainer)
            trainer._abut_scoring = None
            return {key: made[key] for key in keys}

        return own

    run = RowsRun(tmp_path, wrap=copied).train()
    assert run.trainer.abut_rows is None
    assert len(run.gradients) == 1


def test_lists_that_trl_did_not_hand_on(tmp_path: Path) -> None:
    def copying(rollout_func: Any) -> Any:
        def wrapper(prompts: Any, trainer: Any) -> Any:
            made = rollout_func(prompts, trainer)
            return {**made, "logprobs": [list(row) for row in made["logprobs"]]}

        return wrapper

    with pytest.raises(RolloutError) as raised:
        RowsRun(tmp_path, wrap=copying).train()
    assert str(raised.value) == (
        "'logprobs' from the rollout_func was changed or copied before it reached the loss, so "
        "abut cannot add the rows of the other conversations\n"
        "hint: pass make_rollout_func(…) itself and do not change the lists that it returns, or "
        'set RolloutConfig(branch="longest"), which needs no other rows'
    )
    RowsRun(tmp_path, alone, wrap=copying).train()  # nothing is added, so nothing is missing


def checked(
    monkeypatch: Any,
    version: tuple[int, ...] = (1, 16),
    *,
    others: bool = True,
    credit: bool = False,
    **changes: Any,
) -> None:
    args = {"use_liger_kernel": False, "optim": "adamw_torch"}
    args |= {name: changes.pop(name) for name in args if name in changes}
    trainer: Any = abut.trl.GRPOTrainer.__new__(abut.trl.GRPOTrainer)
    trainer.args, trainer.loss_type = SimpleNamespace(**args), changes.pop("loss_type", "grpo")
    monkeypatch.setattr(trainer_checks, "trl_version", lambda: version)
    monkeypatch.setattr(trainer_checks, "trl_version_text", lambda: ".".join(map(str, version)))
    trainer_checks.check_rows(trainer, has_others=others, has_credit=credit, stacklevel=1)


def test_settings_under_which_rows_do_not_add_up_are_refused(monkeypatch: Any) -> None:
    checked(monkeypatch, use_liger_kernel=True)
    checked(monkeypatch, loss_type="luspo")
    cases: list[tuple[tuple[int, ...], dict[str, Any], str]] = [
        (
            (1, 13),
            {"use_liger_kernel": True},
            "use_liger_kernel=True with TRL 1.13: its loss cannot weigh rows\n"
            "hint: pip install 'trl>=1.14', set use_liger_kernel=False",
        ),
        (
            (1, 9),
            {"loss_type": "luspo"},
            'loss_type="luspo" with TRL 1.9: this loss counts padding, so the loss of a row '
            "depends on the other rows of the batch\n"
            "hint: pip install 'trl>=1.10', use another loss_type",
        ),
        (
            (1, 16),
            {"loss_type": "newest"},
            "loss_type='newest': abut can weigh the rows of a rollout only with bnpo, cispo, "
            "dapo, dr_grpo, grpo, luspo, sapo, vespo\n"
            "hint: use one of these",
        ),
    ]
    for version, changes, said in cases:
        with pytest.raises(ValueError, match="hint: ") as raised:
            checked(monkeypatch, version, **changes)
        assert str(raised.value) == f"{said}, or {ONE_ROW}"


@pytest.mark.parametrize("credit", [False, True])
@pytest.mark.parametrize(
    "optim", [o.value for o in OptimizerNames if re.search("lomo|layerwise", o.value)]
)
def test_an_optimizer_that_steps_in_the_backward_pass_is_refused_where_there_are_pieces(
    monkeypatch: Any, optim: str, credit: bool
) -> None:
    with pytest.raises(ValueError, match="hint: ") as told:
        checked(monkeypatch, optim=optim, credit=credit)
    assert str(told.value) == (
        f"optim={optim!r}: this optimizer takes a step in each backward pass, but the rows of "
        "one micro-step need several passes\n"
        f"hint: use another optimizer, or {ONE_ROW}"
    )
    checked(monkeypatch, optim=optim, others=False, credit=True)  # the hint helps


@pytest.mark.parametrize(
    ("others", "credit", "hint"),
    [
        (True, False, f"or {ONE_ROW}"),
        (True, True, f"or {ONE_ROW}, without credit"),
        (False, True, "or leave credit out"),
    ],
)
def test_a_hint_names_all_that_would_have_to_go(
    monkeypatch: Any, others: bool, credit: bool, hint: str
) -> None:
    for version, changes in (
        ((1, 13), {"use_liger_kernel": True}),
        ((1, 9), {"loss_type": "luspo"}),
        ((1, 16), {"loss_type": "newest"}),
    ):
        with pytest.raises(ValueError, match="hint: ") as told:
            checked(monkeypatch, version, others=others, credit=credit, **changes)
        assert str(told.value).endswith(f", {hint}")
