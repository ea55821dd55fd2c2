"""`AsyncGRPOTrainer` on a CPU: without vLLM, FlashAttention and a network.

A server stands in for vLLM's: it draws token by token, and may be paused in the middle of an
answer, which goes on with the weights that it has then. It keeps the weights of each version, so
that logprobs can be computed again.
"""

import asyncio
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from abut.samplers.sampler import VERSIONS, Sample, SampleRequest
from tests.kit.servers.fake_server import FakeServer
from tests.kit.stage.rollouts import Talk
from tests.kit.training.example_run import CPU

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
        drawn: for prompt and sample the versions that drew it.
        health: how often it was asked for its health.
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
        self.drawn: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
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
        ids, logprobs, _ = await self.draw(body)
        stopped = ids[-1] in body["stop_token_ids"]
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": "stop" if stopped else "length",
            "stop_reason": ids[-1] if stopped else None,
            "text": "",
            "logprobs": {"token_logprobs": logprobs},
            "prompt_token_ids": body["prompt"],
        }
        self.write(writer, 200, {"id": "cmpl", "choices": [choice]})

    async def draw(self, body: Any) -> tuple[list[int], list[float], list[int]]:
        """Draw one turn: its ids, their logprobs, and the versions of the weights."""
        ids: list[int] = []
        logprobs, versions = [], []
        generator = torch.Generator().manual_seed(body["seed"])
        while len(ids) < body["max_tokens"] and (ids or [None])[-1] not in body["stop_token_ids"]:
            await self._may_draw()
            logp = self._logprobs([*body["prompt"], *ids])
            token = int(torch.multinomial(logp.exp(), 1, generator=generator))
            ids.append(token)
            logprobs.append(float(logp[token]))
            versions.append(self.version)
            await asyncio.sleep(0)
        self.crossed += versions[0] != versions[-1]
        self.drawn[tuple(body["prompt"]), tuple(ids)] = versions
        return ids, logprobs, versions

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


class Saying:
    """A sampler that draws at such a server and says which weights drew each token."""

    def __init__(self, server: PolicyServer) -> None:
        self._server = server

    async def sample(self, request: SampleRequest) -> Sample:
        body = {
            "prompt": request.prompt_ids.tolist(),
            "max_tokens": request.max_tokens,
            "stop_token_ids": request.stop_token_ids,
            "seed": request.seed,
        }
        drawing = asyncio.run_coroutine_threadsafe(self._server.draw(body), self._server._loop)
        ids, logprobs, versions = await asyncio.wrap_future(drawing)
        return Sample(
            np.array(ids),
            np.array(logprobs, np.float32),
            "stop" if ids[-1] in request.stop_token_ids else "length",
            streams={VERSIONS: np.array(versions)},
        )


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


class Kept:
    """A recorder that keeps what it gets."""

    def __init__(self) -> None:
        self.rollouts: list[tuple[Any, dict[str, Any]]] = []
        self.scores: list[Mapping[str, Any]] = []

    def write(self, rollout: Any, /, **extra: Any) -> None:
        self.rollouts.append((rollout, extra))

    def write_scores(self, records: Any) -> None:
        self.scores += records


class AsyncRun:
    """One run of an `AsyncGRPOTrainer`, and what went through it.

    Attributes:
        worker: the rollout worker.
        pushed: the rows that it pushed, in order.
        kept: what it recorded.
        trained: of each micro-batch, the logprobs that the loss was taken with.
    """

    def __init__(
        self,
        folder: Any,
        model_path: Any,
        server: Any,
        hf_tokenizer: Any,
        env: Any = Vowels,
        *,
        rows: int = 64,
        make: Mapping[str, Any] | None = None,
        callback: bool = True,
        callbacks: Any = (),
        weights: Any = None,
        **settings: Any,
    ) -> None:
        from datasets import Dataset
        from transformers import PrinterCallback
        from trl.experimental.async_grpo import AsyncGRPOTrainer

        dataset = Dataset.from_dict({"prompt": [f"say {k}" for k in range(rows)]})
        args = async_args(folder, server.url, **settings)
        self.kept = Kept()
        self.worker = a_worker(
            env, args, dataset, hf_tokenizer, **{"recorder": self.kept} | dict(make or {})
        )
        self.pushed = pushed_by(self.worker)
        self.trained: list[set[float]] = []
        self.trainer = AsyncGRPOTrainer(
            model=str(model_path),
            args=args,
            train_dataset=dataset,
            processing_class=hf_tokenizer,
            rollout_worker=self.worker,
            weight_transfer=weights or Weights(server),
            callbacks=[*([self.worker.callback] if callback else []), *callbacks],
        )
        self.trainer.remove_callback(PrinterCallback)
        compute_loss = self.trainer.compute_loss

        def keep(model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            self.trained.append({*inputs["old_log_probs"].flatten().tolist()})
            return compute_loss(model, inputs, *given, **named)

        self.trainer.compute_loss = keep

    @property
    def logs(self) -> list[dict[str, Any]]:
        return [log for log in self.trainer.state.log_history if "reward" in log]

    def mean_reward(self, *steps: int | None) -> float:
        return float(np.mean([log["reward"] for log in self.logs[slice(*steps)]]))

    def trained_rows(self) -> list[Any]:
        """The rows that were trained, told by their logprobs."""
        return [
            row
            for row in self.pushed
            if any(values >= {*_trained_logprobs(row)} for values in self.trained)
        ]


def _trained_logprobs(row: Any) -> list[float]:
    mask = np.asarray(row.completion_mask) == 1
    return np.asarray(row.old_log_probs, np.float32)[mask].tolist()  # type: ignore[no-any-return]


def async_args(folder: Any, url: str = "http://127.0.0.1:1", **settings: Any) -> Any:
    from trl.experimental.async_grpo import AsyncGRPOConfig

    small = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        "learning_rate": 2e-2,
        "gradient_checkpointing": False,
        "max_staleness": 2,
        "token_budget": -1,
        "max_steps": 3,
        "logging_steps": 1,
        "vllm_server_base_url": url,
    }
    return AsyncGRPOConfig(str(folder), **CPU | small | settings)


def a_worker(env: Any, args: Any, dataset: Any, hf_tokenizer: Any, **make: Any) -> Any:
    from abut import RolloutConfig
    from abut.trl import make_rollout_worker

    config = RolloutConfig(max_turn_tokens=4, max_turns=2, retries=0)
    return make_rollout_worker(
        env,
        args=args,
        train_dataset=dataset,
        processing_class=hf_tokenizer,
        **{"config": config} | make,
    )


def pushed_by(worker: Any) -> list[Any]:
    """The rows that it pushes from here on, as it does."""
    pushed: list[Any] = []
    put = worker.rollout_buffer.put_nowait

    def keep(row: Any) -> None:
        put(row)
        pushed.append(row)

    worker.rollout_buffer.put_nowait = keep
    return pushed
