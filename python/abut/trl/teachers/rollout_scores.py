"""A teacher's scores of the rows of a rollout.

Invariant: every row that is trained has scores, and with `drops_incomplete` a score for each of its
sampled tokens. A row that the teacher did not score is not trained: `Rollout.row_trained` or
`Branch.trained` is False, and `Rollout.unscored_rows` counts it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from abut.envs.task import RolloutTask
from abut.errors import TeacherError, TeacherUnavailable
from abut.rollout.rollout import TEACHER_LOGPROBS, Branch, Rollout, give_stream
from abut.rollout.stream import Finish, Finishing
from abut.trl.rows.columns import conversations_of, trained_branches
from abut.trl.teachers.teacher import (
    Student,
    Teacher,
    TeacherScores,
    opened,
    score_row,
    teacher_name,
)


class RolloutScores(NamedTuple):
    """The scores of a rollout.

    Attributes:
        rows: the scores of each conversation that `conversations_of` gave before the call; None for
            a conversation that is not scored.
        lost: how many rows the teacher did not score, and why; None if it scored all.
    """

    rows: Sequence[TeacherScores | None]
    lost: str | None = None


async def score_rollout(
    teacher: Teacher,
    rollout: Rollout,
    name: str,
    *,
    top_k: int = 0,
    vocab_size: int | None = None,
    drops_incomplete: bool = True,
) -> RolloutScores:
    """Have a teacher score all rows of a rollout that are to be trained.

    Adds the stream `teacher_logprobs` to the turns, and sets `rollout.teacher`.

    Args:
        teacher: an open teacher.
        rollout: a rollout that has ended.
        name: the name of the teacher.
        top_k: how many candidates each sampled token gets.
        vocab_size: see `score_row`.
        drops_incomplete: treat a row as not scored if any sampled token has no score.

    Raises:
        TeacherError: see `score_row`; also if the rollout has images.
    """
    conversations = conversations_of(rollout)
    asked = [_is_trained(one) and rollout.measured and not rollout.failed for one in conversations]
    if not any(asked):
        return RolloutScores([None] * len(conversations))
    if any(one.images for one in conversations):
        raise TeacherError(
            f"rollout {rollout.rollout_id} has images, but a teacher gets only token ids, so it "
            "would score tokens without seeing the images before them\n"
            "hint: distill only environments without images"
        )
    answers = await asyncio.gather(
        *(
            _score(teacher, one, name, top_k, vocab_size, drops_incomplete)
            for one, is_asked in zip(conversations, asked, strict=True)
            if is_asked
        ),
        return_exceptions=True,
    )
    rollout.teacher = name
    rows: list[TeacherScores | None] = [None] * len(conversations)
    missing: dict[int, TeacherUnavailable] = {}
    numbers = (k for k, is_asked in enumerate(asked) if is_asked)
    for number, answer in zip(numbers, answers, strict=True):
        if isinstance(answer, TeacherUnavailable):
            missing[number] = answer
        elif isinstance(answer, BaseException):
            raise answer
        else:
            rows[number] = answer
            give_stream(conversations[number].turns, TEACHER_LOGPROBS, answer.drawn)
    _leave_out(rollout, missing)
    if not missing:
        return RolloutScores(rows)
    first = next(iter(missing.values()))
    return RolloutScores(
        rows, f"{len(missing)} of {sum(asked)} rows have no teacher scores: {first}"
    )


def scoring(teacher: Teacher, student: Student) -> Finishing:
    """Return a finishing step for `abut.rollout.stream.Stream` that scores the drawn tokens."""

    async def finish(task: RolloutTask, rollout: Rollout) -> str | None:
        name = teacher_name(teacher, task.columns)
        return (await score_rollout(teacher, rollout, name)).lost

    @asynccontextmanager
    async def finishing() -> AsyncIterator[Finish]:
        async with opened(teacher, student):
            yield finish

    return finishing


def _is_trained(conversation: Branch) -> bool:
    return conversation.trained and bool(conversation.columns.env_mask.any())


async def _score(
    teacher: Teacher,
    conversation: Branch,
    name: str,
    top_k: int,
    vocab_size: int | None,
    drops_incomplete: bool,
) -> TeacherScores:
    """Return the scores of the sampled tokens of a row.

    Raises:
        TeacherUnavailable: the row has no scores, or, with `drops_incomplete`, a token has none.
    """
    columns = conversation.columns
    ids = np.concatenate([columns.prompt_ids, columns.completion_ids]).astype(np.int64)
    positions = len(columns.prompt_ids) + np.flatnonzero(columns.env_mask)
    scores = await score_row(teacher, ids, positions, top_k, name, vocab_size)
    missing = np.flatnonzero(np.isnan(scores.drawn))
    if drops_incomplete and len(missing):
        raise TeacherUnavailable(
            f"the teacher {name!r} returned no finite logprob for token "
            f"{int(positions[missing[0]])} (id {int(ids[positions[missing[0]]])}) of a row of "
            f"{len(ids)} tokens"
        )
    return scores


def _leave_out(rollout: Rollout, missing: Mapping[int, TeacherUnavailable]) -> None:
    """Mark conversations as not trained; `missing` has their indices in `conversations_of`."""
    rollout.unscored_rows += len(missing)
    numbers = [None, *trained_branches(rollout)]
    left_out = {numbers[k] for k in missing}
    if None in left_out:
        rollout.row_trained = False
    rollout.branches = [
        replace(branch, trained=False) if k in left_out else branch
        for k, branch in enumerate(rollout.branches)
    ]
