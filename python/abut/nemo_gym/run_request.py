"""The body of `/run`: the row as it is, and whose rollout it is.

Invariant: what a row says is sent, but for what would be refused or sampled off-policy: null
parameters go, sampling is the trainer's.
"""

import json
from collections.abc import Mapping
from typing import Any

from abut.envs.reset_keywords import UnplayableRow
from abut.gateway.ledger.unnamed import Expected, opening_of
from abut.nemo_gym.rows import PARAMS, extra_body, openings
from abut.nemo_gym.servers import QUOTING, PlayedBy, Servers

_AS_CLIENTS_SAY = {"temperature": "temperature", "top_p": "top_p"}
_MOST_TOKENS = "max_output_tokens"


def run_request(
    row: Mapping[str, Any],
    played: PlayedBy,
    *,
    rollout_id: str,
    sampling: Mapping[str, Any],
    group: int,
    place: int,
) -> dict[str, Any]:
    """What is posted.

    Args:
        row: of the dataset.
        played: what plays it.
        rollout_id: of the endpoint; the gateway is asked with it.
        sampling: the trainer's settings, by the names that chat clients know, and `max_tokens`.
        group: the number of its group.
        place: which one of that it is.

    Raises:
        UnplayableRow: a task is asked of an agent that takes rows alone.
    """
    if "task_input" in row:
        if played.environment is None:
            raise UnplayableRow(
                f"agent {played.agent} takes rows, and the dataset has a materialized task\n"
                "hint: start its environment server, or give rows with responses_create_params"
            )
        task = {**row["task_input"]}
        task[PARAMS] = _params(task[PARAMS], rollout_id, sampling)
        return _episode(rollout_id, row["task_id"], task)
    params = _params(row[PARAMS], rollout_id, sampling)
    if played.is_typed:
        own = {PARAMS, "agent_ref", "task_source", "id"}
        data = {k: v for k, v in row.items() if k not in own and not k.startswith("_ng_")}
        task_id = {
            "taskset": str(row.get("task_source") or played.environment),
            "task_id": str(row.get("id", group)),
        }
        return _episode(rollout_id, task_id, {PARAMS: params, "task_data": data})
    body = {
        **row,
        PARAMS: params,
        # Environment servers answer 500 without both, and take rollouts of equal ids for one.
        "_ng_task_index": group,
        "_ng_rollout_index": place,
        "_ng_rollout_id": rollout_id,
    }
    if played.environment is None:
        body["agent_ref"] = {"type": "responses_api_agents", "name": played.agent}
    return body


def expected_of(servers: Servers, agent: str, row: Mapping[str, Any], wait_s: float) -> Expected:
    """Return how requests are known that an agent makes for a row without the rollout's id.

    Args:
        servers: of the head.
        agent: its name.
        row: of the dataset.
        wait_s: how long a request waits that is as well another rollout's.
    """
    quotes = servers.kind_of(agent) in QUOTING
    return Expected(agent, opening_of(openings(row)), quotes=quotes, wait_s=wait_s)


def _episode(
    rollout_id: str, task_id: Mapping[str, Any], task_input: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "episode_id": {"rollout_id": rollout_id, "attempt": 0},
        "task": {"task_id": dict(task_id), "task_input": dict(task_input)},
    }


def _params(
    params: Mapping[str, Any], rollout_id: str, sampling: Mapping[str, Any]
) -> dict[str, Any]:
    sent = {key: value for key, value in params.items() if value is not None}
    for name, as_said in _AS_CLIENTS_SAY.items():
        sent.pop(name, None)
        if isinstance(value := sampling.get(as_said), int | float):
            sent[name] = value
    most = [n for n in (sent.get(_MOST_TOKENS), sampling.get("max_tokens")) if isinstance(n, int)]
    if most:
        sent[_MOST_TOKENS] = min(most)
    metadata = dict(sent.get("metadata") or {})
    try:
        extra = extra_body(sent)
    except ValueError as error:
        raise UnplayableRow(str(error)) from None
    sent["metadata"] = {**metadata, "extra_body": json.dumps({**extra, "rollout_id": rollout_id})}
    return sent
