"""Re-rendering as a `rollout_func`: render and tokenize the whole conversation for each turn.

`loop` renders the finished conversation again and trains on those tokens. It assigns the logprobs
of each turn to the turn's new tokens by position, cut or filled with 0. `proxy` keeps the ids that
the sampler returned, and joins them with the rendered tokens between them. So every trained token
was sampled, but the sampler saw other tokens before it.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from abut.samplers import SampleRequest
from scripts.exactness.calls import Call, RecordingSampler, Row, runs_of
from scripts.exactness.tasks import Game, Task


class ReRendering:
    """The `rollout_func` of both arms; `rows` has the rows of the last batch."""

    def __init__(
        self, task: Task, arm: str, seed: int, tokenizer: Any, sampler: RecordingSampler
    ) -> None:
        self._task, self._arm, self._seed = task, arm, seed
        self._tokenizer, self._sampler = tokenizer, sampler
        self._end = tokenizer.eos_token_id
        self._start = tokenizer.convert_tokens_to_ids("<|im_start|>")
        self._head = tokenizer.encode("assistant\n")
        self.given: Sequence[dict[str, Any]] = ()
        """The rows of the dataset, which TRL does not pass on."""
        self.rows: list[Row] = []

    def __call__(self, prompts: Any, trainer: Any) -> dict[str, list[Any]]:
        """Play a batch."""
        games = [self._task.game(row) for row in self.given]
        calls: list[list[Call]] = [[] for _ in games]
        playing = list(range(len(games)))
        for turn in range(self._task.turns):
            requests, asked = [], []
            for k in playing:
                prompt = self._render(games[k], add_generation_prompt=True)
                left = self._task.tokens_left(calls[k], prompt)
                if left > 0:
                    name = f"{self._seed}-{trainer.state.global_step}-{k}"
                    requests.append(self._request(prompt, name, turn, left))
                    asked.append(k)
            if not asked:
                break
            self._sampler.calls.clear()
            samples = self._sampler.sample_batch(requests)
            playing = []
            for k, request, sample in zip(asked, requests, samples, strict=True):
                prompt, ids = request.prompt_ids.tolist(), sample.ids.tolist()
                calls[k].append(Call(prompt, ids, sample.logprobs.tolist()))
                if games[k].hear(self._tokenizer, prompt, ids, last=turn + 1 == self._task.turns):
                    playing.append(k)
        make = self._rendered if self._arm == "loop" else self._joined
        self.rows = [make(game, of_game) for game, of_game in zip(games, calls, strict=True)]
        starts = [row.trained.index(True) for row in self.rows]
        return {
            "prompt_ids": [row.ids[:at] for row, at in zip(self.rows, starts, strict=True)],
            "completion_ids": [row.ids[at:] for row, at in zip(self.rows, starts, strict=True)],
            "logprobs": [row.logprobs[at:] for row, at in zip(self.rows, starts, strict=True)],
            "env_mask": [
                [int(trained) for trained in row.trained[at:]]
                for row, at in zip(self.rows, starts, strict=True)
            ],
            "score": [game.score for game in games],
        }

    def _request(self, prompt: list[int], name: str, turn: int, left: int) -> SampleRequest:
        return SampleRequest(
            prompt_ids=np.array(prompt),
            max_tokens=left,
            stop_token_ids=(self._end,),
            seed=zlib.crc32(f"{name} {turn}".encode()),
            rollout_id=name,
            turn=turn,
        )

    def _render(self, game: Game, **how: Any) -> list[int]:
        return self._tokenizer.apply_chat_template(
            game.history(), tools=game.tools, tokenize=True, return_dict=False, **how
        )

    def _spans(self, ids: list[int]) -> list[bool]:
        """Return the mask of the tokens of assistant turns, their closing tokens included."""
        inside = [False] * len(ids)
        at = 0
        while at < len(ids):
            head = len(self._head)
            if ids[at] == self._start and ids[at + 1] == self._head[0]:
                # A line break that merged with the content is trained with it.
                at += 1 + (head if ids[at + 1 : at + 1 + head] == self._head else head - 1)
                end = ids.index(self._end, at) + 1 if self._end in ids[at:] else len(ids)
                inside[at:end] = [True] * (end - at)
                at = end
            else:
                at += 1
        return inside

    def _rendered(self, game: Game, calls: list[Call]) -> Row:
        ids = self._render(game)
        trained = self._spans(ids)
        told = [0.0] * len(ids)
        for (start, end), call in zip(runs_of(trained), calls, strict=True):
            known = (call.logprobs or [])[: end - start]
            told[start : start + len(known)] = known
        end = runs_of(trained)[-1][1]
        return Row(ids[:end], trained[:end], told[:end], calls)

    def _joined(self, game: Game, calls: list[Call]) -> Row:
        ids, trained, told = list(calls[0].prompt), [False] * len(calls[0].prompt), None
        told = [0.0] * len(ids)
        for k, call in enumerate(calls):
            if k:
                _, end = runs_of(self._spans(call.prompt))[k - 1]
                between = call.prompt[end:]
                if ids[-1] != self._end:
                    between = [self._end, *between]
                ids += between
                trained += [False] * len(between)
                told += [0.0] * len(between)
            ids += call.sampled
            trained += [True] * len(call.sampled)
            told += call.logprobs or []
        return Row(ids, trained, told, calls)
