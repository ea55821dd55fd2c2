r"""GRPO with environments in the actors of a Ray cluster, on one machine or on several nodes.

    pip install 'abut[trl,vllm,ray]' 'trl[vllm]'
    python train.py --config grpo.yaml --model_name_or_path Qwen/Qwen3-4B

Without RAY_ADDRESS, the script starts a cluster on this machine and stops it at the end; several
processes need a running cluster. ../slurm/train.sbatch and parts.py start all parts on nodes;
README.md lists the files. Options in addition to those of GRPOConfig and ModelConfig:
"""

import dataclasses
import importlib
import os
from argparse import RawDescriptionHelpFormatter
from dataclasses import dataclass, field

from datasets import Dataset, load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config

from abut import RolloutConfig
from abut.ray import RayPool
from abut.trl import env_reward, make_rollout_func


@dataclass
class EnvArguments:
    """The environment, its rows, and its actors."""

    environment: str = field(
        metadata={"help": "The environment's class as MODULE:CLASS, importable on all nodes."}
    )
    environments: int = field(
        metadata={"help": "The most environments at once, over all processes."}
    )
    slots: int = field(default=16, metadata={"help": "Environments per actor."})
    env_cpus: float = field(default=0.5, metadata={"help": "Cores per actor."})
    env_resources: dict[str, float] | None = field(
        default=None, metadata={"help": "Other resources per actor, such as browser: 1."}
    )
    files: list[str] | None = field(
        default=None, metadata={"help": "JSON lines with `prompt` and the environment's columns."}
    )
    rows: int = field(
        default=4096, metadata={"help": "Number of equal rows, if there are no files."}
    )
    records: str | None = field(
        default=None, metadata={"help": "Where rollouts are recorded; `abut show` reads it."}
    )


@dataclass(frozen=True)
class RolloutArguments(RolloutConfig):
    """The limits of rollouts as options, without a seed, because the trainer has one."""

    seed: int = field(default=0, init=False)


def class_of(name: str) -> type:
    """Return the class at `MODULE:CLASS`."""
    module, _, attribute = name.partition(":")
    found: type = getattr(importlib.import_module(module), attribute)
    return found


def rows_of(given: EnvArguments) -> Dataset:
    """Return the dataset."""
    if given.files is None:
        return Dataset.from_dict({"prompt": ["Begin."] * given.rows})
    return load_dataset("json", data_files=given.files, split="train")


def make_parser() -> TrlParser:
    """Return the parser of all options."""
    return TrlParser(
        (EnvArguments, RolloutArguments, GRPOConfig, ModelConfig),
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )


def main() -> None:
    """Train."""
    given, limits, training, model = make_parser().parse_args_and_config()
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    pool = RayPool(
        class_of(given.environment),
        size=given.environments,
        slots=given.slots,
        num_cpus=given.env_cpus,
        resources=given.env_resources or {},
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )
    with pool:
        trainer = GRPOTrainer(
            model=model.model_name_or_path,
            reward_funcs=env_reward,
            args=training,
            train_dataset=rows_of(given),
            peft_config=get_peft_config(model),
            rollout_func=make_rollout_func(
                pool,
                config=RolloutConfig(**dataclasses.asdict(limits) | {"seed": training.seed}),
                recorder=given.records,
            ),
        )
        trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
        trainer.save_model(training.output_dir)
        # All ranks leave together, because a rank that leaves early makes the others fail.
        trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
