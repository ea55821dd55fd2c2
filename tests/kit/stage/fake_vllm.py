"""A vLLM engine in this process that only counts: the same calls, answers and refusals.

What a token is depends on its request's seed, on its place and on which request of the engine it
belongs to. So ranks that admit other requests, or in another order, get other tokens.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

VOCABULARY = 512


@dataclass
class SamplingParams:
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    max_tokens: int
    seed: int
    stop_token_ids: list[int]
    logprobs: int
    detokenize: bool
    skip_special_tokens: bool
    output_kind: str
    min_tokens: int = 0
    stop: Sequence[str] = ()
    structured_outputs: Any = None
    logit_bias: Any = None


def install(modules: dict[str, Any], cpu_group: Any = None) -> None:
    """Put it where `import vllm` finds it."""
    kind = SimpleNamespace(FINAL_ONLY="final only")
    params = {"RequestOutputKind": kind, "StructuredOutputsParams": SimpleNamespace}
    distributed = {"get_tp_group": lambda: SimpleNamespace(cpu_group=cpu_group)}
    for name, members in {
        "vllm": {"SamplingParams": SamplingParams},
        "vllm.sampling_params": params,
        "vllm.distributed": distributed,
    }.items():
        modules[name] = ModuleType(name)
        modules[name].__dict__.update(members)


@dataclass
class Drawing:
    """One request of the engine."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    number: int
    token_ids: list[int] = field(default_factory=list)


class Engine:
    """`LLMEngine`: each step draws one token for each request.

    Args:
        max_model_len: prompt and sample together.
        logprobs_mode: as the engine was built.
        ranks: of the tensor-parallel group.
        step_s: how long a step takes.
        renderer: makes prompts with images; None: the model takes none.
        change: changes an output before it is given.
    """

    def __init__(
        self,
        *,
        max_model_len: int = 2048,
        logprobs_mode: str = "processed_logprobs",
        ranks: int = 1,
        step_s: float = 0.0,
        renderer: Any = None,
        change: Callable[[Any], None] = lambda output: None,
    ) -> None:
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                max_model_len=max_model_len,
                logprobs_mode=logprobs_mode,
                is_multimodal_model=renderer is not None,
            ),
            parallel_config=SimpleNamespace(
                tensor_parallel_size=ranks, distributed_executor_backend="external_launcher"
            ),
        )
        self.renderer = renderer
        self.step_s = step_s
        self.change = change
        self.running: dict[str, Drawing] = {}
        self.admitted: list[tuple[str, tuple[int, ...]]] = []
        self.aborted: list[str] = []
        self.params: list[SamplingParams] = []
        self.threads: set[str] = set()
        self.steps = 0
        self.fails_at: int | None = None

    def add_request(self, request_id: str, prompt: dict[str, Any], params: SamplingParams) -> None:
        self.threads.add(threading.current_thread().name)
        assert prompt.keys() == {"type", "prompt_token_ids"}
        ids = prompt["prompt_token_ids"]
        assert len(ids) + params.max_tokens <= self.vllm_config.model_config.max_model_len
        assert request_id not in self.running
        if max(ids) >= VOCABULARY:
            raise ValueError(f"Token id {max(ids)} is out of vocabulary")
        self.running[request_id] = Drawing(request_id, ids, params, len(self.admitted))
        self.admitted.append((request_id, tuple(ids)))
        self.params.append(params)

    def abort_request(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self.running[request_id]
        self.aborted += request_ids

    def step(self) -> list[Any]:
        assert self.running, "vLLM must not step with nothing to do"
        if self.fails_at == self.steps:
            raise RuntimeError("out of memory")
        self.steps += 1
        time.sleep(self.step_s)
        outputs = []
        for drawing in list(self.running.values()):
            token = token_of(drawing.params.seed, drawing.number, len(drawing.token_ids))
            drawing.token_ids.append(token)
            if reason := self._finish_reason(drawing):
                del self.running[drawing.request_id]
                outputs.append(self._output(drawing, reason))
        return outputs

    def _finish_reason(self, drawing: Drawing) -> str | None:
        if drawing.token_ids[-1] in drawing.params.stop_token_ids:
            return "stop"
        return "length" if len(drawing.token_ids) == drawing.params.max_tokens else None

    def _output(self, drawing: Drawing, finish_reason: str) -> Any:
        drawn = SimpleNamespace(
            token_ids=drawing.token_ids,
            # The most likely token stands beside the sampled one.
            logprobs=[
                {0: SimpleNamespace(logprob=-0.01), id_: SimpleNamespace(logprob=logprob_of(id_))}
                for id_ in drawing.token_ids
            ],
            finish_reason=finish_reason,
            stop_reason=drawing.token_ids[-1] if finish_reason == "stop" else None,
        )
        output = SimpleNamespace(
            request_id=drawing.request_id,
            prompt_token_ids=drawing.prompt_token_ids,
            outputs=[drawn],
            finished=True,
        )
        self.change(output)
        return output


def token_of(seed: int, number: int, place: int) -> int:
    """An ordinary token of the demo's tokenizer."""
    return 5 + (seed + 31 * number + 7 * place) % 400


def logprob_of(id_: int) -> float:
    return -1.0 - id_ / 1024


def llm(**settings: Any) -> Any:
    return SimpleNamespace(llm_engine=Engine(**settings))
