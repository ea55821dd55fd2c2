"""The protocol of a teacher, and checks of the scores that it returns.

Invariant: `score_row` returns candidates of the student's vocabulary, most likely first, with
finite logprobs. They include the drawn token, wherever the teacher scored it. TRL checks none of
this: one NaN turns the weights into NaN, and candidates in another order give another loss.
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from abut.concurrency.threads import work_done
from abut.errors import TeacherError, TeacherUnavailable, text_of

TEACHER_ID = "teacher_id"
"""The dataset column that names the teacher of a row; TRL's name."""

# Rounding in float32 and bfloat16 makes sums a little more than 1; logits give far more.
_MOST = 1.02
_QUICK = 20_000


class TeacherScores(NamedTuple):
    """A teacher's scores of `n` positions of a row.

    Candidates are padded with id -1 and logprob -inf.
    """

    ids: NDArray[np.int64]
    """`(n, W)` candidates for the token at each position, most likely first."""
    logprobs: NDArray[np.float32]
    """`(n, W)`, nats."""
    drawn: NDArray[np.float32]
    """`(n,)`, nats: logprobs of the tokens the student drew; NaN where the teacher gave none."""


@runtime_checkable
class Teacher(Protocol):
    """A model that scores the student's tokens. It never changes during a run.

    A teacher may also have these attributes: `names`, a tuple of the teacher names that it accepts;
    `temperature`, the temperature of its softmax (1 without the attribute); and `open(student)`,
    which returns an asynchronous context manager. If it exists, `score` is called only inside that
    context.
    """

    async def score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int, name: str
    ) -> TeacherScores:
        """Score tokens of a row.

        Args:
            ids: `(T,)`, the whole row.
            positions: `(n,)`, ascending, from 1: positions of the tokens to score. The token at
                position `p` is scored given `ids[:p]`.
            top_k: how many of the most likely candidates to return for each position. The drawn
                token is returned too if it is not among them.
            name: the name of the row's teacher.

        Returns:
            Scores with a `W` of at most `top_k + 1`. Candidates may be in any order and have NaN,
            because abut sorts them and drops NaN.

        Raises:
            ConnectionError, TimeoutError: this row is not scored, and the run continues without it.
                Any other error ends the run.
        """
        ...


@dataclass(frozen=True)
class Student:
    """The facts about the student that a teacher needs.

    Attributes:
        tokenizer: a Hugging Face tokenizer; the teacher's must be the same.
        top_k: the largest `top_k` that `Teacher.score` will be called with.
        max_tokens: the length of the longest row; None if unknown.
    """

    tokenizer: Any
    top_k: int
    max_tokens: int | None = None


@asynccontextmanager
async def opened(teacher: Teacher, student: Student) -> AsyncIterator[None]:
    """Open a teacher for a student, on the event loop that will call `score`.

    Raises:
        TeacherError: the teacher cannot score this student.
    """
    open_: Any = getattr(teacher, "open", None)
    if open_ is None:
        yield
        return
    opening: AbstractAsyncContextManager[object] = open_(student)
    async with opening:
        yield


async def score_row(
    teacher: Teacher,
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    top_k: int,
    name: str,
    vocab_size: int | None = None,
) -> TeacherScores:
    """Have a teacher score a row, then check and sort the scores.

    Args:
        teacher: an open teacher.
        ids: `(T,)`, the whole row.
        positions: `(n,)`, as in `Teacher.score`.
        top_k: as in `Teacher.score`.
        name: the name of the row's teacher.
        vocab_size: the student's; candidates with larger ids are dropped. None: no candidates are
            dropped.

    Returns:
        Scores with `W = top_k + 1`.

    Raises:
        TeacherUnavailable: the teacher did not score the row.
        TeacherError: the teacher did not return valid scores of these positions.
    """
    try:
        scores = await teacher.score(ids, positions, top_k, name)
    except TeacherError:
        raise
    except (ConnectionError, TimeoutError) as error:
        raise TeacherUnavailable(
            f"the teacher {name!r} did not score a row: {text_of(error)}"
        ) from error
    drawn_ids = ids[positions]
    # 16,000 positions with 64 candidates take 0.1 s, which would delay all other rollouts.
    quick = len(positions) * (top_k + 1) <= _QUICK
    return await work_done(
        quick, lambda: checked_scores(scores, drawn_ids, top_k, name, vocab_size)
    )


