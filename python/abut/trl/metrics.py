"""The `rollout/…` metrics: the cost of a batch of rollouts, and how the rollouts ended.

Invariant: every batch logs the same names, whatever happened in it. TRL up to 1.12 averages each
name over all ranks without checking which ranks have it, so a name that one rank leaves out makes
the others hang.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.gateway.server.gateway import REWRITES
from abut.rollout.rollout import Rollout, StopReason
from abut.tools.toolbox import ToolCounts

# Only two: on a terminal of 80 columns, TRL's table has ten characters for each of its columns.
_TABLE = ("num_turns", "stop_reason")


class Stats(dict[str, Any]):
    """The figures of one rollout; `logged` of the first one says whether the batch was logged."""

    logged = False


def rollout_stats(
    rollout: Rollout,
    *,
    agents: bool = False,
    environment: str | None = None,
    environments: Sequence[str] = (),
    tools: ToolCounts | None = None,
    tool_names: Sequence[str] = (),
    trains_all: bool | None = False,
    teacher: bool = False,
) -> Stats:
    """Return the figures of one rollout, from which metrics are computed.

    Args:
        rollout: one that has ended.
        agents: whether any rollout of the batch could be an agent's; the same on all ranks.
        environment: the name of its environment, if there is a dict of environments.
        environments: the names of all of them; the same on all ranks.
        tools: the calls of its environment. None if no environment of the batch has tools, which
            is the same on all ranks.
        tool_names: the tools of all environments; the same on all ranks.
        trains_all: whether each delivered conversation is trained, or only one; None in evaluation,
            where nothing is trained.
        teacher: whether a teacher scores the rollouts of the batch; the same on all ranks.
    """
    # A conversation that the agent marked as untrained does not count as lost.
    trained = [(int(b.columns.env_mask.sum()), b) for b in rollout.branches if b.trained]
    auxiliary = [b for b in rollout.branches if b.auxiliary and b.delivered]
    of_tools = {} if tools is None else _of_tools(tools, tool_names)
    of_agent = {
        "branches": len(rollout.branches) + (rollout.columns is not None),
        "branch_tokens": sum(tokens for tokens, _ in trained),
        "untrained_tokens": rollout.dropped_tokens - sum(tokens for tokens, _ in trained),
        "auxiliary_tokens": sum(int(branch.columns.env_mask.sum()) for branch in auxiliary),
        "named_rewards": named_rewards(rollout),
        "client_rewrites": dict(rollout.client_rewrites),
        "tool_choice_unmet": rollout.tool_choice_unmet,
    }
    if trains_all is not None:
        dropped = sum(n for n, branch in trained if not (trains_all and branch.delivered))
        of_agent["dropped_tokens"] = dropped
    images = [*rollout.images, *(span for branch in rollout.branches for span in branch.images)]
    figures = {
        **(of_agent if agents else {}),
        **of_tools,
        **(_of_teacher(rollout) if teacher else {}),
        "environment": environment,
        "environments": environments,
        "reward": rollout.reward,
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
        "images": len(images),
        "image_tokens": sum(span.features for span in images),
    }
    return Stats(figures)


def _of_tools(counts: ToolCounts, names: Sequence[str]) -> dict[str, Any]:
    """Return the calls and failures of each tool, and under "" of all tools."""
    both = ("tool_calls", counts.calls), ("tool_failures", counts.failures)
    return {key: {"": of.total(), **{name: of[name] for name in names}} for key, of in both}


def _of_teacher(rollout: Rollout) -> dict[str, Any]:
    every = [one.reverse_kl for one in (rollout.main_row, *rollout.branches) if one is not None]
    scored = [of_tokens for of_tokens in every if of_tokens is not None]
    return {
        "unscored_rows": rollout.unscored_rows,
        "scored_rows": len(scored),
        "scored_tokens": sum(map(len, scored)),
        "reverse_kl": sum(float(of_tokens.sum()) for of_tokens in scored),
    }


def named_rewards(rollout: Rollout) -> dict[str, float]:
    """Return the mean reward of each name, over its conversations that have their own reward."""
    rewards: dict[str, list[float]] = {}
    for one in (rollout.main_row, *rollout.branches):
        if one is not None and one.delivered and one.name is not None and one.reward is not None:
            rewards.setdefault(one.name, []).append(one.reward)
    return {name: sum(values) / len(values) for name, values in rewards.items()}


def rewards_by_name(stats: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the rewards of the rollouts that have one for a name, for each name.

    A name is an environment's name in a dict of environments, or a name that an agent used.
    """
    rewards: dict[str, list[float]] = {}
    for row in stats:
        named = row.get("named_rewards", {}).items()
        own = (row["environment"], row["reward"])
        for name, reward in [own, *(pair for pair in named if pair[0] not in row["environments"])]:
            if name is not None and reward is not None:
                rewards.setdefault(name, []).append(reward)
    return rewards


