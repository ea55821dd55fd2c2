"""One side of the row `async_rollouts`, or its server, in a separate process.

It is started with a side, the tokenizer's folder and a size. A side prints one JSON object, the
server its port.
"""

import asyncio
import json
import queue
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from benchmarks.own_process import command_of
from benchmarks.rows.async_rollouts import ABUT, SERVER
from benchmarks.scale import Scale
from benchmarks.workbench import Workbench

_GROUP = 8
_HOLDS = 4096
# One call in eight takes ten times as long; a batch would wait for it.
_SLOW = 8


def main(arguments: Sequence[str]) -> None:
    """Run the server, or play one side until there are enough rows."""
    side, folder, much = arguments
    workbench = Workbench(Path(folder), Scale.quick() if much == "quick" else Scale(), {})
    if side == SERVER:
        asyncio.run(_serve(workbench))
        return
    command = command_of("stream_worker", SERVER, folder, much)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        said = _measured(workbench, url, _Abut if side == ABUT else _TRL)
    finally:
        server.kill()
        server.wait()
    sys.stdout.write(json.dumps(said) + "\n")


def _answers(workbench: Workbench) -> list[list[int]]:
    """Return the policy's answers: a tool call in each turn, and a final answer in the last."""
    calls = []
    for turn in range(workbench.scale.stream_turns):
        call = json.dumps({"name": "search", "arguments": {"query": f"what is number {turn}?"}})
        last = turn == workbench.scale.stream_turns - 1
        text = "That is all." if last else f"<tool_call>\n{call}\n</tool_call>"
        ids = workbench.tokenizer.encode(text).tolist()
        calls.append([*ids, workbench.processor.close_token_id])
    return calls


async def _serve(workbench: Workbench) -> None:
    """Answer like vLLM, after a delay; the answer depends only on the number of turns."""
    from aiohttp import web

    answers = _answers(workbench)

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        if allowed := body.get("allowed_token_ids"):
            ids, logprobs = allowed, [0.0]
        else:
            await asyncio.sleep(workbench.scale.stream_sample_s)
            ids = answers[sum(_holds(body["prompt"], answer) for answer in answers[:-1])]
            logprobs = [-0.5] * len(ids)
        choice = {
            "index": 0,
            "token_ids": ids,
            "finish_reason": "stop" if not allowed else "length",
            "stop_reason": None,
            "text": "",
            "logprobs": {"token_logprobs": logprobs},
            "prompt_token_ids": body["prompt"],
        }
        return web.json_response({"id": "c", "choices": [choice]})

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": _HOLDS}]})

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address,) = runner.addresses
    sys.stdout.write(f"{address[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _holds(prompt: Sequence[int], answer: Sequence[int]) -> bool:
    """Return whether a prompt contains this answer."""
    first, length = answer[0], len(answer)
    return any(
        prompt[k] == first and list(prompt[k : k + length]) == list(answer)
        for k in range(len(prompt) - length + 1)
    )


def _environment(workbench: Workbench) -> Any:
    scale = workbench.scale

    class Library:
        """A slow tool."""

        def reset(self, **columns: Any) -> str:
            self.calls = 0
            self._random = random.Random(str(columns.get("prompt")))
            return ""

        def search(self, query: str) -> str:
            """Look something up.

            Args:
                query: what.
            """
            self.calls += 1
            slow = 10 if self._random.randrange(_SLOW) == 0 else 1
            time.sleep(slow * scale.stream_tool_s)
            return f"{query} It is {self.calls}."

        def get_reward(self) -> float:
            return self.calls / scale.stream_turns

    return Library


def _measured(workbench: Workbench, url: str, make: Any) -> dict[str, Any]:
    scale = workbench.scale
    prompts = [[{"role": "user", "content": f"Question {k}."}] for k in range(64)]
    with TemporaryDirectory() as folder:
        try:
            worker = make(workbench, url, [{"prompt": prompt} for prompt in prompts], folder)
        except ValueError as error:
            if make is _Abut:
                raise
            return {"missing": f"TRL cannot parse this template's tool calls: {error}"}
        worker.start()
        for _ in range(_GROUP):  # one-time costs
            worker.rows.get(timeout=600)
        began, cpu = time.monotonic(), time.process_time()
        rows = [worker.rows.get(timeout=600) for _ in range(scale.stream_rows)]
        seconds, cpu_s = time.monotonic() - began, time.process_time() - cpu
        worker.stop()
    sampled = sum(map(len, _answers(workbench)))
    trained = sum(int(sum(row.completion_mask)) for row in rows)
    return {
        "rewards": [row.metrics["reward"] for row in rows],
        "s": seconds / (sampled * len(rows)),
        "cpu": cpu_s / (scale.stream_turns * len(rows)),
        "trained": trained / (sampled * len(rows)),
    }


class _Abut:
    """abut's worker."""

    def __init__(self, workbench: Workbench, url: str, dataset: Any, folder: str) -> None:
        from trl.experimental.async_grpo import AsyncGRPOConfig

        from abut.trl import from_environment_factory, make_rollout_worker

        args = AsyncGRPOConfig(
            folder,
            use_cpu=True,
            bf16=False,
            report_to="none",
            num_generations=_GROUP,
            max_inflight_tasks=workbench.scale.stream_slots,
            max_completion_length=_HOLDS,
            vllm_server_base_url=url,
        )
        env = from_environment_factory(
            _environment(workbench), reward=lambda library: library.get_reward()
        )
        self._worker = make_rollout_worker(
            env, args=args, train_dataset=dataset, processing_class=workbench.hf_tokenizer
        )
        self._worker.update_model_version(1)
        self.rows = self._worker.rollout_buffer
        self.start, self.stop = self._worker.start, self._worker.stop


class _TRL:
    """The loop of TRL's worker, on a thread."""

    def __init__(self, workbench: Workbench, url: str, dataset: Any, folder: str) -> None:
        from accelerate import PartialState
        from datasets import Dataset
        from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

        PartialState()  # its logger needs one
        self.rows: queue.Queue[Any] = queue.Queue(1024)
        self._loop = _AsyncRolloutLoop(
            model_name="policy",
            dataset=Dataset.from_list(dataset),
            reward_funcs=[],
            processing_class=workbench.hf_tokenizer,
            eos_token_ids=[workbench.processor.close_token_id],
            rollout_buffer=self.rows,
            model_version_value=SimpleNamespace(value=1),
            heartbeat_value=SimpleNamespace(value=0.0),
            failed_event=threading.Event(),
            exception_info_queue=queue.Queue(1),
            metrics_queue=queue.Queue(),
            environment_factory=_environment(workbench),
            num_generations=_GROUP,
            max_inflight_tasks=workbench.scale.stream_slots,
            max_tokens=_HOLDS // 2,
            vllm_server_url=url,
        )
        self._thread = threading.Thread(target=self._loop.run, daemon=True)
        self.start = self._thread.start

    def stop(self) -> None:
        self._loop._loop.call_soon_threadsafe(self._loop._stop_event.set)
        self._thread.join(30)


if __name__ == "__main__":
    main(sys.argv[1:])
