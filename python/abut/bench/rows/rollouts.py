"""Whole rollouts: everything but the model, which is a script, and the environment, which is one.

abut plays them as its engine does, with threads and an event loop; the peers one after the other,
or in lock-step, as theirs do. All hand over lists, as a trainer takes them.
"""

import asyncio
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abut._native import Columns as TrainingColumns
from abut._native import Trajectory
from abut.bench.conversation import logprobs, tool_reply
from abut.bench.figures import Row, require_same
from abut.bench.peers import PeerMissing
from abut.bench.stage import Stage
from abut.bench.texts import Replies
from abut.bench.timing import Check, Sides, interleave
from abut.bench.trainer import trainer_stub
from abut.engine import Engine, Limits
from abut.messages import Message
from abut.rollout import RolloutConfig, RolloutTask
from abut.sampler import Sample, SampleRequest

TRL, TRL_ENV = "TRL _tool_call_loop", "trl-env rollout_func"
LOOP = "abut, a plain loop around Trajectory"
FLOOR = "abut, that loop without reading samples"
TOOLS, USERS = "replies as tool messages, calls parsed", "replies as user turns"
SYSTEM = "You look for where the time goes."
WITHOUT_LIMIT = 10**9
WARM_UP_ROLLOUTS = 2

Columns = dict[str, list[list[Any]]]


def measure(stage: Stage) -> Row:
    """Play the same rollouts in every way."""
    scale = stage.scale
    row = Row(
        "rollouts",
        f"assemble {scale.rollouts} rollouts of {scale.turns} turns",
        equal="prompt, completion, mask and logprobs of every rollout",
        notes=[
            f"Each turn samples about 300 tokens and gets {scale.reply_bytes:,} bytes of reply, "
            "all of them different. The sampler answers at once, by a script.",
            "trl-env leaves out the newline that the template writes behind a sampled "
            "`<|im_end|>`; those of abut are taken out before the two are compared.",
            "trl-env is made for Python 3.12: below, a stand-in takes the place of its module "
            "`trl_env.environment`, which holds type aliases alone, in the syntax of 3.12.",
            "trl-env plays one rollout after the other on one thread, and so does the plain loop "
            "beside it: no deadlines, no retries, nothing at once. abut's engine has all of these: "
            "that is the difference between the two lines of abut.",
            "The last line of abut is that loop without decoding and parsing what was sampled: the "
            "reply as parts, append, request, append_sampled, and the columns as lists. trl-env's "
            "time over this line's is the most that can be reached against it.",
        ],
    )
    measure_case(stage, row, TOOLS, TRL, play_trl, {"abut": abut_with_tools})
    ours = {"abut": abut_with_users, LOOP: _loop, FLOOR: _floor}
    measure_case(stage, row, USERS, TRL_ENV, play_trl_env, ours)
    row.need_faster(TRL, TOOLS, 20)
    row.need_faster(TRL_ENV, USERS, 20)
    return row


@dataclass
class Script:
    """What is sampled and what is answered in each turn of each rollout."""

    sampled: list[list[NDArray[np.int64]]]
    sampled_lists: list[list[list[int]]]
    replies: list[list[str]]
    """The first is what the environment begins with."""
    stage: Stage
    delays: NDArray[np.float64] | None = None
    """`(2, rollouts, turns)` seconds that samples and steps take; None: they answer at once."""

    @classmethod
    def of(cls, stage: Stage, seed: int, rollouts: int) -> "Script":
        """Write one; other texts for every seed."""
        turns, size = stage.scale.turns, stage.scale.reply_bytes
        texts = iter(Replies(seed, size).take(rollouts * (2 * turns + 1)))
        sampled = []
        for index in range(rollouts):
            # A call at the end of the policy's text names what the tool is to answer.
            calls = [
                json.dumps({"name": "search", "arguments": {"query": f"{index}-{turn + 1}"}})
                for turn in range(turns)
            ]
            spoken = [f"{next(texts)}\n<tool_call>\n{call}\n</tool_call>" for call in calls]
            close = stage.processor.close_token_id
            sampled.append([np.append(stage.tokenizer.encode(text), close) for text in spoken])
        replies = [[next(texts) for _ in range(turns + 1)] for _ in range(rollouts)]
        lists = [[ids.tolist() for ids in one] for one in sampled]
        return cls(sampled, lists, replies, stage)

    def reply(self, query: str) -> str:
        """What the tool finds."""
        index, turn = map(int, query.split("-"))
        return self.answer(index, turn)

    def answer(self, index: int, turn: int) -> str:
        """What the environment says to an action; turns are counted from 1, 0 is its opening."""
        if self.delays is not None and turn:
            time.sleep(self.delays[1, index, turn - 1])
        return self.replies[index][turn]

    def sample_s(self, turn: int, index: int | slice = slice(None)) -> float:
        """How long a sample takes, or the slowest of all that are sampled together."""
        return 0.0 if self.delays is None else float(np.max(self.delays[0, index, turn]))


