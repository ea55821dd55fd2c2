"""Agents for `make_rollout_func`, which the engine plays through the gateway."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from abut.agents.checked_result import result_of, score_of
from abut.agents.function_agent import kind_of
from abut.agents.protocol import (
    Agent,
    AgentResult,
    JudgingAgent,
    SettlingAgent,
    StartingAgent,
    StoppingAgent,
    is_closing,
    max_calls_of,
    name_of,
    session_header_of,
)
from abut.concurrency.loop import LoopTasks
from abut.concurrency.threads import THREADS
from abut.envs.foreign import AGENT, place_of, placed, raised_by_env
from abut.envs.task import RolloutTask
from abut.errors import EnvError, TemplateError
from abut.gateway.ledger.policy import ClientWarnings
from abut.gateway.ledger.unnamed import Judge
from abut.gateway.ledger.writer import RunWriters, Writers, image_roles
from abut.gateway.play.agent_episode import AgentEpisode
from abut.gateway.play.batch_policy import AgentBatch, JudgePolicy
from abut.gateway.server.gateway import Gateway
from abut.processor import PartsProcessor, ToolProcessor
from abut.rollout.batch import Batch
from abut.rollout.named_rewards import RewardKeys, give_rewards, turns_of
from abut.rollout.player import AgentPlayer, AnyEpisode
from abut.rollout.rollout import Rollout


class AgentSource:
    """An agent and its gateway: an `EnvSource`.

    Args:
        agent: plays the rollouts.
        gateway: serves the endpoints that the agent calls.
        sampling: returns the trainer's sampling settings, by their names in a chat request.

    Attributes:
        draws_by_tokens: how the trainer's loss needs `RolloutConfig(branch="random")` to draw, see
            `RowChoice.by_tokens`.
        session_header: the header that names the session of a call, in lower case.
        max_calls: see `LimitedAgent`.
        rewards_turns: whether the trainer takes rewards of single turns, as it does with `credit`.
    """

    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self, agent: Agent, gateway: Gateway, sampling: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        self.agent = agent
        self.gateway = gateway
        self.sampling = sampling
        self.session_header = session_header_of(agent)
        self.max_calls = max_calls_of(agent)
        if self.session_header is not None:
            gateway.registry.session_headers.add(self.session_header)
        self.draws_by_tokens = False
        self.rewards_turns = False

    def bind(self, processor: PartsProcessor) -> "PlayedAgent":
        """Return the player of the agent's tasks, for processors of this kind."""
        return PlayedAgent(self, processor)


