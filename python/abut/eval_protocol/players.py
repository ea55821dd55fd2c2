"""Players: they play the rollouts of a test, by its processor or its OpenEnv environments.

Invariant: one rollout is one call of the processor, with a row, parameters and an address of its
own. A processor that does not ask an address of this process is refused, with the reason.
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from abut.agents.protocol import Endpoint
from abut.concurrency.loop import DaemonLoop, KeptLoop
from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.eval_protocol.imports import ROUTE, Route
from abut.eval_protocol.loaded_test import LoadedTest
from abut.eval_protocol.openenv_player import OpenEnvPlayer
from abut.eval_protocol.openenv_source import OpenEnvSource

logger = logging.getLogger(__name__)

_REFUSED = {
    "RemoteRolloutProcessor": "its rollouts run in a remote service, which does not use the "
    "policy's endpoint",
    "GithubActionRolloutProcessor": "its rollouts run on GitHub, which cannot reach the policy's "
    "endpoint",
    "NoOpRolloutProcessor": "it does not call a model",
}
"""Processors that cannot train, by the names of their classes, and the reason."""

_ONE_AT_A_TIME = "MCPGymRolloutProcessor"
"""Starts a server on a fixed port for each call, unless its calls share one."""

_LOOK_S = 1.0
_CLEANUP_S = 30.0


class Player(Protocol):
    """Plays the rollouts of one test.

    Attributes:
        has_steps: whether its rows have a reward for each step of an environment.
        max_rollouts: the most rollouts at once; None: the whole batch.
    """

    has_steps: bool
    max_rollouts: int | None

    async def start(self) -> None:
        """Prepare for a batch."""
        ...

    async def play(self, row: Any, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Play one rollout; return its row."""
        ...

    async def stop(self) -> None:
        """Clean up after a batch."""
        ...


class RolloutStatusError(RuntimeError):
    """A processor returned a row whose status is an error."""


def player_of(test: LoadedTest) -> Player:
    """Return the player of a test.

    Raises:
        ValueError: the test's processor cannot train.
    """
    processor = test.parameters.rollout_processor
    for cls in type(processor).__mro__:
        if cls.__module__.startswith("eval_protocol.") and (why := _REFUSED.get(cls.__name__)):
            raise ValueError(
                f"{test.name} has a {type(processor).__name__}, which cannot train: {why}\n"
                "hint: give the test a processor that calls completion_params['base_url'], such as "
                "SingleTurnRolloutProcessor, AgentRolloutProcessor or your own"
            )
    from eval_protocol.pytest.openenv_rollout_processor import OpenEnvRolloutProcessor

    if isinstance(processor, OpenEnvRolloutProcessor):
        if processor.policy_factory is not None:
            raise ValueError(
                f"{test.name}: OpenEnvRolloutProcessor(policy_factory=…) samples from another "
                "model\n"
                "hint: leave policy_factory out, so that the processor uses the trained policy"
            )
        if type(processor).__call__ is OpenEnvRolloutProcessor.__call__:
            return OpenEnvPlayer(
                OpenEnvSource.of_processor(processor),
                test.completion_params,
                max_steps=test.parameters.steps or 8,
                max_rollouts=test.parameters.max_concurrent_rollouts,
                # 100 is the processor's own default.
                max_tokens=test.completion_params.get("max_tokens", 100),
            )
    return ProcessorPlayer(test)