def measure_case(
    stage: Stage,
    row: Row,
    case: str,
    peer: str,
    make_peer: Callable[[Stage], Callable[[Script], Columns]],
    ours: Mapping[str, Callable[[Script], Columns]],
    *,
    delays: Callable[[int, int], NDArray[np.float64]] | None = None,
) -> None:
    """Time one peer and ours on the same rollouts.

    Args:
        stage: how many rollouts.
        row: gets the figures.
        case: the name of what is compared.
        peer: its name.
        make_peer: makes what plays a script in its way.
        ours: what plays it in ours, by name.
        delays: for the number of a round and of its rollouts, the delays.
    """
    try:
        theirs = make_peer(stage)
    except PeerMissing as missing:
        row.missing[peer] = str(missing)
        theirs = None

    def prepare(number: int) -> tuple[Sides, Check]:
        count = WARM_UP_ROLLOUTS if number < 0 else stage.scale.rollouts
        script = Script.of(stage, 20 + number, count)
        if delays is not None:
            script.delays = delays(number, count)

        def check(results: dict[str, Any]) -> None:
            for name in ours:
                if theirs is not None:
                    _compare(peer, results[name], results[peer], stage)

        sides: dict[str, Callable[[], Any]] = {
            name: functools.partial(play, script) for name, play in ours.items()
        }
        if theirs is not None:
            sides[peer] = lambda: theirs(script)
        return sides, check

    row.add(case, interleave(prepare, stage.scale.rollout_rounds, collect=True))


def _compare(peer: str, ours: Columns, theirs: Columns, stage: Stage) -> None:
    for index, ids in enumerate(ours["completion_ids"]):
        kept = np.ones(len(ids), dtype=bool)
        if peer == TRL_ENV:
            mask = np.asarray(ours["env_mask"][index])
            kept[np.flatnonzero((mask[:-1] == 1) & (mask[1:] == 0)) + 1] = False
            newline = stage.tokenizer.encode("\n")
            separators = np.asarray(ids)[~kept]
            require_same("separators", "a newline", separators, [*newline] * len(separators))
        require_same(
            f"prompt_ids of rollout {index}", peer, ours["prompt_ids"][index],
            theirs["prompt_ids"][index],
        )  # fmt: skip
        for name in ("completion_ids", "env_mask", "logprobs"):
            left, right = np.asarray(ours[name][index])[kept], theirs[name][index]
            require_same(f"{name} of rollout {index}", peer, left, right)


# ---- abut


class _Env:
    """Answers by the script; its seed is the number of the rollout."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._turn = 0
        self.reward, self.alive = 0.0, True

    def reset(self, seed: str) -> tuple["_Env", str | list[Message]]:
        self._index = int(seed)
        return self, self._script.answer(self._index, 0)

    def step(self, action: str) -> tuple["_Env", str | list[Message]]:
        self._turn += 1
        self.alive = self._turn < self._script.stage.scale.turns
        return self, self._answer(action)

    def _answer(self, action: str) -> str | list[Message]:
        return self._script.answer(self._index, self._turn)


class _ToolEnv(_Env):
    """Parses the call that the policy wrote, and answers it."""

    def _answer(self, action: str) -> str | list[Message]:
        calls = self._script.stage.processor.parse_tool_calls(action).calls
        return [tool_reply(self._script.reply(call.arguments["query"])) for call in calls]


class _Sampler:
    """Says what the script says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def sample(self, request: SampleRequest) -> Sample:
        index = int(request.rollout_id)
        if seconds := self._script.sample_s(request.turn, index):
            await asyncio.sleep(seconds)
        ids = self._script.sampled[index][request.turn]
        return Sample(ids, logprobs(len(ids)), "stop")


def _abut(script: Script, env: type[_Env], messages: list[Message]) -> Columns:
    stage = script.stage
    engine = Engine(
        stage.tokenizer,
        stage.processor,
        _Sampler(script),
        RolloutConfig(
            max_turns=stage.scale.turns,
            on_failure="raise",
            # No limit in the way of environments that sleep.
            max_env_steps=64 if script.delays is None else len(script.sampled),
        ),
        Limits(WITHOUT_LIMIT),
    )
    tasks = [
        RolloutTask(index, str(index), lambda: env(script), messages, str(index), index)
        for index in range(len(script.sampled))
    ]
    return _lists([rollout.columns for rollout in engine.run(tasks)])


def abut_with_tools(script: Script) -> Columns:
    """Replies as tool messages; the environment parses the calls."""
    return _abut(script, _ToolEnv, [])


def abut_with_users(script: Script) -> Columns:
    """Replies as user turns."""
    return _abut(script, _Env, [{"role": "system", "content": SYSTEM}])


def _loop(script: Script, *, reads: bool = True) -> Columns:
    """The same as `abut_with_users`, one rollout after the other; `reads` what is sampled."""
    stage, rows = script.stage, []
    for sampled, replies in zip(script.sampled, script.replies, strict=True):
        trajectory = Trajectory(stage.tokenizer)
        system = {"role": "system", "content": SYSTEM}
        parts = stage.processor.opening([system, {"role": "user", "content": replies[0]}])
        for ids, reply in zip(sampled, replies[1:], strict=True):
            trajectory.append_parts(parts)
            trajectory.request()
            trajectory.append_sampled(ids, logprobs(len(ids)))
            if reads:
                stage.processor.parse_agent_output(stage.tokenizer.decode(ids))
            parts = stage.processor.increment([{"role": "user", "content": reply}])
        rows.append(trajectory.columns())
    return _lists(rows)


