"""The result of `/run`, read from an agent's answer, and the outcome of its rollout.

Invariant: a result is a score or a failure. The HTTP status does not decide it, because environment
servers report failures with 200. The tokens of a result are compared with the ledger and never
trained. A rollout that failed, was masked, or whose tokens differ from the ledger has no reward:
None, never 0.0.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.agents.dataset_agent import finite
from abut.errors import EnvError
from abut.gateway.ledger.unnamed import Unnamed
from abut.rollout.rollout import Rollout, StopReason

_SHOWN = 400
_HOP = "calling an inner server: "
_WRONG_FIELD = re.compile(r'"loc": ?\[([^\]]*)\], ?"msg": ?"([^"]*)"')
_REFUSAL = re.compile(r"""\{"error": ?\{"message": ?"(.*?)", ?"type\"""", re.DOTALL)
"""A refusal of the gateway; the fields after its message are not needed."""
# Each hop escapes a newline once more. Only before "hint:" is it a newline for sure: elsewhere
# a backslash and an n may be LaTeX.
_ESCAPED_HINT = re.compile(r"\\+nhint: ")
_HINT = "\nhint: "
_WORD = re.compile(r"[\w-]+")
_CUT = (
    StopReason.MAX_TURNS,
    StopReason.MAX_CALLS,
    StopReason.MAX_ROLLOUT_TOKENS,
    StopReason.MAX_COMPLETION_TOKENS,
    StopReason.MAX_CONTEXT_TOKENS,
    StopReason.DEADLINE,
)


@dataclass(frozen=True)
class RunResult:
    """An agent's result for a rollout that it played.

    Attributes:
        reward: the reward; None if the agent masked the rollout.
        masked: whether the reward measures nothing.
        truncated: whether a limit ended the rollout.
        components: parts of the reward, by name.
        calls: prompt and sample of each call in the answer: `(T,)` int64, and the index at which
            the sample begins.
    """

    reward: float | None
    masked: bool = False
    truncated: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    calls: Sequence[tuple[NDArray[np.int64], int]] = ()


def read_result(agent: str, status: int, body: bytes) -> RunResult:
    """Read an agent's answer.

    Raises:
        EnvError: the rollout failed; `may_pass` says whether another attempt may succeed.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = body.decode(errors="replace")
    if status != 200:
        raise EnvError(
            f"agent {agent} answered with status {status}: "
            f"{inner_error(value)}{_hint(status, value)}",
            may_pass=status >= 500 and not _lacks_field(value),
        )
    if not isinstance(value, dict):
        raise EnvError(f"agent {agent} answered with status 200 but without a JSON object")
    if "episode_id" in value and ("result" in value or "failure" in value):
        value = _of_episode(agent, value)
    if value.get("_ng_failure_class") is not None:
        raise EnvError(
            f"agent {agent} failed with {value['_ng_failure_class']!s:.80} in stage "
            f"{value.get('_ng_failure_stage')!s:.80}: "
            f"{inner_error(value.get('_ng_failure_message'))}",
            may_pass=value.get("_ng_failure_terminal") is not True,
        )
    reward, masked = value.get("reward"), _is_masked(value)
    if not masked and not _is_number(reward):
        raise EnvError(f"agent {agent} answered with reward={reward!r:.80}")
    response = value.get("response")
    response = response if isinstance(response, Mapping) else {}
    return RunResult(
        reward=None if masked else float(reward or 0.0),
        masked=masked,
        truncated=bool(response.get("incomplete_details")) or value.get("truncated") is True,
        components=_components(value.get("reward_components")),
        calls=list(_calls(response.get("output"))),
    )


def is_in_ledger(lines: Iterable[NDArray[np.int64]], ids: NDArray[np.int64]) -> bool:
    """Return whether a line of the ledger begins with a call's prompt and sample."""
    return any(np.array_equal(line[: len(ids)], ids) for line in lines)


def inner_error(value: Any) -> str:
    """Return the innermost error: each hop quotes the next one and escapes it once more."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    said = _ESCAPED_HINT.sub(_HINT, text.rpartition(_HOP)[2])
    said = re.sub(r"\\+", "", said).strip()
    if refusal := _REFUSAL.search(said):
        said = refusal[1]
    said = re.sub(r"^b?[\"']+|[\"']+$", "", said)
    # A server that refuses a field repeats the whole row after it.
    if wrong := _WRONG_FIELD.findall(said):
        said = "; ".join(f"{'.'.join(re.findall(_WORD, where))}: {why}" for where, why in wrong)
    said, newline, hint = said.partition(_HINT)
    return _cut(said) + newline + _cut(hint)


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _of_episode(agent: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a typed environment server with the keys of a flat one."""
    failure, result = value.get("failure"), value.get("result")
    if isinstance(failure, Mapping):
        return {
            "_ng_failure_class": failure.get("failure_kind") or "environment_server_failed",
            "_ng_failure_terminal": failure.get("terminal"),
            "_ng_failure_message": failure.get("failure_reason"),
            "_ng_failure_stage": failure.get("stage"),
        }
    if not isinstance(result, dict):
        raise EnvError(f"agent {agent} answered with neither a result nor a failure")
    return result


def _is_masked(value: Mapping[str, Any]) -> bool:
    """Return whether a result says that its reward measures nothing.

    Agents that run a container for each row report it in `instance_config`, the copy of their
    settings in the answer, and some report it only there.
    """
    settings = value.get("instance_config")
    said = [value, settings] if isinstance(settings, Mapping) else [value]
    return any(one.get("mask_sample") is True for one in said)


def _components(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {str(name): float(part) for name, part in value.items() if _is_number(part)}


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and finite(value) is not None


def _calls(output: Any) -> Iterable[tuple[NDArray[np.int64], int]]:
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, Mapping):
            continue
        prompt, sample = item.get("prompt_token_ids"), item.get("generation_token_ids")
        if isinstance(prompt, list) and isinstance(sample, list):
            try:
                yield np.asarray([*prompt, *sample], dtype=np.int64), len(prompt)
            except (
                TypeError,
                ValueError,
                OverflowError,
            ):  # not ids: in no ledger
                yield np.asarray([-1]), 0


def _lacks_field(value: Any) -> bool:
    """Return whether a server says that the row lacks a field, which a retry cannot fix."""
    return "Field required" in json.dumps(value)


def _hint(status: int, value: Any) -> str:
    text = json.dumps(value)
    if "hint: " in text:
        return ""
    if status == 422:
        return "\nhint: compare the fields of the row with what this agent takes and needs"
    if _lacks_field(value):
        return "\nhint: add the field to the row; its resources server needs it"
    if status == 404:
        return "\nhint: check that it is an agent; `abut doctor --nemo-gym` lists them"
    return ""


class Outcome(StrEnum):
    """The outcome of a rollout."""

    OK = "ok"
    TRUNCATED = "truncated"
    """A limit ended the rollout; the environment scored what there was."""
    MASKED = "masked"
    """The environment says that the reward measures nothing."""
    FAILED = "failed"
    DRIFT = "drift"
    """The agent's tokens differ from the ledger, because another model answered it."""


def outcome_of(rollout: Rollout, result: RunResult | None) -> Outcome:
    """Return the outcome of a rollout that has ended.

    Args:
        rollout: the rollout as the gateway's ledger has it.
        result: its agent's result; None if there is none.
    """
    if rollout.failed:
        return Outcome.FAILED
    if result is None:  # the agent may have failed on an answer that a limit had cut
        return Outcome.TRUNCATED if rollout.stop_reason in _CUT else Outcome.FAILED
    lines = list(_ledger(rollout))
    if not all(is_in_ledger(lines, ids) for ids, _ in result.calls):
        return Outcome.DRIFT
    if result.masked:
        return Outcome.MASKED
    cut = bool(rollout.turns) and rollout.turns[-1].finish_reason == "length"
    if result.truncated or cut or rollout.stop_reason in _CUT:
        return Outcome.TRUNCATED
    return Outcome.OK


def settled(rollout: Rollout, agent: str, result: RunResult | None) -> Outcome:
    """Give a rollout its reward, the columns for reward functions, and its agent's metrics."""
    outcome = outcome_of(rollout, result)
    scored = outcome in (Outcome.OK, Outcome.TRUNCATED)
    if not (scored or rollout.failed):  # RolloutConfig.on_failure decides about failed ones
        rollout.reward = None
        rollout.measured = False
    components = result.components if result is not None and scored else {}
    of_agent = f"nemo_gym/{agent}"
    rollout.extras = {
        "nemo_gym_outcome": outcome.value,
        **{f"reward_{name}": value for name, value in components.items()},
        **{f"{of_agent}/{one}_frac": float(one is outcome) for one in Outcome},
        f"{of_agent}/reward": rollout.reward,
        **{f"{of_agent}/reward/{name}": value for name, value in components.items()},
        f"{of_agent}/turns": float(len(rollout.turns)),
        f"{of_agent}/seconds": rollout.seconds,
        f"{of_agent}/branched_frac": float(bool(rollout.branches)),
    }
    return outcome


def unheard(agent: str, unnamed: Unnamed) -> EnvError:
    """Return the error of an agent that answered although its rollout's ledger has no call."""
    said = f"agent {agent} answered, but the gateway received no call from it"
    hint = "set policy_base_url in Gym's configuration to the gateway's address"
    if unnamed.refused:
        said = (
            f"agent {agent} answered, but the gateway could not match any call to its rollout: "
            f"{_requests(unnamed.refused)} refused, the last one {unnamed.last}"
        )
        hint = (
            "the harness calls the model server without the rollout's id: have it pass on "
            "responses_create_params.metadata, which has the id, or play one rollout of a prompt "
            "at a time"
        )
    return EnvError(f"{said}\nhint: {hint}", may_pass=False)


def _requests(count: int) -> str:
    if count == 1:
        return "1 request without a rollout id was"
    return f"{count} requests without a rollout id were"


def _ledger(rollout: Rollout) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of the row and of each branch, prompt and completion together."""
    told: Sequence[Any] = [rollout, *rollout.branches]
    for one in told:
        if one.columns is not None:
            yield np.concatenate([one.columns.prompt_ids, one.columns.completion_ids])
