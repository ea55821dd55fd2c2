"""The protocol of a teacher, and the check of what it returns.

Invariant: scores that have passed `score_row` are candidates of the student's vocabulary, the best
first, with finite logprobs, and the drawn token among them wherever the teacher has scored it. TRL
checks none of that: one NaN makes the weights NaN, candidates in another order give another loss.
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
"""The dataset's column that names a row's teacher, as TRL calls it."""

# Float32 and bfloat16 servers sum to a little more than 1; logits come to far more.
_MOST = 1.02
_QUICK = 20_000


class TeacherScores(NamedTuple):
    """The scores that a teacher gives `n` positions of a row.

    Padding of candidates is id -1 with logprob -inf.
    """

    ids: NDArray[np.int64]
    """`(n, W)` candidates for the token at each position, the best first."""
    logprobs: NDArray[np.float32]
    """`(n, W)`, nats."""
    drawn: NDArray[np.float32]
    """`(n,)`, nats: of the token that the student drew; NaN where the teacher gave none."""


@runtime_checkable
class Teacher(Protocol):
    """A model that scores the tokens of another one. It never changes during a run.

    A teacher may also have `names`, a tuple of the names that it takes; `temperature`, of its
    softmax, which is 1 without that attribute; and `open(student)`, an asynchronous context manager
    inside of which it is asked.
    """

    async def score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int, name: str
    ) -> TeacherScores:
        """Score tokens of a row.

        Args:
            ids: `(T,)`, the whole row.
            positions: `(n,)`, rising, from 1: of the tokens to score. The token at position `p` is
                scored behind `ids[:p]`.
            top_k: how many of the best candidates each position gets; the drawn token comes besides
                if it is not among them.
            name: of the teacher that the row asks for.

        Returns:
            with `W` of at most `top_k + 1`. Candidates may come in any order and with NaN here;
            abut sorts them, and leaves out what is not a number.

        Raises:
            ConnectionError, TimeoutError: this row is not scored, and the run goes on without it.
                Anything else ends the run.
        """
        ...


@dataclass(frozen=True)
class Student:
    """The model that a teacher scores, as the teacher needs to know it.

    Attributes:
        tokenizer: of Hugging Face; the teacher's must be the same.
        top_k: the largest `top_k` that it will be asked for.
        max_tokens: of the longest row; None if nobody knows.
    """

    tokenizer: Any
    top_k: int
    max_tokens: int | None = None


@asynccontextmanager
async def opened(teacher: Teacher, student: Student) -> AsyncIterator[None]:
    """Open a teacher for a student, on the loop on which it is asked.

    Raises:
        TeacherError: it cannot score this student.
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
    """Ask a teacher, and check and sort what it returns.

    Args:
        teacher: is asked.
        ids: `(T,)`, the whole row.
        positions: `(n,)`, as of `Teacher.score`.
        top_k: as of `Teacher.score`.
        name: of the teacher that the row asks for.
        vocab_size: of the student; candidates beyond it are left out. None leaves out none.

    Returns:
        with `W = top_k + 1`.

    Raises:
        TeacherUnavailable: the row is not scored.
        TeacherError: what the teacher returned is not scores of these positions.
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
    # 16,000 positions of 64 candidates take 0.1 s, in which no other rollout would go on.
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
    """Return scores with the candidates that count, the best first, and W = top_k + 1.

    Args:
        scores: what the teacher returned.
        drawn_ids: `(n,)`, the tokens that were scored.
        top_k: as of `Teacher.score`.
        name: of the teacher.
        vocab_size: as of `score_row`.

    Raises:
        TeacherError: they are not scores of so many tokens.
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
    # Stable: equal logprobs stay in the teacher's order, which may know better.
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
    """Return candidates with padding in the place of those that are not kept."""
    return np.where(kept, ids, -1), np.where(kept, logprobs, np.float32(-np.inf))


