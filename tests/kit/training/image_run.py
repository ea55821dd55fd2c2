"""A real `GRPOTrainer` on a tiny vision-language model; logprobs are compared in each pass."""

import dataclasses
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from trl import GRPOConfig

import abut.trl
from abut import ChatTemplateProcessor, RolloutConfig, Tokenizer
from abut.images import Image
from abut.rollout.conversation import Conversation
from abut.samplers.scripted import ScriptedSampler
from abut.template import ImageProcessor
from abut.trl import env_reward, make_rollout_func
from tests.kit.training.example_run import CPU
from tests.kit.training.scripted_rows import Scripted, random_ids, rollout_of
from tests.kit.training.vision import FAMILIES, Family, model_of, own_logprobs, picture

SHARED = Image.of(picture(9, 40, 56))
SHOWN: dict[str, list[list[Any]]] = {
    "none": [[], [], []],
    "one": [[], [picture(1)], []],
    "three": [[picture(2, 61, 33)], [picture(3)], [SHARED]],
    "shared": [[SHARED, picture(4, 32, 80)], [], []],
}
"""The images of each turn, by the text of the prompt."""


class Squares:
    """Shows the images of its seed, three turns long; the reward depends on what was said."""

    def __init__(self) -> None:
        self.reward, self.alive = 0.0, True

    def reset(self, seed: str) -> Any:
        self.left = [*SHOWN[seed]]
        return self, self.say()

    def step(self, action: str) -> Any:
        self.reward += sum(map(ord, action)) % 7
        self.alive = bool(self.left)
        return self, self.say() if self.left else "Done."

    def say(self) -> Any:
        blocks = [{"type": "image", "image": image} for image in self.left.pop(0)]
        return [*blocks, {"type": "text", "text": "Which colour?"}]


class Compared(NamedTuple):
    """A row in a pass through a model, and how far its logprobs are from two others.

    Attributes:
        purpose: of the pass, such as "train loss".
        images: how many the row has.
        from_own: the largest difference to an independent forward of the same model.
        from_engine: to those that the engine sampled with.
        alone: whether no row of the pass has an image.
    """

    purpose: str
    images: int
    from_own: float
    from_engine: float
    alone: bool


class Watched(abut.trl.GRPOTrainer):  # type: ignore[misc, valid-type]
    """Compares the logprobs of sampled tokens in each pass; it stands above the mixin's hooks."""

    compared: list[Compared]
    plain: Any = None
    """An equal model that no rank has a part of; None: the trainer's own, without its wrapper."""

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        rows = self.abut_forward
        mode = "train" if self.model.training else "eval"
        in_loss = kwargs.get("batch_size", args[3] if len(args) > 3 else None) is None
        of_what = "reference" if model is self.ref_model else "old"
        purpose = f"{mode} {'loss' if in_loss else of_what}"
        plain = self.plain or self.accelerator.unwrap_model(model)
        conversations = [rows.batch.conversation_of(number) for number in rows.numbers]
        alone = not any(row is not None and row.images for row in conversations)
        trained = plain.training
        plain.eval()
        _, attention, kept = args[:3]
        for row, logps, mask in zip(conversations, found[0].detach().cpu(), attention, strict=True):
            # Padding has none, and a truncated row may be masked, which trains nothing.
            if row is None or mask.sum() < len(row.columns.prompt_ids) + len(row.columns.env_mask):
                continue
            differences = self._compare(plain, row, logps[: int(mask[-kept:].sum())])
            self.compared.append(Compared(purpose, len(row.images), *differences, alone))
        plain.train(trained)
        return found

    def _compare(self, model: Any, row: Any, logps: Any) -> tuple[float, float]:
        """Return how far `(T,)` logprobs of a completion are from two others."""
        columns = row.columns
        ids = np.concatenate([columns.prompt_ids, columns.completion_ids])
        pictures = [span.image.to_pil() for span in row.images]
        own = own_logprobs(model, self.processing_class, ids, pictures)
        sampled = columns.env_mask == 1
        of_trl, of_own = (of[-len(sampled) :][sampled] for of in (logps, own))
        engine = torch.from_numpy(np.array(columns.logprobs[sampled]))
        return float((of_trl - of_own).abs().max()), float((of_trl - engine).abs().max())


