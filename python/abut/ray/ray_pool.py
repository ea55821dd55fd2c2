"""`RayPool`: environments in actors of Ray, lent one by one."""

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from abut.concurrency.pool_loop import PoolLoop
from abut.envs.foreign import check_env_factory, is_pool
from abut.envs.source import EnvSource
from abut.envs.task import EnvFactory, RolloutTask
from abut.errors import text_of
from abut.pickling import stays
from abut.ray import cluster
from abut.ray.env_host import EnvHost
from abut.ray.host_pool import HostPool
from abut.ray.package import the_ray
from abut.ray.remote_env import RemoteEnv

_OURS = ("max_restarts", "max_task_retries", "max_concurrency", "lifetime", "name", "get_if_exists")


@stays(
    "it has actors on a cluster, and a loop of this process",
    hint="make one in each process: RayPool(env, size=…, address=…)",
)
class RayPool:
    """Environments on a Ray cluster: a pool for `make_rollout_func`.

    An actor is a process with `slots` environments, each on a thread of its own. Actors begin to
    start here and now, in the background; one that dies, or in which a call hangs, is replaced, and
    the episodes on it are played again elsewhere. With several ranks, each has its share of `size`
    on one cluster, and its actors end with it.

    Args:
        env: an Env class, synchronous or not, or a factory without arguments; it is pickled.
        size: episodes at once, over all ranks.
        slots: environments of one actor, at most. 1 for environments that crash, leak, hold the
            GIL, or have something that there is once in a process.
        start_timeout_s: how long there may be no actor that answers before rollouts fail.
        address: `host:port` of the cluster's head. None: that of `RAY_ADDRESS`, or the cluster that
            this process is in already, or one that is started on this machine, for this process.
        actor_options: Ray's, for each actor: `num_cpus` (0.01 unless given), `resources`,
            `label_selector`, `scheduling_strategy` ("SPREAD" unless given), `runtime_env`, ….

    Raises:
        TypeError: `env` is no class or factory, or cannot be pickled.
        ValueError: a number or an option is wrong, or there are several ranks and no address.
        EnvError: nothing answers at the address, or Ray cannot join it from here.
        MissingExtraError: Ray is not installed.
    """

    def __init__(
        self,
        env: EnvFactory,
        *,
        size: int,
        slots: int = 16,
        start_timeout_s: float = 60,
        address: str | None = None,
        **actor_options: Any,
    ) -> None:
        _check("size", size, size >= 1, "at least 1")
        _check("slots", slots, slots >= 1, "at least 1")
        _check("start_timeout_s", start_timeout_s, start_timeout_s > 0, "above 0")
        for name in _OURS:
            if name in actor_options:
                raise ValueError(
                    f"RayPool({name}=…) is set by the pool\n"
                    "hint: a step must not be sent twice, nor an actor outlive its rank"
                )
        _check_env(env)
        ray = the_ray()
        pickled = _pickled(ray, env)
        ranks = int(os.environ.get("WORLD_SIZE") or 1)
        share = -(-size // ranks)
        job_env, actor_env = cluster.split_runtime_env(actor_options.pop("runtime_env", None) or {})
        options = {"num_cpus": 0.01, "scheduling_strategy": "SPREAD", **actor_options}
        if actor_env:
            options["runtime_env"] = actor_env
        leave = cluster.join(address, job_env, ranks=ranks)
        self._loop = PoolLoop("RayPool")
        try:
            self._hosts = HostPool(
                _maker(ray, pickled, options, min(slots, share)),
                _split(share, slots),
                start_timeout_s=start_timeout_s,
                room=functools.partial(cluster.room, options),
                check_head=cluster.check_head,
            )
            self._close = weakref.finalize(self, self._loop.close, self._hosts.close, leave)
            self._loop.submit(self._hosts.start).result()
        except BaseException:
            self._loop.close(self._hosts.close, leave)
            raise
        name = getattr(env, "__name__", type(env).__name__)
        self._lent: type[RemoteEnv] = type(name, (RemoteEnv,), {})

    async def lend(self, task: RolloutTask) -> RemoteEnv:
        """Wait for a slot of an actor; the environment's `close` gives it back.

        Raises:
            EnvError: no actor has answered for `start_timeout_s`, or the pool is closed.
        """
        env = self._lent(self._hosts, self._loop, task)
        try:
            await self._loop.call(env.open)
        except BaseException:
            env.close()
            raise
        return env

    def close(self) -> None:
        """End the actors; leave the cluster where the pool has joined it. Also done at exit."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_env(env: Any) -> None:
    if is_pool(env):
        raise TypeError(f"RayPool takes what makes environments: {type(env).__name__} is a pool")
    check_env_factory(env)
    if isinstance(env, EnvSource) and env.tools:
        raise TypeError(
            f"RayPool of {env!r}: its tools belong into the chat template, which is not in an actor"
            "\nhint: make a class with reset(seed) and step(action), and give the tools to "
            "ChatTemplateProcessor(tools=…)"
        )


def _pickled(ray: Any, env: Any) -> bytes:
    try:
        return ray.cloudpickle.dumps(env)  # type: ignore[no-any-return]
    except Exception as error:
        raise TypeError(
            f"RayPool cannot send {getattr(env, '__name__', repr(env))} to an actor: "
            f"{text_of(error)}\nhint: make what cannot be pickled in reset, in the actor"
        ) from error


def _maker(ray: Any, pickled: bytes, options: dict[str, Any], slots: int) -> Callable[[], Any]:
    """What makes an actor that is started once, and in which a call runs once."""
    shared: list[Any] = []  # in the cluster, once for all actors

    def make() -> Any:
        if not shared:
            shared.append(ray.put(pickled))
            shared.append(
                ray.remote(EnvHost).options(
                    **options, max_restarts=0, max_task_retries=0, max_concurrency=slots + 1
                )
            )
        return shared[1].remote(shared[0])

    return make


def _split(size: int, slots: int) -> Sequence[int]:
    """The slots of each actor: as few actors as will do, as even as can be."""
    actors = -(-size // slots)
    return [size // actors + (n < size % actors) for n in range(actors)]


def _check(name: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"RayPool({name}={value!r}): must be {allowed}")
