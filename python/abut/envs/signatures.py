"""The signatures of the user's code: what a factory needs, and which columns `reset` names.

Invariant: a factory that passes `check_env_factory` can be called without arguments and makes
something with an environment's methods, as far as a look can tell; no code of the user runs. A
column that `reset` cannot do without, or that the trainer took out of the row, is an error that
says what the row has; no environment is played with less than it asks for.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from abut.envs.foreign import place_of
from abut.envs.task import EnvFactory, EnvPool, RolloutTask, is_pool
from abut.errors import text_of


class UnplayableRow(ValueError):
    """A row that its environment cannot be played with: no failure of a rollout, but an end."""


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def accepted_keywords(
    reset: Callable[..., Any], columns: Mapping[str, Any], episode_seed: int
) -> dict[str, Any]:
    """Return what `reset` takes besides the seed: columns and `episode_seed` that it names."""
    columns = {name: value for name, value in columns.items() if name != "seed"}
    return accepted_by(reset, columns, episode_seed)


def accepted_by(
    function: Callable[..., Any], columns: Mapping[str, Any], episode_seed: int
) -> dict[str, Any]:
    """Return what a function takes besides its first argument, which it gets by position."""
    offered = {**columns, "episode_seed": episode_seed}
    parameters = _parameters(function)
    offered.pop(_seed_name(parameters), None)
    return _named(parameters, offered)


def named_keywords(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the offered a function takes by name; all of it where it takes any."""
    return _named(_parameters(function), offered)


def _named(parameters: list[inspect.Parameter], offered: Mapping[str, Any]) -> dict[str, Any]:
    if _takes_any(parameters):
        return {name: value for name, value in offered.items() if isinstance(name, str)}
    return {
        parameter.name: offered[parameter.name]
        for parameter in parameters
        if parameter.kind is not parameter.POSITIONAL_ONLY and parameter.name in offered
    }


def check_removed(
    reset: Callable[..., Any], name: str, task: RolloutTask, *, gets_seed: bool = True
) -> None:
    """Refuse a `reset` that takes a column which the trainer took out of the row.

    Args:
        reset: of an environment.
        name: the function's name in errors.
        task: has the row.
        gets_seed: whether its first parameter is the seed, whatever that is called.

    Raises:
        UnplayableRow: names the column, and says how to keep it.
    """
    if not task.removed_columns:  # to look into a function takes longer than most of them
        return
    parameters = _parameters(reset)
    names = {parameter.name for parameter in parameters}
    if gets_seed:
        names.discard(_seed_name(parameters))
    taken = [column for column in task.removed_columns if column in names or _takes_any(parameters)]
    if taken:
        raise UnplayableRow(
            f"{name} needs the column {taken[0]!r}, but the trainer has removed it from the "
            "dataset, because GRPOConfig has remove_unused_columns=True\n"
            "hint: leave remove_unused_columns out; GRPOConfig's default is False"
        )


def lacks_column(
    reset: Callable[..., Any], name: str, task: RolloutTask, error: BaseException
) -> UnplayableRow | None:
    """Return an error if `reset` raised because its row lacks a column; None for another cause.

    Only if the call itself failed, because a decorator may fill in arguments of the signature.
    """
    if not isinstance(error, TypeError):
        return None
    said = text_of(error)
    for parameter in _parameters(reset):
        column = parameter.name
        needed = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if needed and column not in task.columns and f"{column!r}" in said:
            return _without_column(name, column, task)
    return None


def check_columns(function: Callable[..., Any], name: str, task: RolloutTask) -> None:
    """Refuse a row without a column that a function needs.

    Args:
        function: gets columns by name; its other arguments are already bound.
        name: the function's name in errors.
        task: has the row.

    Raises:
        UnplayableRow: names the column, and says how to add it.
    """
    for parameter in _parameters(function):
        if (
            parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            and parameter.name not in task.columns
        ):
            raise _without_column(name, parameter.name, task)


def _without_column(name: str, column: str, task: RolloutTask) -> UnplayableRow:
    has = ", ".join(map(repr, task.columns)) or "none"
    return UnplayableRow(
        f"{name} needs the column {column!r}, but the row of prompt {task.index} only has the "
        f"columns: {has}\n"
        f"hint: add the column to the dataset, or set prompt[-1]['row'][{column!r}], or give "
        "the parameter a default"
    )


def _seed_name(parameters: list[inspect.Parameter]) -> str:
    return parameters[0].name if parameters and parameters[0].kind in _BY_POSITION else ""


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of the user's callable; None if Python cannot look into it."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    signature = signature_of(function)
    return [] if signature is None else list(signature.parameters.values())


def _takes_any(parameters: list[inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def check_env_factory(env: Any) -> EnvFactory | EnvPool:
    """Check the argument `env`; return the factory or pool of environments.

    Raises:
        TypeError: it is not a class, factory or pool; or it looks like an environment object.
    """
    if is_pool(env):
        return env
    if not callable(env):
        what = "one environment object" if hasattr(env, "step") else f"{type(env).__name__}"
        raise TypeError(
            "env must be an Env class, a function without arguments that returns one, or an "
            f"environment pool, got {what}\n"
            "hint: each rollout needs its own environment, so pass the class, or lambda: Env(…)"
        )
    _refuse_bare_function(env)
    if inspect.isclass(env):
        _check_env_class(env)
    return env  # type: ignore[no-any-return]


def _check_env_class(env: type) -> None:
    """Refuse a class that abut cannot instantiate, or cannot reset with a seed.

    Raises:
        TypeError: says what to write instead.
    """
    for method in ("reset", "step"):
        if not callable(getattr(env, method, None)):
            raise TypeError(
                f"env={env.__name__} has no method {method!r}\n"
                "hint: an Env has reset(seed) and step(action), and attributes reward and alive"
            )
    if required := _required(env):
        raise TypeError(
            f"env={env.__name__} needs the arguments {', '.join(required)}, but abut creates an "
            "environment for each rollout without arguments\n"
            f"hint: env=functools.partial({env.__name__}, {required[0]}=…)"
        )
    reset = inspect.getattr_static(env, "reset")
    if inspect.isfunction(reset) and not _takes_positional(reset, 2):
        raise TypeError(
            f"env={env.__name__}: reset does not accept a seed, but abut calls reset(seed)\n"
            f"hint: write def reset(self, seed), even if you do not use the seed\n"
            f"{place_of(env, 'reset')}"
        )


def _required(function: Any) -> list[str]:
    """Return the required parameters, in order."""
    return [
        parameter.name
        for parameter in _parameters(function)
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _takes_positional(function: Callable[..., Any], count: int) -> bool:
    # The signature is the decorator's, not the wrapped function's: a decorator may add the seed, or
    # drop it.
    signature = inspect.signature(function, follow_wrapped=False)
    try:
        signature.bind_partial(*[None] * count)
    except TypeError:
        return False
    return True


def _refuse_bare_function(env: Any) -> None:
    """Refuse a function with parameters: a factory has none, and an agent has the decorator.

    Raises:
        TypeError: says how.
    """
    if not inspect.isfunction(env):
        return
    required = _required(env)
    if required or inspect.iscoroutinefunction(env):
        raise TypeError(
            f"env={env.__name__} is a function with the arguments "
            f"{', '.join(required) or 'none'}, but abut calls env without arguments to create an "
            "environment\n"
            "hint: if the function plays a whole rollout, it is an agent: decorate it with "
            "@abut.agent"
        )
