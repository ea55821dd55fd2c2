"""A parser of the `prompt_logprobs` in vLLM's answers.

An answer covers every position of the row, including those of the prompt and the environment, and
has the text of each candidate: 20 MB for 32,000 tokens with 8 candidates. It is parsed position by
position, on a thread, because `json.loads` holds the GIL until it has parsed the whole answer. It
blocked the event loop for 0.4 s and more. Position by position, the loop is late by 0.02 s, and
parsing takes about as long in total.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.errors import TeacherError
from abut.trl.teachers.teacher import TeacherScores

# JSON escapes quotes in strings, so this cannot match inside one.
_BEGIN = re.compile(r'"prompt_logprobs"\s*:\s*\[')
_SPACE = re.compile(r"[\s,]*")
# vLLM writes this instead of minus infinity, which JSON does not have.
_NEVER = -9999.0


def read_prompt_logprobs(
    content: bytes, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int
) -> TeacherScores:
    """Return the scores of some positions of a row from an answer of `/v1/completions`.

    Args:
        content: the body of the answer.
        ids: `(T,)`, the row.
        positions: `(n,)`, ascending.
        top_k: how many candidates were requested.

    Raises:
        TeacherError: the answer does not belong to this row.
    """
    scores = TeacherScores(
        np.full((len(positions), top_k + 1), -1, np.int64),
        np.full((len(positions), top_k + 1), -np.inf, np.float32),
        np.full(len(positions), np.nan, np.float32),
    )
    wanted = iter(enumerate(positions.tolist()))
    number, position = next(wanted, (0, -1))
    count = 0
    for count, said in enumerate(_positions(content.decode(errors="replace")), 1):
        if count - 1 != position:
            continue
        if said is not None:
            _note(scores, number, said, str(int(ids[position])), position)
        number, position = next(wanted, (0, -1))
    if count != len(ids):
        raise TeacherError(
            f"the server scored {count} tokens of a row of {len(ids)}\n"
            "hint: find what truncates prompts between this process and the engine"
        )
    return scores


def _positions(text: str) -> Iterator[Any]:
    """Yield the value of each position."""
    begin = _BEGIN.search(text)
    if begin is None:
        raise TeacherError(
            f"the server's answer has no prompt_logprobs: {text[:200]!r}\n"
            "hint: check that it is a vLLM server"
        )
    decoder, at = json.JSONDecoder(), begin.end()
    try:
        while True:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if text[at] == "]":
                return
            value, at = decoder.raw_decode(text, at)
            yield value
    except (ValueError, IndexError) as error:
        raise TeacherError(f"the server's answer is not JSON: {error}") from error


def _note(scores: TeacherScores, number: int, said: Any, drawn_id: str, position: int) -> None:
    """Copy the candidates of one position into `scores`."""
    try:
        found = sorted(
            (each["rank"], int(id_), float(each["logprob"])) for id_, each in said.items()
        )
        drawn = float(said[drawn_id]["logprob"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TeacherError(
            f"the server's prompt_logprobs of token {position}, id {drawn_id}, are "
            f"{str(said)[:200]}\n"
            "hint: expected the logprob of that token and those of the best candidates; check "
            "that it is a vLLM server"
        ) from error
    if len(found) > scores.ids.shape[1]:
        raise TeacherError(
            f"the server gave {len(found)} candidates for token {position}, but only "
            f"{scores.ids.shape[1] - 1} were requested"
        )
    for k, (_, id_, logprob) in enumerate(found):
        scores.ids[number, k] = id_
        scores.logprobs[number, k] = logprob if logprob > _NEVER else -np.inf
    scores.drawn[number] = drawn if drawn > _NEVER else -np.inf
