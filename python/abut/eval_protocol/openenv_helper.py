"""The `rollout_func` of Eval Protocol's own helper for TRL, with rows that are exact.

Invariant: an argument means the same as in Eval Protocol, or is an error that says what to write
instead. Arguments win over the test's own settings.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from abut.envs.task import RolloutTask
from abut.eval_protocol.eval_agent import EvalTest
from abut.eval_protocol.imports import require_package
from abut.eval_protocol.loaded_test import LoadedTest, load_test
from abut.eval_protocol.openenv_player import OpenEnvPlayer
from abut.eval_protocol.openenv_source import OpenEnvSource, browsergym_variables
from abut.eval_protocol.row_log import RowLog
from abut.eval_protocol.scorer import Scorer
from abut.gateway.server.gateway import Gateway
from abut.trl.rollout_func import RolloutFunc, make_rollout_func

_ROW_TIMEOUT_S = 120.0
_STEPS = 8
_OF_SOURCE = frozenset(field.name for field in dataclasses.fields(OpenEnvSource))
_OF_BROWSER = (
    "miniwob_url",
    "benchmark",
    "headless",
    "viewport_width",
    "viewport_height",
    "timeout_ms",
)
_ARGUMENTS = (_OF_SOURCE | {*_OF_BROWSER}) - {"hub_repo_id"}
_OWN: Mapping[str, Any] = {
    "docker_image": "browsergym-env:latest",
    "request_timeout_s": 15.0,
    "benchmark": "miniwob",
    "headless": True,
    "viewport_width": 1280,
    "viewport_height": 720,
    "timeout_ms": 10000,
}
"""The helper's default values: an argument that equals its default counts as not given."""


def create_openenv_vllm_rollout_func(
    env_factory: Callable[[], Any] | None,
    prompt_builder: Callable[[Any, int, list[str]], Any] | None,
    action_parser: Callable[[str], Any] | None,
    vllm_base_url: str = "http://localhost:8000",
    vllm_model: str = "Qwen/Qwen2.5-7B",
    max_steps: int | None = None,
    *,
    completion_params: dict[str, Any] | None = None,
    concurrency: int | None = None,
    processor_cls: Any = None,
    processor_kwargs: dict[str, Any] | None = None,
    env_path: str | None = None,
    env_client_cls: Any = None,
    tasks: list[str] | None = None,
    task_var: str | None = None,
    miniwob_url: str | None = None,
    docker_image: str = "browsergym-env:latest",
    env_base_url: str | None = None,
    request_timeout_s: float = 15.0,
    default_headers: dict[str, str] | None = None,
    provider: Any = None,
    docker_port: int | None = None,
    env_vars: dict[str, str] | None = None,
    benchmark: str = "miniwob",
    headless: bool = True,
    viewport_width: int = 1280,
    viewport_height: int = 720,
    timeout_ms: int = 10000,
    gateway: Gateway | None = None,
) -> RolloutFunc:
    """Return a `rollout_func` for `GRPOTrainer`, by the arguments of Eval Protocol's helper.

    The trainer's engine samples, a vLLM server, one in this process, or the model itself. Reward
    functions get `eval_score` and `step_rewards`, a float for each episode, and `env_reward` works.

    Args:
        env_factory: makes an environment with `reset`, `step` and `close`, sync or async.
        prompt_builder: the user's message for `(observation, step from 1, history)`.
        action_parser: returns the action in a string of the policy.
        vllm_base_url: not used, because the trainer knows its engine.
        vllm_model: the name of the policy in `ep logs`.
        max_steps: the most steps of an episode; None: the number in the test, else 8.
        completion_params: `max_tokens` and `stop` of a turn, and `system_prompt`; the trainer's
            sampling settings take precedence.
        concurrency: the most rollouts at once; None: the whole batch.
        processor_cls: None or OpenEnvRolloutProcessor.
        processor_kwargs: any of these arguments; they take precedence.
        env_path: a module, or `module:test`: its body gives the score, and its processor the
            environment unless you pass one here.
        env_client_cls: the class of a client, for a server or for containers.
        tasks: the tasks, one for each group, in turn.
        task_var: the environment variable that tells a container its task.
        miniwob_url: the address of MiniWoB pages, for containers.
        docker_image: the image of the server's container.
        env_base_url: the address of a server that runs; then no container is started.
        request_timeout_s: the client's time limit for a request, in seconds.
        default_headers: the headers that the client sends.
        provider: starts the containers; each gets a copy of it.
        docker_port: the port of the server on this machine.
        env_vars: environment variables of the container.
        benchmark: the benchmark of BrowserGym.
        headless: True if BrowserGym's browser runs without a window.
        viewport_width: the width of its window, in pixels.
        viewport_height: the height of its window, in pixels.
        timeout_ms: the browser's time limit, in milliseconds.
        gateway: the endpoint, if you need other settings than the default ones, such as
            `Gateway(unenforced="accept")`.

    Raises:
        ValueError: abut cannot do what an argument asks for.
        TypeError: `processor_kwargs` has an argument that does not exist.
        MissingExtraError: eval_protocol is not installed.
    """
    given = {k: v for k, v in locals().items() if k in _ARGUMENTS}
    require_package()
    _check_processor(processor_cls)
    for name in processor_kwargs or {}:
        if name not in (*_ARGUMENTS, "num_generations"):  # that of the trainer counts
            raise TypeError(
                f"processor_kwargs has {name!r}, which this helper does not support; it supports "
                f"{', '.join(sorted(_ARGUMENTS))}"
            )
    given |= {k: v for k, v in (processor_kwargs or {}).items() if k in _ARGUMENTS}
    test = None if env_path is None else load_test(env_path, None)
    params = {**({} if test is None else test.completion_params), **(completion_params or {})}
    if max_steps is None:
        max_steps = (None if test is None else test.parameters.steps) or _STEPS
    agent = EvalTest(
        "openenv" if test is None else test.name,
        OpenEnvPlayer(
            _source(test, given),
            params,
            max_steps=max_steps,
            max_rollouts=concurrency,
            max_tokens=params.get("max_tokens"),
        ),
        test=test,
        scorer=None if test is None else Scorer(test, _ROW_TIMEOUT_S),
        log=RowLog("all", None if test is None else test.parameters.logger),
        model=vllm_model,
        row_of=_row_of_prompt,
        is_helper=True,
    )
    return make_rollout_func(agent, gateway=gateway)


