"""The scores of a teacher for the rows of `AsyncDistillationTrainer`.

Invariant: a pushed row has the teacher's candidates at its trained tokens only. A row that the
teacher did not score is not pushed. Checkpoints keep rows without scores, and the teacher, which
never changes, scores them again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.envs.task import RolloutTask
from abut.errors import TeacherUnavailable
from abut.rollout.rollout import Rollout
from abut.trl.rows.columns import conversations_of
from abut.trl.streaming.training_row import (
    DistillationRow,
    RolloutRow,
    can_be_scored,
    joined,
)
from abut.trl.teachers.rollout_scores import score_rollout
from abut.trl.teachers.teacher import (
    TEACHER_ID,
    Student,
    Teacher,
    TeacherScores,
    check_names,
    check_temperature,
    opened,
    score_row,
    teacher_name,
)

RowKey = tuple[bytes, bytes]


class Distillation:
    """Lets a teacher score the rows of one worker.

    Args:
        teacher: scores the rows.
        args: the trainer's `AsyncDistillationConfig`.
        dataset: is checked for the teacher's names.
        tokenizer: the student's.

    Raises:
        ValueError: the trainer would compute another loss than `args` say.
    """

    def __init__(self, teacher: Teacher, args: Any, dataset: Any, tokenizer: Any) -> None:
        if not isinstance(teacher, Teacher):
            raise TypeError(
                "teacher must have a method `async score(ids, positions, top_k, name)`, got "
                f"{teacher!r}\n"
                "hint: use VllmTeacher(urls) or ModelTeacher(model)"
            )
        self.top_k = candidates(args)
        check_temperature(teacher, args.teacher_temperature)
        check_names(teacher, dataset, args.teacher_server_urls)
        self._teacher = teacher
        self._tokenizer = tokenizer
        self._vocab_size: int | None = None
        self._found: dict[str, dict[RowKey, TeacherScores]] = {}

    @asynccontextmanager
    async def finishing(
        self, *, max_tokens: int | None, vocab_size: int | None
    ) -> AsyncIterator[Callable[[RolloutTask, Rollout], Awaitable[str | None]]]:
        """Open the teacher; yield the function that scores a rollout after it has ended.

        Args:
            max_tokens: the length of the longest row; None if unknown.
            vocab_size: of the student's model; None: of its tokenizer.
        """
        self._vocab_size = vocab_size or len(self._tokenizer)
        async with opened(self._teacher, Student(self._tokenizer, self.top_k, max_tokens)):
            yield self._finish

    async def _finish(self, task: RolloutTask, rollout: Rollout) -> str | None:
        """Score the rows of a rollout, and return an error text about rows that were not scored."""
        name = teacher_name(self._teacher, task.columns)
        if not can_be_scored(rollout):
            return None
        keys = [_key(*joined(each.columns)[:2]) for each in conversations_of(rollout)]
        scores = await score_rollout(
            self._teacher,
            rollout,
            name,
            top_k=self.top_k,
            vocab_size=self._vocab_size,
            drops_incomplete=False,  # TRL leaves out tokens without candidates
        )
        self._found[rollout.rollout_id] = {
            key: found for key, found in zip(keys, scores.rows, strict=True) if found is not None
        }
        return scores.lost

    def take(self, rollouts: Sequence[Rollout]) -> Mapping[RowKey, TeacherScores]:
        """Return the scores of the rows of a group, and forget them."""
        found: dict[RowKey, TeacherScores] = {}
        for rollout in rollouts:
            found |= self._found.pop(rollout.rollout_id, {})
        return found

    async def score_again(self, row: RolloutRow) -> TeacherScores | None:
        """Return the scores of a row of a checkpoint; None if the teacher did not score it."""
        ids, mask = np.asarray(row.input_ids), np.asarray(row.completion_mask)
        # The run that wrote the checkpoint may have called its only teacher by another name.
        name = teacher_name(self._teacher, {TEACHER_ID: row.teacher_id})
        try:
            return await score_row(
                self._teacher, ids, np.flatnonzero(mask), self.top_k, name, self._vocab_size
            )
        except TeacherUnavailable:
            return None

    def name_of(self, task: RolloutTask) -> str:
        """Return the name of the teacher that scores a task's rows."""
        return teacher_name(self._teacher, task.columns)


def candidates(args: Any) -> int:
    """Return the `top_k` to request from the teacher: exactly what the loss needs.

    TRL requests `teacher_top_k` whatever `beta` is, and may then use only the first and the drawn
    one.

    Raises:
        ValueError: the loss would always be 0, or `top_k` is too small for it.
    """
    if args.teacher_top_k < 0:
        raise ValueError(f"teacher_top_k={args.teacher_top_k}: must be at least 0")
    if args.beta == 0:
        return int(args.teacher_top_k)
    if args.beta == 1:
        if not args.add_tail_bucket:
            raise ValueError(
                "beta=1 with add_tail_bucket=False gives a loss that is always 0, because it is "
                "computed over the drawn token alone\n"
                "hint: set add_tail_bucket=True"
            )
        return 0
    if args.teacher_top_k < 1:
        raise ValueError(
            f"beta={args.beta:g} with teacher_top_k=0: the loss needs the teacher's most likely "
            "token\n"
            "hint: set teacher_top_k=1; the loss uses no further tokens"
        )
    return 1


def with_scores(row: RolloutRow, scores: TeacherScores, *, as_lists: bool) -> DistillationRow:
    """Return a row with the candidates of its trained tokens."""
    mask = np.asarray(row.completion_mask) == 1
    width = scores.ids.shape[1]
    ids = np.full((len(mask), width), -1, np.int64)
    logprobs = np.full((len(mask), width), -np.inf, np.float32)
    ids[mask], logprobs[mask] = scores.ids, scores.logprobs
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    if not as_lists:
        return DistillationRow(**fields, teacher_topk_ids=ids, teacher_topk_logprobs=logprobs)
    counts = (ids >= 0).sum(axis=1).tolist()
    return DistillationRow(
        **fields,
        teacher_topk_ids=_lists(ids, counts),
        teacher_topk_logprobs=_lists(logprobs, counts),
    )


def row_key(row: RolloutRow) -> RowKey:
    """Return the ids and the mask of a row, which identify its scores."""
    return _key(np.asarray(row.input_ids), np.asarray(row.completion_mask))


def _lists(values: NDArray[Any], counts: Sequence[int]) -> list[list[Any]]:
    return [line[:count] for line, count in zip(values.tolist(), counts, strict=True)]


def _key(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> RowKey:
    return ids.astype(np.int64).tobytes(), mask.astype(np.bool_).tobytes()
