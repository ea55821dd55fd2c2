"""`RayPool`: environments or agents in actors of Ray, lent one by one."""

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

from abut.agents.protocol import Agent, AgentResult, Endpoint, SettlingAgent, is_agent, name_of
from abut.concurrency.lending import PoolLoop
from abut.concurrency.threads import THREADS
from abut.envs.signatures import check_env_factory
from abut.envs.task import EnvFactory, EnvSource, RolloutTask, is_pool
from abut.errors import text_of
from abut.pickling import stays
from abut.ray import cluster
from abut.ray.actor_pool import ActorPool
from abut.ray.calls import packed, thread_of
from abut.ray.cluster import the_ray
from abut.ray.in_actor import AgentHost, EnvHost
from abut.ray.remote import RemoteAgent, RemoteEnv, RemoteLoan

_OURS = (
    "max_restarts",
    "max_task_retries",
    "max_concurrency",
    "concurrency_groups",
    "lifetime",
    "name",
    "get_if_exists",
)

# Reporting calls to the dashboard takes a tenth of their time.
_OPTIONS = {"num_cpus": 0.01, "scheduling_strategy": "SPREAD", "enable_task_events": False}


@stays(
    "it holds actors on a cluster and an event loop of this process",
    hint="make a pool in each process: RayPool(env, size=…, address=…)",
)
class RayPool:
    """Environments or agents on a Ray cluster, for `make_rollout_func`.

    An actor is a process with `slots` environments, each on its own thread, or with as many
    rollouts of an agent, which call the gateway in this process. Actors start in the background
    when the pool is made. An actor that dies, or in which a call hangs, is replaced, and its
    episodes are played again elsewhere. With several ranks, each has its share of `size` on one
    cluster, and its actors end with it.

    Args:
        env: an Env class, synchronous or not, a factory without arguments, or an agent; it is
            pickled.
        size: the most episodes at once, over all ranks.
        slots: the most episodes in one actor. Use 1 for environments that crash, leak memory, hold
            the GIL, or use process-wide state.
        start_timeout_s: how long the pool may be without an actor that answers before rollouts
            fail.
        address: `host:port` of the cluster's head. None: the cluster that this process has already
            joined, the address in `RAY_ADDRESS`, or a new cluster on this machine for this process.
        actor_options: Ray's options for each actor: `num_cpus` (0.01 unless given), `resources`,
            `label_selector`, `scheduling_strategy` ("SPREAD" unless given), `enable_task_events`
            (False unless given), `runtime_env`, ….

    Raises:
        TypeError: `env` is not a class, factory or agent, or cannot be pickled.
        ValueError: a number or an option is wrong, or there are several ranks and no address.
        EnvError: nothing answers at the address, or Ray cannot join the cluster from here.
        MissingExtraError: Ray is not installed.
    """

    def __new__(
        cls,
        env: EnvFactory | Agent,
        *,
        size: int,
        slots: int = 16,
        start_timeout_s: float = 60,
        address: str | None = None,
        **actor_options: Any,
    ) -> Self:
        """Make a pool; a pool of agents is itself an `Agent`."""
        return cast(Self, super().__new__(RayAgentPool if is_agent(env) else cls))

    def __init__(
        self,
        env: EnvFactory | Agent,
        *,
        size: int,
        slots: int = 16,
        start_timeout_s: float = 60,
        address: str | None = None,
        **actor_options: Any,
    ) -> None:
        _check("size", size, size >= 1, "at least 1")
        _check("slots", slots, slots >= 1, "at least 1")
        _check("start_timeout_s", start_timeout_s, start_timeout_s > 0, "more than 0")
        for name in _OURS:
            if name in actor_options:
                raise ValueError(
                    f"RayPool({name}=…) cannot be changed, because the pool sets it so that no "
                    "step is sent twice and no actor outlives its rank\n"
                    f"hint: leave {name}= out"
                )
        self._check_kind(env)
        ray = the_ray()
        pickled = _pickled(env)
        ranks = int(os.environ.get("WORLD_SIZE") or 1)
        share = -(-size // ranks)
        job_env, actor_env = cluster.split_runtime_env(actor_options.pop("runtime_env", None) or {})
        options = {**_OPTIONS, **actor_options}
        if actor_env:
            options["runtime_env"] = actor_env
        leave = cluster.join(address, job_env, ranks=ranks)
        self._loop = PoolLoop("RayPool")
        try:
            self._actors = ActorPool(
                _maker(ray, self._actor_class, pickled, options, min(slots, share)),
                _split(share, slots),
                what=self._what,
                start_timeout_s=start_timeout_s,
                room=functools.partial(cluster.room, options),
                check_head=cluster.check_head,
            )
            self._close = weakref.finalize(self, self._loop.close, self._actors.close, leave)
            self._loop.submit(self._actors.start).result()
        except BaseException:
            self._loop.close(self._actors.close, leave)
            raise
        self._name = name_of(env)  # type: ignore[arg-type]
        self._lent = type(self._name, (RemoteEnv,), {})

    async def lend(self, task: RolloutTask) -> Any:
        """Wait for a slot of an actor; `close()` of the lent object gives it back.

        Raises:
            EnvError: no actor answered for `start_timeout_s`, or the pool is closed.
        """
        return await self._unopened(task).begin()

    def close(self) -> None:
        """End the actors, and leave the cluster if the pool has joined it. Also called at exit."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    _actor_class: type = EnvHost
    _what = "the environment"

    def _unopened(self, task: RolloutTask) -> RemoteLoan:
        env: RemoteEnv = self._lent(self._actors, self._loop, task)
        return env

    def _check_kind(self, env: Any) -> None:
        if is_pool(env):
            raise TypeError(
                f"RayPool takes a class or factory of environments, but {type(env).__name__} is "
                "a pool\n"
                "hint: pass the environment class itself"
            )
        check_env_factory(env)
        if isinstance(env, EnvSource) and env.tools:
            raise TypeError(
                f"RayPool of {env!r}: its tools must be in the chat template, which an actor "
                "does not have\n"
                "hint: write a class with reset(seed) and step(action), and pass the tools to "
                "ChatTemplateProcessor(tools=…)"
            )


class RayAgentPool(RayPool):
    """The pool that `RayPool` makes for an agent; it is itself an `Agent`."""

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one rollout in an actor, as soon as there is a slot.

        Raises:
            EnvError: the agent failed, its actor died, or there is no slot.
            UnplayableRow: the row lacks a column that the agent needs.
        """
        agent = await self.lend(task)
        try:
            result: AgentResult = await agent.run(endpoint, task)
        finally:
            agent.close()
        return result

    async def start(self, gateway: Any) -> None:
        """Refuse a gateway that the cluster cannot reach; called before each batch.

        Raises:
            EnvError: the gateway listens only on this machine, and the cluster has other nodes.
        """
        await THREADS.ask(lambda: cluster.check_reaches(gateway.base_url))

    async def settle(self, played: Any, tokenizer: Any) -> None:
        """Let the agent settle a batch, in this process, which has the whole batch."""
        if isinstance(self.__wrapped__, SettlingAgent):
            await self.__wrapped__.settle(played, tokenizer)

    _actor_class = AgentHost
    _what = "the agent"

    def _unopened(self, task: RolloutTask) -> RemoteLoan:
        return RemoteAgent(self._actors, self._loop, self._name)

    def _check_kind(self, env: Any) -> None:
        name = name_of(env)
        if is_pool(env):
            raise TypeError(
                f"RayPool takes an agent, but {name} is a pool of agents\n"
                "hint: pass the agent itself"
            )
        for method in ("start", "stop"):
            if hasattr(env, method):
                raise TypeError(
                    f"RayPool of {name}: its {method} would run in this process, but its run in "
                    "an actor\n"
                    "hint: set up and close what a rollout needs inside run, or use the agent "
                    "without RayPool"
                )
        self.__wrapped__ = env
        self.__name__ = name


def _pickled(env: Any) -> bytes:
    try:
        return packed(env)
    except Exception as error:
        raise TypeError(
            f"RayPool cannot send {getattr(env, '__name__', repr(env))} to an actor: "
            f"{text_of(error)}\n"
            "hint: create objects that cannot be pickled inside reset or run, which execute in "
            "the actor"
        ) from error


def _maker(
    ray: Any, actor_class: type, pickled: bytes, options: dict[str, Any], slots: int
) -> Callable[[], Any]:
    """Return a function that makes actors; Ray starts each actor and runs each call only once."""
    shared: list[Any] = []  # in the cluster, once for all actors

    def make() -> Any:
        if not shared:
            shared.append(ray.put(pickled))
            remote = ray.remote(concurrency_groups={thread_of(n): 1 for n in range(slots)})
            shared.append(
                remote(actor_class).options(
                    **options, max_restarts=0, max_task_retries=0, max_concurrency=1
                )
            )
        return shared[1].remote(shared[0])

    return make


def _split(size: int, slots: int) -> Sequence[int]:
    """Return the slots of each actor: as few actors as possible, with even numbers of slots."""
    actors = -(-size // slots)
    return [size // actors + (n < size % actors) for n in range(actors)]


def _check(name: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"RayPool({name}={value!r}): must be {allowed}")
