"""The request to `/run`: its body, made from a row and a rollout's id, and its connection.

Invariant: the row is sent unchanged, except for fields that a server would refuse or that would
sample off-policy: null parameters are left out, and sampling settings are the trainer's.

An agent may be silent for as long as it plays, but its machine may not. Such a connection is idle
for minutes, so it uses TCP keep-alive: if a node is cut off, its rollouts fail after half a minute
instead of their full time limit.
"""

import json
import socket
from collections.abc import Mapping
from typing import Any

from abut.address import said
from abut.envs.signatures import UnplayableRow
from abut.errors import MissingExtraError
from abut.gateway.ledger.unnamed import ExpectedRollout, opening_of
from abut.nemo_gym.rows import PARAMS, extra_body, openings
from abut.nemo_gym.servers import QUOTING, PlayedBy, Servers

_AS_CLIENTS_SAY = {"temperature": "temperature", "top_p": "top_p"}
_MOST_TOKENS = "max_output_tokens"
_CONNECT_S = 30.0
_MOST_BYTES = 512 * 2**20
# After 15 s of silence the other machine is probed, every 5 s, and given up after 4 probes.
_IDLE_S, _AGAIN_S, _TIMES = 15, 5, 4
_SETTINGS = (
    ("TCP_KEEPIDLE", _IDLE_S),
    ("TCP_KEEPINTVL", _AGAIN_S),
    ("TCP_KEEPCNT", _TIMES),
    # In milliseconds: no probe is sent while data that was sent is still unconfirmed.
    ("TCP_USER_TIMEOUT", (_IDLE_S + _AGAIN_S * _TIMES) * 1000),
)


def run_request(
    row: Mapping[str, Any],
    played: PlayedBy,
    *,
    rollout_id: str,
    sampling: Mapping[str, Any],
    group: int,
    place: int,
) -> dict[str, Any]:
    """Return the body of the request.

    Args:
        row: a row of the dataset.
        played: the server that plays it.
        rollout_id: the id under which the agent's calls reach the gateway.
        sampling: the trainer's settings, by the names that chat clients know, and `max_tokens`.
        group: the number of the rollout's group.
        place: the rollout's index in its group.

    Raises:
        UnplayableRow: the row is a task, and the agent takes only rows.
    """
    if "task_input" in row:
        if played.environment is None:
            raise UnplayableRow(
                f"agent {played.agent} takes rows with responses_create_params, but the dataset "
                "has a materialized task\n"
                "hint: start the environment server of the agent, or use rows with "
                "responses_create_params"
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
        # Environment servers answer 500 without both, and confuse rollouts that share them.
        "_ng_task_index": group,
        "_ng_rollout_index": place,
        "_ng_rollout_id": rollout_id,
    }
    if played.environment is None:
        body["agent_ref"] = {"type": "responses_api_agents", "name": played.agent}
    return body


def expected_of(
    servers: Servers, agent: str, row: Mapping[str, Any], wait_s: float
) -> ExpectedRollout:
    """Return how the gateway recognizes an agent's requests that lack the rollout's id.

    Args:
        servers: the head's servers.
        agent: the agent's name.
        row: a row of the dataset.
        wait_s: how long a request waits that could also belong to another rollout.
    """
    quotes = servers.kind_of(agent) in QUOTING
    return ExpectedRollout(agent, opening_of(openings(row)), quotes=quotes, wait_s=wait_s)


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


class RunSession:
    """Sends requests to agents, each over its own connection.

    Raises:
        MissingExtraError: aiohttp is not installed.
    """

    def __init__(self) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise MissingExtraError(
                "abut.nemo_gym needs aiohttp: pip install 'abut[nemo_gym]'"
            ) from error
        self._client_error = aiohttp.ClientError
        self._session = aiohttp.ClientSession(
            # No reuse: a rollout takes longer than servers keep an idle connection open.
            connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=_watched),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )

    async def run(self, url: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Post to `/run` of a server; return status and body, without a time limit.

        Raises:
            OSError: the connection failed or broke, or the answer is too long.
        """
        try:
            async with self._session.post(
                f"{url}/run",
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
                allow_redirects=False,
            ) as reply:
                answer = bytearray()
                async for chunk in reply.content.iter_any():
                    answer += chunk
                    if len(answer) > _MOST_BYTES:
                        raise OSError(f"the answer has more than {_MOST_BYTES} bytes")
                return reply.status, bytes(answer)
        except self._client_error as error:  # not all of them are OSErrors
            raise OSError(said(error)) from error

    async def close(self) -> None:
        """Abandon the pending requests, and close."""
        await self._session.close()


def _watched(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket that notices when the other machine is unreachable."""
    family, kind, protocol, *_ = address
    watched = socket.socket(family, kind, protocol)
    watched.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SETTINGS:
        if (option := getattr(socket, name, None)) is not None:  # not all systems have all of them
            watched.setsockopt(socket.IPPROTO_TCP, option, value)
    return watched
