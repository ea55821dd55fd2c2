"""What agents are tested on: a stage that plays them, a client, and the exact check of a tree."""

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np

from abut.envs.task import RolloutTask
from abut.gateway.play.played_agent import AgentSource
from abut.gateway.server.gateway import Gateway
from abut.rollout.config import RolloutConfig
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import VERSIONS, Sample, SampleRequest
from tests.kit.stage.rollouts import Played, Recording, Stage, eventually

RUN = "run0"

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
        },
    },
}


def a_call(name: str = "lookup", /, text: str = "", **arguments: Any) -> str:
    """What the demo's policy writes to call a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"{text}<tool_call>\n{call}\n</tool_call>"


def play_agents(
    stage: Stage,
    *agents: Any,
    script: Any = "yes",
    sampler: Any = None,
    gateway: Gateway | None = None,
    engine: Any = None,
    columns: Sequence[dict[str, Any]] | None = None,
    rank: int | None = None,
    rewards_turns: bool = False,
    **options: Any,
) -> Played:
    """Play one rollout of each agent, all in one batch; the gateway stops where none was given."""
    own = gateway is None
    gateway = gateway or Gateway()
    gateway.registry.join_run(RUN, rank=rank)
    sampler = sampler or Recording(stage.says(script) if isinstance(script, str) else script)
    engine = engine or stage.engine(sampler, **options)
    sources = {id(agent): AgentSource(agent, gateway) for agent in agents}
    for source in sources.values():
        source.rewards_turns = rewards_turns
    bound = {key: source.bind(stage.processor) for key, source in sources.items()}
    tasks = [
        RolloutTask(
            index,
            f"r{index}-{RUN}",
            bound[id(agent)],  # type: ignore[arg-type]
            messages=[],
            seed="seed",
            episode_seed=7,
            columns=(columns or [{}] * len(agents))[index],
        )
        for index, agent in enumerate(agents)
    ]
    try:
        return Played(engine, engine.run(tasks), sampler)
    finally:
        if own:
            gateway.stop()


def says(stage: Stage, *texts: str, kind: type[Recording] = Recording, **options: Any) -> Recording:
    """A sampler that says each text in its turn, the last one again and again."""
    texts = texts or ("yes",)

    def script(request: Any) -> list[int]:
        text = texts[min(request.turn, len(texts) - 1)]
        return [*stage.tokenizer.encode(text, added="parse"), stage.processor.close_token_id]

    return kind(script, **options)


def serving(sampler: Any, hf_tokenizer: Any, recorder: Any = None, **options: Any) -> Gateway:
    """A gateway without a trainer."""
    limits = RolloutConfig(max_completion_tokens=1000, **options.pop("config", {}))
    return Gateway(
        sampler=sampler, tokenizer=hf_tokenizer, recorder=recorder, config=limits, **options
    )


def post(url: str, key: str, body: Any, **headers: str) -> tuple[int, Any, Any]:
    """Send a body; returns status, JSON and headers."""
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.load(reply), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def ask(gateway: Gateway, messages: list[Any], rollout: str | None = None, **more: Any) -> Any:
    """One turn; returns the message and the rollout's id."""
    url = gateway.base_url if rollout is None else gateway.endpoint(rollout).base_url
    body = {"model": "any", "messages": messages, **more}
    status, answer, headers = post(f"{url}/chat/completions", gateway.key, body)
    assert status == 200, answer
    return answer["choices"][0]["message"], headers["x-abut-rollout"]


class Client:
    """A client of one's own, on aiohttp: what it sends is what a test says."""

    def __init__(self, endpoint: Any) -> None:
        self.endpoint = endpoint
        self.url = f"{endpoint.base_url}/chat/completions"
        self.headers = {"Authorization": f"Bearer {endpoint.api_key}"}

    async def __aenter__(self) -> "Client":
        self.session = aiohttp.ClientSession(headers=self.headers)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.session.close()

    async def post(self, body: Any, **headers: str) -> tuple[int, Any]:
        """Send a body; returns status and JSON."""
        async with self.session.post(self.url, json=body, headers=headers) as reply:
            return reply.status, await reply.json()

    async def ask(self, messages: Sequence[Any], **fields: Any) -> dict[str, Any]:
        """One turn; returns the message."""
        status, body = await self.post({"model": "policy", "messages": list(messages), **fields})
        assert status == 200, body
        message: dict[str, Any] = body["choices"][0]["message"]
        return message


def harness_time_is_over(patch: Any, holds: Callable[[], bool]) -> None:
    """End the `timeout_s` of one harness when `holds()` is true, whatever the clock.

    Each look at the clock but the first waits for that, so the time is over before any output is
    read, which is the hardest case.
    """
    looks = itertools.count()

    def monotonic() -> float:
        if next(looks) == 0:
            return time.monotonic()
        assert eventually(holds)
        return time.monotonic() + 10_000

    clock = SimpleNamespace(monotonic=monotonic, sleep=time.sleep)
    patch.setattr("abut.agents.harness_process.time", clock)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def check_tree(rollout: Rollout, calls: Sequence[tuple[SampleRequest, Sample]]) -> None:
    """Each request is a prefix of a branch, each sampled token trained once, with its logprob.

    Where samples have versions, these are at the same tokens, and nowhere else.
    """
    holding = [row for row in (rollout, *rollout.branches) if row.columns is not None]
    rows = [row.columns for row in holding if row.columns is not None]
    versions = [np.full(len(c.env_mask), -1) for c in rows]
    whole = [np.concatenate([c.prompt_ids, c.completion_ids]) for c in rows]
    trained = [np.concatenate([np.zeros(len(c.prompt_ids), np.uint8), c.env_mask]) for c in rows]
    logprobs = [np.concatenate([np.zeros(len(c.prompt_ids), np.float32), c.logprobs]) for c in rows]
    explained = [np.zeros(len(ids), np.uint8) for ids in whole]
    for request, sample in calls:
        start, end = len(request.prompt_ids), len(request.prompt_ids) + len(sample.ids)
        said = [*request.prompt_ids.tolist(), *sample.ids.tolist()]
        holders = [k for k, ids in enumerate(whole) if ids[:end].tolist() == said]
        assert holders, f"no branch holds turn {request.turn} of {request.rollout_id}"
        owners = [k for k in holders if trained[k][start:end].any() and not explained[k][start]]
        assert owners, f"turn {request.turn} is trained in no branch of its own"
        drawn = sample.logprobs.tolist()  # which tells siblings apart that say the same
        owners = [k for k in owners if logprobs[k][start:end].tolist() == drawn]
        assert owners, f"turn {request.turn} is trained with other logprobs"
        owner = owners[0]
        assert trained[owner][start:end].all()
        explained[owner][start:end] = 1
        if VERSIONS in sample.streams:
            before = len(rows[owner].prompt_ids)
            versions[owner][start - before : end - before] = sample.streams[VERSIONS]
    for mask, seen in zip(trained, explained, strict=True):
        assert mask.tolist() == seen.tolist(), "a token is trained that was not sampled there"
    for columns in rows:
        assert columns.env_mask[-1] == 1, "a row ends on a sampled token"
    if any(VERSIONS in sample.streams for _, sample in calls):
        for holder, of_tokens in zip(holding, versions, strict=True):
            assert holder.streams[VERSIONS].tolist() == of_tokens.tolist()
