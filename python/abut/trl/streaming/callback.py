"""The `TrainerCallback` of a rollout worker: saves the position in the dataset in checkpoints.

TRL does this only for its own worker. The state goes into the `trainer_state.json` of a checkpoint,
which transformers provides for callbacks, so a checkpoint always has both or neither.
"""

import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

from abut.trl.streaming.dataset_position import DatasetPosition

logger = logging.getLogger(__name__)

_NAME = "AbutRollouts"


class Followed(Protocol):
    """The worker as its callback sees it."""

    position: DatasetPosition
    epoch_groups: int | None
    """Training ends after this many groups, if it ends by epochs."""
    version: int
    step: int | None

    def meets(self, model: Any) -> None:
        """Take the limits of the trainer's model."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the position of a checkpoint."""
        ...


def position_callback(worker: Followed) -> Any:
    """Return the callback of one worker, of a new class, because transformers restores by class."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    class AbutRollouts(TrainerCallback, ExportableState):  # type: ignore[misc]
        """Follows one training run."""

        def on_train_begin(
            self,
            args: Any,
            state: Any,
            control: Any,
            model: Any = None,
            train_dataloader: Any = None,
            **_: Any,
        ) -> None:
            """Restore the position and follow training; called before the worker is started."""
            if not state.is_world_process_zero:
                return
            if model is not None:
                worker.meets(model)
            worker.step = state.global_step
            worker.position.is_followed = _follow(train_dataloader, worker.position.collated)
            kept = state.stateful_callbacks.get(_NAME)
            if kept is not None and state.global_step:
                worker.restore(kept["attributes"])
            elif state.global_step:
                logger.warning(
                    "the checkpoint does not say which rows of the dataset were trained, so "
                    "training starts again at the first row\n"
                    "hint: pass callbacks=[worker.callback] in the run that saves checkpoints"
                )

        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """A micro-batch was trained."""
            worker.position.trained()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """The last micro-batch of a step was trained."""
            worker.position.trained()
            worker.step = state.global_step
            # TRL counts only the groups of this run, so a resumed run would train all groups again.
            goal = worker.epoch_groups
            if goal is not None and _on_all_ranks(args, worker.position.groups_trained >= goal):
                control.should_training_stop = True
                control.should_save = control.should_save or args.save_strategy == "steps"

        def state(self) -> dict[str, Any]:
            """Return the state that a checkpoint keeps."""
            return {"args": {}, "attributes": worker.position.state(worker.version)}

        @classmethod
        def from_state(cls, state: Any) -> "AbutRollouts":
            """Return the callback itself, which restores its state when training begins."""
            return callback

    callback = AbutRollouts()
    return callback


def groups_of_epochs(args: Any, dataset: Any) -> int | None:
    """Return the number of groups after which training ends; None: by steps, or unknown.

    Called before the trainer is made, because the trainer sets a number of steps in `args`.
    """
    if args.max_steps > 0 or not hasattr(dataset, "__len__"):
        return None
    groups: int = math.ceil(args.num_train_epochs * len(dataset))
    return groups


def _on_all_ranks(args: Any, reached: bool) -> bool:
    """Return the decision of rank 0, which alone knows what was trained, on all ranks."""
    if args.world_size == 1:
        return reached
    from accelerate.utils import broadcast_object_list

    return bool(broadcast_object_list([reached])[0])


def _follow(train_dataloader: Any, collated: Callable[[Any], None]) -> bool:
    """Note each micro-batch when the trainer collates it; return whether that is possible."""
    loader = getattr(train_dataloader, "base_dataloader", train_dataloader)
    collate = getattr(loader, "collate_fn", None)
    if not callable(collate):
        logger.warning(
            "the trainer's data loader, a %s, has no collate_fn, so abut cannot tell which rows "
            "were trained, and a resumed run will start again at the first row of the dataset",
            type(train_dataloader).__name__,
        )
        return False

    def told(examples: Any) -> Any:
        batch = collate(examples)
        collated(examples)
        return batch

    loader.collate_fn = told
    return True
