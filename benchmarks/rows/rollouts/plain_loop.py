"""A plain loop around a trajectory: the same conversations, one after the other on one thread.

It shows the overhead of the engine, and the shortest possible time.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut import Columns, Trajectory
from abut.messages import Message
from abut.rollout.conversation import Conversation
from benchmarks.measured_conversation import logprobs
from benchmarks.rows.rollouts.lists import Lists, as_lists
from benchmarks.rows.rollouts.script import SYSTEM, Script
from benchmarks.workbench import Workbench

LOOP = "abut, a plain loop around Trajectory"
FLOOR = "abut, the plain loop without decoding samples"


def play_in_a_loop(script: Script) -> Lists:
    """Play like `play_with_users`, but one rollout after the other."""
    return _play(script, _with_reading)


def play_without_reading(script: Script) -> Lists:
    """Do only what every loop around a trajectory has to do."""
    return _play(script, _without_reading)


Rollout: TypeAlias = Callable[[Workbench, Sequence[NDArray[np.int64]], Sequence[str]], Columns]
"""Plays one rollout: receives the ids of each turn, the opening of the conversation, and the reply
to each turn. The last reply is appended, and no sample follows it."""


def _play(script: Script, rollout: Rollout) -> Lists:
    spoken = zip(script.sampled, script.replies, strict=True)
    return as_lists([rollout(script.workbench, *one) for one in spoken])


def _with_reading(
    workbench: Workbench, sampled: Sequence[NDArray[np.int64]], replies: Sequence[str]
) -> Columns:
    """Decode and parse samples, as an engine has to for the environment."""
    conversation = Conversation(workbench.tokenizer, workbench.processor)
    conversation.open(_prompt(replies[0]))
    for ids, reply in zip(sampled, replies[1:], strict=True):
        conversation.request()
        conversation.action(conversation.hear(ids, logprobs(len(ids))))
        conversation.say([{"role": "user", "content": reply}])
    return conversation.trajectory.columns()


def _without_reading(
    workbench: Workbench, sampled: Sequence[NDArray[np.int64]], replies: Sequence[str]
) -> Columns:
    """Use only the trajectory."""
    processor, trajectory = workbench.processor, Trajectory(workbench.tokenizer)
    parts = processor.opening(_prompt(replies[0]))
    for ids, reply in zip(sampled, replies[1:], strict=True):
        trajectory.append_parts(parts)
        trajectory.request()
        trajectory.append_sampled(ids, logprobs(len(ids)))
        parts = processor.increment([{"role": "user", "content": reply}])
    return trajectory.columns()


def _prompt(question: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
