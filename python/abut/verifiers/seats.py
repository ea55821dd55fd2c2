"""The seats of an environment: the model and harness of each, and where its programs run.

Invariant: a seat is played by the policy, or by another model that has its own endpoint. No harness
that executes commands does so on this machine unless the user said so.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from abut.agents.protocol import NAME_HINT, is_name

SeatSettings = Mapping[str, Mapping[str, Any]]
"""Settings of seats, by their names."""

_OPEN_HARNESS = "bash"
"""The harness that verifiers gives to a seat for which neither taskset nor environment has one."""
_CHAT_PROGRAM = "null"
"""The harness of verifiers that abut's harness replaces."""


def load_env(
    taskset_id: str,
    env_id: str | None,
    config: Mapping[str, Any],
    seats: SeatSettings,
    *,
    harness: str | Mapping[str, Any] | None,
    runtime: str | Mapping[str, Any] | None,
) -> Any:
    """Return the `verifiers.v1.Env` of a taskset, for the arguments of `verifiers_env`.

    Raises:
        ValueError: the configuration cannot be used in training.
        ImportError: the taskset, the environment or the harness is not installed.
    """
    from verifiers.v1.utils.loaders import (
        env_config_type,
        load_environment,
        resolve_env_config,
    )

    raw = dict(config)
    raw["id"] = env_id or raw.get("id") or ""
    raw["taskset"] = {**_as_dict(raw.get("taskset")), "id": taskset_id}
    names = _declared_seats(env_config_type(taskset_id, raw["id"]))
    _check_known(seats, names, taskset_id)
    for name, settings in seats.items():
        raw[name] = {**_as_dict(raw.get(name)), **_with_client_type(settings)}
    said = {name for name in names if "runtime" in _as_dict(raw.get(name))}
    env_config = resolve_env_config(raw)
    return load_environment(_placed(env_config, said, harness, runtime, taskset_id))


def with_seats(
    env: Any,
    seats: SeatSettings,
    *,
    harness: str | Mapping[str, Any] | None,
    runtime: str | Mapping[str, Any] | None,
) -> Any:
    """Return a copy of a loaded environment with these settings for its seats.

    Raises:
        ValueError: the configuration cannot be used in training.
    """
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.generic import merge_defaults

    declared = agent_config_fields(env.config)
    name = env.config.env_id
    _check_known(seats, declared, name)
    changed = {
        seat: type(declared[seat]).model_validate(
            merge_defaults(declared[seat], dict(_with_client_type(settings)))
        )
        for seat, settings in seats.items()
    }
    said = {seat for seat, settings in seats.items() if "runtime" in settings}
    config = _placed(env.config.model_copy(update=changed), said, harness, runtime, name)
    made = type(env)(config)
    made.taskset = env.taskset  # perhaps a view of it
    return made


def policy_seats(env: Any) -> list[str]:
    """Return the names of the seats that no other model plays.

    Raises:
        ValueError: a seat has a model without an endpoint, an endpoint without a model, or a name
            that the gateway does not allow.
    """
    from verifiers.v1.configs.agent import agent_config_fields

    found = []
    for seat, spec in agent_config_fields(env.config).items():
        if not is_name(seat):
            raise ValueError(
                f"{env.config.env_id} has a seat with the name {seat!r}\nhint: {NAME_HINT}"
            )
        if (spec.model is None) != (spec.client is None):
            has, lacks = ("client", "model") if spec.model is None else ("model", "client")
            raise ValueError(
                f"seat {seat} of {env.config.env_id} has a {has} but no {lacks}, so neither the "
                f"policy nor another model can play it\nhint: seats={{{seat!r}: {{"
                '"model": "gpt-5-mini", "client": {"base_url": "https://api.openai.com/v1", '
                '"api_key_var": "OPENAI_API_KEY"}}}'
            )
        if spec.model is None:
            found.append(seat)
    return found


async def untrainable_seats(env: Any, names: Sequence[str]) -> set[str]:
    """Return the seats that the environment never trains, such as a simulated user."""
    from verifiers.v1.agent import Agent, Agents
    from verifiers.v1.clients import EvalClientConfig
    from verifiers.v1.configs.agent import resolve_agent
    from verifiers.v1.configs.env import default_agent_harness

    def agent_of(name: str, spec: Any) -> Any:
        client = EvalClientConfig(base_url="http://no.such.host", api_key_var="NO_SUCH_API_KEY")
        harness = default_agent_harness(env.config.taskset.id)
        return Agent(resolve_agent(spec, model="policy", client=client, harness=harness))

    agents = Agents(env.config, agent_of)
    await env.setup(agents)
    return {name for name in names if not getattr(agents, name).trainable}


