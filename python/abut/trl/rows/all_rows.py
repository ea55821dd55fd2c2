"""`GRPOTrainer` with a row for each conversation of a rollout.

Invariant: an optimizer step takes as many rollouts as TRL's own, however many rows they have. A
rollout has one reward and one advantage, and its loss does not depend on how its tokens are divided
into rows. If no rollout of a batch has other conversations, TRL gets exactly the same input as
without this class, and the result is the same bit for bit.

    rollout_func                      passes on the other conversations with the main rows
    _generate                         appends their rows, and padding
    _calculate_rewards                scores rollouts, which are the main rows
    _generate_and_score_completions   spreads advantages over rows, and weighs them
    compute_loss                      takes the rows of a micro-step in pieces
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from abut.trl.dataset_images import with_moved_images
from abut.trl.ranks import gathered
from abut.trl.rows.row_batch import (
    ROW,
    WEIGHT,
    ForwardRows,
    RowBatch,
    RowCounts,
    RowScoring,
)
from abut.trl.rows.row_metrics import log_images, log_rows, refill_tables, tables_of
from abut.trl.version import check_trl_version

REPLACED = (
    "_generate",
    "_calculate_rewards",
    "_generate_and_score_completions",
    "compute_loss",
    "_get_per_token_logps_and_entropies",
)
"""The methods of `GRPOTrainer` that `AllRows` replaces."""
_NOT_FORWARDED = (
    "the trainer computed a loss without calling _get_per_token_logps_and_entropies, which adds "
    "the images to the rows\n"
    "hint: call that method for the policy's logprobs"
)

if TYPE_CHECKING:
    from typing import Any as _Base
else:
    _Base = object


class AllRows(_Base):  # type: ignore[misc]
    """A mixin for `GRPOTrainer` and its subclasses: each conversation of a rollout is a row.

        class Mine(AllRows, TheirTrainer): ...

    `abut.trl.GRPOTrainer` combines it with TRL's class, and `abut.trl.extend` adds it to an
    existing trainer. Without a `rollout_func` from abut, the trainer behaves exactly as it does
    without the mixin.
    """

    trains_images = True
    """True: each forward pass of the model gets the images of its rows, unlike in TRL's own class.
    """

    abut_rows: RowBatch | None = None
    """The generation batch that is being trained; the column `abut_row` has the numbers of its
    rows.
    """
    abut_eval_rows: RowBatch | None = None
    """The batch that is being evaluated, in the same way."""
    abut_forward: ForwardRows | None = None
    """The rows that a model gets next: while a batch is scored, all its rows in order, for logprobs
    of the old policy and of the reference; while a loss is computed, the rows of that loss. None
    while rollouts are played, and with rollouts that are not abut's.
    """
    abut_image_columns: Sequence[Mapping[str, Any]] = ()
    """While a batch is scored, the columns `image` and `images` of each row of the dataset, whose
    images TRL then finds only in the prompts; empty if there are no such columns.
    """
    _abut_forwarded = False
    """True after the rows of the current loss went through the model, where they get images."""
    _abut_scoring: RowScoring | None = None
    """The batch that was played but is not scored yet."""

    def take_rows(self, scoring: RowScoring) -> None:
        """Take the rows that belong to the next result of the `rollout_func`."""
        self._abut_scoring = scoring

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self._abut_scoring = None
        returned = super()._generate(*args, **kwargs)
        scoring = self._abut_scoring
        if scoring is None:
            return returned
        if (batch := scoring.batch).images is not None:
            has_images = any(gathered(self.accelerator, batch.has_images))
            scoring.batch = replace(batch, has_images=has_images)
        if self.model.training:
            returned = self._with_other_rows(scoring, returned)
        self.abut_forward = ForwardRows(scoring.batch, scoring.batch.numbers)
        return returned

    def _with_other_rows(self, scoring: RowScoring, returned: Any) -> Any:
        """Return the result of `_generate` with the rows of all conversations, and padding."""
        counts = gathered(self.accelerator, RowCounts.of(scoring.batch))
        scoring.own_rewards = any(of_rank.own_rewards for of_rank in counts)
        if scoring.by_agents:
            log_rows(self, counts)
        most = max(of_rank.rows for of_rank in counts)
        if most == len(scoring.batch.rollouts):
            return returned
        # TRL splits rows into equal chunks, and drops a remainder.
        chunks = self.args.steps_per_generation
        scoring.batch = replace(scoring.batch, size=-(-most // chunks) * chunks)
        return scoring.lengthen(returned)

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any, **kwargs: Any
    ) -> Any:
        scoring = self._abut_scoring
        if scoring is not None:
            completion_ids_list = completion_ids_list[: len(prompts)]
        if moved := self.abut_image_columns:  # reward functions get them, as in TRL
            inputs = [{**row, **columns} for row, columns in zip(inputs, moved, strict=True)]
        rewards = super()._calculate_rewards(
            inputs, prompts, completions, completion_ids_list, **kwargs
        )
        if scoring is not None:
            scoring.rewards = rewards
        return rewards

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._abut_scoring = None
        tables = tables_of(self)
        if getattr(inspect.unwrap(self.rollout_func), "images_in_prompts", False):
            inputs, self.abut_image_columns = with_moved_images(inputs)
        try:
            output = super()._generate_and_score_completions(inputs)
            scoring = self._abut_scoring
            log_images(self, self.abut_image_columns)
        finally:
            # The lists of a batch are as large as the rest of it, so they are released here.
            self.abut_forward = self._abut_scoring = None
            self.abut_image_columns = ()
        if scoring is None:
            return output
        from abut.trl.rows.spread import spread

        refill_tables(self, tables, scoring.batch, output)
        batch = spread(self, scoring, output)
        if self.model.training:
            self.abut_rows = batch
        else:  # training may continue with the previous rows after it
            self.abut_eval_rows = batch
        return output

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of a micro-step, like TRL; training may also run backward passes here."""
        compute = super().compute_loss
        batch = self.abut_rows if self.model.training else self.abut_eval_rows

        def loss_of(inputs: Any) -> Any:
            if batch is not None and ROW in inputs:
                numbers, weights = inputs[ROW].tolist(), inputs.get(WEIGHT)
                self.abut_forward = ForwardRows(batch, numbers, weights)
                self._abut_forwarded = False
            try:
                loss = compute(model, inputs, *args, **kwargs)
                if batch is not None and batch.has_images and not self._abut_forwarded:
                    raise RuntimeError(_NOT_FORWARDED)
                return loss
            finally:
                self.abut_forward = None

        if batch is None or not batch.has_others or not self.model.training:
            return loss_of(inputs)
        from abut.trl.rows.pieces import loss_in_pieces

        return loss_in_pieces(self, model, inputs, loss_of)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        rows, logps_of = self.abut_forward, super()._get_per_token_logps_and_entropies
        self._abut_forwarded = True
        if rows is not None and rows.batch.has_images:
            from abut.trl.rows.row_images import images_added

            with images_added(model, rows, in_step=self.accelerator.num_processes > 1):
                found = logps_of(model, *args, **kwargs)
        else:
            found = logps_of(model, *args, **kwargs)
        if rows is not None and rows.weights is not None and found[0].requires_grad:
            from abut.trl.rows.row_weights import weigh_gradient

            weigh_gradient(found[0], rows.weights)
        return found


