"""TRL: a `rollout_func` for `GRPOTrainer`, a `rollout_worker` for `AsyncGRPOTrainer`, rewards.

`abut.trl.GRPOTrainer` is TRL's class with `AllRows`: it trains each conversation of a rollout as a
row.
"""

from typing import Any

from abut.tools.environment_factory import from_environment_factory
from abut.trl.credit import Returns, ReverseKL, ScoredConversation, ScoredRollout, ScoredTurn
from abut.trl.rewards import env_reward, no_reward, scored_only
from abut.trl.rollout_func import make_rollout_func
from abut.trl.rows.all_rows import AllRows, extend, grpo_trainer
from abut.trl.rows.main_rows import MainRows, distillation_trainer
from abut.trl.streaming.make_worker import make_distillation_worker, make_rollout_worker
from abut.trl.teachers.model_teacher import ModelTeacher
from abut.trl.teachers.teacher import Teacher, TeacherScores
from abut.trl.teachers.vllm_teacher import VllmTeacher

__all__ = [
    "AllRows",
    "MainRows",
    "ModelTeacher",
    "Returns",
    "ReverseKL",
    "ScoredConversation",
    "ScoredRollout",
    "ScoredTurn",
    "Teacher",
    "TeacherScores",
    "VllmTeacher",
    "env_reward",
    "extend",
    "from_environment_factory",
    "make_distillation_worker",
    "make_rollout_func",
    "make_rollout_worker",
    "no_reward",
    "scored_only",
]


def __getattr__(name: str) -> Any:
    # TRL is optional and slow to import, and tools such as Unsloth replace its class.
    if name == "GRPOTrainer":
        return grpo_trainer()
    if name == "DistillationTrainer":
        return distillation_trainer()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "DistillationTrainer", "GRPOTrainer"])
