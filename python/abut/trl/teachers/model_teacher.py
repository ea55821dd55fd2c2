"""A teacher that runs in the trainer's process."""

import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut.concurrency.threads import THREADS
from abut.errors import TeacherError
from abut.pickling import stays
from abut.trl.teachers.teacher import Student, TeacherScores

# Positions whose float32 logprobs are computed at once: 150 MB with Qwen3's vocabulary.
_CHUNK = 256


@stays("it holds models of this process", hint="make the teacher in the process that trains")
class ModelTeacher:
    """A teacher that is a Hugging Face causal language model, which scores one row at a time.

    The model must have the student's tokenizer. ModelTeacher puts it into evaluation mode, and does
    not change its device or dtype.

    Args:
        model: one model, or a mapping to models from the names in the column `teacher_id`.
        temperature: the softmax's temperature; must equal the trainer's `args.teacher_temperature`.

    Raises:
        ValueError: no model is given, or `temperature` is not positive.
    """

    def __init__(self, model: Any | Mapping[str, Any], *, temperature: float = 1.0) -> None:
        models = dict(model) if isinstance(model, Mapping) else {"default": model}
        if not models:
            raise ValueError(
                "ModelTeacher({}): the mapping is empty; expected a model, or a mapping from "
                "names to models"
            )
        if not temperature > 0:
            raise ValueError(f"temperature={temperature!r}: must be more than 0")
        self.names = tuple(models)
        self.temperature = temperature
        self._models = {name: each.eval() for name, each in models.items()}
        self._calls = THREADS.call_queue()  # two forward passes at once need twice the memory

    @asynccontextmanager
    async def open(self, student: Student) -> AsyncIterator[None]:
        """Check that the student's longest row fits into each model.

        Raises:
            TeacherError: a model has too few positions.
        """
        for name, model in self._models.items():
            holds = getattr(_text_config(model), "max_position_embeddings", None)
            if holds is not None and student.max_tokens is not None and student.max_tokens > holds:
                raise TeacherError(
                    f"the teacher {name!r} has a context of {holds} tokens, but rows may have "
                    f"{student.max_tokens}\n"
                    f"hint: set RolloutConfig(max_context_tokens={holds})"
                )
        yield

    async def score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int, name: str
    ) -> TeacherScores:
        """Score tokens of a row on a thread; see `Teacher.score`.

        Raises:
            TeacherError: a token is not in the teacher's vocabulary.
        """
        return await self._calls.ask(lambda: self._score(ids, positions, top_k, name), last=True)

    def _score(
        self, ids: NDArray[np.int64], positions: NDArray[np.int64], top_k: int, name: str
    ) -> TeacherScores:
        import torch

        model = self._models[name]
        vocabulary = int(model.get_input_embeddings().num_embeddings)
        if int(ids.max()) >= vocabulary:
            raise TeacherError(
                f"the teacher {name!r} has a vocabulary of {vocabulary} tokens, but a row has "
                f"token {int(ids.max())}\n"
                "hint: use a teacher with the student's tokenizer"
            )
        with torch.no_grad():
            row = torch.as_tensor(ids, device=model.device)[None]
            before = torch.as_tensor(positions - 1, device=model.device)
            # The logits of a whole long row may not fit into memory. Wrappers such as PEFT's take
            # `**kwargs` and pass the option on.
            known = inspect.signature(model.forward).parameters.values()
            keeps = any(each.name in ("logits_to_keep", "kwargs") for each in known)
            only = {"logits_to_keep": before} if keeps else {}
            logits = model(input_ids=row, use_cache=False, **only).logits[0]
            if len(logits) == len(ids):
                logits = logits[before]
            drawn_ids = row[0][torch.as_tensor(positions, device=model.device)]
            parts = [
                _best(logits[k : k + _CHUNK], drawn_ids[k : k + _CHUNK], top_k, self.temperature)
                for k in range(0, len(positions), _CHUNK)
            ]
        ids_, logprobs, drawn = (
            np.concatenate([part.cpu().numpy() for part in of_all])
            for of_all in zip(*parts, strict=True)
        )
        return TeacherScores(ids_, logprobs, drawn)


def _best(logits: Any, drawn_ids: Any, top_k: int, temperature: float) -> tuple[Any, Any, Any]:
    """Return the candidates' ids and logprobs, and the logprobs of the drawn tokens."""
    logprobs = (logits.float() / temperature).log_softmax(-1)
    best = logprobs.topk(min(top_k, logprobs.shape[-1]), dim=-1)
    return best.indices, best.values, logprobs.gather(-1, drawn_ids[:, None])[:, 0]


def _text_config(model: Any) -> Any:
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config
