"""`AsyncGRPOTrainer` on a CPU: without vLLM, FlashAttention and a network.

A server stands in for vLLM's: it draws token by token, and may be paused in the middle of an
answer, which goes on with the weights that it has then. It keeps the weights of each version, so
that logprobs can be computed again.
"""

import asyncio
import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from example_run import CPU
from fake_server import FakeServer
from stage import Talk

CONFIG = "trl.experimental.async_grpo.async_grpo_trainer"


class Vowels(Talk):
    """Rewards the share of vowels in what was said, in each of two turns."""

    turns = 2

    def reset(self, seed: str) -> Any:
        self.said = ""
        return super().reset(seed)

    def step(self, action: str) -> Any:
        result = super().step(action)
        self.said += action
        self.reward = sum(c in "aeiou" for c in self.said) / max(len(self.said), 1)
        return result


class PolicyServer(FakeServer):
    """Answers `/v1/completions` with samples of a model.

    Attributes:
        model: the policy.
        version: of its weights.
        weights: those of each version.
        waiting: requests that are held, since it is paused.
        crossed: requests during which the weights changed.
        events: what was done to it, in order.
    """

    def __init__(self, model: Any, *, context: int = 512, model_name: str = "policy") -> None:
        super().__init__(models=[{"id": model_name, "max_model_len": context}])
        self.model = model.eval()
        self.version = 0
        self.weights: dict[int, Any] = {}
        self.waiting = self.crossed = 0
        self.health = 0
        self.events: list[str] = []
        self.hold_after: int | None = None
        self.held = threading.Event()
        self._go = asyncio.Event()
        self._go.set()

    # ---- what a trainer does to it, on any thread

    def pause(self) -> None:
        self._on_loop(self._go.clear)
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")
        self._on_loop(self._go.set)

    def load(self, named: Any) -> None:
        """Take weights; only while it is paused."""
        assert not self._go.is_set(), "the server draws while its weights change"
        state = self.model.state_dict()
        for name, tensor in named:
            state[name].copy_(tensor)
        self.version += 1
        self.weights[self.version] = {name: w.clone() for name, w in state.items()}
        self.events.append(f"weights {self.version}")

    def _on_loop(self, call: Any) -> None:
        async def run() -> None:
            call()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(30)

    # ---- what it answers

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: Any) -> None:
        self.health += path == "/health"
        if path != "/v1/completions" or "allowed_token_ids" in body:
            return await super()._answer(writer, path, body)
        self.requests.append(body)
        ids, logprobs = [], []
        generator = torch.Generator().manual_seed(body["seed"] % 2**63)
        began = self.version
        reason = "length"
        while len(ids) < body["max_tokens"]:
            await self._may_draw()
            logp = self._logprobs([*body["prompt"], *ids])
            token = int(torch.multinomial(logp.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(logp[token]))
            if token in body["stop_token_ids"]:
                reason = "stop"
                break
            await asyncio.sleep(0)
        self.crossed += self.version != began
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": reason,
            "stop_reason": ids[-1] if reason == "stop" else None,
            "text": "",
            "logprobs": {"token_logprobs": logprobs},
            "prompt_token_ids": body["prompt"],
        }
        self.write(writer, 200, {"id": "cmpl", "choices": [choice]})

    async def _may_draw(self) -> None:
        if not self._go.is_set():
            self.waiting += 1
            try:
                await self._go.wait()
            finally:
                self.waiting -= 1

    def _logprobs(self, ids: list[int]) -> Any:
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)

    def logprobs_of(self, version: int, ids: list[int]) -> Any:
        """`(T, V)` float32: what the weights of that version make of all prefixes of `ids`."""
        with torch.no_grad():
            call = torch.func.functional_call
            made = call(self.model, self.weights[version], (torch.tensor([ids]),))
        return made.logits[0].float().log_softmax(-1)


class Weights:
    """`WeightTransferProtocol`: hands the trainer's weights to servers that are paused."""

    def __init__(self, *servers: PolicyServer) -> None:
        self.servers = servers
        self.events: list[str] = []

    def init_weight_transfer(self) -> None:
        self.events.append("init")

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def send_weights(self, iterator: Any) -> None:
        named = [(name, tensor.clone()) for name, tensor in iterator]
        for server in self.servers:
            server.load(named)
        self.events.append("weights")

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def destroy(self) -> None:
        self.events.append("destroy")


