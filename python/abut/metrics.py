"""The `rollout/…` metrics: what a batch of rollouts cost and how it ended."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.rollout import Rollout


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
        "stop_reason": rollout.stop_reason.value,
        "failed": rollout.failed,
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
        ("rollout/error_frac", "failed"),
        ("rollout/time/generate_s/mean", "generate_s"),
        ("rollout/time/env_s/mean", "env_s"),
    ):
        log_metric(name, sum(row[key] for row in stats) / len(stats))
    seams = sum(sum(row["seams"].values()) for row in stats)
    if seams:
        log_metric("rollout/seams/exact_frac", sum(row["exact_seams"] for row in stats) / seams)
    for reason, count in Counter(row["stop_reason"] for row in stats).items():
        log_metric(f"rollout/stop/{reason}", count / len(stats))
