"""Parsing a vLLM reply: bytes become arrays of ids and logprobs."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut._native import read_completions
from benchmarks.figures import Row, require_same
from benchmarks.measured_conversation import logprobs
from benchmarks.timing import Check, Sides, interleave
from benchmarks.workbench import Workbench

PEER = "json.loads and Python loops"
CASE = "one reply"

Read = tuple[NDArray[np.int64], NDArray[np.float32]]


def measure(workbench: Workbench) -> Row:
    """Parse replies of `/v1/completions`."""
    tokens = workbench.scale.reply_tokens
    row = Row(
        "engine_reply",
        f"parse a vLLM reply of {tokens:,} tokens with logprobs into arrays",
        equal="ids and logprobs",
        notes=["The reply has the format of vLLM's `/v1/completions`, with new tokens in each "
               "round."],
    )  # fmt: skip
    rng = np.random.default_rng(9)

    def prepare(number: int) -> tuple[Sides, Check]:
        body = _reply(rng, workbench, tokens)

        def check(results: dict[str, Any]) -> None:
            for name, ours, theirs in zip(
                ("ids", "logprobs"), results["abut"], results[PEER], strict=True
            ):
                require_same(f"{name} of a reply", PEER, ours, theirs)

        return {"abut": lambda: _abut(body), PEER: lambda: _python(body)}, check

    row.add(CASE, interleave(prepare, workbench.scale.reply_rounds))
    row.need_faster(PEER, CASE, 5)
    return row


def _abut(body: bytes) -> Read:
    (choice,) = read_completions(body)
    return choice.token_ids, choice.logprobs


def _python(body: bytes) -> Read:
    (choice,) = json.loads(body)["choices"]
    ids = [int(token.removeprefix("token_id:")) for token in choice["logprobs"]["tokens"]]
    if ids != choice["token_ids"]:
        raise ValueError("the logprobs and the sample have different ids")
    logs = [float(value) for value in choice["logprobs"]["token_logprobs"]]
    return np.array(ids, dtype=np.int64), np.array(logs, dtype=np.float32)


def _reply(rng: np.random.Generator, workbench: Workbench, tokens: int) -> bytes:
    """Return a reply as vLLM writes it, to a prompt of the same number of tokens."""
    ordinary = workbench.tokenizer.vocab_size * 9 // 10  # added tokens come last
    ids, prompt = (rng.integers(0, ordinary, tokens).tolist() for _ in range(2))
    values = rng.permutation(logprobs(tokens)).tolist()
    names = [f"token_id:{token}" for token in ids]
    choice = {
        "index": 0,
        "text": workbench.tokenizer.decode(ids),
        "logprobs": {
            "text_offset": list(range(0, 4 * tokens, 4)),
            "token_logprobs": values,
            "tokens": names,
            "top_logprobs": [{n: v} for n, v in zip(names, values, strict=True)],
        },
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
        "routed_experts": None,
    }
    usage = {"prompt_tokens": tokens, "total_tokens": 2 * tokens, "completion_tokens": tokens}
    reply = {
        "id": "cmpl-9a04ffde065c9506",
        "object": "text_completion",
        "created": 1_795_206_197,
        "model": "policy",
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage,
        "kv_transfer_params": None,
    }
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()
