"""Checks of a trainer's setup: errors, and warnings where training would be useless."""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

from abut.envs.task import RolloutTask
from abut.messages import Message, texts_of
from abut.notices import Once
from abut.rollout.config import BranchChoice
from abut.rollout.player import player_of
from abut.rollout.rollout import Rollout
from abut.trl.credit import Credit
from abut.trl.rows.all_rows import REPLACED, AllRows
from abut.trl.rows.main_rows import SERVER_DISTILLATION, MainRows
from abut.trl.teachers.teacher import Teacher, check_names, check_temperature
from abut.trl.version import (
    LIGER_IS_LOGPROBS,
    LUSPO_MASKS_PADDING,
    trl_version,
    trl_version_text,
)

logger = logging.getLogger(__name__)
_once = Once(logger)
_WORDS = 3
_ONE_ROW = 'RolloutConfig(branch="longest"), which trains one conversation of each rollout'


def refuse_server_distillation(trainer: Any) -> None:
    """Refuse TRL's `ServerDistillationTrainer`, also subclasses that call a `rollout_func`.

    Raises:
        TypeError: the trainer is a `ServerDistillationTrainer`.
    """
    if any(c.__name__ == "ServerDistillationTrainer" for c in type(trainer).__mro__):
        raise TypeError(SERVER_DISTILLATION)


def warn_of_unseen(tasks: Sequence[RolloutTask], rollouts: Sequence[Rollout]) -> bool:
    """Warn if no rollout of a batch shows a line of its string prompt; return whether it warned.

    A string prompt is a seed of `reset`, and an environment may use it as it likes. So only
    question-like prompts are reported: not numbers, single words, one text for all rollouts, or a
    batch in which any line of any prompt was shown. Agents are exempt: they get the prompt as a
    column and may use it in any way.
    """
    played = [
        (prompt, rollout.messages)
        for task, rollout in zip(tasks, rollouts, strict=True)
        if isinstance(prompt := task.columns.get("prompt"), str)
        and player_of(task) is None
        and rollout.turns  # without a turn, it may have failed before its prompt was there
    ]
    prompts = {prompt for prompt, _ in played}
    if len(prompts) < 2 or any(len(prompt.split()) < _WORDS for prompt in prompts):
        return False
    if any(_shows(messages, prompt) for prompt, messages in played):
        return False
    logger.warning(
        "the policy never sees the %d string prompts of this batch, such as %r: a string prompt "
        "is passed to `reset` as its seed, and the policy sees only what `reset` returns\n"
        "hint: return the seed from reset(self, seed), or write the prompt as messages, "
        '[{"role": "user", "content": …}]',
        len(prompts),
        played[0][0][:80],
    )
    return True


def warn_of_unused_rewards(rollouts: Sequence[Rollout]) -> None:
    """Warn once if agents give rewards to conversations and the trainer ignores these rewards.

    An agent whose rollout reward equals the reward of its row does not lose anything.
    """
    if any(rollout.rewards and rollout.reward != rollout.row_reward for rollout in rollouts):
        _once.warn(
            "unused rewards",
            "agents return AgentResult(rewards={…}), which TRL's own GRPOTrainer ignores: it "
            "uses only its reward functions\n"
            "hint: train with abut.trl.GRPOTrainer",
        )


def _shows(messages: Sequence[Message], prompt: str) -> bool:
    """Return whether any line of a prompt is in the messages before the policy's first turn."""
    opening: list[str] = []
    for message in messages:
        if message.get("role") == "assistant":
            break
        opening += texts_of(message)
    said = "\n".join(opening)
    return any(line.strip() in said for line in prompt.splitlines() if line.strip())


def check_end_tokens(
    trainer: Any, hf_tokenizer: Any, end_token_id: int, *, stacklevel: int
) -> None:
    """Warn if TRL would count each row as cut, because of its EOS tokens.

    Raises:
        ValueError: there is no token to pad rows with.
    """
    name, eos = hf_tokenizer.name_or_path, hf_tokenizer.eos_token_id
    if hf_tokenizer.pad_token_id is None:
        raise ValueError(
            f"the tokenizer {name!r} has no pad token, which is needed to pad rows, and no EOS "
            "token to use instead\n"
            "hint: set tokenizer.eos_token to the token that ends a turn, and tokenizer.pad_token"
        )
    # TRL 1.14 and later also take the EOS tokens of the model's generation config.
    ends = [i for i in getattr(trainer, "eos_token_ids", [eos]) if i is not None]
    end = hf_tokenizer.convert_ids_to_tokens(end_token_id)
    if eos is None:
        what = f"the tokenizer {name!r} has no EOS token"
    elif end_token_id not in ends:
        theirs = ", ".join(map(repr, hf_tokenizer.convert_ids_to_tokens(ends)))
        what = (
            f"turns end with {end!r}, but the EOS tokens of the tokenizer {name!r} and the model "
            f"are {theirs}"
        )
    else:
        return
    warnings.warn(
        f"{what}: TRL counts a completion that does not end with one of its EOS tokens as cut "
        "off (in completions/clipped_ratio, and with mask_truncated_completions it leaves it out "
        "of the loss)\n"
        f"hint: set tokenizer.eos_token = {end!r}",
        stacklevel=stacklevel + 1,
    )