def checked_scores(
    scores: Any,
    drawn_ids: NDArray[np.int64],
    top_k: int,
    name: str,
    vocab_size: int | None = None,
) -> TeacherScores:
    """Return scores with only the valid candidates, most likely first, and W = top_k + 1.

    Args:
        scores: the result of the teacher.
        drawn_ids: `(n,)`, the tokens that were scored.
        top_k: as in `Teacher.score`.
        name: the name of the teacher.
        vocab_size: as in `score_row`.

    Raises:
        TeacherError: the shapes do not fit `drawn_ids`, or the values are not logprobs.
    """
    count = len(drawn_ids)
    try:
        ids, logprobs, drawn = scores
        ids, logprobs = np.asarray(ids, np.int64), np.asarray(logprobs, np.float32)
        drawn = np.asarray(drawn, np.float32)
    except (TypeError, ValueError) as error:
        raise _wrong(name, f"{text_of(error)}; expected (ids, logprobs, drawn)") from error
    if ids.ndim != 2 or ids.shape != logprobs.shape or len(ids) != count or drawn.shape != (count,):
        raise _wrong(
            name,
            f"ids {ids.shape}, logprobs {logprobs.shape} and drawn {drawn.shape} for {count} "
            f"positions; expected ({count}, W), ({count}, W) and ({count},)",
        )
    # The drawn token is a candidate too.
    ids, logprobs = np.column_stack([ids, drawn_ids]), np.column_stack([logprobs, drawn])
    counts = (ids >= 0) & np.isfinite(logprobs)
    if vocab_size is not None:
        counts &= ids < vocab_size
    ids, logprobs = _only(ids, logprobs, counts)
    ids, logprobs = _only(ids, logprobs, ~_repeats(ids))
    _check_logprobs(logprobs, name)
    # Stable: candidates with equal logprobs keep the teacher's order.
    ids, logprobs = _ordered(ids, logprobs, -logprobs)
    is_drawn = ids == drawn_ids[:, None]
    of_drawn = np.where(is_drawn, logprobs, -np.inf).max(axis=1)
    ids, logprobs = _only(ids, logprobs, (np.arange(ids.shape[1]) < top_k) | is_drawn)
    ids, logprobs = _ordered(ids, logprobs, ids < 0)
    missing = ((0, 0), (0, max(0, top_k + 1 - ids.shape[1])))
    return TeacherScores(
        np.pad(ids, missing, constant_values=-1)[:, : top_k + 1],
        np.pad(logprobs, missing, constant_values=-np.inf)[:, : top_k + 1],
        np.where(np.isfinite(of_drawn), of_drawn, np.float32(np.nan)),
    )


Candidates: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float32]]


def _only(ids: NDArray[np.int64], logprobs: NDArray[np.float32], kept: Any) -> Candidates:
    """Replace the candidates that are not kept with padding."""
    return np.where(kept, ids, -1), np.where(kept, logprobs, np.float32(-np.inf))