@functools.cache
def with_all_rows(trainer_class: Any) -> Any:
    """Return a subclass of a `GRPOTrainer` with `AllRows`; the same class each time."""
    attributes = {"__module__": __name__, "__doc__": trainer_class.__doc__}
    return type(trainer_class.__name__, (AllRows, trainer_class), attributes)


def extend(trainer: Any) -> Any:
    """Make a trainer train each conversation as a row, and return the trainer.

    This changes the trainer in place, before its first step. Its class becomes a subclass of its
    previous class.

    Args:
        trainer: a `GRPOTrainer`, or a subclass of it.

    Raises:
        TypeError: `trainer` is not a `GRPOTrainer`.
        RuntimeError: training has already begun.
    """
    if isinstance(trainer, AllRows):
        return trainer
    if missing := [name for name in REPLACED if not hasattr(trainer, name)]:
        raise TypeError(
            f"extend takes a GRPOTrainer, and {type(trainer).__name__} has no {missing[0]}\n"
            "hint: for AsyncGRPOTrainer use make_rollout_worker, which makes a row of each "
            "conversation without extend"
        )
    if trainer.state.global_step or trainer._step or trainer._buffered_inputs is not None:
        raise RuntimeError(
            f"extend({type(trainer).__name__}) was called after training began, so the current "
            "batch has rows made without it\n"
            "hint: call extend before trainer.train()"
        )
    before: Any = type(trainer)
    trainer.__class__ = with_all_rows(before)
    return trainer


def grpo_trainer() -> Any:
    """Return `trl.GRPOTrainer` with `AllRows`; looked up now, because libraries may replace it.

    Raises:
        MissingExtraError: TRL is not installed, or older than 0.29.1.
    """
    check_trl_version(stacklevel=3)
    import trl

    return with_all_rows(trl.GRPOTrainer)
