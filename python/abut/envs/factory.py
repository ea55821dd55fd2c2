"""Check what makes environments, before any is made.

Invariant: what passes here can be called without arguments and has an environment's methods, as far
as a look can tell; no code of the user runs.
"""

import inspect
from collections.abc import Callable
from typing import Any

from abut.envs.foreign import is_pool, place_of
from abut.envs.task import EnvFactory, EnvPool


def check_env_factory(env: Any) -> EnvFactory | EnvPool:
    """Return what makes or lends an environment for each episode.

    Raises:
        TypeError: it is no class, factory or pool, or what looks like one environment object.
    """
    if is_pool(env):
        return env  # type: ignore[no-any-return]
    if not callable(env):
        what = "one environment object" if hasattr(env, "step") else f"{type(env).__name__}"
        raise TypeError(
            "env must be an Env class, a factory without arguments or an environment pool, got "
            f"{what}\n"
            "hint: each rollout needs an environment of its own; pass the class, or lambda: Env(…)"
        )
    _refuse_bare_function(env)
    if inspect.isclass(env):
        _check_env_class(env)
    return env  # type: ignore[no-any-return]


def _check_env_class(env: type) -> None:
    """Refuse a class that abut could not make, or could not reset with a seed.

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
            f"env={env.__name__} cannot be made without {', '.join(required)}, and each rollout "
            "makes one without arguments\n"
            f"hint: env=functools.partial({env.__name__}, {required[0]}=…)"
        )
    reset = inspect.getattr_static(env, "reset")
    if inspect.isfunction(reset) and not _takes_positional(reset, 2):
        raise TypeError(
            f"env={env.__name__}: reset takes no seed, and each episode begins with reset(seed)\n"
            f"hint: def reset(self, seed), even if the seed is not used\n{place_of(env, 'reset')}"
        )


def _required(function: Any) -> list[str]:
    """Return the parameters that a call cannot leave out, in order."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # Python cannot look into it
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _takes_positional(function: Callable[..., Any], count: int) -> bool:
    # What a decorator wraps is not asked: the decorator may add the seed, or drop it.
    signature = inspect.signature(function, follow_wrapped=False)
    try:
        signature.bind_partial(*[None] * count)
    except TypeError:
        return False
    return True


def _refuse_bare_function(env: Any) -> None:
    """Refuse a function with parameters: a factory has none, and an agent is marked as one.

    Raises:
        TypeError: says how.
    """
    if not inspect.isfunction(env):
        return
    required = _required(env)
    if required or inspect.iscoroutinefunction(env):
        raise TypeError(
            f"env={env.__name__} is a function that takes {', '.join(required) or 'nothing'}, and "
            "a factory of environments is called without arguments\n"
            "hint: a function that plays a whole rollout is an agent: write @abut.agent above it"
        )
