"""What it costs to read the reply of a vLLM server, natively and with `json.loads`.

    python benchmarks/vllm_reply.py

Both sides make the same arrays from the same bytes and check the same; the arrays are compared
before anything is timed.
"""

import json
import random
import timeit
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from abut._native import read_completions

PROMPT = 1000
ROUNDS = 7


def main() -> None:
    """Print one line for each size."""
    for tokens in (64, 1024, 8192):
        body = reply(tokens)
        native, plain = read_completions(body)[0], with_json(body)[0]
        ours = (native.token_ids, native.logprobs, native.prompt_token_ids)
        assert all(np.array_equal(a, b) for a, b in zip(ours, plain, strict=True))
        calls = max(10, 8192 // tokens)
        native_s = seconds(partial(read_completions, body), calls)
        plain_s = seconds(partial(with_json, body), calls)
        print(
            f"{tokens:5} tokens, {len(body) / 1000:6.1f} kB: {native_s * 1e3:6.3f} ms native, "
            f"{plain_s * 1e3:6.3f} ms json.loads, {plain_s / native_s:.1f} times"
        )


def seconds(read: Callable[[], Any], calls: int) -> float:
    """Of one call, in the best of some rounds: others share the machine."""
    return min(timeit.repeat(read, number=calls, repeat=ROUNDS)) / calls


def reply(tokens: int) -> bytes:
    """As `/v1/completions` answers to `return_token_ids` and `logprobs: 0`."""
    draw = random.Random(0)
    ids = [draw.randrange(150_000) for _ in range(tokens)]
    logprobs = [float(np.float32(-draw.expovariate(1))) for _ in ids]
    names = [f"token_id:{id_}" for id_ in ids]
    choice = {
        "index": 0,
        "text": " word" * tokens,
        "logprobs": {
            "text_offset": [13 * index for index in range(tokens)],
            "token_logprobs": logprobs,
            "tokens": names,
            "top_logprobs": [{n: value} for n, value in zip(names, logprobs, strict=True)],
        },
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": ids,
        "prompt_token_ids": [draw.randrange(150_000) for _ in range(PROMPT)],
    }
    return json.dumps({"id": "x", "choices": [choice]}, separators=(",", ":")).encode()


def with_json(body: bytes) -> list[tuple[Any, ...]]:
    """The same in Python."""
    rows = []
    for choice in json.loads(body)["choices"]:
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if len(ids) != len(logprobs):
            raise ValueError("counts")
        if not all(0 <= id_ < 2**32 for id_ in (*ids, *choice["prompt_token_ids"])):
            raise ValueError("id")
        if not all(value is not None and -9999 < value <= 1e-3 for value in logprobs):
            raise ValueError("logprob")
        arrays = ((ids, np.int64), (logprobs, np.float32), (choice["prompt_token_ids"], np.int64))
        rows.append(tuple(np.asarray(values, dtype) for values, dtype in arrays))
    return rows


if __name__ == "__main__":
    main()
