"""Agents with a real vLLM server: what TRL computes again is what the server has sampled."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from abut import agent
from abut.demo.model import DemoRecipe, build_demo_model
from abut.errors import SamplerError
from abut.gateway import Gateway
from abut.samplers.vllm import VLLMServerSampler
from tests.kit.servers.vllm_server import VLLMServer, metric
from tests.kit.stage.agents import Client, check_tree, play_agents, user
from tests.kit.stage.rollouts import Stage
from tests.kit.training.example_run import CPU, run_example
from tests.kit.training.vllm_training import DIFFERENCE, send


@pytest.fixture
def demo_server(hf_tokenizer: Any, tmp_path: Path) -> Iterator[VLLMServer]:
    """Serves the demo's model."""
    folder = tmp_path / "model"
    build_demo_model(hf_tokenizer, DemoRecipe()).save_pretrained(folder)
    hf_tokenizer.save_pretrained(folder)
    server = VLLMServer(folder).start()
    try:
        yield server.ready()
    finally:
        server.kill()


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "without sync"])
@pytest.mark.filterwarnings("ignore")  # of TRL and vLLM among themselves
def test_the_agent_trains_on_what_the_server_sampled(
    demo_server: VLLMServer, synced: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    from trl.generation.vllm_client import VLLMClient

    sent = []

    def update(client: Any, metadata: Any, params: Any) -> None:
        if synced or not sent:  # the model of the example is not the one that is served
            send(demo_server, tmp_path, params)
        sent.append(True)

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda client, **_: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", update)
    monkeypatch.chdir(tmp_path)
    trainer, _ = run_example(
        monkeypatch,
        *("agent_openai.py", "--max-steps", "4"),
        **CPU,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=demo_server.url,
        per_device_train_batch_size=32,
    )
    logs = [log for log in trainer.state.log_history if DIFFERENCE in log]
    del trainer
    gc.collect()  # the example's client lives to the end, and warns then
    assert len(logs) == len(sent) == 4
    assert all(log["rollout/turns/mean"] > 1.5 for log in logs)
    assert all(log["rollout/error_frac"] == 0 for log in logs)
    differences = [log[DIFFERENCE] for log in logs]
    if synced:
        assert max(differences) < 1e-5, differences
    else:
        assert differences[0] < 1e-5 < min(differences[1:]), differences


def test_a_turn_ends_on_the_stop_string_of_its_request(server: VLLMServer, stage: Stage) -> None:
    """The text ends before it, the ids are whole, and the next turn goes on behind them."""

    @agent
    async def stops(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            messages = [user("a")]
            for _ in range(3):
                message = await client.ask(messages, stop=["e", "t"], max_tokens=64)
                assert not {*message["content"]} & {"e", "t"}
                messages += [message, user("more")]
        return 1.0

    class Kept(VLLMServerSampler):
        calls: list[Any]

        async def sample(self, request: Any) -> Any:
            sample = await super().sample(request)
            self.calls.append((request, sample))
            return sample

    sampler = Kept(server.url)
    sampler.calls = []
    played = play_agents(stage, *[stops] * 8, sampler=sampler)
    assert [rollout.error for rollout in played.rollouts] == [None] * 8
    for rollout in played.rollouts:
        name = rollout.rollout_id
        of = [call for call in sampler.calls if call[0].rollout_id.startswith(f"{name}.")]
        assert (len(of), rollout.branches) == (3, [])
        check_tree(rollout, of)
    assert any(turn.stop_string for rollout in played.rollouts for turn in rollout.turns)


def test_a_server_that_is_killed_in_mid_batch_ends_it(second: VLLMServer, stage: Stage) -> None:
    told: list[int] = []

    @agent
    async def asks(endpoint: Any) -> float:
        async with Client(endpoint) as client:
            status = 200
            while status == 200:  # until the server is gone
                status, _ = await client.post({"messages": [user("a")], "max_tokens": 512})
            told.append(status)
        return 1.0

    class Killing(VLLMServerSampler):
        killing: Any = None

        async def sample(self, request: Any) -> Any:
            sampling = asyncio.ensure_future(super().sample(request))
            if self.killing is None:
                self.killing = asyncio.ensure_future(self.kill())
            return await sampling

        async def kill(self) -> None:
            while not await asyncio.to_thread(metric, second.url, "num_requests_running"):
                await asyncio.sleep(0.01)
            second.kill()

    gateway = Gateway()
    try:
        sampler = Killing(second.url, give_up_s=2)
        with pytest.raises(SamplerError, match="no server has answered"):
            play_agents(stage, *[asks] * 8, sampler=sampler, gateway=gateway)
        assert not gateway.registry.ledgers
        assert {*told} <= {400}
    finally:
        gateway.stop()


def test_the_gateway_serves_it_without_a_trainer(server: VLLMServer, hf_tokenizer: Any) -> None:
    """At temperature 0 two rollouts are the same, at 1.5 they are not."""
    import openai

    with Gateway(sampler=VLLMServerSampler(server.url), tokenizer=hf_tokenizer) as gateway:

        def said(name: str, **settings: float) -> list[int]:
            endpoint = gateway.endpoint(name)
            with openai.OpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
                client.chat.completions.create(
                    model=endpoint.model, messages=[user("a")], max_tokens=24, **settings
                )
            rollout = gateway.end(name, 1.0)
            assert rollout.columns is not None
            return rollout.columns.completion_ids.tolist()  # type: ignore[no-any-return]

        assert said("a", temperature=0) == said("b", temperature=0)
        assert said("c", temperature=1.5) != said("d", temperature=1.5)
