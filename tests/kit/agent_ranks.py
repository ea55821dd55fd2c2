"""One rank of agents: `torchrun --nproc-per-node 2 tests/kit/agent_ranks.py FOLDER SCENARIO`.

All ranks ask one fixed address, that of rank 0, with the run's key, as a service does that knows
one base_url. On rank 1 something fails, which the scenario says.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from abut import AgentResult, SamplerError
from abut._native import Tokenizer
from abut.demo.model import ASSETS
from abut.gateway import Gateway
from abut.rollout.config import RolloutConfig
from abut.samplers.sampler import SampleRequest
from abut.template.processor import ChatTemplateProcessor
from abut.trl import make_rollout_func
from agent_stage import Client, user
from stage import Recording, Stage
from trl_run import a_trainer

FOLDER, SCENARIO = Path(sys.argv[1]), sys.argv[2]
PROMPTS = 4


class Service:
    """An agent with one address for all ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    async def start(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.base_url = gateway.desk.peers.get(0, "") + "/v1" if self.rank else gateway.base_url

    async def run(self, endpoint: Any, task: Any) -> AgentResult:
        fails = self.rank == 1 and SCENARIO in ("some fail", "too many fail")
        service = type(endpoint)(
            self.base_url, self.gateway.key, endpoint.model, endpoint.rollout_id
        )
        async with Client(service) as client:
            messages = [user(str(task.columns["prompt"]))]
            for _ in range(2):
                stream = {"rollout_id": endpoint.rollout_id}
                messages += [await client.ask(messages, **stream), user("and?")]
        if fails:
            raise ValueError("boom")
        return AgentResult(1.0)


class Down(Recording):
    """A policy that is down on rank 1 where the scenario says so."""

    rank = 0

    async def sample(self, request: SampleRequest) -> Any:
        if SCENARIO == "the policy is down" and self.rank == 1:
            raise SamplerError("the server is down")
        return await super().sample(request)


def main() -> None:
    """Play one batch; write down what this rank got."""
    from transformers import AutoTokenizer

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    hf_tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    tokenizer = Tokenizer.from_pretrained(hf_tokenizer)
    stage = Stage(tokenizer, ChatTemplateProcessor(hf_tokenizer))
    sampler = Down(stage.says(f"I am rank {rank}"))
    sampler.rank = rank
    rollout_func = make_rollout_func(
        Service(rank),
        sampler=sampler,
        config=RolloutConfig(
            retries=0, max_failed_frac=0.4 if SCENARIO == "too many fail" else 0.5
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
    (FOLDER / f"rank{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
