"""`python -m benchmarks.gpu`: a training step on a GPU, by abut and by TRL's own loop.

Both train the same model on the same single-turn prompts. Sampling is greedy and the learning rate
is 0, so that all sides must sample the same tokens in every step; if they do not, there are no
figures. Each case has a process of its own, because a process has one vLLM engine.
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import require_same

CASES = {
    "abut, in process": (True, False),
    "TRL, in process": (False, False),
    "abut, vLLM": (True, True),
    "TRL, vLLM": (False, True),
}
WARM_UP_STEPS, STEPS = 2, 5
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


class OneQuestion:
    """An environment of one turn, whose question is the prompt."""

    reward, alive = 0.0, True

    def reset(self, seed: str) -> tuple["OneQuestion", str]:
        """Return the question, which is the prompt's text."""
        return self, seed

    def step(self, action: str) -> tuple["OneQuestion", str]:
        """End the rollout."""
        self.reward, self.alive = float(len(action)), False
        return self, ""


def measure(case: str, device: str) -> dict[str, Any]:
    """Train, and return the seconds and the sampled ids of each step after the warm-up."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from abut import RolloutConfig
    from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
    from abut.trl import env_reward, make_rollout_func

    is_abut, use_vllm = CASES[case]
    if use_vllm:  # vLLM would serve a float32 model in 16 bits, and greedy tokens would differ
        import trl.generation.vllm_generation as generation

        generation.LLM = functools.partial(generation.LLM, dtype="float32")
    is_small = device == "cpu"
    recipe = DemoRecipe() if is_small else DemoRecipe(layers=8, hidden_size=1024, heads=16)
    tokens = 16 if is_small else 256
    tokenizer = load_demo_tokenizer()
    steps: list[dict[str, Any]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            steps[-1]["seconds"] = now() - self.began

    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def length(completion_ids: list[list[int]], **_: Any) -> list[float]:
        steps.append({"ids": [list(map(int, ids)) for ids in completion_ids]})
        return [0.0] * len(completion_ids)

    prompts: list[Any] = [*WORDS]
    if not is_abut:
        prompts = [[{"role": "user", "content": word}] for word in WORDS]
    config = RolloutConfig(max_turns=1, max_turn_tokens=tokens)
    with tempfile.TemporaryDirectory() as folder:
        model = build_demo_model(tokenizer, recipe)
        with torch.no_grad():
            model.lm_head.weight.mul_(20)  # no two tokens are nearly as likely
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        args = GRPOConfig(
            output_dir=folder, max_steps=WARM_UP_STEPS + STEPS, learning_rate=0.0,
            per_device_train_batch_size=64, num_generations=8, shuffle_dataset=False,
            steps_per_generation=1, max_completion_length=tokens, top_k=1, bf16=False,
            use_cpu=is_small, use_vllm=use_vllm, vllm_mode="colocate", report_to="none",
            model_init_kwargs={"dtype": "float32"}, save_strategy="no", disable_tqdm=True,
            vllm_max_model_length=1024,
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=folder,
            args=args,
            processing_class=tokenizer,
            reward_funcs=[length, env_reward] if is_abut else length,
            train_dataset=Dataset.from_list([{"prompt": p} for p in prompts]),
            rollout_func=make_rollout_func(OneQuestion, config=config) if is_abut else None,
            callbacks=[Clock()],
        )
        trainer.train()
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"card": name, "torch": torch.__version__, "steps": steps[WARM_UP_STEPS:]}


def main() -> None:
    """Measure all cases in processes of their own, print them and write the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--only", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        args.json.write_text(json.dumps(measure(args.only, args.device)), encoding="utf-8")
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases:
            file = Path(folder) / "case.json"
            command = [sys.executable, "-m", "benchmarks.gpu", "--only", case]
            command += ["--device", args.device, "--json", str(file)]
            subprocess.run(command, check=True)
            found[case] = json.loads(file.read_text(encoding="utf-8"))
    first = args.cases[0]
    results = {}
    for case, run in found.items():
        ids = [[step["ids"] for step in one["steps"]] for one in (run, found[first])]
        require_same("sampled ids", case, ids[0], ids[1])
        seconds = sum(step["seconds"] for step in run["steps"]) / STEPS
        sampled = sum(len(row) for step in run["steps"] for row in step["ids"]) / STEPS
        results[case] = {"step_s": seconds, "sampled_tokens_per_s": sampled / seconds}
        sys.stdout.write(f"{case}: {seconds:.3f} s a step, {sampled / seconds:,.0f} tokens/s\n")
    machine = {name: found[first][name] for name in ("card", "torch")}
    args.json.write_text(json.dumps(machine | {"cases": results}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