def _placed(
    config: Any,
    said: set[str],
    harness: str | Mapping[str, Any] | None,
    runtime: str | Mapping[str, Any] | None,
    name: str,
) -> Any:
    """Return the configuration with a harness and a runtime for each seat.

    Args:
        config: the environment's configuration.
        said: the seats for which the user named a runtime.
        harness: for seats without a harness.
        runtime: for the other seats.
        name: the environment's name, for errors.
    """
    from pydantic import TypeAdapter
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.runtimes import PrimeConfig, RuntimeConfig, SubprocessConfig

    _check_retries(config.retries, name, "config={")
    seats = {}
    for seat, spec in agent_config_fields(config).items():
        _check_retries(spec.retries, f"seat {seat} of {name}", f"seats={{{seat!r}: {{")
        is_said = seat in said or runtime is not None
        box = spec.runtime
        if seat not in said and runtime is not None:
            raw = {"type": runtime} if isinstance(runtime, str) else dict(runtime)
            box = TypeAdapter(RuntimeConfig).validate_python(raw)
        elif seat not in said and box == PrimeConfig():
            box = SubprocessConfig()  # the default of verifiers is a remote sandbox, for a fee
        program = _harness_config(spec.harness, harness, config.taskset.id)
        if isinstance(box, SubprocessConfig):
            _check_local(program.id, f"seat {seat} of {name}", is_said)
        sampling = spec.sampling
        if spec.model is not None:
            sampling = _own_sampling(spec.sampling)
        update = {"harness": program, "runtime": box, "sampling": sampling}
        seats[seat] = spec.model_copy(update=update)
    return config.model_copy(update=seats)


def _harness_config(own: Any, given: str | Mapping[str, Any] | None, taskset_id: str) -> Any:
    """Return the configuration of a seat's harness.

    Args:
        own: the seat's own harness, or None.
        given: the harness for a seat without one.
        taskset_id: the id of the taskset, which may bring a harness.
    """
    from verifiers.v1.configs.env import default_agent_harness
    from verifiers.v1.configs.harness import HarnessConfig
    from verifiers.v1.utils.loaders import harness_config_type

    from abut.verifiers.chat_harness import chat_harness_id

    if own is None and given is not None:
        raw = {"id": given} if isinstance(given, str) else dict(given)
        own = harness_config_type(raw["id"]).model_validate(raw)
    if own is None:
        own = default_agent_harness(taskset_id)
        if own.id == _OPEN_HARNESS:
            return HarnessConfig(id=chat_harness_id())
    if own.id == _CHAT_PROGRAM:
        return HarnessConfig.model_validate({**own.model_dump(), "id": chat_harness_id()})
    return own


def _own_sampling(own: Any) -> Any:
    """Return the sampling settings of a seat with another model, without the trainer's.

    The seat's endpoint may refuse some of the trainer's settings, such as `top_k`.
    """
    from verifiers.v1.types import SamplingConfig

    cleared = dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "max_tokens"))
    said = {} if own is None else own.model_dump(exclude_unset=True)
    return SamplingConfig(**{**cleared, **said})


def _check_local(harness_id: str, seat: str, is_said: bool) -> None:
    from verifiers.v1.utils.loaders import harness_class

    harness = harness_class(harness_id)
    if harness.NEEDS_CONTAINER:
        raise ValueError(
            f"the harness {harness_id!r} of {seat} needs a container\n"
            'hint: pass runtime="docker", or another runtime of verifiers'
        )
    if harness.EXECUTES_CODE and not is_said:
        raise ValueError(
            f"the harness {harness_id!r} of {seat} would run the policy's commands on this "
            'machine\nhint: pass runtime="docker", or runtime="subprocess" to allow this'
        )


def _check_retries(retries: Any, what: str, where: str) -> None:
    if retries.max_retries or any(rule.max_retries for rule in retries.rules):
        raise ValueError(
            f"{what} has retries, so verifiers would play again within a rollout, and the row "
            "would contain both attempts\n"
            f'hint: {where}"retries": {{"max_retries": 0}}…; to repeat failed rollouts, use '
            "RolloutConfig(retries=…)"
        )


def _check_known(seats: SeatSettings, names: Any, what: str) -> None:
    for name in seats:
        if name not in names:
            raise ValueError(
                f"seats has {name!r}, which is not a seat of {what}\n"
                f"hint: the seats are {', '.join(names)}"
            )


def _declared_seats(config_type: Any) -> list[str]:
    from verifiers.v1.configs.agent import AgentConfig

    fields: Iterator[tuple[str, Any]] = config_type.model_fields.items()
    return [name for name, field in fields if isinstance(field.default, AgentConfig)]


def _with_client_type(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a seat's settings with a type for its client, because verifiers has no default."""
    client = settings.get("client")
    if not isinstance(client, Mapping):
        return settings
    return {**settings, "client": {"type": "eval", **client}}


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a part of a configuration, a mapping or a pydantic model, as a dict."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else dict(value.model_dump(exclude_unset=True))
