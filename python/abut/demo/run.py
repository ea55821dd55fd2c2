"""The demo's run: train a model on a multi-turn environment and summarize the rollouts."""

import importlib
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from abut.demo.model import DemoRecipe, build_demo_model, load_demo_tokenizer
from abut.errors import MissingExtraError, TemplateError
from abut.records.read import read_records
from abut.rollout.config import RolloutConfig

_FEW_STEPS = 10
# A log file gets every tenth step: nobody reads ten thousand lines.
_LOGGED_STEPS = 10


@dataclass(frozen=True)
class Summary:
    """The summary of a run. Shares are of all tokens after the prompts."""

    first_mean_reward: float | None
    """Mean reward of the first ten steps, or of all if there are fewer."""
    last_mean_reward: float | None
    """Mean reward of the last ten steps, or of all if there are fewer."""
    steps: int
    seconds: float
    """Wall time, imports and start included."""
    rollouts: int
    failed_rollouts: int
    turns_per_rollout: float
    sampled_token_share: float
    seams: dict[str, int]
    """The number of seams of each kind."""
    inexact_seams: int
    records: str
    """The file with every rollout."""

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the summary for people."""
        seams = ", ".join(f"{count} {kind}" for kind, count in sorted(self.seams.items()))
        few = min(_FEW_STEPS, self.steps)
        return [
            f"reward          {_text(self.first_mean_reward)} (first {few} steps) -> "
            f"{_text(self.last_mean_reward)} (last {few} of {self.steps})",
            f"rollouts        {self.rollouts}, {self.failed_rollouts} failed, "
            f"{self.turns_per_rollout:.2f} turns each",
            f"sampled tokens  {self.sampled_token_share:.0%} of all tokens after the prompts",
            f"seams           {seams} ({self.inexact_seams} inexact)",
            f"time            {self.seconds:.0f} s",
            f"records         {self.records}  (abut show {self.records})",
        ]


def load_env(name: str) -> Any:
    """Import an environment by `MODULE:NAME`, also from the working folder.

    Raises:
        ValueError: the name is not of that form, or nothing has it.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon or not module_name or not class_name:
        raise ValueError(f"{name!r}: expected MODULE:NAME, for example my_env:MyEnv")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise ValueError(
            f"{name!r}: the module {module_name!r} cannot be found\n"
            "hint: run abut in the folder of my_env.py, or install its package"
        ) from error
    if not hasattr(module, class_name):
        raise ValueError(f"{name!r}: module {module_name!r} has no {class_name!r}")
    return getattr(module, class_name)


def load_model(name: str) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer, by name or folder.

    Raises:
        TemplateError: the tokenizer has no chat template.
        MissingExtraError: transformers is not installed.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError(
            "a model in this process needs transformers and torch: pip install 'abut[trl]'"
        ) from error
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    if tokenizer.chat_template is None:
        raise TemplateError(
            f"the tokenizer of {name!r} has no chat template, so abut cannot write turns\n"
            "hint: use the model's instruct variant, or put a chat_template.jinja into its folder"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(name, dtype="float32", trust_remote_code=False)
    return model, tokenizer


def run(
    recipe: DemoRecipe,
    *,
    model: str | None = None,
    env: str | None = None,
    records: Path,
    out: TextIO,
    began: float | None = None,
) -> Summary:
    """Train, print the reward of each step to `out`, and return the summary.

    If stderr is not a terminal, there are no progress bars and every tenth step is printed.

    Args:
        recipe: how to train.
        model: a causal language model by name or folder; None builds the demo's.
        env: `MODULE:CLASS`; None is the demo's own.
        records: the JSONL file for the rollouts; must not exist.
        out: gets the progress.
        began: `time.monotonic()` at the start of the process, for the summary.
    """
    began = time.monotonic() if began is None else began
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    watched = sys.stderr.isatty()
    if not watched:  # before the import of huggingface_hub, which reads it then
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    environment = recipe.env if env is None else load_env(env)
    try:
        import torch
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer
    except ImportError as error:
        raise MissingExtraError(
            f"abut demo needs TRL ({error}): pip install 'abut[trl]'"
        ) from error
    from abut.trl import env_reward, make_rollout_func

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    if not watched:
        _turn_bars_off()
    if model is None:
        # On matrices this small, threads only wait for each other.
        torch.set_num_threads(1)
        tokenizer = load_demo_tokenizer()
        policy = build_demo_model(tokenizer, recipe)
    else:
        policy, tokenizer = load_model(model)
    rewards: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="abut-demo-") as folder:
        trainer = GRPOTrainer(
            model=policy,
            args=GRPOConfig(
                output_dir=folder,
                logging_steps=1,
                disable_tqdm=True,
                log_level="error",
                **recipe.grpo_arguments(),
            ),
            processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"prompt": [recipe.prompt] * recipe.rows}),
            reward_funcs=env_reward,
            rollout_func=make_rollout_func(
                environment,
                config=RolloutConfig(
                    max_turns=recipe.max_turns,
                    max_turn_tokens=recipe.max_turn_tokens,
                    seed=recipe.seed,
                ),
                recorder=str(records),
            ),
            callbacks=[_progress(recipe.steps, rewards, out, watched=watched)],
        )
        _remove_printer(trainer)
        trainer.train()
    return summarize(records, rewards, time.monotonic() - began)


def summarize(records: Path, rewards: Mapping[int, float], seconds: float) -> Summary:
    """Return the summary of the recorded rollouts, with the reward of each step."""
    rollouts = list(read_records(records))
    tokens = sum(len(record["env_mask"]) for record in rollouts)
    seams = [seam for record in rollouts for seam in record["seams"]]
    by_step = [rewards[step] for step in sorted(rewards)]
    return Summary(
        first_mean_reward=_mean(by_step[:_FEW_STEPS]),
        last_mean_reward=_mean(by_step[-_FEW_STEPS:]),
        steps=len(by_step),
        seconds=round(seconds, 1),
        rollouts=len(rollouts),
        failed_rollouts=sum(record["error"] is not None for record in rollouts),
        turns_per_rollout=_mean([len(record["turns"]) for record in rollouts]) or 0.0,
        sampled_token_share=sum(sum(record["env_mask"]) for record in rollouts) / max(tokens, 1),
        seams=dict(Counter(seam["kind"] for seam in seams)),
        inexact_seams=sum(not seam["exact"] for seam in seams),
        records=str(records),
    )


def _turn_bars_off() -> None:
    """Turn off the bars of transformers and datasets; `disable_tqdm` turns off TRL's own."""
    import datasets
    from transformers.utils import logging

    datasets.disable_progress_bars()
    logging.disable_progress_bar()


def _progress(steps: int, rewards: dict[int, float], out: TextIO, *, watched: bool) -> Any:
    """Return a callback that keeps and prints the rewards, above a bar on a terminal."""
    from tqdm.auto import tqdm
    from transformers import TrainerCallback

    class RewardPrinter(TrainerCallback):  # type: ignore[misc]
        bar: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.bar = tqdm(total=steps, desc="steps", unit="step", disable=not watched)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "reward" in logs:
                step = state.global_step
                rewards[step] = logs["reward"]
                if not watched and step % _LOGGED_STEPS and step != steps:
                    return
                tqdm.write(f"step {step:>4}  reward {logs['reward']:.3f}", file=out)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.bar.update()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.bar.close()

    return RewardPrinter()


def _remove_printer(trainer: Any) -> None:
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _text(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
