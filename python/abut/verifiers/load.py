"""`verifiers_env` finds an environment, and detects which of verifiers' two APIs it uses.

Invariant: verifiers is not imported before an environment is named. An option of the other API is
an error; it is never ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from abut.errors import MissingExtraError
from abut.extras import require_extra
from abut.verifiers.seats import SeatSettings, load_env, with_seats

_FIRST_V1 = (0, 4)


def verifiers_env(
    id_or_env: Any,
    *,
    env: str | None = None,
    config: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    seats: SeatSettings | None = None,
    train: str | Sequence[str] | None = None,
    harness: str | Mapping[str, Any] | None = None,
    runtime: str | Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Any:
    """Make an agent from an environment of verifiers, for `make_rollout_func`.

        poker = verifiers_env("kuhn_poker")
        GRPOTrainer(..., train_dataset=poker.dataset(1000), reward_funcs=env_reward,
                    rollout_func=make_rollout_func(poker))

    Args:
        id_or_env: the id of a taskset (verifiers 0.4), the id of an environment of the old API
            (verifiers below 0.4), or a loaded environment.
        env: the id of another environment to play the taskset, such as "user-sim"; None: the
            taskset's own.
        config: the environment's configuration, verifiers' `[env]` block as a dict.
        args: arguments of `load_environment`, for the old API only.
        seats: settings for individual seats; `{"user": {"model": …, "client": {"base_url": …,
            "api_key_var": …}}}` gives a seat to another model.
        train: the seat or seats to train, by name; None: all that the policy plays, except those
            that the environment marks as not trainable.
        harness: the program that plays a seat, if neither the taskset nor the environment names
            one, as an id or a configuration; None: abut's own, with messages and MCP tools.
        runtime: where the seats' programs and tools run: "subprocess", "docker" or another runtime
            of verifiers, or a configuration of one. None: where the environment says, or else this
            machine, where a harness that executes commands is an error.
        name: the name in logs, errors and the dataset's column `environment`; None: the id.

    Raises:
        TypeError: an option belongs to the other API, or a loaded environment has its setting
            already.
        ValueError: a setting does not work in training; the error names it and says what to do.
        ImportError: the environment is not installed, or needs another version of verifiers.
        MissingExtraError: verifiers is not installed.
    """
    installed = require_verifiers()
    ours = {
        "env": env,
        "config": config,
        "seats": seats,
        "train": train,
        "harness": harness,
        "runtime": runtime,
    }
    if not _is_v1(id_or_env, installed):
        what = f"is for the API of verifiers 0.4, but {_shown(id_or_env)} has the old API"
        _refuse(ours, what, "pass args= instead")
        from abut.verifiers.old_env import old_verifiers_env

        return old_verifiers_env(id_or_env, args=args, name=name)
    what = f"is for the old API's load_environment, but {_shown(id_or_env)} is for verifiers 0.4"
    _refuse({"args": args}, what, "pass config= instead")
    from abut.verifiers.env_agent import VerifiersEnv

    places = {"harness": harness, "runtime": runtime}
    if isinstance(id_or_env, str):
        loaded = load_env(id_or_env, env, config or {}, seats or {}, **places)
    else:
        what = "works only if you pass an id, but this environment is already loaded"
        _refuse({"env": env, "config": config}, what, "pass the environment's id, or use seats=")
        loaded = with_seats(id_or_env, seats or {}, **places)
    return VerifiersEnv(
        loaded,
        name or loaded.config.env_id,
        [train] if isinstance(train, str) else None if train is None else list(train),
    )


def require_verifiers() -> str:
    """Check that verifiers and the packages that abut needs with it are installed.

    Returns:
        The version of verifiers.

    Raises:
        MissingExtraError: a package is missing, or is installed in a version that excludes
            verifiers.
    """
    installed = require_extra("verifiers")
    for package in ("aiohttp", "datasets"):
        if find_spec(package) is None:
            raise MissingExtraError(
                f"abut.verifiers needs {package}: pip install 'abut[verifiers]'"
            )
    return installed


def _is_v1(id_or_env: Any, installed: str) -> bool:
    """Return whether an environment is written for v1, the API of verifiers 0.4.

    Args:
        id_or_env: an id, or an environment.
        installed: the version of verifiers.

    Raises:
        TypeError: it is not an environment.
        ImportError: it is not installed, or needs another version of verifiers.
    """
    has_v1 = tuple(int(part) for part in installed.split(".")[:2]) >= _FIRST_V1
    if isinstance(id_or_env, str):
        module = _module_of(id_or_env, has_v1)
        is_v1 = any(_has_base(value, "Taskset") for value in _exported(module))
        if not is_v1 and not hasattr(module, "load_environment"):
            raise ImportError(
                f"verifiers_env({id_or_env!r}): the module {module.__name__} has neither a "
                "Taskset in __all__ nor a load_environment"
            )
    else:
        kind = type(id_or_env)
        is_v1 = _has_base(kind, "Env")
        if not is_v1 and not _has_base(kind, "Environment"):
            raise TypeError(
                f"verifiers_env({id_or_env!r}): not an environment of verifiers\n"
                'hint: pass an id, as in verifiers_env("gsm8k"), or a loaded environment'
            )
    if is_v1 == has_v1:
        return is_v1
    if is_v1:
        # verifiers 0.2 to 0.3.1 call another API v1; it lacks even the first of these names.
        because, wanted = "for verifiers 0.4", "verifiers>=0.4"
    else:
        because, wanted = "for the old API, which verifiers 0.4 no longer has", "verifiers<0.4"
    raise ImportError(
        f"{_shown(id_or_env)} is an environment {because}, but verifiers {installed} is "
        f"installed\nhint: pip install '{wanted}'"
    )


def _module_of(plugin_id: str, has_v1: bool) -> ModuleType:
    """Import the module of an id as verifiers does: `owner/some-name@1.0` is `some_name`."""
    if has_v1:
        from verifiers.v1.utils.loaders import import_taskset

        return import_taskset(plugin_id)  # type: ignore[no-any-return]
    return import_module(plugin_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_"))


def _exported(module: ModuleType) -> Iterator[Any]:
    for name in getattr(module, "__all__", ()):
        yield getattr(module, name, None)


def _has_base(value: Any, name: str) -> bool:
    """Return whether a value is a class of verifiers with this name, or one derived from it.

    Compares names, because verifiers moves its classes between modules from version to version.
    """
    classes = value.__mro__ if isinstance(value, type) else ()
    return any(c.__name__ == name and c.__module__.startswith("verifiers.") for c in classes)


def _refuse(options: Mapping[str, Any], what: str, instead: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise TypeError(f"{option}= {what}\nhint: {instead}")


def _shown(id_or_env: Any) -> str:
    return repr(id_or_env) if isinstance(id_or_env, str) else type(id_or_env).__name__
