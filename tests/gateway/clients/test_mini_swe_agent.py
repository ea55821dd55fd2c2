"""mini-swe-agent: an answer that it cannot read vanishes from the history."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abut import agent
from tests.kit.clients.conversation import QUESTION, Heard
from tests.kit.stage.agents import a_call

ENVIRONMENTS = ("harnesses",)

Play = Callable[..., Heard]
Train = Callable[..., Any]

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CALLS = (
    a_call("bash", text="Let me look.\n", command="echo one"),
    "I forgot to call a tool.",
    a_call("bash", command="echo two"),
    a_call("bash", command=DONE),
)
TEXTS = tuple(
    f"I go on.\n\n```mswea_bash_command\n{command}\n```"
    for command in ("echo one", "echo two", DONE)
)


def swe_agent(endpoint: Any, folder: Path, config: str) -> Any:
    """The harness with one of the configurations that it ships."""
    import yaml
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    settings = yaml.safe_load((builtin_config_dir / f"{config}.yaml").read_text(encoding="utf-8"))
    templates = ("system_template", "instance_template")
    model = LitellmTextbasedModel if config == "mini_textbased" else LitellmModel
    texts = ("observation_template", "format_error_template")
    return DefaultAgent(
        model(
            model_name=f"openai/{endpoint.model}",
            model_kwargs={"api_base": endpoint.base_url, "api_key": endpoint.api_key},
            cost_tracking="ignore_errors",
            **{name: settings["model"][name] for name in texts},
        ),
        LocalEnvironment(cwd=str(folder)),
        **{name: settings["agent"][name] for name in templates},
    )


def solver(folder: Path, config: str) -> Any:
    @agent
    def solves(endpoint: Any) -> float:
        ended = swe_agent(endpoint, folder, config).run(QUESTION)
        return float(ended["exit_status"] == "Submitted")

    return solves


@pytest.mark.parametrize(
    ("config", "says", "causes"),
    [("mini", CALLS, [None, "rewritten"]), ("mini_textbased", TEXTS, [None])],
    ids=["calls", "text"],
)
def test_an_issue_is_solved_in_the_shell(
    heard: Play, tmp_path: Path, config: str, says: Any, causes: list[Any]
) -> None:
    played = heard(solver(tmp_path, config), says)
    played.check()
    assert played.trained_frac == 1.0
    # The harness leaves the unread answer out and says what was wrong with it, which begins anew.
    assert played.causes == causes


def test_the_trainer_takes_its_loss_over_the_unread_answer_too(
    trained: Train, tmp_path: Path
) -> None:
    trained(solver(tmp_path, "mini"), CALLS).check(rows=2)
