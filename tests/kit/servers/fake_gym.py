"""A NeMo Gym that does what a test says: a head, and agents whose `/run` is a function.

Agents ask the gateway as Gym's model servers do: with one fixed address and key, and the rollout's
id in the body, which comes with the row's metadata.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from abut.concurrency.loop import DaemonLoop

Answer = tuple[int, Any]
Run = Callable[["Policy", dict[str, Any]], Awaitable[Answer]]
"""Plays a row: gets what it asks the policy with, and the body of `/run`."""

MODEL = {
    "responses_api_models": {
        "vllm_model": {
            "base_url": "${policy_base_url}",
            "api_key": "${policy_api_key}",
            "model": "${policy_model_name}",
            "return_token_id_information": True,
        }
    }
}


class Policy:
    """What an agent asks, through its model server.

    Attributes:
        answers: the messages that it got.
    """

    def __init__(self, gym: "FakeGym", rollout_id: str) -> None:
        self._gym = gym
        self.rollout_id: str | None = rollout_id
        """None: it is left out, as some harnesses do."""
        self.answers: list[dict[str, Any]] = []

    async def post(self, body: dict[str, Any], *, named: bool = True) -> Answer:
        """Send a chat request; returns status and JSON."""
        leaves_out = self.rollout_id is None or not named
        sent = body if leaves_out else {**body, "rollout_id": self.rollout_id}
        headers = {"Authorization": f"Bearer {self._gym.key}"}
        url = f"{self._gym.base_url}/chat/completions"
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url, json=sent) as reply,
        ):
            return reply.status, await reply.json()

    async def judge(self, text: str) -> Answer:
        """Ask as a judge does through the policy's model server: no rollout is named."""
        body = {"model": "policy", "messages": [{"role": "user", "content": text}]}
        return await self.post(body, named=False)

    async def ask(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """One turn, as a model server for training asks; returns the message."""
        body = {"model": "policy", "messages": messages, "logprobs": True, **fields}
        status, said = await self.post({**body, "return_tokens_as_token_ids": True})
        assert status == 200, said
        self.answers.append(said["choices"][0]["message"])
        return self.answers[-1]


def carrier(message: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as the last item of a call's output."""
    names = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
    text = {"type": "output_text", "text": message.get("content") or "", "annotations": []}
    tokens = {name: message[name] for name in names}
    return {"type": "message", "role": "assistant", "content": [text], **tokens}


def verified(policy: Policy, reward: float = 1.0, **more: Any) -> Answer:
    """What an agent answers whose rollout was verified."""
    output = [carrier(message) for message in policy.answers]
    return 200, {"response": {"output": output}, "reward": reward, **more}


async def one_turn(policy: Policy, body: dict[str, Any]) -> Answer:
    """Asks once, and has a reward of 1."""
    params = body["responses_create_params"]
    said = params["input"]
    await policy.ask([{"role": "user", "content": said}] if isinstance(said, str) else said)
    return verified(policy)


class FakeGym:
    """A head and its agents, on a loop of their own, until the block ends.

    Args:
        agents: `/run` of each.
        base_url: of the gateway; may be set later.
        key: that it takes.
        config: more of Gym's configuration.
        instances: more servers, by what the head says of them; `{url}` is that of the same server.

    Attributes:
        bodies: what `/run` got, in order.
    """

    def __init__(
        self,
        agents: Mapping[str, Run],
        *,
        base_url: str = "",
        key: str = "",
        config: Mapping[str, Any] | None = None,
        instances: list[dict[str, Any]] | None = None,
    ) -> None:
        self.agents = dict(agents)
        self.base_url, self.key = base_url, key
        self.bodies: list[dict[str, Any]] = []
        self.head_is_gone = False
        self._more_config, self._more_instances = dict(config or {}), list(instances or ())
        self._loop = DaemonLoop("fake-gym")
        self.url = ""

    def __enter__(self) -> "FakeGym":
        self._loop.open()
        self._loop.submit(self._serve).result(30)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.submit(self._runner.cleanup).result(30)
        self._loop.end(5)

    @property
    def config(self) -> dict[str, Any]:
        """What the head says of its configuration."""
        return {
            **{
                name: {
                    "responses_api_agents": {
                        "simple_agent": {
                            "resources_server": {"name": f"{name}_resources"},
                            "model_server": {"name": "policy_model"},
                        }
                    }
                }
                for name in self.agents
            },
            "policy_model": MODEL,
            "policy_base_url": self.base_url,
            "policy_api_key": self.key,
            "policy_model_name": "policy",
            **self._more_config,
        }

    def move(self) -> None:
        """Start again at another port, as a Gym that was restarted; the head stays where it is."""
        self._prefix += "x"

    async def _serve(self) -> None:
        self._prefix = "at"
        app = web.Application(client_max_size=2**28)
        app.router.add_get("/server_instances", self._instances)
        app.router.add_get("/global_config_dict_yaml", self._config)
        app.router.add_post("/{prefix}/{agent}/run", self._run)
        app.router.add_get("/{prefix}/{agent}/", self._alive)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def _check_head(self) -> None:
        if self.head_is_gone:
            raise web.HTTPBadGateway

    async def _instances(self, request: web.Request) -> web.Response:
        self._check_head()
        listed = [
            {
                "process_name": name,
                "server_type": "responses_api_agents",
                "url": f"{self.url}/{self._prefix}/{name}",
            }
            for name in self.agents
        ]
        more = [
            {**one, "url": f"{self.url}/{self._prefix}/{one['process_name']}"}
            for one in self._more_instances
        ]
        return web.json_response([*listed, *more])

    async def _config(self, request: web.Request) -> web.Response:
        self._check_head()
        return web.json_response(json.dumps(self.config))  # JSON is YAML

    async def _alive(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _run(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["prefix"] != self._prefix:
            assert request.transport is not None
            request.transport.abort()  # nobody is there any more
            return web.Response()
        body = await request.json()
        self.bodies.append(body)
        policy = Policy(self, _rollout_of(body))
        status, said = await self.agents[request.match_info["agent"]](policy, body)
        if status == 0:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return web.json_response(said, status=status)


def _rollout_of(body: Mapping[str, Any]) -> str:
    task = body.get("task")
    row = task["task_input"] if task else body
    extra = json.loads(row["responses_create_params"]["metadata"]["extra_body"])
    found: str = extra["rollout_id"]
    return found
