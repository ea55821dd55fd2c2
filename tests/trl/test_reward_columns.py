"""Reward functions get what TRL's own tool loop gives them; each is wrapped once."""

import asyncio
import copy
import inspect
import logging
import signal
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from abut import AgentResult, agent, tool_env  # noqa: E402
from abut.template.processor import ChatTemplateProcessor  # noqa: E402
from abut.trl import env_reward, from_environment_factory, scored_only  # noqa: E402
from abut.trl.rewards import ModelMetrics, wrap_reward_functions  # noqa: E402
from tests.kit.data.templates import CHATML, SHOWN  # noqa: E402
from tests.kit.stage.rollouts import Recording, Stage, Talk  # noqa: E402
from tests.kit.training.trl_run import a_trainer  # noqa: E402

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class Looks:
    """As in TRL's example: methods, and no get_reward."""

    def reset(self, **row: Any) -> None: ...

    def look(self) -> str:
        """Look."""
        return "a door"


def look() -> str:
    """Look."""
    return "a door"


def of_environments(environments: Any, **columns: Any) -> list[float]:
    return [1.2 for _ in environments]


def of_messages(completions: Any, **columns: Any) -> list[float]:
    return [0.5 + ("tool_calls" in said[0]) for said in completions]


@pytest.fixture
def with_tools(hf_tokenizer: Any, tokenizer: Any, called: Any) -> Any:
    """Plays a batch in which the policy looks and answers; returns the columns and the trainer."""
    hf = copy.deepcopy(hf_tokenizer)
    hf.chat_template = SHOWN + CHATML

    def play(source: Any, reward_funcs: Any, *says: str, **make: Any) -> Any:
        stage = Stage(tokenizer, ChatTemplateProcessor(hf, tools=source.tools))
        sampler = Recording(
            lambda request: stage.says((says or (CALL, "done"))[request.turn])(request)
        )
        trainer = a_trainer(hf, reward_funcs=list(reward_funcs))
        return called(["a", "b"], source, trainer, sampler=sampler, **make), trainer

    return play


def scores(trainer: Any, columns: Any, **more: Any) -> list[Any]:
    """What TRL gets of each reward function."""
    texts = [[{"role": "assistant", "content": "all of it"}]] * 2
    return [function(completions=texts, **columns, **more) for function in trainer.reward_funcs]


@pytest.mark.parametrize(
    "source",
    [
        from_environment_factory(Looks, format="hermes"),
        tool_env([look], reward=lambda messages: None, format="hermes"),
    ],
)
def test_an_environment_without_a_score_leaves_it_to_the_other_functions(
    with_tools: Any, source: Any
) -> None:
    columns, trainer = with_tools(source, [scored_only(of_messages)])
    assert columns["env_reward"] == [None, None]
    assert columns["measured"] == [True, True]
    assert scores(trainer, columns) == [[1.5, 1.5]]
    columns["environments"] = [None, None]
    assert scored_only(of_environments)(**columns) == [1.2, 1.2]


def test_nothing_is_scored_where_an_agent_says_that_nothing_was_measured(called: Any) -> None:
    @agent
    async def solve(endpoint: Any, prompt: str) -> AgentResult:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
            said = [{"role": "user", "content": prompt}]
            await client.chat.completions.create(model="policy", messages=said)  # type: ignore[arg-type]
        return AgentResult(None, measured=prompt != "masked")

    columns = called(["fine", "masked"], solve)
    assert columns["measured"] == [True, False]
    assert scored_only(lambda measured, **_: [1.0, 1.0])(**columns) == [1.0, None]


def test_completions_have_the_calls_and_the_results_that_trl_gives(with_tools: Any) -> None:
    seen: list[Any] = []

    def note(completions: Any, messages: Any, **columns: Any) -> list[float]:
        seen.extend(zip(completions, messages, strict=True))
        return [0.0, 0.0]

    source = tool_env([look], reward=lambda messages: 1.0, format="hermes")
    columns, trainer = with_tools(source, [scored_only(note)])
    scores(trainer, columns)
    asked = {"type": "function", "function": {"name": "look", "arguments": {}}}
    completion = [
        {"role": "assistant", "content": "", "tool_calls": [asked]},
        {"role": "tool", "name": "look", "content": "a door"},
        {"role": "assistant", "content": "done"},
    ]
    assert [said for said, _ in seen] == [completion] * 2
    assert [heard[-3:] for _, heard in seen] == [completion] * 2


def test_a_plain_environment_keeps_trls_one_message(called: Any, hf_tokenizer: Any) -> None:
    trainer = a_trainer(hf_tokenizer, reward_funcs=[scored_only(of_messages)])
    assert scores(trainer, called(["a", "b"], Talk, trainer)) == [[0.5, 0.5]]


async def later(completions: Any, **columns: Any) -> list[float]:
    return [2.0] * len(completions)