def check_rows(trainer: AllRows, *, has_others: bool, has_credit: bool, stacklevel: int) -> None:
    """Refuse settings under which the rows of a rollout would not add up to its loss.

    Also warns about classes that override methods which make and train rows.

    Args:
        trainer: the trainer that makes rows.
        has_others: whether a rollout may have several rows.
        has_credit: whether the tokens of a row have their own advantages.
        stacklevel: of the warnings.

    Raises:
        ValueError: a setting is not supported; names it, and what to do.
    """
    from abut.trl.rows.row_weights import check_loss_type

    args: Any = trainer.args
    version = trl_version()
    without = {
        (True, False): f"or {_ONE_ROW}",
        (True, True): f"or {_ONE_ROW}, without credit",
        (False, True): "or leave credit out",
    }[has_others, has_credit]
    check_loss_type(trainer.loss_type, without)
    if getattr(args, "use_liger_kernel", False) and version < LIGER_IS_LOGPROBS:
        raise ValueError(
            f"use_liger_kernel=True with TRL {trl_version_text()}: its loss cannot weigh rows\n"
            f"hint: pip install 'trl>=1.14', set use_liger_kernel=False, {without}"
        )
    if trainer.loss_type == "luspo" and version < LUSPO_MASKS_PADDING:
        raise ValueError(
            f'loss_type="luspo" with TRL {trl_version_text()}: this loss counts padding, so the '
            "loss of a row depends on the other rows of the batch\n"
            f"hint: pip install 'trl>=1.10', use another loss_type, {without}"
        )
    optimizer = str(getattr(args.optim, "value", args.optim))
    # A layer-wise optimizer takes its step as soon as the gradient of a parameter is ready.
    steps_in_backward = optimizer in ("lomo", "adalomo") or optimizer.endswith("_layerwise")
    if has_others and steps_in_backward:
        raise ValueError(
            f"optim={optimizer!r}: this optimizer takes a step in each backward pass, but the "
            "rows of one micro-step need several passes\n"
            f"hint: use another optimizer, or {_ONE_ROW}"
        )
    if has_credit:
        check_one_reward(trainer, "credit")
    for name, classes in _replaced(type(trainer)):
        warnings.warn(
            f"{classes} overrides {name} of GRPOTrainer, which abut needs to make a row of each "
            "conversation and train it\n"
            f"hint: call super().{name}(…) in the override, and expect more rows than prompts",
            stacklevel=stacklevel + 1,
        )


def check_one_reward(trainer: Any, what: str) -> None:
    """Refuse a trainer that does not add up the rewards of its functions.

    Args:
        trainer: a `GRPOTrainer`.
        what: the setting that needs a single reward.

    Raises:
        ValueError: it computes an advantage for each function; names the setting.
    """
    if getattr(trainer, "multi_objective_aggregation", "") == "normalize_then_sum":
        raise ValueError(
            f'{what} does not work with multi_objective_aggregation="normalize_then_sum", which '
            f"computes an advantage for each reward function: {what} needs one reward for each "
            "conversation\n"
            f'hint: set multi_objective_aggregation="sum_then_normalize", or leave {what} out'
        )


def check_main_rows(trainer: Any, branch: BranchChoice | None, credit: Credit) -> None:
    """Refuse settings that a trainer with one row per rollout cannot train.

    Args:
        trainer: without `AllRows`.
        branch: see `RolloutConfig.branch`.
        credit: see `make_rollout_func`.

    Raises:
        TypeError: there is such a setting; names it, and a trainer that supports it.
    """
    if isinstance(trainer, MainRows):
        name, without = "DistillationTrainer", "has no advantages"
        of_rows = "use AsyncDistillationTrainer with abut.trl.make_distillation_worker"
        of_credit = "use abut.trl.GRPOTrainer, which takes credit=ReverseKL(teacher)"
    else:
        name, without = "TRL's own GRPOTrainer", "gives all tokens of a rollout one advantage"
        of_rows = of_credit = (
            "train with abut.trl.GRPOTrainer, or call abut.trl.extend(trainer) before train()"
        )
    if branch == "all":
        raise TypeError(
            f"RolloutConfig(branch='all') does not work with {name}, which takes one row for "
            "each rollout\n"
            f"hint: {of_rows}"
        )
    if credit is not None:
        raise TypeError(
            f"make_rollout_func(credit=…) does not work with {name}, which {without}\n"
            f"hint: {of_credit}"
        )


def check_tool_loop(trainer: Any) -> None:
    """Refuse a trainer that has its own tools.

    Raises:
        ValueError: the trainer has tools; names the argument.
    """
    kind = "DistillationTrainer" if isinstance(trainer, MainRows) else "GRPOTrainer"
    for name in ("tools", "environment_factory", "environment_factories"):
        if getattr(trainer, name, None):
            raise ValueError(
                f"{kind}({name}=…) and rollout_func do not work together: TRL would run its own "
                "tool loop over finished rollouts\n"
                "hint: leave one of the two out"
            )


def check_teacher(trainer: Any, teacher: Teacher) -> None:
    """Refuse settings in which the logprobs of student and teacher have other temperatures.

    Args:
        trainer: a `GRPOTrainer`.
        teacher: of `credit=ReverseKL(teacher)`.

    Raises:
        ValueError: the temperatures differ, or the dataset names a teacher that does not exist.
    """
    if trainer.temperature != 1:
        raise ValueError(
            f"credit=ReverseKL(…) does not work with temperature={trainer.temperature:g}: the "
            "logprobs of the sampled tokens are at that temperature, but those of the teacher at "
            "temperature 1\n"
            "hint: set GRPOConfig(temperature=1.0)"
        )
    check_temperature(teacher, 1.0)
    check_names(teacher, trainer.train_dataset)


def _replaced(trainer_class: type) -> list[tuple[str, str]]:
    """Return the methods that subclasses of TRL's class override, with their class names."""
    order = trainer_class.__mro__
    # The last class that generates is TRL's own, or what a library has put in its place.
    trls = max(k for k, c in enumerate(order) if "_generate" in vars(c))
    found = []
    for name in REPLACED:
        others = [c.__name__ for c in order[:trls] if name in vars(c) and c is not AllRows]
        if others:
            found.append((name, " and ".join(others)))
    return found
