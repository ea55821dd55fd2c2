"""The single checks before training, of agents, their model servers, judges and rows.

Invariant: each finding that is an error says what to change. The gateway's key is compared and
never shown.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from abut.http import AnswerError, http_get
from abut.nemo_gym.rows import params_of
from abut.nemo_gym.servers import (
    AGENTS,
    ENVIRONMENTS,
    RESOURCES,
    ModelServer,
    PlayedBy,
    Servers,
)

_KINDS = {
    RESOURCES: "resources server",
    AGENTS: "agent",
    ENVIRONMENTS: "environment server",
}
_ASK_S = 10.0
_MOST_BYTES = 2**20
_FOR_TRAINING = "vllm_model_for_training.yaml"
_REFUSED = (
    "seed",
    "top_k",
    "min_p",
    "stop",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
)
_DROPPED = ("instructions", "reasoning", "text", "truncation", "include", "max_tool_calls")
_OURS = ("temperature", "top_p")
_NOT_RESTARTED = "see the log of Gym, which does not restart a server that has ended"
_HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        level: an "error" makes training wrong or impossible.
        what: the finding.
        hint: what to change; empty if nothing has to change.
        may_pass: whether another rollout may succeed, so that training may begin all the same.
    """

    level: Literal["ok", "warning", "error"]
    what: str
    hint: str = ""
    may_pass: bool = False

    @classmethod
    def of(cls, error: Exception) -> "Finding":
        """Return an error as a finding, with its hint separated."""
        what, _, hint = str(error).partition("\nhint: ")
        return cls("error", what, hint)

    def __str__(self) -> str:
        return self.what + (f"\nhint: {self.hint}" if self.hint else "")


def server_findings(head_url: str, played: PlayedBy) -> Iterator[Finding]:
    """Check that the server that plays an agent's rows answers."""
    kind = f"{played.kind} {played.environment} of " if played.environment else ""
    where = f"{kind}agent {played.agent} at {played.url}"
    if trouble := _trouble_at(f"{played.url}/"):
        host, head = urlsplit(played.url).hostname, urlsplit(head_url).hostname
        hint = _NOT_RESTARTED
        if host in _HERE and head not in _HERE:
            hint = (
                "this address is local to Gym's machine: start Gym with +default_host=<address "
                "of that machine>"
            )
        yield Finding("error", f"{where} does not answer: {trouble}", hint)
    else:
        yield Finding("ok", where)


def trouble_behind(servers: Servers, agent: str) -> str | None:
    """Return which server that an agent needs does not answer, and why; None if all answer."""
    for what, name, url in servers.behind(agent):
        if trouble := _trouble_at(f"{url}/"):
            return f"its {what} {name} at {url} does not answer: {trouble}\nhint: {_NOT_RESTARTED}"
    return None


def models_findings(
    servers: Servers, agents: Iterable[str], *, gateway_url: str | None, key: str | None
) -> Iterator[Finding]:
    """Check that the model servers of agents call the gateway, and return tokens.

    Args:
        servers: the head's servers.
        agents: the agents' names.
        gateway_url: the address of the gateway that runs; None if none does.
        key: that gateway's key; None: any key of Gym's is right.
    """
    models: dict[str, ModelServer] = {}
    for agent in agents:
        if (model := servers.model_of(agent)) is not None:
            models[model.name] = model
            continue
        yield Finding(
            "warning",
            f"agent {agent} names no model_server, so it is not known where it sends its "
            "requests to the policy",
            "make sure that it sends them to the gateway's address, with the rollout's id",
        )
    for model in models.values():
        yield from _model_findings(model, gateway_url, key)


def judge_findings(
    servers: Servers, agents: Iterable[str], *, judge: str | None
) -> Iterator[Finding]:
    """Find judges of these agents that call the policy in training.

    Args:
        servers: the head's servers.
        agents: the agents' names.
        judge: "policy" if the gateway answers such a judge.
    """
    agents = list(agents)
    models = [model for model in map(servers.model_of, agents) if model is not None]
    policy = {url for model in models for url in model.base_urls}
    found = [one for agent in agents for one in servers.asked_apart(agent)]
    for one in {(one.server, one.field): one for one in found}.values():
        if not policy.intersection(one.urls):
            continue
        where = f"{_KINDS[one.kind]} {one.server} calls {one.model}, named in its field {one.field}"
        if judge == "policy":
            yield Finding(
                "ok", f"{where}: the policy answers these requests, and they are never trained"
            )
            continue
        yield Finding(
            "error",
            f"{where}, which is the policy that is trained. Such requests name no rollout, so "
            "the gateway refuses them and the judge returns no score",
            f'give {one.field} its own model server, or use NemoGym(..., judge="policy"), which '
            "answers the judge from the policy without training on it",
        )


