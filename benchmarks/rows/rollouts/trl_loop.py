"""TRL's loop over tool calls: all rollouts in lock-step, turn by turn."""

import time
from types import SimpleNamespace
from typing import Any

from benchmarks.measured_conversation import logprobs
from benchmarks.peers import PeerMissing
from benchmarks.rows.rollouts.lists import Lists
from benchmarks.rows.rollouts.script import WITHOUT_LIMIT, Play, Script
from benchmarks.trainer import trainer_stub
from benchmarks.workbench import Workbench

TRL = "TRL _tool_call_loop"


def make_trl_play(workbench: Workbench) -> Play:
    """Return TRL's loop over tool calls; the first turn is made as in its `_generate`.

    Raises:
        PeerMissing: TRL is not installed, or cannot parse the tool calls of this template.
    """
    trainer = trainer_stub(workbench)
    templates = workbench.peer("trl", "trl.chat_template_utils")
    try:
        hf_tokenizer = templates.add_response_schema(workbench.hf_tokenizer)
    except ValueError as error:
        raise PeerMissing(f"TRL cannot parse this template's tool calls: {error}") from error
    trainer.model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=WITHOUT_LIMIT))
    trainer.max_completion_length = WITHOUT_LIMIT
    trainer.max_tool_calling_iterations = workbench.scale.turns - 1
    trainer.use_vllm, trainer.vllm_mode = False, "server"
    trainer.environment_factories, trainer.tools = None, None

    def play(script: Script) -> Lists:
        count = len(script.sampled)
        trainer._sync_tool_dicts = [{"search": script.search}] * count
        trainer._async_tool_dicts = [{}] * count
        turns = iter(range(workbench.scale.turns))

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

    return play
