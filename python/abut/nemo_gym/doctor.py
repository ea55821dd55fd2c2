"""The checks of a Gym before training, by `abut doctor` and before the first batch.

Invariant: the doctor starts a gateway only at an address where none runs, and does not touch the
rollouts of a gateway that runs.
"""

import asyncio
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from abut.concurrency.threads import THREADS
from abut.errors import AbutError
from abut.gateway.ledger.unnamed import Judge
from abut.gateway.server.gateway import KEY_VARIABLE, Gateway
from abut.nemo_gym.checks import (
    Finding,
    gateway_findings,
    judge_findings,
    models_findings,
    row_findings,
    server_findings,
)
from abut.nemo_gym.head import Head
from abut.nemo_gym.rows import AGENT, File, lines_of
from abut.nemo_gym.scripted_rollout import ScriptedPolicy, Template, probe, template_of, writing_of
from abut.nemo_gym.servers import Servers
from abut.pretrained import load_hf_tokenizer
from abut.template.image_report import ImageReport, report_model_images


async def findings_of_batch(
    gateway: Gateway,
    head_url: str,
    servers: Servers,
    examples: Mapping[str, str],
    *,
    probes: bool,
    timeout_s: float,
    judge: str | None = None,
) -> list[Finding]:
    """Return the findings before the first batch.

    Args:
        gateway: the gateway of the run.
        head_url: the address of Gym's head.
        servers: that head's servers.
        examples: a row of each agent that will play, as JSON.
        probes: whether each of these agents plays a probe rollout.
        timeout_s: seconds that a probe rollout may take.
        judge: "policy" if the gateway answers a judge from the policy.
    """

    def looked() -> list[Finding]:
        found: list[Finding] = []
        for agent in examples:
            found += server_findings(head_url, servers.of(agent))
        url, key = gateway.base_url, gateway.key
        found += models_findings(servers, examples, gateway_url=url, key=key)
        return [*found, *judge_findings(servers, examples, judge=judge)]

    found = await THREADS.ask(looked)
    if probes and not any(one.level == "error" for one in found):
        rows = {agent: json.loads(text) for agent, text in examples.items()}
        found += await _probed(gateway, servers, rows, timeout_s=timeout_s, judge=judge)
    return found


def doctor(
    head_url: str,
    datasets: Sequence[File] = (),
    *,
    agent: str | None = None,
    host: str | None = None,
    timeout_s: float = 300.0,
    tokenizer: str | None = None,
    judge: str | None = None,
    play: bool = True,
) -> Iterator[Finding]:
    """Check a Gym before training, and yield the findings; blocks.

    Args:
        head_url: the address of Gym's head.
        datasets: the rows that you will train on, whose agents are checked; empty: all agents.
        agent: the agent of rows that do not name one.
        host: the address on which the gateway listens for probe rollouts; None: as in
            `policy_base_url`.
        timeout_s: seconds that a probe rollout may take.
        tokenizer: the model that you will train: its chat template must be able to write the
            agents' requests; None: only the template of abut's demo writes them.
        judge: "policy" if you train with `NemoGym(judge="policy")`.
        play: whether each agent plays a probe rollout.
    """
    try:
        head = Head(head_url)
        servers = head.servers()
        template = None if tokenizer is None else template_of(load_hf_tokenizer(tokenizer))
    except (AbutError, ValueError, OSError) as error:
        yield Finding.of(error)
        return
    if tokenizer is not None and (images := report_model_images(tokenizer)) is not None:
        yield _of_images(images)
    listed = ", ".join(servers.agents) or "none"
    level: Any = "ok" if servers.agents else "error"
    yield Finding(level, f"the head at {head.url} has {len(servers.agents)} agents: {listed}")
    rows: dict[str, Any] = {}
    for path in datasets:
        try:
            lines = lines_of(path, servers, agent)
        except (ValueError, OSError) as error:
            yield Finding.of(error)
            continue
        agents = sorted({line.columns[AGENT] for line in lines})
        yield Finding("ok", f"{path}: {len(lines)} rows of {', '.join(agents)}")
        yield from row_findings(json.loads(line.text) for line in lines)
        for line in lines:
            rows.setdefault(line.columns[AGENT], json.loads(line.text))
    looked = list(rows) or ([] if datasets else servers.agents)
    live = []
    for name in looked:
        found = list(server_findings(head.url, servers.of(name)))
        yield from found
        live += [name] if found[-1].level == "ok" else []
    found = list(
        models_findings(servers, looked, gateway_url=None, key=os.environ.get(KEY_VARIABLE))
    )
    found += judge_findings(servers, looked, judge=judge)
    yield from found
    if not play or any(one.level == "error" for one in found):
        return
    for url, key, names in _by_address(servers, live):
        played = {name: rows.get(name) for name in names}
        yield from _rehearsed(servers, url, key, played, host, timeout_s, template, judge)


