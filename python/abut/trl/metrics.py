"""The `rollout/…` metrics: what a batch of rollouts cost and how it ended.

Invariant: every batch logs the same names, whatever happened in it. TRL up to 1.12 averages each
name over all ranks without asking who has it: one that a rank leaves out hangs the others.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.rollout.rollout import Rollout, StopReason


def rollout_stats(rollout: Rollout) -> dict[str, Any]:
    """Return the figures of one rollout that metrics are made of."""
    return {
        "turns": len(rollout.turns),
        "sampled_tokens": rollout.sampled_tokens,
        "completion_tokens": len(rollout.columns.completion_ids) if rollout.columns else 0,
        "seams": dict(Counter(kind for kind, _ in rollout.seams)),
        "exact_seams": sum(exact for _, exact in rollout.seams),
        "generate_s": sum(turn.generate_s for turn in rollout.turns),
        "env_s": sum(turn.env_s for turn in rollout.turns),
        "seconds": rollout.seconds,
        "stop_reason": rollout.stop_reason.value,
        "failed": rollout.failed,
        "retried": rollout.attempts > 1,
        "unscored": rollout.reward is None,
    }


def log_rollout_metrics(
    stats: Sequence[Mapping[str, Any]], log_metric: Callable[[str, float], None]
) -> None:
    """Log the means of a batch, and the share of each stop reason."""
    if not stats:
        return
    for name, key in (
        ("rollout/turns/mean", "turns"),
        ("rollout/sampled_tokens/mean", "sampled_tokens"),
        ("rollout/completion_tokens/mean", "completion_tokens"),
        ("rollout/error_frac", "failed"),
        ("rollout/retried_frac", "retried"),
        ("rollout/unscored_frac", "unscored"),
        ("rollout/time/generate_s/mean", "generate_s"),
        ("rollout/time/env_s/mean", "env_s"),
        ("rollout/time/rollout_s/mean", "seconds"),
    ):
        log_metric(name, sum(row[key] for row in stats) / len(stats))
    log_metric("rollout/time/rollout_s/max", max(row["seconds"] for row in stats))
    seams = sum(sum(row["seams"].values()) for row in stats)
    for name, count in (
        ("rollout/seams/exact_frac", sum(row["exact_seams"] for row in stats)),
        ("rollout/seams/merged_frac", sum(row["seams"].get("merged", 0) for row in stats)),
    ):
        # Where no rollout got as far as a seam, the share is unknown; TRL leaves NaN out of means.
        log_metric(name, count / seams if seams else math.nan)
    reasons = Counter(row["stop_reason"] for row in stats)
    for reason in StopReason:
        log_metric(f"rollout/stop/{reason}", reasons[reason] / len(stats))