@contextmanager
def on_cpu() -> Iterator[None]:
    """Take out of TRL what asks for a GPU, a kernel from a hub, or a server of vLLM."""
    trainer = importlib.import_module(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "VLLMClient", lambda *_, **__: None)
        if hasattr(trainer, "get_peak_flops_per_device"):
            patch.setattr(trainer, "get_peak_flops_per_device", lambda *_: None)
        try:
            packing = importlib.import_module("trl.experimental.async_grpo.packing")
        except ImportError:  # before 1.16 a kernel is asked for by name
            owner, name = trainer, "create_model_from_path"
            if not hasattr(trainer, name):
                owner, name = trainer.AutoModelForCausalLM, "from_pretrained"
            create = getattr(owner, name)

            def create_on_cpu(*given: Any, **named: Any) -> Any:
                return create(*given, **named | {"attn_implementation": "sdpa"})

            patch.setattr(owner, name, create_on_cpu)
        else:
            kernel = SimpleNamespace(flash_attn_varlen_func=_attention)
            patch.setattr(packing, "_flash_attn", lambda: kernel)
        yield


def _attention(
    query: Any,
    key: Any,
    value: Any,
    cu_q: Any,
    cu_k: Any,
    max_q: int,
    max_k: int,
    *,
    softmax_scale: float | None = None,
    **_: Any,
) -> Any:
    """Segment by segment; a query attends to all keys up to its own, which are the last ones."""
    out = []
    for k in range(len(cu_q) - 1):
        q = query[cu_q[k] : cu_q[k + 1]].transpose(0, 1)
        keys = key[cu_k[k] : cu_k[k + 1]].transpose(0, 1)
        values = value[cu_k[k] : cu_k[k + 1]].transpose(0, 1)
        groups = q.shape[0] // keys.shape[0]
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
        shape = q.shape[1], keys.shape[1]
        mask = torch.ones(shape, dtype=torch.bool).tril(shape[1] - shape[0])
        attended = torch.nn.functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, scale=softmax_scale
        )
        out.append(attended.transpose(0, 1))
    return torch.cat(out)


class AsyncRun:
    """One run of an `AsyncGRPOTrainer`, and what went through it.

    Attributes:
        worker: the rollout worker, with a record of all that it pushed.
        trained: of each micro-batch that was trained, the rows' `(group, input_ids)`.
    """

    def __init__(
        self,
        folder: Any,
        model_path: str,
        server: Any,
        hf_tokenizer: Any,
        env: Any = Vowels,
        *,
        rows: Any = None,
        make: Mapping[str, Any] | None = None,
        callback: bool = True,
        callbacks: Any = (),
        weights: Any = None,
        **settings: Any,
    ) -> None:
        from datasets import Dataset
        from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

        from abut import RolloutConfig
        from abut.trl import make_rollout_worker

        server_url = server.url if server is not None else "http://127.0.0.1:1"
        dataset = rows or Dataset.from_dict({"prompt": [f"say {k}" for k in range(64)]})
        args = AsyncGRPOConfig(
            str(folder),
            **CPU
            | {
                "per_device_train_batch_size": 8,
                "num_generations": 4,
                "max_completion_length": 64,
                "learning_rate": 2e-2,
                "gradient_checkpointing": False,
                "max_staleness": 2,
                "token_budget": -1,
                "max_steps": 3,
                "logging_steps": 1,
                "vllm_server_base_url": server_url,
            }
            | settings,
        )
        self.worker = make_rollout_worker(
            env,
            args=args,
            train_dataset=dataset,
            processing_class=hf_tokenizer,
            **{"config": RolloutConfig(max_turn_tokens=4, max_turns=2, retries=0)} | (make or {}),
        )
        self.pushed: list[Any] = []
        push = self.worker.rollout_buffer.put_nowait

        def keep(row: Any) -> None:
            push(row)
            self.pushed.append(row)

        self.worker.rollout_buffer.put_nowait = keep  # type: ignore[method-assign]
        self.trainer = AsyncGRPOTrainer(
            model=model_path,
            args=args,
            train_dataset=dataset,
            processing_class=hf_tokenizer,
            rollout_worker=self.worker,
            weight_transfer=weights or Weights(server),
            callbacks=[*([self.worker.callback] if callback else []), *callbacks],
        )

    @property
    def logs(self) -> list[dict[str, Any]]:
        return [log for log in self.trainer.state.log_history if "reward" in log]

    def mean_reward(self, *steps: int) -> float:
        return float(np.mean([log["reward"] for log in self.logs[slice(*steps)]]))
