"""Stands in for `vllm serve MODEL --host … --port …` on the CPU: a small model, really sampled.

It has the routes of vLLM that TRL and abut use, and one of its own instead of NCCL: `POST /weights`
takes safetensors. `POST /hold` makes all requests for a sample behind the next weights wait, which
is a whole batch, until `POST /release`; `GET /held` counts those that do. Other options of vLLM are
passed over.
"""

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from safetensors.torch import load
from transformers import AutoModelForCausalLM

from abut.samplers.sampler import Sample, SampleRequest
from abut.samplers.transformers import TransformersSampler

_NEUTRAL = {"top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


class SmallVLLM:
    """The model, and the requests that wait for it."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.free = asyncio.Event()
        self.free.set()
        self.held = 0
        self.holds_next = False
        self._busy = asyncio.Lock()
        self._waiting: list[tuple[float, SampleRequest, asyncio.Future[Sample]]] = []

    async def completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = np.asarray(body["prompt"], dtype=np.int64)
        if (only := body.get("allowed_token_ids")) is not None:
            return web.json_response(_answer(body, only, [0.0], "length"))
        strange = {name: body[name] for name, off in _NEUTRAL.items() if body.get(name, off) != off}
        if strange or body.get("top_k", 0) not in (0, -1) or body.get("stop"):
            return web.json_response({"error": {"message": f"not taken: {strange}"}}, status=400)
        self.held += 1
        await self.free.wait()
        self.held -= 1
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        asked = SampleRequest(
            prompt, body["max_tokens"], tuple(body["stop_token_ids"]), body["seed"], "", 0
        )
        self._waiting.append((body["temperature"], asked, future))
        async with self._busy:
            await self._sample_all()
        sample = await future
        said = _answer(body, sample.ids.tolist(), sample.logprobs.tolist(), sample.finish_reason)
        return web.json_response(said)

    async def _sample_all(self) -> None:
        """Sample for all that wait, in one forward pass for those that are alike."""
        waiting, self._waiting = self._waiting, []
        for temperature in {each[0] for each in waiting}:
            alike = [(asked, future) for t, asked, future in waiting if t == temperature]
            sampler = TransformersSampler(self.model, pad_token_id=0, temperature=temperature)
            samples = await asyncio.to_thread(_sampled, sampler, [asked for asked, _ in alike])
            for (_, future), sample in zip(alike, samples, strict=True):
                future.set_result(sample)

    async def weights(self, request: web.Request) -> web.Response:
        tensors = load(await request.read())
        async with self._busy:
            self.model.load_state_dict(tensors, strict=True)
        if self.holds_next:
            self.free.clear()
        return web.json_response({})

    async def hold(self, request: web.Request) -> web.Response:
        self.holds_next = True
        return web.json_response({})

    async def release(self, request: web.Request) -> web.Response:
        self.holds_next = False
        self.free.set()
        return web.json_response({})

    async def count_held(self, request: web.Request) -> web.Response:
        return web.json_response(self.held)

    async def models(self, request: web.Request) -> web.Response:
        longest = self.model.config.max_position_embeddings
        return web.json_response({"data": [{"id": self.name, "max_model_len": longest}]})

    async def info(self, request: web.Request) -> web.Response:
        modes = {"logprobs_mode": "processed_logprobs"}
        return web.json_response({"vllm_config": {"model_config": modes}})


async def well(request: web.Request) -> web.Response:
    return web.json_response({"success": True})


def _sampled(sampler: TransformersSampler, requests: list[SampleRequest]) -> list[Sample]:
    with sampler:
        return sampler.sample_batch(requests)


def _answer(body: Any, ids: list[int], logprobs: list[float], reason: str) -> dict[str, Any]:
    choice = {
        "index": 0,
        "text": "",
        "token_ids": ids,
        "prompt_token_ids": body["prompt"],
        "logprobs": {"token_logprobs": logprobs},
        "finish_reason": reason,
        "stop_reason": None,
    }
    return {"id": "cmpl", "choices": [choice]}


async def serve(model: Path, host: str, port: int) -> None:
    """Serve until SIGTERM."""
    small = SmallVLLM(model)
    app = web.Application(client_max_size=2**28)
    app.add_routes(
        [
            web.get("/health", well),
            web.get("/v1/models", small.models),
            web.get("/server_info", small.info),
            web.post("/v1/completions", small.completions),
            web.post("/reset_prefix_cache", well),
            web.post("/weights", small.weights),
            web.post("/hold", small.hold),
            web.post("/release", small.release),
            web.get("/held", small.count_held),
        ]
    )
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["serve"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    given, _ = parser.parse_known_args()
    asyncio.run(serve(given.model, given.host, given.port))
