"""Logs and tables of a batch that has more rows than rollouts.

Reward and length metrics and tables cover only main rows, as without other conversations. All other
metrics cover all rows, without padding.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from abut.images import Image
from abut.notices import Once
from abut.trl.dataset_images import images_of_row
from abut.trl.rows.row_batch import RowBatch, RowCounts
from abut.trl.version import TABLES_OF_MAIN_ROWS, trl_version

logger = logging.getLogger(__name__)
_once = Once(logger)
_ZEROED_FRAC = 0.1
_TABLES = ("prompt", "completion")


def tables_of(trainer: Any) -> dict[str, list[Any]]:
    """Return the columns of TRL's table of completions."""
    return {name: list(trainer._logs[name]) for name in _TABLES}


def refill_tables(
    trainer: Any, before: dict[str, list[Any]], batch: RowBatch, output: dict[str, Any]
) -> None:
    """Restrict the table to main rows; TRL up to 1.14 decodes all rows into it.

    Args:
        trainer: a `GRPOTrainer`.
        before: the table before this batch.
        batch: the batch that was scored.
        output: TRL's output, with all rows.
    """
    if not batch.has_others or trl_version() >= TABLES_OF_MAIN_ROWS:
        return
    from accelerate.utils import gather_object

    for name in _TABLES:
        ids = output[f"{name}_ids"][: len(batch.rollouts)]
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        table = trainer._logs[name]
        table.clear()
        table.extend(before[name])
        table.extend(gather_object(texts))


def log_images(trainer: Any, columns: Sequence[Mapping[str, Any]]) -> None:
    """Show the images of the dataset in TRL's table of completions, as TRL itself does.

    Args:
        trainer: a `GRPOTrainer`.
        columns: the image columns of each row of the batch; empty if the dataset has none.
    """
    if not (columns and trainer.log_completions and getattr(trainer, "log_multimodal", True)):
        return
    from accelerate.utils import gather_object

    images = [[Image.of(value).to_pil() for value in images_of_row(row)] for row in columns]
    trainer._logs["images"].extend(gather_object(images))


def log_rows(trainer: Any, counts: Sequence[RowCounts]) -> None:
    """Log how many rows a rollout has, and count the tokens of all of them.

    Args:
        trainer: a `GRPOTrainer`, which has counted the tokens of main rows.
        counts: of each rank.
    """
    metrics = trainer._metrics["train"]
    trainer.state.num_input_tokens_seen += sum(one.tokens for one in counts)
    metrics["num_tokens"] = [trainer.state.num_input_tokens_seen]
    rows, rollouts = sum(one.rows for one in counts), sum(one.rollouts for one in counts)
    metrics["rollout/rows/mean"].append(rows / rollouts)
    metrics["rollout/rows/max"].append(float(max(one.most for one in counts)))


def log_ratios(trainer: Any, ratios: Any) -> None:
    """Log the importance sampling ratios of whole rows again, without padding.

    Args:
        trainer: a `GRPOTrainer` that samples with vLLM.
        ratios: `(rows,)`, without padding.
    """
    import torch

    of_rank = torch.stack([ratios.min(), ratios.sum(), torch.ones_like(ratios).sum(), ratios.max()])
    least, total, rows, most = trainer.accelerator.gather(of_rank).view(-1, 4).T
    metrics = trainer._metrics["train"]
    for name, value in (
        ("min", least.min()),
        ("mean", total.sum() / rows.sum()),
        ("max", most.max()),
    ):
        metrics[f"sampling/importance_sampling_ratio/{name}"][-1] = value.item()


def warn_of_masked_rows(ratios: Any, trained: Any) -> None:
    """Warn if a mask over whole rows drops many of the tokens that would be trained.

    The longer a row is, the further the product of its tokens' ratios is from 1, even if each
    token's ratio is close to 1.

    Args:
        ratios: `(rows,)`, 0 for a row that is masked.
        trained: `(rows,)`, the trained tokens of each row.
    """
    total = int(trained.sum())
    zeroed = int(trained[ratios == 0].sum())
    if total and zeroed >= _ZEROED_FRAC * total:
        _once.warn(
            "masked rows",
            f"{zeroed / total:.0%} of the {total} tokens that a batch would train have weight 0: "
            'vllm_importance_sampling_mode="sequence_mask" (TRL\'s default) drops a whole row '
            "if the product of its tokens' importance ratios is too large, which is common for "
            "long rows\n"
            'hint: set GRPOConfig(vllm_importance_sampling_mode="token_truncate")',
        )