def _ordered(ids: NDArray[np.int64], logprobs: NDArray[np.float32], by: Any) -> Candidates:
    order = np.argsort(by, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(logprobs, order, 1)


def _repeats(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where a candidate repeats an earlier one of the same position."""
    order = np.argsort(ids, axis=1, kind="stable")
    sorted_ids = np.take_along_axis(ids, order, 1)
    repeats = np.zeros(ids.shape, bool)
    np.put_along_axis(repeats, order[:, 1:], sorted_ids[:, 1:] == sorted_ids[:, :-1], 1)
    return repeats & (ids >= 0)


def _check_logprobs(logprobs: NDArray[np.float32], name: str) -> None:
    """Refuse logits and other values that are not log probabilities.

    Raises:
        TeacherError: the probabilities of the candidates of a position sum to more than 1.
    """
    sums = np.exp(np.minimum(logprobs, 50.0)).sum(axis=1)
    if len(sums) and (most := float(sums.max())) > _MOST:
        raise _wrong(
            name,
            "values that are not logprobs: the probabilities of one token's candidates sum to "
            f"{most:.3g}\n"
            "hint: start vLLM with --logprobs-mode raw_logprobs (its default) or "
            "processed_logprobs",
        )


def _wrong(name: str, what: str) -> TeacherError:
    return TeacherError(f"the teacher {name!r} returned {what}")


# ---- the settings of a run


def teacher_name(teacher: Teacher, columns: Mapping[str, Any]) -> str:
    """Return the name of the teacher of a row: its `teacher_id`, or the only name there is.

    Raises:
        ValueError: there are several teachers, and the row does not name one of them.
    """
    names = names_of(teacher)
    if len(names) == 1:
        return names[0]
    name = columns.get(TEACHER_ID)
    if name not in names:
        raise ValueError(_no_teacher("a row", name, names))
    return str(name)


def names_of(teacher: Teacher) -> tuple[str, ...]:
    """Return the names that a teacher accepts; `("default",)` if it does not have `names`."""
    return tuple(getattr(teacher, "names", None) or ("default",))


def check_names(teacher: Teacher, dataset: Any, names: Iterable[str] | None = None) -> None:
    """Refuse a dataset that names a teacher which does not exist.

    Args:
        teacher: the teacher whose names are accepted.
        dataset: a `datasets` dataset. If its columns cannot be read in advance, each row is checked
            when it is played.
        names: the names that the trainer knows; None if it has no names.

    Raises:
        ValueError: the names of the dataset or the trainer do not match the teacher's.
    """
    own = names_of(teacher)
    if names is not None and max(len(own), len(known := tuple(names))) > 1 and {*own} != {*known}:
        raise ValueError(
            f"the teacher has the names {', '.join(map(repr, own))}, but "
            f"args.teacher_server_urls has {', '.join(map(repr, known))}\n"
            "hint: use the same names in both, because TRL looks them up in "
            "args.teacher_server_urls"
        )
    if len(own) == 1 or (columns := getattr(dataset, "column_names", None)) is None:
        return
    if TEACHER_ID not in columns:
        raise ValueError(
            f"the dataset has no column {TEACHER_ID!r}, which must name the teacher of each row: "
            f"{', '.join(map(repr, own))}"
        )
    if not hasattr(dataset, "unique") or all(name in own for name in dataset.unique(TEACHER_ID)):
        return
    for number, name in enumerate(dataset[TEACHER_ID]):
        if name not in own:
            raise ValueError(_no_teacher(f"row {number} of the dataset", name, own))


def _no_teacher(row: str, name: Any, names: Iterable[str]) -> str:
    return f"{row} has {TEACHER_ID}={name!r}, but the teachers are: {', '.join(map(repr, names))}"


def check_temperature(teacher: Teacher, temperature: float) -> None:
    """Refuse a teacher whose temperature is not the one that the loss needs.

    Raises:
        ValueError: the two differ.
    """
    own = getattr(teacher, "temperature", 1.0)
    if own == temperature:
        return
    raise ValueError(
        f"the loss needs teacher logprobs at temperature {temperature:g}, but "
        f"{type(teacher).__name__} computes them at temperature {own:g}\n"
        f"hint: use ModelTeacher(model, temperature={temperature:g}), which scores in this "
        "process; vLLM computes prompt_logprobs only at temperature 1"
    )