class ProcessorPlayer:
    """Calls a processor once for each rollout.

    Processors run off the loop that all rollouts share, because a processor may block. They run on
    one loop together, because they share clients, whose connections belong to a loop. Once one has
    blocked that loop, each rollout gets a loop and a thread of its own: on one loop, a processor
    with a synchronous client would play one rollout after the other.
    """

    has_steps = False

    def __init__(self, test: LoadedTest) -> None:
        self.max_rollouts: int | None = test.parameters.max_concurrent_rollouts
        self._test = test
        self._processor = test.parameters.rollout_processor
        names = {cls.__name__ for cls in type(self._processor).__mro__}
        shared = (test.parameters.rollout_processor_kwargs or {}).get("server_mode") == "shared"
        self._is_alone = _ONE_AT_A_TIME in names and not shared
        self._alone = asyncio.Lock()
        self._shared = KeptLoop("abut-processors")
        self._blocks = False

    async def start(self) -> None:
        """Call the processor's `setup`."""
        self._alone = asyncio.Lock()
        await THREADS.ask(self._processor.setup)

    async def stop(self) -> None:
        """Call the processor's `acleanup` and `cleanup`."""
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ask(self._processor.acleanup), _CLEANUP_S)
        finally:
            await THREADS.ask(lambda: self._shared.close(_LOOK_S))
            await THREADS.ask(self._processor.cleanup)

    async def play(self, row: Any, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Play one rollout; return the row of the processor's task.

        Raises:
            RolloutStatusError: the row's status is an error.
            TypeError: the task did not return a row.
            Exception: what the processor raises.
        """
        if not self._is_alone:
            return await self._ask(lambda: self._routed(row, endpoint))
        async with self._alone:
            try:
                return await self._ask(lambda: self._routed(row, endpoint))
            finally:
                await THREADS.ask(self._processor.cleanup)

    async def _ask(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Run a coroutine on the loop that processors share, or on its own if that was blocked."""
        if (shared := await self._shared_loop()) is not None:
            return await shared.ask(call)
        own = DaemonLoop("abut-processor")
        own.open()
        try:
            return await own.ask(call)
        finally:
            THREADS.submit(lambda: own.end(_LOOK_S))

    async def _shared_loop(self) -> DaemonLoop | None:
        """Return the shared loop; None if the processor blocks it, and ever after.

        A `LoopWatch` would name the call that blocks, but a rollout that is already queued on the
        blocked loop would wait there for its whole time limit. Asked first, it moves in a second.
        """
        if self._blocks:
            return None
        loop = self._shared.open()
        try:
            await asyncio.wait_for(loop.ask(_nothing), _LOOK_S)
        except TimeoutError:
            if not self._blocks:
                self._blocks = True
                logger.warning(
                    "%s blocks its event loop. From now on abut runs each of its rollouts on a "
                    "separate loop and thread; the rollouts on the blocked loop end after "
                    "rollout_timeout_s\n"
                    "hint: use await or asyncio.to_thread(…) for calls that block",
                    type(self._processor).__name__,
                )
        return None if self._blocks else loop

    async def _routed(self, row: Any, endpoint: Endpoint) -> Any:
        # Some processors pass on nothing but the model's name.
        route = Route(
            f"openai/{endpoint.model}/{endpoint.rollout_id}", endpoint.base_url, endpoint.api_key
        )
        context = contextvars.copy_context()
        context.run(ROUTE.set, route)
        playing = asyncio.get_running_loop().create_task(self._called(row, route), context=context)
        played = await playing
        status = played.rollout_status
        if not status.is_running() and not status.is_finished():
            raise RolloutStatusError(f"{type(self._processor).__name__}: {status.message}")
        return played

    async def _called(self, row: Any, route: Route) -> Any:
        from eval_protocol.dataset_logger import default_logger
        from eval_protocol.models import EvaluationRow
        from eval_protocol.pytest.types import RolloutProcessorConfig

        p = self._test.parameters
        own = {
            **self._test.completion_params,
            "model": route.model,
            "base_url": route.base_url,
            "api_key": route.api_key,
        }
        row.input_metadata.completion_params = dict(own)
        config = RolloutProcessorConfig(
            completion_params=own,
            mcp_config_path=p.mcp_config_path or "",
            semaphore=asyncio.Semaphore(),  # `max_rollouts` limits them already
            server_script_path=p.server_script_path,
            steps=p.steps,
            logger=default_logger,
            kwargs=dict(p.rollout_processor_kwargs or {}),
        )
        name = type(self._processor).__name__
        tasks = self._processor([row], config)
        if not isinstance(tasks, list) or len(tasks) != 1 or not inspect.isawaitable(tasks[0]):
            raise TypeError(
                f"{name} returned {str(tasks)[:120]} for one row\n"
                "hint: a processor must return a list of tasks, one for each row"
            )
        played = await tasks[0]
        if not isinstance(played, EvaluationRow):
            raise TypeError(f"{name}: the task returned {type(played).__name__}, not its row")
        return played


async def _nothing() -> None: ...