class ImageRun:
    """Trains on the squares.

    Attributes:
        trainer: a `Watched`, or of the class that was asked for.
        family: of the model.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        env: Any = Squares,
        prompts: Any = tuple(SHOWN),
        rows: Any = None,
        trainer_class: Any = Watched,
        reward_funcs: Any = env_reward,
        make: dict[str, Any] | None = None,
        wrap: Any = None,
        piece: int | None = None,
        peft_config: Any = None,
        **args: Any,
    ) -> None:
        self.family: Family = FAMILIES[name]()
        model = tiny_model(self.family)
        if args.get("beta") and peft_config is None:  # TRL loads the reference from there
            model.config._name_or_path = str(folder / "model")
            model.save_pretrained(folder / "model")
        config = RolloutConfig(max_turn_tokens=4, max_turns=3, retries=0)
        if isinstance(env, Scripted):
            make = {"gateway": env.gateway, "sampler": never(), **(make or {})}
        rollout_func = make_rollout_func(env, **{"config": config} | (make or {}))
        dataset = Dataset.from_list(rows or [{"prompt": prompt} for prompt in prompts])
        settings = {
            **CPU,
            "output_dir": str(folder),
            "max_steps": 2,
            "per_device_train_batch_size": 2,
            "per_device_eval_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "num_generations": 2,
            "max_completion_length": 1024,
            "logging_steps": 1,
            "learning_rate": 1e-2,
            "gradient_checkpointing": False,
            "shuffle_dataset": False,
        }
        self.trainer = trainer_class(
            model=model,
            args=GRPOConfig(**settings | args),
            processing_class=self.family.processor,
            reward_funcs=reward_funcs,
            train_dataset=dataset,
            eval_dataset=dataset,
            rollout_func=wrap(rollout_func) if wrap else rollout_func,
            peft_config=peft_config,
        )
        self.trainer.compared = []
        self._env = env
        if piece is not None:
            self.trainer.args.per_device_train_batch_size = piece  # what a piece holds

    def train(self) -> "ImageRun":
        """Train, then end the gateway if there is one."""
        try:
            self.trainer.train()
        finally:
            if isinstance(self._env, Scripted):
                self._env.gateway.stop()
        return self

    def worst(self, purpose: str = "") -> tuple[float, float]:
        """Return the largest differences to an independent forward and to the engine."""
        found = [c for c in self.trainer.compared if c.purpose.startswith(purpose)]
        assert found, purpose
        return max(c.from_own for c in found), max(c.from_engine for c in found)


def tiny_model(family: Family) -> Any:
    """The family's model, which does not draw what is never drawn, as a trained one does not."""
    model = model_of(family)
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.zeros(head.out_features))
    with torch.no_grad():
        head.bias[list(ImageProcessor(family.processor).never_token_ids)] = -40.0
    return model


class Writer:
    """Writes conversations of random turns with images, without a policy."""

    def __init__(self, name: str) -> None:
        hf_processor = FAMILIES[name]().processor
        self.images = ImageProcessor(hf_processor)
        self.processor = ChatTemplateProcessor(hf_processor, images=self.images)
        self.tokenizer = Tokenizer.from_pretrained(hf_processor)

    def talk(
        self, rng: random.Random, shown: list[list[Any]], *, ends: bool = True
    ) -> Conversation:
        """A conversation with the images of each turn; it may lack its last stop token."""
        talk = Conversation(self.tokenizer, self.processor)
        for turn, images in enumerate(shown):
            blocks = [{"type": "image", "image": image} for image in images]
            said = {"role": "user", "content": [*blocks, {"type": "text", "text": "Which?"}]}
            (talk.reply if turn else talk.open)([said])
            ids = random_ids(rng, rng.randint(1, 4))
            if ends or turn + 1 < len(shown):
                ids.append(self.processor.close_token_id)
            talk.request()
            talk.hear(np.array(ids), np.full(len(ids), -6.0, np.float32))
        return talk


def rollout_with_images(task: Any, reward: float, main: Conversation, *others: Conversation) -> Any:
    """A rollout of these conversations."""
    rollout = rollout_of(
        task,
        reward,
        main.trajectory.columns(),
        *(other.trajectory.columns() for other in others),
    )
    rollout.images = main.images
    rollout.branches = [
        dataclasses.replace(branch, images=other.images)
        for branch, other in zip(rollout.branches, others, strict=True)
    ]
    return rollout


def never() -> Any:
    """A sampler that is not asked."""
    return ScriptedSampler(lambda request: [])
