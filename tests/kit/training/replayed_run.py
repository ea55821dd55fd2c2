"""A real `GRPOTrainer` whose rows are replayed before a step changes the model."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from abut import Tokenizer
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.training.trl_run import Run


class ReplayedRun(Run):
    """Compares each sampled token's logprob with a forward pass over its row alone.

    Attributes:
        worst_replay: the largest difference so far, in nats.
        worst_shifted: the same with each logprob one token late: the negative control.
        replayed: how many sampled tokens were compared.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.worst_replay = self.worst_shifted = 0.0
        self.replayed = 0
        super().__init__(*args, **kwargs)

    def _keep(self, prompts: Any, trainer: Any) -> Any:
        output = super()._keep(prompts, trainer)
        model = trainer.model
        training = model.training
        model.eval()
        names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
        for row in zip(*(output[name] for name in names), strict=True):
            self._replay(model, trainer.args.temperature, *row)
        model.train(training)
        return output

    def _replay(
        self, model: Any, temperature: float, prompt: Any, completion: Any, said: Any, mask: Any
    ) -> None:
        sampled = np.asarray(mask, dtype=bool)
        if not sampled.any():
            return
        own = logprobs_of(model, [*prompt, *completion], len(prompt), temperature)[sampled]
        ours = np.asarray(said)[sampled]
        self.replayed += len(ours)
        self.worst_replay = max(self.worst_replay, float(np.abs(own - ours).max()))
        late = float(np.abs(own - np.roll(ours, 1)).max())
        self.worst_shifted = max(self.worst_shifted, late)


def logprobs_of(model: Any, ids: Any, start: int, temperature: float) -> Any:
    """Return the `(T,)` logprobs of the ids from `start` on, in nats."""
    tensor = torch.tensor([[int(id_) for id_ in ids]], device=model.device)
    with torch.no_grad():
        logits = model(input_ids=tensor).logits[0, start - 1 : -1].float() / temperature
    picked = logits.log_softmax(-1).gather(1, tensor[0, start:, None])
    return picked[:, 0].cpu().numpy()


class ScriptedModel:
    """A sampler that says texts of a script, with the logprobs that a model has for them.

    A model that is this small never calls a tool of its own accord.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        close_token_id: ends each text.
        script: returns what the policy says to a conversation as its template wrote it.
        temperature: the trainer's.
    """

    max_context_tokens = None

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        close_token_id: int,
        script: Callable[[str], str],
        temperature: float,
    ) -> None:
        self._model, self._tokenizer, self._close_token_id = model, tokenizer, close_token_id
        self._script, self._temperature = script, temperature

    async def sample(self, request: SampleRequest) -> Sample:
        """Say the script's next text."""
        text = self._script(self._tokenizer.decode(request.prompt_ids))
        ids = [*self._tokenizer.encode(text).tolist(), self._close_token_id]
        prompt = request.prompt_ids.tolist()
        self._model.eval()
        logprobs = logprobs_of(self._model, [*prompt, *ids], len(prompt), self._temperature)
        return Sample(np.array(ids), logprobs.astype(np.float32), "stop")
