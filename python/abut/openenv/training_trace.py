"""Calls that OpenEnv recorded, in the form for `abut.stitch`.

Invariant: no token and no logprob is changed. A call that OpenEnv marked as context is left out: a
later prompt that contains its tokens has them as context.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut._native import stitch
from abut.errors import TrajectoryError

Call: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]

_SCHEMA_VERSION = 1
# Bodies of requests, which grow with the history and which nothing here reads.
_UNREAD = {"turns": {"__all__": {"request", "response", "metadata"}}}


def calls_of(trace: Any) -> list[Call]:
    """Return the calls of a `TrainingTrace` of OpenEnv 0.10, for `abut.stitch`.

    A turn whose `loss_mask` is 0 over its whole completion is treated as context, not as a call.
    The mask must be 0 over the prompt, and all 0 or all 1 over the completion, because `stitch`
    trains either all tokens of a sample or none.

    Args:
        trace: a `TrainingTrace` (`openenv.core.harness.training`), its `model_dump()`, or its JSON
            as text or UTF-8. The openenv package is not needed.

    Returns:
        `(prompt_ids, completion_ids, logprobs)` of each call, in the trace's order: `(P,)` int64,
        `(T,)` int64 and `(T,)` float32, nats.

    Raises:
        ValueError: this is not such a trace, or `stitch` would refuse a turn; the message has the
            turn's `node_id`.
    """
    if isinstance(trace, (str, bytes, bytearray)):
        trace = json.loads(trace)
    elif callable(dump := getattr(trace, "model_dump", None)):
        trace = dump(exclude=_UNREAD)
    if not isinstance(trace, Mapping) or not isinstance(trace.get("turns"), list):
        raise ValueError(
            "expected a TrainingTrace of OpenEnv, an object with a list of turns\n"
            "hint: pass what fetch_training_trace() returns, or its model_dump_json()"
        )
    version = trace.get("schema_version", _SCHEMA_VERSION)
    if version != _SCHEMA_VERSION:
        raise ValueError(
            f"the trace has schema_version {version!r}, but this version of abut reads "
            f"{_SCHEMA_VERSION}\nhint: record the trace with openenv 0.10, or upgrade abut"
        )
    calls: list[Call] = []
    seen: set[str] = set()
    for position, turn in enumerate(trace["turns"]):
        node_id = turn.get("node_id") if isinstance(turn, Mapping) else None
        if not isinstance(node_id, str) or not node_id:
            raise ValueError(f"turn {position} of the trace (counted from 0) has no node_id")
        if node_id in seen:
            raise ValueError(f"two turns have the node_id {node_id!r}")
        seen.add(node_id)
        if (call := _call_of(turn, f"turn {node_id!r}")) is not None:
            calls.append(call)
    return calls


def _call_of(turn: Mapping[str, Any], name: str) -> Call | None:
    """Return one turn as a call; None where it is context.

    Raises:
        ValueError: `stitch` could not take it.
    """
    prompt_ids = _numbers(turn, "prompt_token_ids", name, int)
    completion_ids = _numbers(turn, "completion_token_ids", name, int)
    logprobs = _numbers(turn, "per_token_logps", name, int, float)
    mask = _numbers(turn, "loss_mask", name, int)
    if len(logprobs) != len(completion_ids):
        raise ValueError(
            f"{name} has {len(completion_ids)} completion_token_ids but {len(logprobs)} "
            "per_token_logps"
        )
    length = len(prompt_ids) + len(completion_ids)
    if len(mask) != length:
        raise ValueError(
            f"{name} has a loss_mask of {len(mask)} numbers, but its prompt and completion have "
            f"{length} tokens"
        )
    if not set(mask) <= {0, 1}:
        raise ValueError(f"{name} has a loss_mask with numbers other than 0 and 1")
    if any(mask[: len(prompt_ids)]):
        raise ValueError(
            f"{name} has a loss_mask that is 1 in the prompt, whose tokens were not sampled"
        )
    trained = sum(mask)
    if completion_ids and not trained:
        return None
    if trained != len(completion_ids):
        raise ValueError(
            f"{name} has a loss_mask that is 1 on {trained} of {len(completion_ids)} sampled "
            "tokens, but stitch trains either all tokens of a sample or none\n"
            "hint: set the whole mask of the completion to 1, or to 0 to keep the turn as context"
        )
    try:
        call = (
            np.array(prompt_ids, np.int64),
            np.array(completion_ids, np.int64),
            np.array(logprobs, np.float64).astype(np.float32),
        )
        stitch([call])
    except OverflowError:
        raise ValueError(f"{name} has a token id that does not fit into 64 bits") from None
    except TrajectoryError as error:
        raise ValueError(str(error).replace("call 0", name, 1)) from None
    return call


def _numbers(turn: Mapping[str, Any], key: str, name: str, *types: type) -> list[Any]:
    values = turn.get(key)
    # By its exact type, because True is an int.
    if not isinstance(values, list) or not set(map(type, values)) <= set(types):
        kind = "whole numbers" if types == (int,) else "numbers"
        raise ValueError(f"{name}: {key} must be a list of {kind}")
    return values