def _ordered(ids: NDArray[np.int64], logprobs: NDArray[np.float32], by: Any) -> Candidates:
    order = np.argsort(by, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(logprobs, order, 1)


def _repeats(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where a candidate stands that stands before it in the same row, too."""
    order = np.argsort(ids, axis=1, kind="stable")
    sorted_ids = np.take_along_axis(ids, order, 1)
    repeats = np.zeros(ids.shape, bool)
    np.put_along_axis(repeats, order[:, 1:], sorted_ids[:, 1:] == sorted_ids[:, :-1], 1)
    return repeats & (ids >= 0)


def _check_logprobs(logprobs: NDArray[np.float32], name: str) -> None:
    """Refuse logits, and whatever else is not the logarithm of probabilities.

    Raises:
        TeacherError: the candidates of a position have more probability than there is.
    """
    sums = np.exp(np.minimum(logprobs, 50.0)).sum(axis=1)
    if len(sums) and (most := float(sums.max())) > _MOST:
        raise _wrong(
            name,
            f"candidates whose probabilities sum to {most:.3g}, so they are not logprobs\n"
            "hint: vLLM gives logprobs with --logprobs-mode raw_logprobs (its default) or "
            "processed_logprobs",
        )


def _wrong(name: str, what: str) -> TeacherError:
    return TeacherError(f"the teacher {name!r} returned {what}")


# ---- the settings of a run


def teacher_name(teacher: Teacher, columns: Mapping[str, Any]) -> str:
    """Return the name of the teacher of a row: its `teacher_id`, or the only one there is.

    Raises:
        ValueError: there are several, and the row names none of them.
    """
    names = names_of(teacher)
    if len(names) == 1:
        return names[0]
    name = columns.get(TEACHER_ID)
    if name not in names:
        raise ValueError(_no_teacher("a row", name, names))
    return str(name)


def names_of(teacher: Teacher) -> tuple[str, ...]:
    """Return the names that a teacher takes; "default" if it has none."""
    return tuple(getattr(teacher, "names", None) or ("default",))


def check_names(teacher: Teacher, dataset: Any, names: Iterable[str] | None = None) -> None:
    """Refuse a dataset that names a teacher which does not exist.

    Args:
        teacher: has the names.
        dataset: of `datasets`; of one whose columns cannot be read, each row is checked when it is
            played.
        names: those that the trainer knows; None: it knows none.

    Raises:
        ValueError: names are missing, in the dataset or in the trainer.
    """
    own = names_of(teacher)
    if names is not None and max(len(own), len(known := tuple(names))) > 1 and {*own} != {*known}:
        raise ValueError(
            f"the teacher has the names {', '.join(map(repr, own))}, and args.teacher_server_urls "
            f"has {', '.join(map(repr, known))}\n"
            "hint: TRL looks names up there, so with several teachers both need the same ones"
        )
    if len(own) == 1 or (columns := getattr(dataset, "column_names", None)) is None:
        return
    if TEACHER_ID not in columns:
        raise ValueError(
            f"the dataset has no column {TEACHER_ID!r}, which says which of the teachers "
            f"{', '.join(map(repr, own))} scores a row"
        )
    if not hasattr(dataset, "unique") or all(name in own for name in dataset.unique(TEACHER_ID)):
        return
    for number, name in enumerate(dataset[TEACHER_ID]):
        if name not in own:
            raise ValueError(_no_teacher(f"row {number} of the dataset", name, own))


def _no_teacher(row: str, name: Any, names: Iterable[str]) -> str:
    return f"{row} has {TEACHER_ID}={name!r}, but the teachers are: {', '.join(map(repr, names))}"


def check_temperature(teacher: Teacher, temperature: float) -> None:
    """Refuse a teacher of another temperature than the loss takes.

    Raises:
        ValueError: says what to do.
    """
    own = getattr(teacher, "temperature", 1.0)
    if own == temperature:
        return
    raise ValueError(
        f"the loss takes teacher logprobs of temperature {temperature:g}, and "
        f"{type(teacher).__name__} gives them of temperature {own:g}\n"
        "hint: vLLM's prompt_logprobs are of temperature 1, whatever is asked; for another one, "
        f"score in this process: ModelTeacher(model, temperature={temperature:g})"
    )
