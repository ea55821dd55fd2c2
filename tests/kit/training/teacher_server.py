"""A server that scores rows as vLLM does, with `prompt_logprobs` of `/v1/completions`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.kit.servers.fake_server import FakeServer, Fault

Change = Callable[[list[Any]], object]


class TeacherServer(FakeServer):
    """Scores with a model.

    Attributes:
        rows: the ids of all rows that it was asked for, without the probe.
        change: changes the `prompt_logprobs` of an answer.
    """

    def __init__(
        self,
        model: Any,
        hf_tokenizer: Any,
        faults: Sequence[Fault] = (),
        *,
        context: int = 1024,
        max_logprobs: int = 20,
        name: str = "teacher",
        change: Change = lambda said: None,
        **settings: Any,
    ) -> None:
        models = [{"id": name, "max_model_len": context}]
        super().__init__(faults, models=models, **settings)
        self.model = model.eval()
        self.hf_tokenizer = hf_tokenizer
        self.context = context
        self.max_logprobs = max_logprobs
        self.change = change
        self.rows: list[tuple[int, ...]] = []
        self._probe: list[int] = []

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: Any) -> None:
        if path == "/tokenize":
            text = body["prompt"]
            self._probe = list(self.hf_tokenizer(text, add_special_tokens=False)["input_ids"])
            self.write(writer, 200, {"count": len(self._probe), "tokens": self._probe})
            return
        if path != "/v1/completions":
            return await super()._answer(writer, path, body)
        ids, top_k = body["prompt"], body["prompt_logprobs"]
        if refusal := self._refusal(ids, top_k):
            self.write(writer, 400, {"error": {"message": refusal}})
            return
        if ids != self._probe[: len(ids)]:
            self.rows.append(tuple(ids))
            await asyncio.sleep(self.delay_s)
            if self.faults:
                return await self.faults.pop(0)(self, writer, body)
        said = prompt_logprobs(self.model, ids, top_k)
        self.change(said)
        self.write(
            writer, 200, {"choices": [{"text": '"prompt_logprobs":[', "prompt_logprobs": said}]}
        )

    def _refusal(self, ids: list[int], top_k: int) -> str | None:
        """As vLLM words it."""
        if top_k > self.max_logprobs:
            return (
                f"Requested prompt logprobs of {top_k}, which is greater than max allowed: "
                f"{self.max_logprobs}"
            )
        if len(ids) + 1 > self.context:
            return f"This model's maximum context length is {self.context} tokens."
        if max(ids) >= self.model.config.vocab_size:
            return f"Token id {max(ids)} is out of vocabulary"
        return None


def prompt_logprobs(model: Any, ids: list[int], top_k: int) -> list[Any]:
    """As vLLM gives them, the drawn token first; the texts of tokens are not easy to pass over."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].float()
    said: list[Any] = [None]
    for position in range(1, len(ids)):
        logprobs = logits[position - 1].log_softmax(-1)
        best = logprobs.topk(top_k).indices.tolist()
        entry = {}
        for id_ in dict.fromkeys([ids[position], *best]):
            rank = int((logprobs >= logprobs[id_]).sum())
            text = '"}],{' if id_ % 3 else "\\"
            entry[str(id_)] = {"logprob": float(logprobs[id_]), "rank": rank, "decoded_token": text}
        said.append(entry)
    return said
