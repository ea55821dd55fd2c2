"""The demo's model and the recipe that trains it: GRPO from random weights to copying in a minute.

The model has Qwen3's architecture at 0.3 M parameters. Invariant: the same recipe gives the same
weights; nothing is downloaded.

The numbers of the recipe belong together. They were found by running; a comment says what was tried
instead, with the mean reward of the last ten steps. The recipe itself ends between 0.7 and 1.0,
mostly at 1.00: one of the four symbols may come late, and without it the mean is 0.75.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from abut.envs import CopyRowEnv
from abut.errors import MissingExtraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

ASSETS = Path(__file__).parent / "assets"


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class DemoRecipe:
    """All settings of the demo's run."""

    seed: int = _option(0, "seed of the weights, the sampling and the episodes")
    steps: int = _option(120, "optimizer steps")

    # 64 rollouts are 8 groups. One optimizer step per batch: all is on-policy.
    batch: int = _option(64, "rollouts per step")
    group: int = _option(8, "rollouts of one episode (num_generations)")

    # 3e-3 does as well (1.00).
    learning_rate: float = _option(2e-3, "constant learning rate of AdamW")
    # Without it the policy settles on one symbol before it has learnt what the prompt is for
    # (0.19 to 0.23). With 0.02 to 0.03 the answer to one symbol may stay wrong forever, because
    # nothing else is tried any more (0.71 to 1.00). With 0.1 it does not leave the noise (0.02).
    # The first and the last were run with two turns and rows of one.
    entropy_coef: float = _option(0.05, "weight of the entropy bonus")
    temperature: float = _option(1.0, "sampling temperature")

    max_turns: int = _option(3, "turns in an episode")
    # Four tokens hold a whole row, so the right answer needs no stop token, which a random model
    # emits once in 500, and an untrained model finds a lucky digit often enough to learn from it.
    max_turn_tokens: int = _option(4, "sampled tokens in a turn")
    max_completion_tokens: int = _option(128, "all tokens after the prompt; three turns need 46")

    # One layer suffices for copying and takes two thirds of the time of two.
    layers: int = _option(1, "transformer layers")
    hidden_size: int = _option(128, "width")
    heads: int = _option(4, "attention heads")

    # The environment draws its rows from the group's episode seed, so that one prompt is enough.
    # No system prompt: a short context leaves an untrained attention less to look at.
    prompt: str = _option("copy", "the prompt of every row, handed to reset as the seed")
    rows: int = _option(256, "rows of the dataset")

    def env(self) -> CopyRowEnv:
        """Return a fresh environment."""
        return CopyRowEnv(turns=self.max_turns)

    def grpo_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `GRPOConfig`, without `output_dir`."""
        return {
            "seed": self.seed,
            "max_steps": self.steps,
            "per_device_train_batch_size": self.batch,
            "steps_per_generation": 1,
            "num_generations": self.group,
            "learning_rate": self.learning_rate,
            "lr_scheduler_type": "constant",
            "entropy_coef": self.entropy_coef,
            "temperature": self.temperature,
            "max_completion_length": self.max_completion_tokens,
            # A model this small recomputes for nothing.
            "gradient_checkpointing": False,
            "use_vllm": False,
            "use_cpu": True,
            "bf16": False,
            "dataloader_pin_memory": False,
            "save_strategy": "no",
            "report_to": "none",
        }


def load_demo_tokenizer() -> "PreTrainedTokenizerBase":
    """Load the tokenizer that ships with the package: 512 tokens, ChatML, eos `<|im_end|>`.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    tokenizer: PreTrainedTokenizerBase = _transformers().AutoTokenizer.from_pretrained(ASSETS)
    return tokenizer


def build_demo_model(
    tokenizer: "PreTrainedTokenizerBase", recipe: DemoRecipe | None = None
) -> "Qwen3ForCausalLM":
    """Return a new model for `tokenizer`'s vocabulary: float32, on the CPU, seeded by the recipe.

    The caller's random state does not change. Without a recipe, the model is the demo's.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    transformers = _transformers()
    import torch

    recipe = recipe or DemoRecipe()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=2 * recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        head_dim=recipe.hidden_size // recipe.heads,
        max_position_embeddings=2048,
        # Untied: with tied embeddings an untrained model prefers to repeat its last input token.
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model: Qwen3ForCausalLM = transformers.Qwen3ForCausalLM(config)
    return model.to(torch.float32)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            "abut.demo needs transformers and torch: pip install 'abut[trl]'"
        ) from error
    return transformers