class PlayedAgent(AgentPlayer):
    """Plays the rollouts of one agent for one engine."""

    def __init__(self, source: AgentSource, processor: PartsProcessor) -> None:
        self._source = source
        self._agent, self._gateway = source.agent, source.gateway
        self._base = processor
        self.__name__ = name_of(source.agent)
        self._shared: AgentBatch | None = None
        self._judge: JudgePolicy | None = None

    def complete(self, task: RolloutTask) -> RolloutTask:
        """Return a task with its player."""
        return dataclasses.replace(task, source=self)

    def loop(self) -> LoopTasks:
        """Return the gateway's loop, so that calls do not switch between loops."""
        self._gateway.start()
        assert self._gateway.registry.loop is not None
        return self._gateway.registry.loop.tasks()

    @asynccontextmanager
    async def for_batch(self, batch: Batch) -> AsyncIterator[None]:
        """Start the gateway and the agent, and stop the agent after the batch."""
        await THREADS.ask(self._gateway.start)
        # Kept between batches, because they live on the gateway's loop.
        writers = Writers(self._processor) if self._shared is None else self._shared.writers
        source = self._source
        sampling = source.sampling()
        self._shared = AgentBatch(
            batch,
            writers,
            ClientWarnings(sampling),
            draws_by_tokens=source.draws_by_tokens,
            rewards_turns=source.rewards_turns,
            session_header=source.session_header,
            max_calls=source.max_calls,
        )
        self._gateway.registry.writers = RunWriters(batch.tokenizer, writers)
        most = batch.budget().max_completion_tokens
        self._gateway.registry.settings = {**sampling, "max_tokens": most}
        self._gateway.registry.images.roles = image_roles(
            self._base, sampled=batch.sampler.takes_images
        )
        self._gateway.registry.turn_timeout_s = batch.config.turn_timeout_s
        self._gateway.registry.branch = batch.config.branch
        self._gateway.registry.rollout_timeout_s = batch.config.rollout_timeout_s
        self._gateway.registry.in_process = batch.in_process
        agent = self._agent
        if is_closing(agent):
            loop = batch.env_loops.of(kind_of(self._agent), self.__name__, is_agent=True)
            await self._gateway.agents.use(agent, self.__name__, loop)
        if isinstance(agent, StartingAgent):
            await self._ask(batch, "start", lambda: agent.start(self._gateway))
        try:
            async with self._judging(batch):
                yield
        finally:
            if isinstance(agent, StoppingAgent):
                await self._ask(batch, "stop", agent.stop)

    @asynccontextmanager
    async def _judging(self, batch: Batch) -> AsyncIterator[None]:
        """Answer requests that do not name a rollout, if the agent's judge is the policy."""
        if not isinstance(self._agent, JudgingAgent) or self._agent.judge != "policy":
            yield
            return
        assert self._shared is not None
        registry, before = self._gateway.registry, self._gateway.registry.judge
        policy = self._judge = JudgePolicy(self._shared)
        judge = registry.judge = Judge(policy)
        try:
            yield
        finally:
            registry.judge = before
            policy.end()
            await registry.ask(judge.close)

    def episode(self, batch: Batch, task: RolloutTask, attempt: int) -> AnyEpisode:
        """Return one attempt at a task."""
        assert self._shared is not None
        return AgentEpisode(self._agent, self.__name__, self._gateway, self._shared, task, attempt)

    async def settle(self, batch: Batch, played: Sequence[tuple[RolloutTask, Rollout]]) -> None:
        """Let the agent score rollouts together.

        Raises:
            EnvError: the agent raised, or set something that is not a reward.
            SamplerError: the sampler failed on a request of the judge.
        """
        if self._judge is not None and self._judge.error is not None:
            raise self._judge.error
        agent = self._agent
        if isinstance(agent, SettlingAgent):
            await self._ask(batch, "settle", lambda: agent.settle(played, batch.tokenizer))
            for _, rollout in played:
                self._check_settled(batch, rollout)
        for _, rollout in played:
            give_rewards(rollout, batch.config.auxiliary)

    def _check_settled(self, batch: Batch, rollout: Rollout) -> None:
        name, nan = f"{self.__name__}.settle", batch.warnings.nan_reward
        place = place_of(self._agent, "settle")
        said = AgentResult(
            rollout.reward,
            rollout.extras,
            measured=rollout.measured,
            rewards=rollout.rewards,
            names=rollout.names,
        )
        result = result_of(said, name, place, on_nan=lambda: nan(name))
        rollout.reward, rollout.extras = result.reward, result.extras
        rollout.rewards, rollout.names = result.rewards, result.names
        try:
            for turn in turns_of(rollout):
                turn.reward = score_of(turn.reward, "a turn", on_nan=lambda: nan(name))
        except TypeError as error:
            raise placed(EnvError(f"{name}: {error}"), place) from None
        if rollout.failed:  # perhaps before some of its parts made a call
            return
        try:
            keys = RewardKeys.of(rollout, of_turns=self._source.rewards_turns)
            keys.check(rollout.rewards, rollout.names)
        except ValueError as error:
            raise placed(EnvError(f"{name}: {error}"), place) from None

    async def _ask(self, batch: Batch, what: str, call: Callable[[], Awaitable[None]]) -> None:
        try:
            kind = kind_of(self._agent)
            loop = batch.env_loops.of(kind, self.__name__, is_agent=True)
            await loop.ask(call)
        except Exception as error:
            raise raised_by_env(f"{self.__name__}.{what}", error, runs=AGENT) from error

    def _processor(
        self, tools: Sequence[Any] | None, variables: Mapping[str, Any]
    ) -> PartsProcessor:
        if not tools and not variables:
            return self._base
        if not isinstance(self._base, ToolProcessor):
            raise TemplateError(
                f"{type(self._base).__name__} cannot write the tools or chat_template_kwargs of "
                "a request, because it writes only those that it was made with\n"
                "hint: leave processor= out"
            )
        return self._base.with_tools(tools, **variables)
