"""Train the unchanged Claude Code or Codex program to fix a function, on a CPU.

    pip install 'abut[trl,claude-code,codex]'
    python repair_cpu.py [--program codex]

Each rollout starts the program in a folder with a broken function, and its reward is 1.0 if the
function's test passes at the end. A model that trains on a CPU cannot write tool calls, so its
turns are scripted, and every other fix is wrong. The logprobs are the model's own, and all else is
as with a capable model. So the example shows that every sampled token is trained; the model does
not learn.
At the end the model computes the logprobs of each row again, which must be the same.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig

from abut import RolloutConfig, Sample, Tokenizer
from abut.agents import ClaudeCode, Codex
from abut.demo.model import load_demo_tokenizer
from abut.records import read_records
from abut.trl import GRPOTrainer, env_reward, make_rollout_func

BROKEN = "def add(a, b):\n    return a - b\n"
TEST = "from add import add; assert add(2, 3) == 5"
PATCH = """*** Begin Patch
*** Update File: add.py
@@
-    return a - b
+    return a {} b
*** End Patch"""


def a_call(name, **arguments):
    """Make a tool call."""
    return {"name": name, "arguments": arguments}


def claude_turns(sign):
    """Yield a look at the file, a call that fails, a fix, and the test."""
    yield "I look first.\n", a_call("Read", file_path="add.py")
    yield "", a_call("Edit", file_path="add.py", old_string="a / b", new_string="a + b")
    yield "", a_call("Edit", file_path="add.py", old_string="a - b", new_string=f"a {sign} b")
    yield "", a_call("Bash", command=f"{sys.executable} -c '{TEST}'", description="Test it")


def codex_turns(sign):
    """Yield the same turns with Codex's tools."""
    yield "I look first.\n", a_call("exec_command", cmd="cat add.py")
    yield "", a_call("exec_command", cmd="cat sub.py")
    yield "", a_call("apply_patch", input=PATCH.format(sign))
    yield "", a_call("exec_command", cmd=f"{sys.executable} -c '{TEST}'")


PROGRAMS = {
    # With this small vocabulary the prompt has 11,000 tokens; without these arguments, 48,000.
    "claude-code": (
        ClaudeCode,
        claude_turns,
        ["--tools", "Read,Edit,Bash", "--system-prompt", "You repair Python."],
    ),
    "codex": (Codex, codex_turns, []),
}


class ScriptedPolicy:
    """A sampler that returns scripted text with the logprobs of a model."""

    def __init__(self, model, tokenizer, turns):
        self.model, self.turns = model, turns
        self.tokenizer, self.end = Tokenizer.from_pretrained(tokenizer), tokenizer.eos_token_id
        self.rollouts = {}
        self.sampled_tokens = 0

    def sample_batch(self, requests):
        """Sample one turn for each request."""
        return [self.sample(request) for request in requests]

    def sample(self, request):
        """Sample one turn; keep the weights of the rollout's start for the replay."""
        rollout_id = request.rollout_id.rpartition(".")[0]  # without the number of the attempt
        if rollout_id not in self.rollouts:
            sign = "+*"[len(self.rollouts) % 2]
            said = [
                f"{text}<tool_call>\n{json.dumps(call)}\n</tool_call>"
                for text, call in self.turns(sign)
            ]
            self.rollouts[rollout_id] = [*said, "Done."], copy.deepcopy(self.model.state_dict())
        said, _ = self.rollouts[rollout_id]
        ids = [*self.tokenizer.encode(said[request.turn], added="parse").tolist(), self.end]
        self.sampled_tokens += len(ids)
        logprobs = logprobs_of(self.model, [*request.prompt_ids.tolist(), *ids], len(ids))
        return Sample(np.array(ids), logprobs, "stop")


def logprobs_of(model, ids, last):
    """Return the logprobs of the last ids, `(last,)` float32, nats."""
    with torch.no_grad():
        logits = model(torch.tensor([ids]), logits_to_keep=last + 1).logits[0, :-1]
    picked = torch.tensor(ids[-last:])[:, None]
    return logits.float().log_softmax(-1).gather(-1, picked)[:, 0].numpy()


def fill(folder):
    """Write the broken function into a rollout's folder."""
    (folder / "add.py").write_text(BROKEN)


def passes(result):
    """Return 1.0 if the test passes in the rollout's folder, else 0.0."""
    # The policy wrote add.py, so it does not get the trainer's variables, which may hold keys.
    # A real policy needs a sandbox here too, see docs/integrations/agents.md.
    command = [sys.executable, "-c", TEST]
    try:
        tested = subprocess.run(command, cwd=result.cwd, env={}, capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return 0.0
    return float(tested.returncode == 0)


def main(program, max_steps):
    """Train, and replay each row."""
    harness, turns, args = PROGRAMS[program]
    tokenizer = load_demo_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=65536,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    policy = ScriptedPolicy(model, tokenizer, turns)
    repairs = harness("Repair add.py: it must add.", passes, fill, args=args, max_calls=10)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=env_reward,
            args=GRPOConfig(
                folder,
                max_steps=max_steps,
                per_device_train_batch_size=1,
                gradient_accumulation_steps=4,
                num_generations=4,
                max_completion_length=65536,
                logging_steps=1,
                use_cpu=True,
                bf16=False,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["Repair it."] * 4}),
            processing_class=tokenizer,
            rollout_func=make_rollout_func(
                repairs,
                sampler=policy,
                recorder=Path(folder) / "records",
                config=RolloutConfig(max_context_tokens=65536, retries=0),
            ),
        )
        trainer.train()
        worst, trained_tokens, rows = 0.0, 0, 0
        replayed = Qwen3ForCausalLM(config)
        for record in read_records(Path(folder) / "records"):
            replayed.load_state_dict(policy.rollouts[record["rollout_id"]][1])
            completion, mask = record["completion_ids"], np.array(record["env_mask"], bool)
            ids = [*record["prompt_ids"], *completion]
            again = logprobs_of(replayed, ids, len(completion))
            worst = max(worst, np.abs(again - record["logprobs"])[mask].max())
            trained_tokens, rows = trained_tokens + mask.sum(), rows + 1
    for log in trainer.state.log_history[:max_steps]:
        print(f"mean reward {log['reward']:.2f}, gradient {log['grad_norm']:.1e}")
    print(f"{rows} rows; {trained_tokens} of {policy.sampled_tokens} sampled tokens are trained")
    print(f"in the replay, logprobs differ by at most {worst:.0e} nats")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--program", choices=[*PROGRAMS], default="claude-code")
    parser.add_argument("--max-steps", type=int, default=2, help="training steps of 4 rollouts")
    given = parser.parse_args()
    main(given.program, given.max_steps)
