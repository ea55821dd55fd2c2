"""Rollouts as records have them: of a few made-up tokens, or of a trajectory of real ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import abut
from abut.images import Image, ImageSpan
from abut.messages import Message
from abut.rollout.rollout import (
    TEACHER_LOGPROBS,
    Rollout,
    StopReason,
    TurnRecord,
    give_stream,
)

USER = (abut.Scaffold("<|im_start|>user\n"), abut.Scaffold("<|im_end|>\n"))
ASSISTANT = abut.Scaffold("<|im_start|>assistant\n")
CLOSE = "<|im_end|>"


def a_rollout(rollout_id: str = "r0", **changes: Any) -> Rollout:
    columns = abut.Columns(
        prompt_ids=[1, 2], completion_ids=[3, 4, 5], logprobs=[-0.5, 0.0, -0.25], env_mask=[1, 0, 1]
    )
    rollout = Rollout(
        rollout_id,
        0,
        columns=columns,
        provenance=[0, 0, 3, 2, 3],
        reward=0.5,
        turns=[TurnRecord(2, 3, "stop", 0.25, env_s=0.5, reward=None, stop_token=3)],
        seams=[("barrier", True)],
        messages=[{"role": "user", "content": "hi"}],
        stop_reason=StopReason.ENV_DONE,
    )
    for name, value in changes.items():
        setattr(rollout, name, value)
    return rollout


def a_played_rollout(
    tokenizer: abut.Tokenizer,
    prompt: str,
    turns: Sequence[tuple[str, str | None]],
    rollout_id: str = "r0",
    *,
    cut: Sequence[int] = (),
    **changes: Any,
) -> Rollout:
    """A rollout of one user.

    Args:
        tokenizer: its tokens.
        prompt: what the user says first.
        turns: what the policy says, and what the user then says; None ends it.
        rollout_id: its id.
        cut: turns that the policy did not close itself.
        **changes: fields of the rollout.
    """
    trajectory = abut.Trajectory(tokenizer)
    before, behind = USER
    messages: list[Message] = [{"role": "user", "content": prompt}]
    opening = [before, abut.Content(prompt), behind, ASSISTANT]
    seams = [trajectory.append_parts(opening, provenance="prompt")]
    records = []
    for number, (said, reply) in enumerate(turns):
        ids = tokenizer.encode_parts([abut.Content(said)], at_start=False).tolist()
        if number not in cut:
            ids += tokenizer.encode(CLOSE).tolist()
        start = len(trajectory)
        trajectory.request()
        seams.append(trajectory.append_sampled(ids, -(np.arange(len(ids)) % 10) / 4))
        end = start + len(ids)
        records.append(TurnRecord(start, end, "stop", 0.25, env_s=0.5, reward=number / 4))
        messages.append({"role": "assistant", "content": said})
        if reply is None:
            break
        if number in cut:
            close = [abut.Scaffold(CLOSE)]
            seams.append(trajectory.append_parts(close, provenance="close"))
        answer = [abut.Scaffold("\n"), before, abut.Content(reply), behind, ASSISTANT]
        seams.append(trajectory.append_parts(answer))
        messages.append({"role": "user", "content": reply})
    columns = trajectory.columns()
    length = len(columns.prompt_ids) + len(columns.completion_ids)
    rollout = Rollout(
        rollout_id,
        0,
        columns=columns,
        provenance=trajectory.provenance[:length],
        reward=1.0,
        turns=records,
        seams=[(seam.kind, seam.exact) for seam in seams],
        messages=messages,
        stop_reason=StopReason.ENV_DONE,
        seconds=2.0,
    )
    for name, value in changes.items():
        setattr(rollout, name, value)
    return rollout


def give_teacher(rollout: Rollout, divergences: Sequence[float], name: str = "maths") -> Rollout:
    """Have a teacher score a row: the logprob of each sampled token less so much, in turn."""
    columns = rollout.columns
    assert columns is not None
    own = columns.logprobs[columns.env_mask == 1]
    of_teacher = own - np.resize(np.asarray(divergences, np.float32), len(own))
    give_stream(rollout.turns, TEACHER_LOGPROBS, of_teacher.astype(np.float32))
    rollout.teacher = name
    return rollout


MEDIA = "<|endoftext|>"
"""Stands for the features of an image: any control token may."""


def a_pictured_rollout(tokenizer: abut.Tokenizer, pixels: Any, **changes: Any) -> Rollout:
    """A rollout of one turn whose prompt has an image of four tokens."""
    image = Image.of(pixels)
    trajectory = abut.Trajectory(tokenizer)
    before, behind = USER
    prompt = [before, abut.Scaffold(4 * MEDIA), abut.Content("Which colour?"), behind, ASSISTANT]
    trajectory.append_parts(prompt, provenance="prompt")
    trajectory.request()
    said = tokenizer.encode("r").tolist()
    trajectory.append_sampled(said, [-1.0] * len(said))
    columns = trajectory.columns()
    start = columns.prompt_ids.tolist().index(tokenizer.token_to_id(MEDIA))
    blocks = [{"type": "image", "image": image}, {"type": "text", "text": "Which colour?"}]
    turn = TurnRecord(len(columns.prompt_ids), len(trajectory), "length")
    return a_rollout(
        **{
            "columns": columns,
            "provenance": trajectory.provenance,
            "turns": [turn],
            "seams": [],
            "images": [ImageSpan(image, start, start + 4, 4)],
            "messages": [
                {"role": "user", "content": blocks},
                {"role": "assistant", "content": "r"},
            ],
        }
        | changes
    )
