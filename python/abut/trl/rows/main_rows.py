"""`DistillationTrainer` with rollouts: the main conversation of each rollout is a row.

Invariant: the loss is computed only over sampled tokens, each after exactly the ids that the engine
saw. TRL's class generates rows itself and plays only its own tools; here a `rollout_func` plays,
and everything else is TRL's: the teacher in this process, the divergence over the whole vocabulary,
and the metrics.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from abut.errors import MissingExtraError
from abut.trl.version import DISTILLS_SAMPLED_TOKENS, trl_version, trl_version_text

if TYPE_CHECKING:
    from typing import Any as _Base
else:
    _Base = object

SERVER_DISTILLATION = (
    "ServerDistillationTrainer trains every token of a completion, including env tokens, because "
    "its loss ignores the mask\n"
    "hint: to train only sampled tokens, use AsyncDistillationTrainer with "
    "make_distillation_worker, abut.trl.GRPOTrainer with make_rollout_func(…, "
    "credit=ReverseKL(teacher)), or abut.trl.DistillationTrainer, whose teacher_model runs in "
    "this process"
)


class MainRows(_Base):  # type: ignore[misc]
    """A mixin for TRL's `DistillationTrainer` that adds `rollout_func`.

        class Mine(MainRows, TheirTrainer): ...

    `abut.trl.DistillationTrainer` combines it with TRL's class. Without a `rollout_func` the
    trainer behaves exactly as it does without the mixin.
    """

    # Attributes of a `GRPOTrainer` that a `rollout_func` reads: each prompt is played once, without
    # rewards.
    num_generations = num_generations_eval = 1
    reward_funcs: Sequence[Any] = ()
    _last_loaded_step: int

    def __init__(
        self, *args: Any, rollout_func: Callable[..., Any] | None = None, **kwargs: Any
    ) -> None:
        """Take TRL's arguments and a `rollout_func`.

        Args:
            *args: see TRL's class.
            rollout_func: the result of `make_rollout_func`; None leaves generation to TRL.
            **kwargs: see TRL's class.

        Raises:
            TypeError: the teacher is not a model in this process.
        """
        given = inspect.signature(super().__init__).bind_partial(*args, **kwargs).arguments
        # Before TRL's constructor, which would contact a teacher on a server.
        if rollout_func is not None and given.get("teacher_model") is None:
            raise TypeError(
                f"{type(self).__name__}(rollout_func=…) without teacher_model=: "
                f"{SERVER_DISTILLATION}"
            )
        super().__init__(*args, **kwargs)
        self.rollout_func = rollout_func

    def _generate(self, prompts: list[Any]) -> Any:
        if self.rollout_func is None:
            return super()._generate(prompts)
        if self.use_vllm and self.state.global_step != self._last_loaded_step:
            self.vllm_generation.sync_weights()
            self._last_loaded_step = self.state.global_step
        rows = self.rollout_func(prompts, self)
        prompt_ids, completion_ids = rows["prompt_ids"], rows["completion_ids"]
        _log_lengths(self, prompt_ids, completion_ids, rows["env_mask"])
        return prompt_ids, completion_ids, rows["env_mask"], None, [None] * len(prompts)


def _log_lengths(
    trainer: Any, prompt_ids: Any, completion_ids: Any, env_mask: Sequence[Sequence[int]]
) -> None:
    """Log the lengths of rows under the names of TRL's own `_generate`."""
    import torch

    mode = "train" if trainer.model.training else "eval"
    metrics, device = trainer._metrics[mode], trainer.accelerator.device
    # The row of a failed rollout has a token that was not sampled.
    sampled = [sum(mask) for mask in env_mask]
    tokenizer = trainer._tokenizer
    # TRL up to 1.14 knows one.
    ends = [*getattr(trainer, "eos_token_ids", [tokenizer.eos_token_id]), tokenizer.pad_token_id]
    of_rank = torch.tensor(
        [
            (len(prompt), tokens, ids[-1] not in ends)
            for prompt, ids, tokens in zip(prompt_ids, completion_ids, sampled, strict=True)
        ],
        device=device,
    )
    prompts, lengths, cut = trainer.accelerator.gather(of_rank).T
    if mode == "train":
        trainer.state.num_input_tokens_seen += (prompts.sum() + lengths.sum()).item()
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    metrics["completions/clipped_ratio"].append(cut.float().mean().item())
    ended = lengths[cut == 0] if (cut == 0).any() else torch.zeros_like(lengths[:1])
    for name, of_rows in (("length", lengths), ("terminated_length", ended)):
        metrics[f"completions/mean_{name}"].append(of_rows.float().mean().item())
        metrics[f"completions/min_{name}"].append(of_rows.float().min().item())
        metrics[f"completions/max_{name}"].append(of_rows.float().max().item())


@functools.cache
def with_main_rows(trainer_class: Any) -> Any:
    """Return a subclass of a `DistillationTrainer` with `MainRows`; the same class each time."""
    attributes = {"__module__": __name__, "__doc__": trainer_class.__doc__}
    return type(trainer_class.__name__, (MainRows, trainer_class), attributes)


def distillation_trainer() -> Any:
    """Return `trl.DistillationTrainer` with `MainRows`.

    Raises:
        MissingExtraError: TRL is not installed, or older than 1.11, whose loss does not take a
            mask.
    """
    if trl_version() < DISTILLS_SAMPLED_TOKENS:
        raise MissingExtraError(
            f"abut.trl.DistillationTrainer needs TRL 1.11 or later, found {trl_version_text()}: "
            "in earlier versions its loss does not mask env tokens\n"
            "hint: pip install 'trl>=1.11'"
        )
    import trl

    return with_main_rows(trl.DistillationTrainer)
