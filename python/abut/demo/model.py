"""The demo's model: Qwen3's architecture at 0.3 M parameters, from random weights.

Invariant: the same recipe gives the same weights; nothing is downloaded.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from abut.demo.recipe import DemoRecipe
from abut.errors import MissingExtraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

ASSETS = Path(__file__).parent / "assets"


def load_demo_tokenizer() -> "PreTrainedTokenizerBase":
    """The tokenizer that ships with the package: 512 tokens, ChatML, eos `<|im_end|>`.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    tokenizer: PreTrainedTokenizerBase = _transformers().AutoTokenizer.from_pretrained(ASSETS)
    return tokenizer


def build_demo_model(
    tokenizer: "PreTrainedTokenizerBase", recipe: DemoRecipe
) -> "Qwen3ForCausalLM":
    """A new model for `tokenizer`'s vocabulary, float32, on the CPU, seeded by `recipe.seed`.

    The caller's random state is left as it was.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    transformers = _transformers()
    import torch

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