def note_rewards_by_name(
    stats: Sequence[Stats], of_ranks: Sequence[Mapping[str, Sequence[float]]]
) -> None:
    """Note the rewards by name of all ranks, so that each rank logs the same names."""
    together: dict[str, list[float]] = {}
    for of_rank in of_ranks:
        for name, rewards in of_rank.items():
            together.setdefault(name, []).extend(rewards)
    for row in stats:
        row["rewards_by_name"] = together


def tool_calls(stats: Sequence[Mapping[str, Any]], key: str = "tool_calls") -> dict[str, int]:
    """Return how many calls the rollouts made, by tool, and under "" for all tools.

    Args:
        stats: of at least one rollout.
        key: "tool_failures" counts the calls that failed.
    """
    return {name: sum(row[key][name] for row in stats) for name in stats[0][key]}


def note_tool_calls(stats: Sequence[Stats], of_ranks: Sequence[Mapping[str, int]]) -> None:
    """Note the mean number of calls of a rank's rollouts, by tool."""
    of_a_rank = {name: sum(of[name] for of in of_ranks) / len(of_ranks) for name in of_ranks[0]}
    for row in stats:
        row["tool_calls_of_a_rank"] = of_a_rank


def any_images(stats: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a rollout has an image in one of its conversations."""
    return any(row["images"] for row in stats)


def note_images(stats: Sequence[Stats], found: bool) -> None:
    """Note whether a rollout of any rank has an image, so that each rank logs the same names."""
    for row in stats:
        row["batch_has_images"] = found


def log_batch(
    stats: Sequence[Mapping[str, Any]],
    columns: Mapping[str, Sequence[Any]],
    log_metric: Callable[[str, float], None] | None,
    log_extra: Callable[[str, list[Any]], None] | None,
) -> None:
    """Log the metrics of a batch once, from whichever reward function runs first.

    Args:
        stats: the column `rollout_stats`.
        columns: the other columns, including extras. The mean of each column with a slash in its
            name is logged; `num_turns` and `stop_reason` go to TRL's table of completions.
        log_metric: the function that TRL passes to reward functions; None if TRL does not.
        log_extra: likewise.
    """
    first = stats[0] if stats else None
    if isinstance(first, Stats):
        if first.logged:
            return
        first.logged = True
    if log_metric is not None:
        log_rollout_metrics(stats, log_metric)
        log_extra_metrics(columns, log_metric)
    if log_extra is not None:
        for name in _TABLE:
            if name in columns:
                log_extra(name, list(columns[name]))


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
        # Without a seam the share is unknown, and NaN: TRL leaves NaN out of means.
        log_metric(name, count / seams if seams else math.nan)
    if stats[0].get("batch_has_images", any_images(stats)):
        for key in ("images", "image_tokens"):
            log_metric(f"rollout/{key}/mean", sum(row[key] for row in stats) / len(stats))
    if "tool_calls" in stats[0]:
        _log_tools(stats, log_metric)
    if "scored_rows" in stats[0]:
        _log_teacher(stats, log_metric)
    if "branches" in stats[0]:
        _log_branches(stats, log_metric)
    _log_rewards(stats, log_metric)
    reasons = Counter(row["stop_reason"] for row in stats)
    for reason in StopReason:
        log_metric(f"rollout/stop/{reason}", reasons[reason] / len(stats))


def is_metric(name: str) -> bool:
    """Return whether an extra is logged, because its name has a slash like those of metrics."""
    return "/" in name


def log_extra_metrics(
    columns: Mapping[str, Sequence[Any]], log_metric: Callable[[str, float], None]
) -> None:
    """Log the mean of each column that is a metric, over the rollouts that have a number in it."""
    for name in filter(is_metric, columns):
        numbers = [
            float(value)
            for value in columns[name]
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        log_metric(name, sum(numbers) / len(numbers) if numbers else math.nan)


def _log_tools(
    stats: Sequence[Mapping[str, Any]], log_metric: Callable[[str, float], None]
) -> None:
    """Log calls per rollout and the share that failed, like TRL's own tool loop; then by tool."""
    calls, failures = tool_calls(stats), tool_calls(stats, "tool_failures")
    # TRL takes the mean over the ranks, each of which has its own number of calls.
    each = stats[0].get("tool_calls_of_a_rank", calls)
    for tool in calls:
        name = f"/{tool}" if tool else ""
        log_metric(f"tools/call_frequency{name}", calls[tool] / len(stats))
        # A tool that nobody called has no share, and NaN is left out of means; TRL's own is 0.
        unknown = math.nan if tool else 0.0
        share = failures[tool] / each[tool] if each[tool] else unknown
        log_metric(f"tools/failure_frequency{name}", share)


def _log_teacher(
    stats: Sequence[Mapping[str, Any]], log_metric: Callable[[str, float], None]
) -> None:
    """Log the distance of the policy from the teacher, and how many rows were not scored."""
    keys = ("unscored_rows", "scored_rows", "scored_tokens", "reverse_kl")
    unscored, scored, tokens, divergence = (sum(row[key] for row in stats) for key in keys)
    rows = unscored + scored
    log_metric("rollout/reverse_kl/mean", divergence / tokens if tokens else math.nan)
    log_metric("rollout/teacher_unscored_frac", unscored / rows if rows else math.nan)


def _log_branches(
    stats: Sequence[Mapping[str, Any]], log_metric: Callable[[str, float], None]
) -> None:
    """Log branches and rewrites of agents; an environment has neither."""
    branches = [row["branches"] for row in stats if row["branches"]]
    log_metric("rollout/branches/mean", sum(branches) / len(branches) if branches else math.nan)
    sampled = sum(row["branch_tokens"] + row["sampled_tokens"] for row in stats)
    if "dropped_tokens" in stats[0]:
        dropped = sum(row["dropped_tokens"] for row in stats)
        log_metric("rollout/dropped_sampled_frac", dropped / sampled if sampled else math.nan)
    for rule in REWRITES:
        count = sum(row["client_rewrites"].get(rule, 0) for row in stats)
        log_metric(f"rollout/client_rewrites/{rule}", count / len(stats))
    auxiliary = sum(row["auxiliary_tokens"] for row in stats)
    sampled += sum(row["untrained_tokens"] for row in stats)
    log_metric("rollout/auxiliary_frac", auxiliary / sampled if sampled else math.nan)
    unmet = sum(row["tool_choice_unmet"] for row in stats)
    log_metric("rollout/tool_choice_unmet", unmet / len(stats))


def _log_rewards(
    stats: Sequence[Mapping[str, Any]], log_metric: Callable[[str, float], None]
) -> None:
    """Log the rewards of each named environment, and of each name that an agent used."""
    noted = stats[0].get("rewards_by_name")
    rewards = rewards_by_name(stats) if noted is None else noted
    for name in sorted({*stats[0]["environments"], *rewards}):
        found = rewards.get(name, ())
        mean = statistics.fmean(found) if found else math.nan
        std = statistics.stdev(found) if len(found) > 1 else math.nan
        log_metric(f"rollout/reward/{name}/mean", mean)
        log_metric(f"rollout/reward/{name}/std", std)