def _floor(script: Script) -> Columns:
    """What no loop around a trajectory can do without."""
    return _loop(script, reads=False)


def _lists(rows: Sequence[TrainingColumns | None]) -> Columns:
    names = ("prompt_ids", "completion_ids", "env_mask", "logprobs")
    return {name: [getattr(row, name).tolist() for row in rows] for name in names}


# ---- the peers


def play_trl(stage: Stage) -> Callable[[Script], Columns]:
    """TRL's loop over tool calls; the first turn as its `_generate` makes it.

    Raises:
        PeerMissing: TRL is not installed, or does not know how this template writes tool calls.
    """
    trainer = trainer_stub(stage)
    templates = stage.peer("trl", "trl.chat_template_utils")
    try:
        hf_tokenizer = templates.add_response_schema(stage.hf_tokenizer)
    except ValueError as error:
        raise PeerMissing(f"TRL cannot parse this template's tool calls: {error}") from error
    trainer.model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=WITHOUT_LIMIT))
    trainer.max_completion_length = WITHOUT_LIMIT
    trainer.max_tool_calling_iterations = stage.scale.turns - 1
    trainer.use_vllm, trainer.vllm_mode = False, "server"
    trainer.environment_factories, trainer.tools = None, None

    def run(script: Script) -> Columns:
        count = len(script.sampled)
        trainer._sync_tool_dicts = [{"search": script.reply}] * count
        trainer._async_tool_dicts = [{}] * count
        turns = iter(range(stage.scale.turns))

        def generate(*_: Any, **__: Any) -> tuple[list[list[int]], list[list[float]]]:
            turn = next(turns)
            time.sleep(script.sample_s(turn))
            ids = [list(one[turn]) for one in script.sampled_lists]
            return ids, [logprobs(len(one)).tolist() for one in ids]

        trainer._generate_single_turn = generate
        prompts = [[{"role": "user", "content": replies[0]}] for replies in script.replies]
        prompt_ids = [
            hf_tokenizer.apply_chat_template(
                prompt,
                add_generation_prompt=True,
                chat_template=trainer.chat_template,
                return_dict=False,
            )
            for prompt in prompts
        ]
        completion_ids, logs = generate()
        completions = [
            [templates.parse_response(hf_tokenizer, ids, prefix=prompt, tools=None)]
            for ids, prompt in zip(completion_ids, prompt_ids, strict=True)
        ]
        mask, _, completion_ids, logs, *_ = trainer._tool_call_loop(
            prompts, prompt_ids, completion_ids, completions, logs, None, {}
        )
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completion_ids,
            "env_mask": mask,
            "logprobs": logs,
        }

    return run


def play_trl_env(stage: Stage) -> Callable[[Script], Columns]:
    """trl-env's `rollout_func`, with a processor that writes what this chat template writes.

    Raises:
        PeerMissing: trl-env is not installed, or does not import.
    """
    processors = stage.peer("trl-env", "trl_env.processor")
    tokenizers = stage.peer("trl-env", "trl_env.tokenizer")
    make_rollout_func = stage.peer("trl-env", "trl_env.rollout").make_rollout_func
    processor = processors.Type1Processor(
        processors.Type1ProcessorConfig(
            prefix_system="<|im_start|>system\n",
            suffix_system="<|im_end|>\n",
            prefix_user="<|im_start|>user\n",
            suffix_user="<|im_end|>\n<|im_start|>assistant\n",
            begin_answer="</think>",
            end_answer="<|im_end|>",
        )
    )

    def run(script: Script) -> Columns:
        spoken = iter(
            [
                (script.sample_s(turn, index), ids)
                for index, one in enumerate(script.sampled_lists)
                for turn, ids in enumerate(one)
            ]
        )

        def generate(_: Sequence[int]) -> tuple[list[int], list[float]]:
            seconds, ids = next(spoken)
            time.sleep(seconds)
            return ids, logprobs(len(ids)).tolist()

        decoder = SimpleNamespace(generate=generate)
        rollout_func = make_rollout_func(
            processor=processor,
            tokenizer=tokenizers.TransformerTokenizer(stage.hf_tokenizer),
            decoder_factory=SimpleNamespace(make_decoder=lambda trainer: decoder),
            env_factory=lambda: _TrlEnv(script),
            system_prompt=SYSTEM,
            max_conversation_length=WITHOUT_LIMIT,
        )
        columns: Columns = rollout_func([str(index) for index in range(len(script.sampled))], None)
        return columns

    return run


class _TrlEnv(_Env):
    """The one environment in which trl-env plays all rollouts, one after the other."""

    def reset(self, seed: str) -> tuple["_Env", str | list[Message]]:
        self._turn, self.alive = 0, True
        return super().reset(seed)
