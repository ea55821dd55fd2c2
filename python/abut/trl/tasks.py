"""The tasks of a batch: one for each prompt that TRL passes, in order.

Invariant: the rollouts of a group share number and seed, also if the group is split over ranks;
batches of a `rollout_func` never share a name. The random draws of an evaluation depend on the
position in it, never on the step, so equal weights are judged equally.
"""

import logging
import random
import sys
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Literal

from abut.envs.task import RolloutTask
from abut.messages import (
    IMAGE_BLOCKS,
    Message,
    last_user_text,
    refusal_of,
    strange_block,
    without_filler,
)
from abut.trl.dataset_images import with_row_images
from abut.trl.route import ROUTE, EnvRoute


class Tasks:
    """Makes the tasks of consecutive batches.

    Args:
        route: chooses the environment of a row.
        seed: the seed of the whole run.
        system_prompt: put before each prompt.
    """

    def __init__(self, route: EnvRoute, *, seed: int, system_prompt: str | None) -> None:
        self.route = route
        self._seed = seed
        self._system_prompt = system_prompt
        self._batches: Counter[str] = Counter()
        self.run_id = ""
        self._next_group: dict[str, int] = {}
        self._checked: set[int] = set()
        self._evaluation: tuple[int, ...] | None = None

    def of_batch(self, prompts: Sequence[Any], trainer: Any, mode: str) -> list[RolloutTask]:
        """Return the tasks of this rank's prompts, which are already repeated for each group.

        Raises:
            ValueError: a prompt has a wrong type or unsupported content, its row does not name an
                environment, or the trainer removed a column that abut reads.
        """
        generations = trainer.num_generations
        if mode == "eval":
            generations = getattr(trainer, "num_generations_eval", generations)
        # A rank's slice may cut a group, so groups are counted over all ranks.
        offset = trainer.accelerator.process_index * len(prompts)
        step = trainer.state.global_step
        self.run_id_of(trainer)
        batch = self._name_batch(mode, step)
        groups = -(-trainer.accelerator.num_processes * len(prompts) // generations)
        first_group = self._first_group(mode, trainer, groups)
        tasks = []
        rows = dataset_columns(trainer, prompts)
        removed = removed_columns(trainer, mode, rows[0]) if rows else ()
        self._refuse_removed(removed)
        self.check_datasets(getattr(trainer, f"{mode}_dataset", None))
        slice_ends = offset + len(prompts)
        for index, (prompt, dataset_row) in enumerate(zip(prompts, rows, strict=True)):
            group = (offset + index) // generations
            drawn_by, sample_key = f"{batch}/{group}", f"{batch}-{offset + index}"
            if mode == "eval":
                drawn_by = f"eval/{first_group + group}"
                sample_key = f"{drawn_by}/{(offset + index) % generations}"
            tasks.append(
                self._task(
                    prompt,
                    dataset_row,
                    f"prompt {index}",
                    drawn_by,
                    index=index,
                    rollout_id=f"{batch}-{offset + index}-{self.run_id}",
                    group=first_group + group,
                    member=(offset + index) % generations,
                    sample_key=sample_key,
                    whole_group=group * generations >= offset
                    and (group + 1) * generations <= slice_ends,
                    step=step,
                    mode="eval" if mode == "eval" else "train",
                    removed_columns=removed,
                )
            )
        return tasks

    def of_group(
        self,
        row: Mapping[str, Any],
        group: int,
        generations: int,
        mode: Literal["train", "eval"] = "train",
    ) -> list[RolloutTask]:
        """Return the tasks of one group, in a run without batches; `run_id` must be set.

        The random draws depend on the number of the group, so a resumed run continues with the same
        episodes.

        Args:
            row: of the dataset.
            group: its number in the run, counted also over earlier parts of a resumed run.
            generations: the number of its rollouts.
            mode: "train", or "eval" for the draws of `trainer.evaluate()`.

        Raises:
            ValueError: as for `of_batch`.
        """
        where = f"the prompt of group {group}"
        if "prompt" not in row:
            raise ValueError(
                f"the row of group {group} has no column 'prompt', only "
                f"{', '.join(map(repr, row)) or 'none'}\n"
                "hint: put a string into it, which becomes the seed of `reset`, or a list of "
                "messages, which becomes the history"
            )
        return [
            self._task(
                row["prompt"],
                row,
                where,
                f"{mode}/{group}",
                index=member,
                rollout_id=f"{mode}-{group}-{member}-{self.run_id}",
                group=group,
                member=member,
                sample_key=f"{mode}/{group}/{member}",
                mode=mode,
            )
            for member in range(generations)
        ]

    def _task(
        self,
        prompt: Any,
        dataset_row: Mapping[str, Any],
        where: str,
        drawn_by: str,
        **task: Any,
    ) -> RolloutTask:
        messages, seed, row = self._start(prompt, dataset_row, where)
        columns = _joined(dataset_row, row) | {"prompt": prompt}
        name = columns.get(ROUTE) if self.route.is_by_name else None
        source, columns = self.route.of_row(columns, where)
        if columns.get("seed") is not None:
            seed = str(columns["seed"])
        return RolloutTask(
            source=source,
            messages=messages,
            seed=seed,
            episode_seed=_episode_seed(self._seed, drawn_by),
            columns=columns,
            environment=None if name is None else str(name),
            run_id=self.run_id,
            **task,
        )

    def run_id_of(self, trainer: Any) -> str:
        """Return the id of this run; all ranks must make the first call together."""
        self.run_id = self.run_id or _run_id(trainer)
        return self.run_id

    def check_datasets(self, datasets: Any) -> None:
        """Refuse, once for each dataset, rows that name an environment that does not exist.

        Args:
            datasets: one, several by name, or None.

        Raises:
            ValueError: as for `EnvRoute.check_column`.
        """
        for dataset in datasets.values() if isinstance(datasets, Mapping) else [datasets]:
            if id(dataset) not in self._checked:
                self._checked.add(id(dataset))
                self.route.check_column(dataset)

    def _refuse_removed(self, removed: Sequence[str]) -> None:
        for name in ("seed", *[ROUTE] * self.route.is_by_name):
            if name in removed:
                raise ValueError(
                    f"the dataset has a column {name!r}, which the trainer removed because of "
                    "GRPOConfig(remove_unused_columns=True)\n"
                    "hint: leave remove_unused_columns out; GRPOConfig's default is False"
                )

    def _first_group(self, mode: str, trainer: Any, groups: int) -> int:
        """Return the number of a batch's first group, the same on all ranks.

        In training the numbers continue from batch to batch, in a resumed run from about where they
        were. Each evaluation begins at 0, so that evaluations can be compared. The end of an
        evaluation is detected in two ways: `evaluate` logs at its end, and `predict` has its own
        data loader. So batches belong to the same evaluation as long as neither the log nor the
        loader changes.
        """
        step: int = trainer.state.global_step
        first = self._next_group.get(mode, step * groups)
        if mode == "eval":
            loader = getattr(getattr(trainer, "callback_handler", None), "eval_dataloader", None)
            evaluation = (id(trainer), step, len(trainer.state.log_history), id(loader))
            if evaluation != self._evaluation:
                first = 0
            self._evaluation = evaluation
        self._next_group[mode] = first + groups
        return first

    def _name_batch(self, mode: str, step: int) -> str:
        """Name the batch by the trainer's step and its number within the step, over all trainers.

        All ranks get their batches in the same order, so they agree on the name. A resumed run
        repeats steps, so a rollout's name is unique only together with the run's id.
        """
        name = f"{mode}-{step}"
        nth = self._batches[name]
        self._batches[name] += 1
        return f"{name}-{nth}"

    def _start(
        self, prompt: Any, dataset_row: Mapping[str, Any], where: str
    ) -> tuple[list[Message], str, Mapping[str, Any]]:
        """Return the history with the row's images, the seed, and the row that a prompt carries."""
        system = []
        if self._system_prompt is not None:
            system = [{"role": "system", "content": self._system_prompt}]
        if isinstance(prompt, str):
            return system, prompt, {}
        if not isinstance(prompt, Sequence) or not all(map(_is_message, prompt)):
            raise ValueError(
                f"{where} is {str(prompt)[:120]!r}: expected a string or a list of messages, "
                '{"role": …, "content": …}\n'
                "hint: fix the dataset's column `prompt`"
            )
        for message in prompt:
            known = ("text", *IMAGE_BLOCKS)
            if (block := strange_block(message.get("content"), known=known)) is not None:
                because, instead = refusal_of(block)
                raise ValueError(
                    f"{where} has content of the type {block!r}, but {because}\n"
                    f"hint: leave such rows out, or {instead}"
                )
        _check_media_columns(dataset_row, where)
        messages = [without_filler(message) for message in prompt]
        messages = with_row_images(messages, dataset_row, where)
        row: Mapping[str, Any] = {}
        if messages and isinstance(messages[-1].get("row"), Mapping):
            row = messages[-1].pop("row")
        if system and any(message.get("role") == "system" for message in messages):
            raise ValueError(
                f"{where} has a system message, but make_rollout_func also has a system_prompt\n"
                "hint: leave one of the two out"
            )
        return [*system, *messages], last_user_text(messages), row


def _check_media_columns(row: Mapping[str, Any], where: str) -> None:
    """Refuse video and audio columns, because prompts show only the images of a row.

    Raises:
        ValueError: a column holds video or audio data. Paths and numbers are allowed, for
            environments.
    """
    for name in ("video", "videos", "audio", "audios"):
        value = row.get(name)
        held = value if isinstance(value, list | tuple) else [value]
        if not all(one is None or isinstance(one, str | int | float) for one in held):
            because, instead = refusal_of(name)
            raise ValueError(
                f"{where} has a column {name!r} in its row, but {because}\n"
                f"hint: {instead}, or remove or rename the column"
            )


def _run_id(trainer: Any) -> str:
    """Return an id for this start of the run, the same on all ranks."""
    run_id = uuid.uuid4().hex[:8]
    if trainer.accelerator.num_processes > 1 and _ranks_can_talk():
        from accelerate.utils import broadcast_object_list

        run_id = broadcast_object_list([run_id])[0]
    return run_id


def _ranks_can_talk() -> bool:
    import torch

    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _joined(dataset_row: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of both; columns in the prompt win, because they are more specific.

    Arrow fills keys that a row does not have with None, so None there is not a value.
    """
    said = {name: value for name, value in row.items() if value is not None}
    return {**row, **dataset_row, **said}


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and isinstance(message.get("role"), str)


def _episode_seed(seed: int, drawn_by: str) -> int:
    return random.Random(f"{seed}/{drawn_by}").getrandbits(31)


logger = logging.getLogger(__name__)

# TRL passes only prompts to a `rollout_func`, no other columns. In all versions from 0.29.1 to 1.16
# the rows are the argument of the trainer's method `_generate_and_score_completions(inputs)`, which
# calls the `rollout_func` and waits for it. So abut reads them from the frame of that method,
# without changing the trainer. Wrapping the method instead would be too late for the first batch,
# because the `rollout_func` first sees the trainer inside that method. Wrapping it on the class
# would affect every trainer of the process, and miss subclasses that override the method.
_METHOD = "_generate_and_score_completions"


def dataset_columns(trainer: Any, prompts: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the dataset's row of each prompt; empty rows if the trainer has no rows.

    A row belongs to the prompt at the same position of the same batch.

    Raises:
        ValueError: the numbers of rows and prompts differ, so they cannot be matched.
    """
    frame = _frame_of(trainer)
    if frame is None:
        return [{}] * len(prompts)
    inputs = frame.f_locals[frame.f_code.co_varnames[1]]
    if len(inputs) != len(prompts):
        raise ValueError(
            f"{type(trainer).__name__}.{_METHOD} has {len(inputs)} rows, but rollout_func got "
            f"{len(prompts)} prompts: abut cannot tell which row belongs to which prompt\n"
            "hint: call rollout_func with the prompts of the batch exactly as TRL passes them"
        )
    if moved := getattr(trainer, "abut_image_columns", ()):
        return [{**row, **columns} for row, columns in zip(inputs, moved, strict=True)]
    return list(inputs)


def removed_columns(trainer: Any, mode: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of the dataset that the trainer removed from its rows.

    Args:
        trainer: has `remove_unused_columns`, and the dataset as it was given.
        mode: "train" or "eval".
        row: one of the rows that `dataset_columns` returned.
    """
    if not row or not getattr(trainer.args, "remove_unused_columns", False):
        return ()
    dataset = getattr(trainer, f"{mode}_dataset", None)
    parts = dataset.values() if isinstance(dataset, Mapping) else [dataset]
    names = [name for part in parts for name in getattr(part, "column_names", None) or ()]
    return tuple(name for name in dict.fromkeys(names) if name not in row)


def _frame_of(trainer: Any) -> FrameType | None:
    """Return the innermost frame of the trainer's method on this thread, inside any subclass's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if (
            code.co_name == _METHOD
            and code.co_argcount == 2
            and frame.f_locals[code.co_varnames[0]] is trainer
        ):
            return frame
        frame = frame.f_back
    if hasattr(trainer, _METHOD):
        logger.warning(
            "rollout_func was not called by %s.%s on this thread, so environments get only the "
            "dataset columns in prompt[-1]['row']",
            type(trainer).__name__,
            _METHOD,
        )
    return None