def _model_findings(
    model: ModelServer, gateway_url: str | None, key: str | None
) -> Iterator[Finding]:
    where = f"model server {model.name} ({model.kind})"
    if model.settings.get("return_token_id_information") is not True:
        yield Finding(
            "error",
            f"{where} has return_token_id_information off, so abut cannot compare the tokens of "
            "its answers",
            f"start Gym with {_FOR_TRAINING}, or set return_token_id_information: true",
        )
    if not model.base_urls:
        yield Finding(
            "error",
            f"{where} has no base_url, so it does not call the gateway",
            "set policy_base_url to the gateway's address, and use the model server vllm_model",
        )
    for url in model.base_urls:
        yield from _address_findings(where, url, model.api_key or key, gateway_url)
    if key is not None and model.api_key not in (key, None):
        yield Finding(
            "error",
            f"{where} has an api_key that is not the gateway's key",
            "set ABUT_GATEWAY_KEY where training starts and Gym's policy_api_key to the same value",
        )


def row_findings(rows: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Find sampling parameters in rows that servers refuse or drop, or that the trainer sets."""
    count, said = 0, Counter[str]()
    for row in rows:
        count += 1
        params = params_of(row)
        said.update(key for key, value in params.items() if value is not None)
    for name in (name for name in _REFUSED if said[name]):
        yield Finding(
            "error",
            f"{said[name]} of {count} rows have responses_create_params.{name}, which every "
            "model server refuses (422)",
            f'leave it out; metadata={{"extra_body": "{{\\"{name}\\": …}}"}} can carry it, but the '
            "trainer's settings win",
        )
    for name in (name for name in _DROPPED if said[name]):
        yield Finding(
            "warning",
            f"{said[name]} of {count} rows have responses_create_params.{name}, which NeMo Gym "
            "0.4.0 silently drops",
            "put everything that the policy must know into input, as a message",
        )
    ours = [f"{name} ({said[name]})" for name in _OURS if said[name]]
    if ours:
        yield Finding(
            "ok",
            f"rows set {' and '.join(ours)}, but the policy is sampled with the trainer's settings",
        )


def _address_findings(
    where: str, url: str, api_key: str | None, gateway_url: str | None
) -> Iterator[Finding]:
    """Check that a model server's base_url is the address of a gateway."""
    if not url.rstrip("/").endswith("/v1"):
        yield Finding(
            "error",
            f"{where} calls {url}, which does not end in /v1",
            f"set policy_base_url to {gateway_url or 'the gateway address, http://HOST:PORT/v1'}",
        )
        return
    if gateway_url is None:
        yield Finding("ok", f"{where} calls {url}")
        return
    hint = f"set policy_base_url to {gateway_url}"
    try:
        is_ours = _is_gateway(url, api_key)
    except OSError as error:
        if _refuses_key(error):
            yield Finding(
                "error", f"the server at {url} does not accept the api_key of {where}", hint
            )
            return
        if _is_same(url, gateway_url):
            yield Finding("error", f"{where} calls {url}, where nothing answers: {error}", hint)
            return
        yield Finding(
            "warning",
            f"{where} calls {url}, which does not answer from this machine: {error}",
            f"if it answers from Gym's machine, nothing is wrong; otherwise {hint}",
        )
        return
    if is_ours:
        yield Finding("ok", f"{where} calls the gateway at {url}")
    else:
        yield Finding("error", f"{where} calls {url}, which is not an abut gateway", hint)


def gateway_findings(url: str, key: str, trouble: str) -> Iterator[Finding]:
    """Report what runs at the gateway's address if `abut doctor` cannot listen there itself."""
    try:
        is_ours = _is_gateway(url, key)
    except OSError as error:
        if _refuses_key(error):
            yield Finding(
                "error",
                f"the server at {url} does not accept policy_api_key",
                "set ABUT_GATEWAY_KEY where training starts and Gym's policy_api_key to the same "
                "value",
            )
            return
        yield Finding(
            "warning",
            f"could not play a probe rollout: {trouble}; nothing answers at {url} either: {error}",
            "run this command on the machine that will train; with --host 0.0.0.0 it listens on "
            "all addresses",
        )
        return
    if is_ours:
        yield Finding(
            "ok", f"an abut gateway is already running at {url}, so no probe rollout was played"
        )
    else:
        yield Finding(
            "error",
            f"the server at {url} is not an abut gateway",
            "set policy_base_url to the address of Gateway(host=…, port=…)",
        )


def _is_gateway(url: str, key: str | None) -> bool:
    """Return whether a gateway of abut answers there; `OSError` if nothing does."""
    answer = _get(f"{url}/models", {"Authorization": f"Bearer {key}"})
    try:
        return "abut" in [one.get("owned_by") for one in json.loads(answer)["data"]]
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


def _refuses_key(error: OSError) -> bool:
    return isinstance(error, AnswerError) and error.status == 400


def _is_same(one: str, other: str) -> bool:
    return urlsplit(one).netloc == urlsplit(other).netloc


def _trouble_at(url: str) -> str | None:
    """Return why nothing answers there; None if anything answers."""
    try:
        _get(url, {})
    except AnswerError:
        return None
    except OSError as error:
        return str(error)
    return None


def _get(url: str, headers: Mapping[str, str]) -> bytes:
    return http_get(
        url, local=True, timeout_s=_ASK_S, max_message_bytes=_MOST_BYTES, headers=headers
    )