def _check_processor(processor_cls: Any) -> None:
    from eval_protocol.pytest.openenv_rollout_processor import OpenEnvRolloutProcessor

    if processor_cls not in (None, OpenEnvRolloutProcessor):
        raise ValueError(
            f"processor_cls={getattr(processor_cls, '__name__', processor_cls)}: this helper "
            "supports only OpenEnvRolloutProcessor\nhint: give an @evaluation_test your processor, "
            'and call make_rollout_func(eval_test("module:test"))'
        )


def _source(test: LoadedTest | None, given: Mapping[str, Any]) -> OpenEnvSource:
    """Return the source of environments: the arguments, else the test's.

    Raises:
        ValueError: there are no environments.
    """
    named = {
        name: value
        for name, value in given.items()
        if value is not None and value != _OWN.get(name)
    }
    processor = None if test is None else test.parameters.rollout_processor
    of_test = _of_test(processor, named)
    if not {"env_factory", "env_client_cls"} & {*named, *of_test}:
        if test is not None:
            raise ValueError(
                f"{test.name} has a {type(processor).__name__}, which has no OpenEnv environment\n"
                f'hint: call make_rollout_func(eval_test("{test.name}")), or pass env_factory='
            )
        raise ValueError("no environment: pass env_factory=, env_client_cls= or env_path=")
    for name in ("prompt_builder", "action_parser"):
        if name not in {*named, *of_test}:
            raise ValueError(f"no {name}: pass {name}=, or an env_path= whose test has one")
    chosen = {**_OWN, **of_test, **named}
    source = {name: value for name, value in chosen.items() if name in _OF_SOURCE}
    starts = chosen.get("env_factory") is None and chosen.get("env_base_url") is None
    is_named = any(name in named for name in _OF_BROWSER)
    if starts and (is_named or "browsergym" in chosen["docker_image"]):
        browser = browsergym_variables({name: chosen.get(name) for name in _OF_BROWSER})
        source["env_vars"] = {**browser, **(source.get("env_vars") or {})}
    return OpenEnvSource(**source)


def _of_test(processor: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a test's processor that fit the given arguments.

    A given environment replaces the test's environment and everything that makes it.
    """
    from eval_protocol.pytest.openenv_rollout_processor import OpenEnvRolloutProcessor

    if not isinstance(processor, OpenEnvRolloutProcessor):
        return {}
    source = OpenEnvSource.of_processor(processor)
    of_test = {name: getattr(source, name) for name in _OF_SOURCE}
    of_test |= {name: getattr(processor, f"_{name}", None) for name in _OF_BROWSER}
    if {"env_factory", "env_client_cls"} & named.keys():
        of_test = {name: of_test[name] for name in ("prompt_builder", "action_parser")}
    elif {"env_base_url", "docker_image", "tasks"} & named.keys():
        of_test["env_factory"] = None
    return {name: value for name, value in of_test.items() if value is not None}


def _row_of_prompt(task: RolloutTask, name: str) -> Any:
    """Return a row that begins with the trainer's prompt."""
    from eval_protocol.human_id import generate_id, num_combinations
    from eval_protocol.models import EvaluationRow, Message

    prompt = task.columns.get("prompt", task.seed)
    said: Sequence[Any] = task.messages
    if isinstance(prompt, str):
        said = [{"role": "user", "content": prompt}]
    row = EvaluationRow(messages=[Message.model_validate(dict(message)) for message in said])
    index = abs(hash(row)) % num_combinations()
    row.input_metadata.row_id = generate_id(seed=0, index=index)
    return row