def _rehearsed(
    servers: Servers,
    url: str,
    key: str | None,
    rows: Mapping[str, Any],
    host: str | None,
    timeout_s: float,
    template: Template | None,
    judge: str | None,
) -> Iterator[Finding]:
    """Play a rollout of each agent, with a gateway at the address that their model server calls."""
    parts = urlsplit(url)
    if key is None:
        yield Finding(
            "warning",
            f"could not play a probe rollout: the key for {url} is an environment variable of "
            "Gym that is not set here",
            f"set {KEY_VARIABLE} here to the same value",
        )
        return
    try:
        gateway = Gateway(host or parts.hostname or "", parts.port or 80, key=key)
    except ValueError:
        yield Finding(
            "error",
            f"policy_api_key cannot be the key of the gateway at {url}: such a key has at least "
            "16 characters, all printable ASCII",
            f"set {KEY_VARIABLE} where training starts and Gym's policy_api_key to the same value",
        )
        return
    gateway.registry.join_run(secrets.token_hex(4))
    gateway.registry.writers = None if template is None else writing_of(*template)
    try:
        gateway.start()
    except AbutError as error:
        yield from gateway_findings(url, key, str(error).partition("\n")[0])
        return
    try:
        with asyncio.Runner() as runner:
            probed = _probed(gateway, servers, rows, timeout_s=timeout_s, judge=judge)
            yield from runner.run(probed)
    except AbutError as error:
        yield Finding.of(error)
    finally:
        gateway.stop()


async def _probed(
    gateway: Gateway,
    servers: Servers,
    rows: Mapping[str, Any],
    *,
    timeout_s: float,
    judge: str | None,
) -> list[Finding]:
    """Play a rollout of each agent, all at once; None as a row stands for a made-up row.

    A request without a rollout's id is treated as in training: the rollout that has its history
    gets it, or the judge answers it if the judge is the policy, or it is refused.
    """
    registry = gateway.registry
    before = registry.judge
    registry.judge = Judge(ScriptedPolicy()) if judge == "policy" else None
    try:
        found = await asyncio.gather(
            *(
                probe(
                    registry,
                    servers,
                    agent,
                    row or _a_row(number),
                    number=number,
                    timeout_s=timeout_s,
                    is_example=row is not None,
                )
                for number, (agent, row) in enumerate(rows.items())
            )
        )
    finally:
        registry.judge = before
        registry.unnamed.matched = registry.unnamed.refused = 0
    return [one for of_agent in found for one in of_agent]


def _a_row(number: int) -> dict[str, Any]:
    """Return a row for an agent without an example."""
    said = [{"role": "user", "content": f"Hello. This is probe {number}."}]
    return {"responses_create_params": {"input": said}}


def _by_address(
    servers: Servers, agents: Sequence[str]
) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield the addresses that model servers call, each with its key and the agents that use it."""
    grouped: dict[tuple[str, str | None], list[str]] = {}
    for agent in agents:
        model = servers.model_of(agent)
        if model is not None and model.base_urls:
            asked = model.base_urls[0], model.api_key
            grouped.setdefault(asked, []).append(agent)
    for (url, key), names in grouped.items():
        yield url, key, names


def _of_images(images: ImageReport) -> Finding:
    if images.refused is not None:
        because, _, hint = images.refused.partition("\nhint: ")
        return Finding("warning", f"the gateway will refuse images: {because}", hint)
    counts = ", ".join(f"{n} for {size}" for size, n in (images.tokens or {}).items() if n)
    return Finding(
        "ok",
        f"images: {images.processor} was checked and works, in messages of "
        f"{', '.join(images.roles)}; tokens: {counts}",
    )
