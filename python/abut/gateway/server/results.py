"""Results of rollouts without a trainer, sent over HTTP."""

import math
from collections.abc import Mapping
from typing import Any

from abut.agents.protocol import NAME_HINT, AgentResult, is_name
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal, short
from abut.rollout.named_rewards import ConversationKeys, RewardKeys


def check_keys(ledger: Ledger, result: AgentResult) -> None:
    """Refuse a result with a reward that does not belong to anything in the rollout.

    Raises:
        Refusal: names the key.
    """
    conversations, answers = [], {}
    for branch in ledger.branches:
        conversations.append(ConversationKeys(branch.caller.name, branch.caller.session))
        for call in branch.calls:
            answers[call.answered.result().id] = conversations[-1]
    keys = RewardKeys(conversations, ledger.callers.asked_by, answers, of_turns=True)
    try:
        keys.check(result.rewards, result.names)
    except ValueError as error:
        raise Refusal(str(error), param="rewards") from None


def check_reward(reward: Any) -> None:
    """Refuse a value that is not a reward.

    Raises:
        Refusal: it is neither None nor a finite number.
    """
    if reward is None:
        return
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not _is_finite(reward):
        raise Refusal(f"reward={short(reward)}: must be a finite number, or null", param="reward")


def checked_result(body: Mapping[str, Any]) -> AgentResult:
    """Return the result with which a request ends a rollout.

    Raises:
        Refusal: the body is not such a result.
    """
    fields: dict[str, Any] = {}
    for name in ("extras", "rewards", "names"):
        value = body.get(name) or {}
        if not isinstance(value, Mapping):
            raise Refusal(f"{name} must be an object", param=name)
        fields[name] = dict(value)
    reward = body.get("reward")
    for score in (reward, *fields["rewards"].values()):
        check_reward(score)
    for name in fields["names"].values():
        if not is_name(name):
            raise Refusal(
                f"names has {short(name)}, which is not a valid name\nhint: {NAME_HINT}",
                param="names",
            )
    return AgentResult(reward, **fields)


def _is_finite(reward: float) -> bool:
    try:
        return math.isfinite(reward)
    except OverflowError:
        return False