def test_each_function_is_wrapped_once_and_a_reward_model_never() -> None:
    model, name = torch.nn.Linear(1, 1), "folder/of-a-model"
    given = [env_reward, later, model, name]
    trainer = a_trainer(None, reward_funcs=given)
    wrap_reward_functions(trainer)
    once = list(trainer.reward_funcs)
    wrap_reward_functions(trainer)
    assert all(a is b for a, b in zip(once, trainer.reward_funcs, strict=True))
    assert given[:2] == [env_reward, later]  # the user's list is not changed
    assert [function.__name__ for function in once[:2]] == ["env_reward", "later"]
    assert [inspect.iscoroutinefunction(function) for function in once[:2]] == [False, True]
    assert once[2:] == [model, name]
    assert asyncio.run(once[1](completions=["x"])) == [2.0]


@pytest.mark.parametrize("functions", [[env_reward, of_messages], [of_messages], [of_messages] * 2])
def test_a_batch_is_logged_once_whatever_functions_there_are(
    called: Any, hf_tokenizer: Any, functions: Any
) -> None:
    functions = [scored_only(f) if f is of_messages else f for f in functions]
    trainer = a_trainer(hf_tokenizer, reward_funcs=functions)
    columns = called(["a", "b"], Talk, trainer)
    logged: list[str] = []
    table: list[str] = []
    scores(
        trainer,
        columns,
        log_metric=lambda name, value: logged.append(name),
        log_extra=lambda name, values: table.append(name),
    )
    assert logged.count("rollout/turns/mean") == 1
    assert len(logged) == len(set(logged))
    assert table == ["num_turns", "stop_reason"]


def test_with_reward_models_alone_a_callback_adds_the_metrics(
    called: Any, hf_tokenizer: Any
) -> None:
    from types import SimpleNamespace

    trainer = a_trainer(
        hf_tokenizer,
        reward_funcs=[torch.nn.Linear(1, 1)],
        callback_handler=SimpleNamespace(callbacks=["trackers"]),
    )
    with pytest.warns(UserWarning, match="reward model"):
        called(["a", "b"], Talk, trainer)
    callback, trackers = trainer.callback_handler.callbacks
    logs: dict[str, float] = {"loss": 0.0}
    trainer.state.log_history.append(dict(logs))
    callback.on_log(None, trainer.state, None, logs)
    assert logs["rollout/turns/mean"] > 0
    assert trainer.state.log_history[-1] == pytest.approx(logs, nan_ok=True)
    again: dict[str, float] = {"loss": 0.0}
    callback.on_log(None, trainer.state, None, again)
    assert (again, trackers) == ({"loss": 0.0}, "trackers")
    ModelMetrics().add(a_trainer(hf_tokenizer, reward_funcs=[]), {"rollout_stats": []}, "train")


def test_the_first_exception_of_a_tool_is_logged_and_all_are_counted(
    with_tools: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def alarmed() -> str:
        """Set an alarm."""
        signal.signal(signal.SIGALRM, lambda *_: None)
        return "never"

    say = CALL.replace("look", "alarmed")
    with caplog.at_level(logging.WARNING):
        source = tool_env([alarmed, look], reward=lambda messages: 1.0, format="hermes")
        columns, trainer = with_tools(source, [env_reward], say, CALL, "done")
    (record,) = [r for r in caplog.records if r.name == "abut.tools.toolbox"]
    said = record.getMessage()
    assert said.startswith("the tool alarmed raised ValueError: signal only works in main thread")
    assert "in alarmed\n    signal.signal(" in said
    assert said.endswith(
        "hint: a tool does not run on the main thread, so it cannot use signals; "
        "abut.tool_env(timeout_s=…) limits how long the calls of a turn may take"
    )
    logged: dict[str, float] = {}
    scores(trainer, columns, log_metric=logged.__setitem__)
    assert logged["tools/call_frequency"] == 2
    assert logged["tools/failure_frequency"] == 0.5
    by_tool = {name: value for name, value in logged.items() if name.count("/") == 2}
    assert {
        name: by_tool[f"tools/{name}"]
        for name in (
            "call_frequency/alarmed",
            "call_frequency/look",
            "failure_frequency/alarmed",
            "failure_frequency/look",
        )
    } == {
        "call_frequency/alarmed": 1,
        "call_frequency/look": 1,
        "failure_frequency/alarmed": 1,
        "failure_frequency/look": 0,
    }


def test_a_rollout_knows_the_tools_that_its_prompt_showed(with_tools: Any) -> None:
    kept: list[Any] = []
    source = tool_env([look], reward=lambda messages: 1.0, format="hermes")

    class Keep:
        def write(self, rollout: Any, /, **extra: Any) -> None:
            kept.append(rollout)

    with_tools(source, [env_reward], recorder=Keep())
    assert [list(rollout.tools) for rollout in kept] == [list(source.tools)] * 2
