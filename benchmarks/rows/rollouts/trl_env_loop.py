"""trl-env's `rollout_func`: one rollout after the other, in one environment."""

import time
from collections.abc import Sequence
from types import SimpleNamespace

from benchmarks.measured_conversation import logprobs
from benchmarks.rows.rollouts.env import ScriptEnv
from benchmarks.rows.rollouts.lists import Lists
from benchmarks.rows.rollouts.script import SYSTEM, WITHOUT_LIMIT, Play, Script
from benchmarks.workbench import Workbench

TRL_ENV = "trl-env rollout_func"


def make_trl_env_play(workbench: Workbench) -> Play:
    """trl-env's `rollout_func`, with a processor that writes what this chat template writes.

    Raises:
        PeerMissing: trl-env is not installed, or does not import.
    """
    processors = workbench.peer("trl-env", "trl_env.processor")
    tokenizers = workbench.peer("trl-env", "trl_env.tokenizer")
    make_rollout_func = workbench.peer("trl-env", "trl_env.rollout").make_rollout_func
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

    def play(script: Script) -> Lists:
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
            tokenizer=tokenizers.TransformerTokenizer(workbench.hf_tokenizer),
            decoder_factory=SimpleNamespace(make_decoder=lambda trainer: decoder),
            env_factory=lambda: ScriptEnv(script),
            system_prompt=SYSTEM,
            max_conversation_length=WITHOUT_LIMIT,
        )
        columns: Lists = rollout_func([str(index) for index in range(len(script.sampled))], None)
        return columns

    return play
