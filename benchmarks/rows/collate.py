"""Padding a batch, compared with a plain copy of the same size."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut import Columns, collate
from benchmarks.figures import Row, require_same
from benchmarks.measured_conversation import logprobs
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

COPY = "NumPy copy of the same size"
CASE = "one batch"
PAD = 0


def measure(workbench: Workbench) -> Row:
    """Collate rows of nearly the same length."""
    rows, tokens = workbench.scale.collate_rows, workbench.scale.collate_tokens
    row = Row(
        "collate",
        f"collate {rows:,} x {tokens:,} tokens",
        equal="all arrays, with those that NumPy pads row by row",
        notes=["An eighth of the tokens is the prompt; some rows are shorter, so that they need "
               "padding."],
    )  # fmt: skip
    columns = _columns(rows, tokens)
    expected = _padded(columns)
    source = np.ones(sum(array.nbytes for array in expected.values()), dtype=np.uint8)

    def prepare(number: int) -> tuple[Sides, Check]:
        def check(results: dict[str, Any]) -> None:
            for name, array in expected.items():
                ours = results["abut"][name]
                require_same(name, "NumPy", ours.ravel(), array.ravel())

        return {"abut": lambda: collate(columns, pad_id=PAD), COPY: source.copy}, check

    row.add(CASE, interleave(prepare, workbench.scale.collate_rounds))
    row.need_ratio(f"abut ÷ {COPY}", ("abut", CASE), (COPY, CASE), "at most", 1.3)
    return row


def _columns(rows: int, tokens: int) -> list[Columns]:
    rng = np.random.default_rng(6)
    prompt, made = tokens // 8, []
    for index in range(rows):
        completion = tokens - prompt - index % 4
        ids = rng.integers(0, 150_000, prompt + completion)
        mask = (np.arange(completion) // 300 % 2 == 0).astype(np.uint8)
        made.append(
            Columns(
                prompt_ids=ids[:prompt],
                completion_ids=ids[prompt:],
                logprobs=np.where(mask == 1, logprobs(completion), np.float32(0)),
                env_mask=mask,
            )
        )
    return made


def _padded(columns: list[Columns]) -> dict[str, NDArray[Any]]:
    """Return the arrays padded by NumPy: prompts on the left, completions on the right."""

    def pad(arrays: list[NDArray[Any]], fill: int, *, left: bool) -> NDArray[Any]:
        width = max(map(len, arrays))
        padded = np.full((len(arrays), width), fill, dtype=arrays[0].dtype)
        for line, array in zip(padded, arrays, strict=True):
            line[width - len(array) if left else 0 :][: len(array)] = array
        return padded

    prompts = [row.prompt_ids for row in columns]
    completions = [row.completion_ids for row in columns]
    ones = [np.ones(len(array), dtype=np.uint8) for array in (*prompts, *completions)]
    return {
        "prompt_ids": pad(prompts, PAD, left=True),
        "prompt_mask": pad(ones[: len(columns)], 0, left=True),
        "completion_ids": pad(completions, PAD, left=False),
        "completion_mask": pad(ones[len(columns) :], 0, left=False),
        "logprobs": pad([row.logprobs for row in columns], 0, left=False),
        "env_mask": pad([row.env_mask for row in columns], 0, left=False),
    }
