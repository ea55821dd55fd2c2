"""An environment of verifiers as an agent: verifiers plays, and the gateway records the rows.

Invariant: a rollout is one episode. Each trace of it is a session of the gateway, so the calls of
two traces are never one conversation. Episodes play on a thread of their own that
lasts for the whole run: Linux kills verifiers' tool servers when the thread that started them ends,
and the event loops of other agents have no thread between two batches.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from abut._native import Tokenizer
from abut.agents.dataset_agent import Serving
from abut.agents.protocol import AgentResult, Endpoint
from abut.concurrency.threads import THREADS
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.gateway.ledger.row import limit_of
from abut.gateway.server.gateway import Gateway
from abut.pickling import stays
from abut.rollout.env_loops import EnvLoops
from abut.rollout.rollout import Rollout, StopReason
from abut.verifiers.episode_result import cut_short, failure_of, result_of
from abut.verifiers.seats import policy_seats, untrainable_seats
from abut.verifiers.task_rows import TaskRows, has_images, row_id

T = TypeVar("T")

_KEY_VARIABLE = "ABUT_VERIFIERS_API_KEY"
_CLOSE_LOOP_S = 2.0


@stays(
    "it holds servers of this process",
    hint="send the arguments of verifiers_env, and call it in the process that trains",
)
class VerifiersEnv:
    """An environment of verifiers 0.4, for `make_rollout_func`; `verifiers_env` makes it.

    Args:
        env: a `verifiers.v1.Env`.
        name: the name in logs, errors and the dataset's column `environment`.
        train: the seats to train; None: all that the policy plays, except those that the
            environment marks as not trainable.

    Attributes:
        name: the argument.
        session_header: the HTTP header in which verifiers sends the id of a call's trace.

    Raises:
        ValueError: `train` names a seat that the policy does not play, or a seat has a model
            without an endpoint.
    """

    session_header = "x-session-id"

    def __init__(self, env: Any, name: str, train: Sequence[str] | None = None) -> None:
        self.name = self.__name__ = name
        self._env = env
        self._train = train
        self._seats = policy_seats(env)
        _check_train(train, self._seats, name)
        self._rows = TaskRows(env.taskset, name)
        self._first_image: str | None = None
        self._serving = Serving(env.serving, name)
        self._loops = EnvLoops()
        self._gateway: Gateway | None = None
        self._fixed: Collection[str] | None = None
        """The seats that the environment never trains; None: not known yet."""
        self._trained: Collection[str] = ()
        self._takes_one_row = False

    def dataset(self, n: int | None = None, *, shuffle: bool = False, seed: int = 0) -> Any:
        """Return tasks as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

        Its columns: `prompt`, for people; `environment`, this environment's name, for a `dict` of
        environments; `row_id`; and the task as JSON.

        Args:
            n: how many tasks; None: all.
            shuffle: draw the tasks at random.
            seed: the seed of the shuffle.

        Raises:
            ValueError: the taskset is infinite and `n` is None, there are no tasks, a task does not
                survive JSON, or a task needs a container that no seat has.
        """
        dataset, tasks = self._rows.dataset(n, shuffle=shuffle, seed=seed)
        for task in tasks:
            self._check_container(task)
            if self._first_image is None and has_images(task):
                self._first_image = row_id(task)
        return dataset

    async def start(self, gateway: Gateway) -> None:
        """Start the environment's servers at the first batch, and check which seats are trained.

        Raises:
            EnvError: no seat is trained; several are, but the trainer takes one row per rollout; or
                the dataset has images, but the model takes none.
        """
        self._gateway = gateway
        self._check_images(self._first_image, EnvError)
        os.environ[_key_variable(gateway.key)] = gateway.key
        await self._on_own_thread(self._serve)
        seats = [seat for seat in self._seats if seat in (self._train or self._seats)]
        self._trained = [seat for seat in seats if seat not in (self._fixed or ())]
        self._takes_one_row = gateway.registry.branch not in ("all", None)
        if not self._trained:
            raise EnvError(
                f"the environment {self.name} does not train any seat that the policy plays: "
                f"{', '.join(seats) or 'there are none'}\n"
                "hint: leave train= out, or name another seat"
            )
        if self._takes_one_row and len(self._trained) > 1:
            raise EnvError(
                f"{self.name} has {len(self._trained)} seats that the policy plays: "
                f"{', '.join(self._trained)}\n"
                f'hint: choose one with train="{self._trained[0]}", or use abut.trl.GRPOTrainer, '
                "which "
                "trains all of them"
            )

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one episode.

        Raises:
            UnplayableRow: the row has no task, or has images but the model takes none.
            EnvError: the episode failed.
        """
        vf_task = self._rows.task_of(task)
        self._check_images(row_id(vf_task) if has_images(vf_task) else None, UnplayableRow)
        minted: list[Any] = []
        episode = await self._on_own_thread(lambda: self._episode(endpoint, vf_task, minted))
        if episode.ok:
            return result_of(episode, minted, name=self.name, trained=self._trained)
        if await self._limit_of(endpoint.rollout_id) is not None:
            return cut_short(minted, self._trained)
        raise failure_of(episode, self.name)

    async def _episode(self, endpoint: Endpoint, vf_task: Any, minted: list[Any]) -> Any:
        """Play an episode, and append its traces to `minted` as they begin."""
        from verifiers.v1.clients import EvalClientConfig, ModelContext
        from verifiers.v1.types import SamplingConfig

        gateway = self._gateway
        assert gateway is not None
        await self._serving.started()  # again, if its loop was blocked and replaced
        sampling = {key: value for key, value in gateway.sampling.items() if value is not None}
        # verifiers keeps a client for each configuration until serving ends, so all rollouts share
        # one client, and the model's name says which rollout a call belongs to.
        context = ModelContext(
            model=f"policy/{endpoint.rollout_id}",
            client=EvalClientConfig(
                base_url=gateway.base_url, api_key_var=_key_variable(gateway.key)
            ),
            sampling=SamplingConfig(**sampling),
        )
        return await self._env.run_episode(vf_task, context, on_trace=minted.append)

    async def settle(
        self, played: Sequence[tuple[RolloutTask, Rollout]], tokenizer: Tokenizer
    ) -> None:
        """Give each rollout its row's reward, if the trainer takes one row per rollout."""
        if not self._takes_one_row:
            return
        for _, rollout in played:
            session = rollout.session
            if not rollout.failed and session is not None and session in rollout.rewards:
                rollout.reward = rollout.rewards[session]
                rollout.measured = rollout.reward is not None

    async def close(self) -> None:
        """Stop the tool servers and everything else that serves the run."""
        await self._on_own_thread(self._serving.close)
        await THREADS.ask(lambda: self._loops.close(_CLOSE_LOOP_S))

    async def _on_own_thread(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = self._loops.of(type(self), self.name, is_agent=True)
        return await loop.call(type(self), self.name, call).future

    async def _serve(self) -> None:
        """Start serving, and find the seats that the environment never trains."""
        await self._serving.started()
        if self._fixed is None:
            with suppress(Exception):  # if `Env.setup` fails, each episode says so
                self._fixed = await untrainable_seats(self._env, self._seats)

    async def _limit_of(self, endpoint_id: str) -> StopReason | None:
        """Return the limit of the run that refused or cut a rollout's calls, or None."""
        assert self._gateway is not None
        registry = self._gateway.registry

        async def find() -> StopReason | None:
            ledger = registry.ledgers.get(endpoint_id)
            return None if ledger is None else limit_of(ledger)

        return await registry.ask(find)

    def _check_images(self, row: str | None, error: Callable[[str], Exception]) -> None:
        assert self._gateway is not None
        if row is not None and not self._gateway.registry.images.roles:
            raise error(
                f"row {row} of {self.name} has images, but the model does not accept images\n"
                "hint: train a vision-language model with abut.trl.GRPOTrainer, see "
                "docs/how-to/images.md"
            )

    def _check_container(self, task: Any) -> None:
        from verifiers.v1.configs.agent import agent_config_fields
        from verifiers.v1.runtimes import SubprocessConfig

        boxes = [spec.runtime for spec in agent_config_fields(self._env.config).values()]
        needs = task.NEEDS_CONTAINER or task.data.image is not None
        if needs and all(isinstance(box, SubprocessConfig) for box in boxes):
            raise ValueError(
                f"task {row_id(task)} of {self.name} needs a container\n"
                'hint: pass runtime="docker", and harness="bash" or another harness that runs in '
                "Docker"
            )


def _key_variable(key: str) -> str:
    """Return the name of the environment variable that holds the gateway's key.

    verifiers reads keys only from environment variables, and hides variables with API_KEY in their
    name from the programs that it starts. The name is derived from the key, so that two gateways in
    one process have two variables.
    """
    return f"{_KEY_VARIABLE}_{hashlib.blake2b(key.encode(), digest_size=4).hexdigest()}"


def _check_train(train: Sequence[str] | None, seats: Sequence[str], name: str) -> None:
    for seat in train or ():
        if seat not in seats:
            raise ValueError(
                f"train has {seat!r}, which is not a seat of {name} that the policy plays\n"
                f"hint: the policy's seats are {', '.join(seats) or 'none'}"
            )
    if train is not None and not train:
        raise ValueError(f"train is empty, so {name} would not train any seat")
