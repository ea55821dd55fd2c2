"""A policy that says hard things: thinking, calls, broken calls, nothing, texts that are cut.

Each answer that says anything has a tag of its own, `n7.`, so that two answers are equal only where
both are blank.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import abut
from abut.errors import AbutError
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.refusal import limit_reached
from abut.gateway.ledger.writer import Writer
from abut.processor import PartsProcessor
from abut.rollout.budget import Budget
from abut.rollout.conversation import Conversation
from abut.rollout.rollout import StopReason
from abut.samplers.sampler import VERSIONS, Sample, SampleRequest
from abut.template.processor import ChatTemplateProcessor
from abut.tools.tool_messages import ToolAnswers
from tests.kit.data.trl_templates import with_template
from tests.kit.stage.agents import LOOKUP

STOPS = ("</code>", "Observation:", "END")
SEARCH = {"type": "function", "function": {**LOOKUP["function"], "name": "search"}}
TOOLS: tuple[list[Any] | None, ...] = ([LOOKUP, SEARCH], None, [SEARCH, LOOKUP])

HARD: tuple[Any, ...] = (1, True, 1.0, 0, False, -0.0, None, "", "1", "true", [], {}, [1, True])
HARD += ({"b": {"c": [0, None]}}, "é漢 \n\"'", " outer ", 1e3, 2**60, 0.1, float("nan"), "None")


class Words:
    """What the policy says: texts of many kinds, each with a tag that no other has."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def tag(self) -> str:
        return f"n{next(self._numbers)}."

    def text(self, rng: random.Random) -> str:
        kinds = ("plain", "plain", "thought", "calls", "calls", "calls", "code", "blank", "broken")
        kind = rng.choice((*kinds, "thought calls", "thought blank"))
        thought = f"<think>\nhm {self.tag()} \n</think>\n\n" if kind.startswith("thought") else ""
        kind = kind.removeprefix("thought").strip() or "plain"
        return thought + getattr(self, kind)(rng)

    def plain(self, rng: random.Random) -> str:
        words = rng.choice(["a  b", "über 漢字\n\nthen", "x", "so it is,  said\tshe", "1 true"])
        return f"{_space(rng)}{self.tag()} {words}{_space(rng)}"

    def calls(self, rng: random.Random) -> str:
        text = rng.choice(["", self.plain(rng)])
        calls = [self._call(rng, bare=bool(text)) for _ in range(rng.choice([1, 1, 2, 3]))]
        return text + "\n".join(calls)

    def _call(self, rng: random.Random, *, bare: bool) -> str:
        keys = rng.sample(["a", "b", "ü"], rng.randrange(3))
        arguments: dict[str, Any] = {} if bare else {"tag": self.tag()}
        arguments |= {key: rng.choice(rng.choice([HARD, HARD[:5]])) for key in keys}
        call = {"name": rng.choice(["lookup", "search"]), "arguments": arguments}
        return f"<tool_call>\n{json.dumps(call, ensure_ascii=rng.random() < 0.5)}\n</tool_call>"

    def broken(self, rng: random.Random) -> str:
        bad = rng.choice(['{"name": "lookup", "arguments": [1]}', '{"name": ', "{}"])
        return f"{self.tag()}\n<tool_call>\n{bad}\n</tool_call>{rng.choice(['', self.calls(rng)])}"

    def code(self, rng: random.Random) -> str:
        return f"Thought: {self.tag()}\n<code>\nprint('{self.tag()}')\n{rng.choice(['', 'END'])}"

    def blank(self, rng: random.Random) -> str:
        return _space(rng)


def _space(rng: random.Random) -> str:
    return rng.choice(["", "", " ", "\n", " \n\n"])


@dataclass
class Heard:
    """One request that the sampler got, and what it said to it."""

    request: SampleRequest
    prompt: list[int]
    """As it was then."""
    chat: AgentRequest
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    sample: Sample | None = None
    fails: bool = False


