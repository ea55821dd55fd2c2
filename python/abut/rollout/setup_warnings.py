"""Warnings about mistakes in the setup, rather than in a rollout: each once, with a fix.

In each of these cases training continues without an error, but the policy does not learn.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from abut.envs.task import RolloutTask
from abut.notices import Once
from abut.rollout.budget import Budget
from abut.rollout.rollout import BranchCause, Rollout, StopReason

logger = logging.getLogger(__name__)

_NO_ROOM = (StopReason.MAX_COMPLETION_TOKENS, StopReason.MAX_CONTEXT_TOKENS)
# From so many scored rollouts of a batch on, a share of this size is not chance.
_MIN_SCORED = 8
_CUT_FRAC = 0.9
# If more of the tokens that could be trained are not, that is worth a warning.
_DROPPED_FRAC = 0.1
_WHY_BRANCHES: Mapping[BranchCause, str] = {
    "repeated": "it requests several samples of the same turn",
    "rewritten": "it, or its client, changes earlier messages",
    "tools": "it changes the tools or the template variables between calls",
    "new": "it starts new conversations",
    "template": "the chat template cannot write its messages after a turn",
    "subagent": "it has sub-agents",
    "compaction": "it summarizes its history",
}
# How many rollouts, all alike, make a warning: before the policy has learned, a few may end so.
_MIN_ALIKE = 32


class SetupWarnings:
    """The warnings of one engine, over all of its batches; methods may be called on any thread."""

    def __init__(self) -> None:
        self._once = Once(logger)
        self._same: Counter[str] = Counter()
        """How many rollouts matched a warning: `first turn`, or `turns` and a name."""
        self._refuted: set[str] = set()
        """The warnings that some rollout has refuted, so they are never logged."""

    def nan_reward(self, env: str) -> None:
        """Warn about an environment with a reward of NaN."""
        self._once.warn(
            f"nan {env}",
            f"{env}.reward is NaN, so the rollout counts as unscored and is not trained\n"
            "hint: fix the computation of the reward; use None where there is no score",
        )

    def ended(
        self,
        rollouts: Sequence[Rollout],
        tasks: Sequence[RolloutTask],
        *,
        budget: Budget,
        max_turns: int,
    ) -> None:
        """Warn about a limit that all rollouts have reached, in this batch and all earlier ones."""
        for rollout, task in zip(rollouts, tasks, strict=True):
            if rollout.failed or not rollout.sampled_tokens:
                continue
            self._count("first turn", _has_no_room(rollout, budget))
            if max_turns > 1:  # one turn may be what is wanted, whatever the environment says
                stopped = rollout.stop_reason is StopReason.MAX_TURNS
                self._count(f"turns {_name_of(task)}", stopped)
        for what, count in self._same.items():
            if count < _MIN_ALIKE or what in self._refuted:
                continue
            kind, _, env = what.partition(" ")
            if kind == "turns":
                text = (
                    f"all {count} rollouts of {env} reached max_turns={max_turns}: the "
                    "environment never ended an episode itself\n"
                    "hint: set self.alive = False in the step that ends an episode; if episodes "
                    "need more turns, raise RolloutConfig.max_turns"
                )
            else:
                completion, context = budget.max_completion_tokens, budget.max_context_tokens
                limits = f"max_completion_tokens={completion}, max_context_tokens={context}"
                text = (
                    f"all {count} rollouts ended in their first turn, because it was cut or left "
                    f"no room for a second turn ({limits})\n"
                    "hint: raise GRPOConfig.max_completion_length, which must hold all turns of "
                    "a rollout and all replies; to limit a single turn, set "
                    "RolloutConfig.max_turn_tokens"
                )
            self._once.warn(what, text)

    def cut(self, rollouts: Sequence[Rollout], *, budget: Budget) -> None:
        """Warn if one token budget ends most scored rollouts of a batch."""
        scored = [one for one in rollouts if one.sampled_tokens and not one.failed and one.measured]
        for reason, limit, cure in (
            (
                StopReason.MAX_COMPLETION_TOKENS,
                budget.max_completion_tokens,
                "raise GRPOConfig.max_completion_length, which must hold all turns of a rollout "
                "and all replies",
            ),
            (
                StopReason.MAX_CONTEXT_TOKENS,
                budget.max_context_tokens,
                "raise RolloutConfig.max_context_tokens if the model can hold more, or shorten "
                "prompts and replies",
            ),
        ):
            cut = [len(one.turns) for one in scored if one.stop_reason is reason]
            enough = len(scored) >= _MIN_SCORED and len(cut) >= _CUT_FRAC * len(scored)
            if enough and "first turn" not in self._once:  # that warning says the same
                self._once.warn(
                    f"cut {reason}",
                    f"{len(cut)} of {len(scored)} rollouts of a batch were cut by "
                    f"{reason}={limit}, after {median(cut):g} turns (median)\n"
                    f"hint: {cure}",
                )

    def dropped(self, rollouts: Sequence[Rollout]) -> None:
        """Warn about conversations that are not trained, because each rollout has only one row.

        Samples that the agent never received, discarded in favour of another, or marked as
        untrained do not count.
        """
        causes: Counter[BranchCause | None] = Counter()
        for rollout in rollouts:
            for branch in rollout.branches:
                if branch.delivered and branch.followed and branch.trained:
                    causes[branch.cause] += int(branch.columns.env_mask.sum())
        dropped = causes.total()
        followed = dropped + sum(rollout.sampled_tokens for rollout in rollouts)
        if not dropped or dropped / followed <= _DROPPED_FRAC:
            return
        ((why, most),) = causes.most_common(1)
        self._once.warn(
            "dropped",
            f"{dropped / followed:.0%} of the {followed} tokens that agents sampled in a batch "
            "are not trained, because this trainer trains only one conversation of each rollout. "
            f"Most of them ({most / dropped:.0%}) are in conversations that an agent started "
            f"because {_WHY_BRANCHES[why or 'new']}\n"
            "hint: to train every conversation, use abut.trl.GRPOTrainer, which takes the same "
            "arguments as TRL's, or the worker of an asynchronous trainer; "
            "docs/integrations/agents.md lists what starts a new conversation",
        )

    def _count(self, what: str, same: bool) -> None:
        if same:
            self._same[what] += 1
        else:
            self._refuted.add(what)


def _name_of(task: RolloutTask) -> str:
    make = getattr(task.source, "func", task.source)  # the function of a partial
    name = getattr(make, "__name__", type(make).__name__)
    return "the environment" if name == "<lambda>" else str(name)


def _has_no_room(rollout: Rollout, budget: Budget) -> bool:
    """Return whether the limits had room for less than one turn, or for no second turn."""
    turn = rollout.turns[0]
    if len(rollout.turns) > 1:
        return False
    cut = turn.finish_reason == "length" and (
        turn.end - turn.start == budget.max_completion_tokens
        or turn.end == budget.max_context_tokens
    )
    return cut or rollout.stop_reason in _NO_ROOM
