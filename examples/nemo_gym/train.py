r"""GRPO on agents of NeMo Gym, on one machine or on several nodes.

    pip install 'abut[trl,vllm,nemo_gym]' 'trl[vllm]'
    accelerate launch train.py --config train.yaml --model_name_or_path Qwen/Qwen3-4B \
        --heads http://127.0.0.1:11000 --vllm_server_base_url http://127.0.0.1:8000

Gym sends its calls to http://GATEWAY_HOST:GATEWAY_PORT/v1 of the first process, with the key in
ABUT_GATEWAY_KEY, which must be the same on both sides. submit.sbatch starts all parts on a cluster;
README.md lists the files. Options in addition to those of GRPOConfig and ModelConfig:
"""

import dataclasses
from argparse import RawDescriptionHelpFormatter
from dataclasses import dataclass, field

from datasets import concatenate_datasets
from trl import GRPOConfig, GRPOTrainer, ModelConfig, TrlParser, get_peft_config

from abut import RolloutConfig
from abut.gateway import Gateway
from abut.nemo_gym import NemoGym
from abut.trl import env_reward, make_rollout_func


@dataclass
class GymArguments:
    """The Gyms, their rows, and the gateway's address."""

    heads: list[str] = field(
        metadata={
            "help": "Addresses of Gym's heads, as http://HOST:11000 or NAME=http://HOST:11000. "
            "Each plays an equal share of the rows, so each must have all environments."
        }
    )
    files: list[str] = field(metadata={"help": "JSON lines files of NeMo Gym."})
    agents: list[str] | None = field(
        default=None, metadata={"help": "Agents of rows without an agent, one per file."}
    )
    weights: list[float] | None = field(
        default=None, metadata={"help": "Shares of the files; None: each row once."}
    )
    batch_timeout_s: float | None = field(
        default=None, metadata={"help": "Seconds after which running rollouts fail."}
    )
    gateway_host: str = field(
        default="127.0.0.1",
        metadata={"help": "Address at which Gym and the other nodes reach this node."},
    )
    gateway_port: int = field(
        default=8100, metadata={"help": "Port of the first process; the others take free ports."}
    )
    records: str | None = field(
        default=None, metadata={"help": "Where rollouts are recorded; `abut show` reads it."}
    )


@dataclass(frozen=True)
class RolloutArguments(RolloutConfig):
    """The limits of rollouts as options, without a seed, because the trainer has one."""

    seed: int = field(default=0, init=False)


def gym_of(head: str, batch_timeout_s: float | None) -> NemoGym:
    """Return the Gym at `NAME=URL` or `URL`."""
    name, _, url = head.rpartition("=")
    return NemoGym(url, name=name or url.rpartition("//")[2], batch_timeout_s=batch_timeout_s)


def make_parser() -> TrlParser:
    """Return the parser of all options."""
    return TrlParser(
        (GymArguments, RolloutArguments, GRPOConfig, ModelConfig),
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )


def main() -> None:
    """Train."""
    given, limits, training, model = make_parser().parse_args_and_config()
    gyms = [gym_of(head, given.batch_timeout_s) for head in given.heads]
    # Each head must have the agents of all rows, and plays its share of the rows.
    mix = {"agent": given.agents, "weights": given.weights}
    shares = [
        gym.dataset(given.files, **mix).shard(len(gyms), part) for part, gym in enumerate(gyms)
    ]
    training.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(training.model_init_kwargs or {}),
    }
    trainer = GRPOTrainer(
        model=model.model_name_or_path,
        reward_funcs=env_reward,
        args=training,
        train_dataset=concatenate_datasets(shares),
        peft_config=get_peft_config(model),
        rollout_func=make_rollout_func(
            {gym.name: gym for gym in gyms},
            config=RolloutConfig(**dataclasses.asdict(limits) | {"seed": training.seed}),
            recorder=given.records,
            gateway=Gateway(given.gateway_host, given.gateway_port),
        ),
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model(training.output_dir)
    # All ranks leave together, because a rank that leaves early makes the others fail.
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