class RandomPolicy:
    """A `Policy` that answers when it is told to."""

    max_turns: int | None = None
    max_calls: int | None = None
    max_rollout_tokens: int | None = None

    def __init__(self, hf_tokenizer: Any, rng: random.Random) -> None:
        self.hf = hf_tokenizer
        self.tokenizer = abut.Tokenizer.from_pretrained(hf_tokenizer)
        self.rng = rng
        self.words = Words()
        self.heard: list[Heard] = []
        self.failures: list[Exception] = []
        self.shown_of: dict[str, Writer] = {}
        self.closes = processor_of(hf_tokenizer, "null").close_token_id

    def conversation(self, processor: PartsProcessor) -> Conversation:
        return Conversation(self.tokenizer, processor)

    def budget(self) -> Budget:
        return Budget()

    def seed(self, number: int) -> int:
        return number

    async def writer_of(self, request: AgentRequest) -> Writer:
        if request.frame not in self.shown_of:
            processor = processor_of(self.hf, json.dumps(request.tools))
            answers = ToolAnswers(processor, request.tools) if request.tools else None
            self.shown_of[request.frame] = Writer(processor, answers)
        return self.shown_of[request.frame]

    def note(self, request: AgentRequest) -> None:
        pass

    async def sample(self, request: SampleRequest, chat: AgentRequest) -> Sample:
        heard = Heard(request, request.prompt_ids.tolist(), chat)
        self.heard.append(heard)
        await heard.go_on.wait()
        if heard.fails:
            raise limit_reached("the time is over", reason=StopReason.DEADLINE)
        heard.sample = self._drawn(request)
        return heard.sample

    def failed(self, error: Exception) -> None:
        self.failures.append(error)

    def _drawn(self, request: SampleRequest) -> Sample:
        rng, text = self.rng, self.words.text(self.rng)
        if request.stop and rng.random() < 0.5:
            stop = rng.choice(request.stop)
            ids = self._ids(text + stop)
            if len(ids) <= request.max_tokens:
                return self._of(ids, "stop", stop)
        ids = self._ids(text)
        cut = len(ids) - rng.randrange(6) if rng.random() < 0.15 else len(ids) + 1
        if cut > len(self._ids(text[: text.rfind("n")])) + 6:  # the last tag is in it
            ids = [*ids, self.closes][:cut]
        else:
            ids = [*ids, self.closes]
        ids = ids[: request.max_tokens]
        return self._of(ids, "stop" if ids[-1] == self.closes else "length", None)

    def _ids(self, text: str) -> list[int]:
        """Of a text, at times in smaller pieces than the tokenizer makes."""
        pieces = [text]
        if "<" not in text and self.rng.random() < 0.3:
            pieces = list(text)
        return [int(id_) for piece in pieces for id_ in self.tokenizer.encode(piece, added="parse")]

    def _of(self, ids: Sequence[int], reason: Any, stop: str | None) -> Sample:
        logprobs = -0.25 - np.arange(len(ids), dtype=np.float32) - len(self.heard)
        # A number for each token of the whole run, so that one in another place would show.
        versions = {VERSIONS: 1000 * len(self.heard) + np.arange(len(ids))}
        return Sample(np.array(ids, np.int64), logprobs, reason, stop_string=stop, streams=versions)


@cache
def processor_of(hf_tokenizer: Any, tools: str) -> ChatTemplateProcessor:
    """The processor of tools, written as JSON; a proof takes longer than a whole example."""
    return ChatTemplateProcessor(hf_tokenizer, tools=json.loads(tools))


def naming(hf_tokenizer: Any) -> Any:
    """The tokenizer with a template that shows which tool said a thing."""
    said = "'\\n<tool_response>\\n' + message.content"
    template = hf_tokenizer.chat_template
    if said not in template:
        raise AbutError("the demo's template writes results in another way")
    named = "'\\n<tool_response>\\n' + message.name + ': ' + message.content"
    return with_template(hf_tokenizer, template.replace(said, named))
