"""One rank of agents.

All ranks ask one fixed address, that of rank 0, with the run's key, as a service does that knows
one base_url. On rank 1 something fails, which the scenario says.
"""

from pathlib import Path
from typing import Any

from accelerate import Accelerator

from abut import AgentResult, SamplerError
from abut._native import Tokenizer
from abut.demo.model import ASSETS
from abut.gateway import Gateway
from abut.rollout.config import RolloutConfig
from abut.samplers.sampler import SampleRequest
from abut.template.processor import ChatTemplateProcessor
from abut.trl import make_rollout_func
from tests.kit.stage.agents import Client, user
from tests.kit.stage.rollouts import Recording, Stage
from tests.kit.training.ranks import leave
from tests.kit.training.trl_run import a_trainer

PROMPTS = 4


class Service:
    """An agent with one address for all ranks."""

    def __init__(self, rank: int, scenario: str) -> None:
        self.rank = rank
        self.fails = rank == 1 and scenario in ("some fail", "too many fail")

    async def start(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.base_url = gateway.registry.peers.get(0, "") + "/v1" if self.rank else gateway.base_url

    async def run(self, endpoint: Any, task: Any) -> AgentResult:
        service = type(endpoint)(
            self.base_url, self.gateway.key, endpoint.model, endpoint.rollout_id
        )
        async with Client(service) as client:
            messages = [user(str(task.columns["prompt"]))]
            for _ in range(2):
                stream = {"rollout_id": endpoint.rollout_id}
                messages += [await client.ask(messages, **stream), user("and?")]
        if self.fails:
            raise ValueError("boom")
        return AgentResult(1.0)


class Down(Recording):
    """A policy that is down on rank 1 where the scenario says so."""

    is_down = False

    async def sample(self, request: SampleRequest) -> Any:
        if self.is_down:
            raise SamplerError("the server is down")
        return await super().sample(request)


def main(folder: Path, scenario: str) -> None:
    """Play one batch; write down what this rank got."""
    from transformers import AutoTokenizer

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    hf_tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
    stage = Stage(tokenizer, ChatTemplateProcessor(hf_tokenizer))
    sampler = Down(stage.says(f"I am rank {rank}"))
    sampler.is_down = scenario == "the policy is down" and rank == 1
    rollout_func = make_rollout_func(
        Service(rank, scenario),
        sampler=sampler,
        config=RolloutConfig(
            retries=0, max_failed_frac=0.4 if scenario == "too many fail" else 0.5
        ),
    )
    trainer = a_trainer(hf_tokenizer, accelerator=accelerator)
    found: dict[str, Any] = {}
    try:
        out = rollout_func([f"p{rank}{k}" for k in range(PROMPTS)], trainer)
        found["rows"] = [hf_tokenizer.decode(ids) for ids in out["completion_ids"]]
        found["errors"] = out["error"]
        found["ids"] = out["rollout_id"]
    except Exception as error:
        found["raised"] = f"{type(error).__name__}: {error}"
    found["turns"] = [r.rollout_id for r in sampler.requests]
    leave(folder, found)
