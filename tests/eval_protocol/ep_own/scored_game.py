"""A game of two steps in this process, and a test that scores it."""

from types import SimpleNamespace
from typing import Any, ClassVar

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import evaluation_test
from eval_protocol.pytest.openenv_rollout_processor import OpenEnvRolloutProcessor


class Game:
    """Two steps, worth what the action says; `log` has what happened to each."""

    log: ClassVar[list[Any]] = []

    def __init__(self, **made: Any) -> None:
        self.made, self.steps = made, 0
        self.log.append(self)

    @classmethod
    def from_docker_image(cls, image: str, **keywords: Any) -> "Game":
        return cls(image=image, **keywords)

    def reset(self) -> Any:
        return SimpleNamespace(observation={"text": "begin"}, reward=None, done=False)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return SimpleNamespace(
            observation={"text": f"after {action}"}, reward=float(action), done=self.steps == 2
        )

    def close(self) -> None:
        self.closed = True


def action_parser(text: str) -> float:
    return float(len(text))


@evaluation_test(
    input_messages=[[[Message(role="user", content="hi")]]],
    completion_params=[{"model": "openai/m", "max_tokens": 2}],
    rollout_processor=OpenEnvRolloutProcessor(
        env_factory=lambda: Game(whose="the test's"),
        prompt_builder=lambda observation, step, history: "of the test",
        action_parser=action_parser,
    ),
    steps=1,
    disable_browser_open=True,
)
def test_scores(row: EvaluationRow) -> EvaluationRow:
    """A tenth of what the steps gave."""
    rewards = (row.execution_metadata.extra or {})["step_rewards"]
    row.evaluation_result = EvaluateResult(score=sum(rewards) / 10, reason="")
    return row
