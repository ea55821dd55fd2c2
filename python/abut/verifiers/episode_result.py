"""The traces of an episode as the result of a rollout: a name and a reward for each session.

Invariant: a trace has a reward only if the episode and the trace succeeded and each of its rewards
is present and finite. A trace of an untrained seat never has a reward, so it is never a
row. No trace ever has the reward of another.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from abut.agents.protocol import AgentResult
from abut.errors import EnvError

_MOST_ERRORS = 3


def result_of(
    episode: Any, minted: Iterable[Any], *, name: str, trained: Collection[str]
) -> AgentResult:
    """Return the result of an episode that succeeded.

    Args:
        episode: a `verifiers.v1.Episode`.
        minted: all traces that the episode began.
        name: the environment's name, the prefix of metrics.
        trained: the seats that are trained.
    """
    ours = [trace for trace in episode.traces if _is_trained(trace, trained)]
    rewards = {trace.id: reward_of(trace) for trace in ours}
    asked = [rewards[trace.id] for trace in ours if trace.num_turns]
    scores = [score for score in asked if score is not None]
    result = _without_rewards(minted, trained, extras_of(episode.traces, name))
    if not any(trace.rewards for trace in ours):
        # The taskset gives no rewards, so the trainer's reward functions score the rollout.
        return replace(result, measured=True)
    if not scores:
        return result
    rewards = {**dict.fromkeys(result.names), **rewards}  # None also for a trace that did not end
    return replace(result, reward=fmean(scores), measured=True, rewards=rewards)


def cut_short(minted: Iterable[Any], trained: Collection[str]) -> AgentResult:
    """Return the result of an episode that failed because a limit of the run ended its calls."""
    return _without_rewards(minted, trained, {})


def _without_rewards(
    minted: Iterable[Any], trained: Collection[str], extras: Mapping[str, float]
) -> AgentResult:
    """Return a result without anything to train.

    Only the seats that are never trained get a reward of None here. Tables and records then show a
    trained seat's conversation for the rollout.
    """
    minted = list(minted)
    others = [trace.id for trace in minted if not _is_trained(trace, trained)]
    names = {trace.id: trace.agent.name for trace in minted}
    return AgentResult(None, extras, measured=False, names=names, rewards=dict.fromkeys(others))


def reward_of(trace: Any) -> float | None:
    """Return the weighted sum of a trace's rewards, or None if the trace was not scored."""
    rewards = list(trace.rewards.values())
    if not (trace.ok and rewards) or any(reward is None for reward in rewards):
        return None
    total = sum(float(reward.value) for reward in rewards)
    return total if math.isfinite(total) else None


def extras_of(traces: Sequence[Any], name: str) -> dict[str, float]:
    """Return the metrics and the parts of rewards, each averaged over the traces of a seat."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        for key, value in _numbers_of(trace):
            if value is not None and math.isfinite(value):
                found.setdefault(f"{name}/{trace.agent.name}/{key}", []).append(float(value))
    return {key: fmean(values) for key, values in found.items()}


def failure_of(episode: Any, name: str) -> EnvError:
    """Return the error of a failed episode, with the traceback in the environment's code."""
    # Errors of traces come first, because `Env.run` often raises only that a seat has stopped.
    errors = [*(error for trace in episode.traces for error in trace.errors), *episode.errors]
    said = [f"{error.type}: {error.message}" for error in errors[:_MOST_ERRORS]]
    error = EnvError(f"{name}: {'; '.join(dict.fromkeys(said)) or 'the episode is not ok'}")
    error.trace = next((one.traceback for one in errors if one.traceback), "")
    return error


def _is_trained(trace: Any, trained: Collection[str]) -> bool:
    return trace.agent.name in trained and trace.agent.trainable


def _numbers_of(trace: Any) -> Iterator[tuple[str, float | None]]:
    yield from trace.metrics.items()
    for key, reward in trace.rewards.items():
        yield f"reward/{key}", None if reward is None else reward.value
