"""One attempt of an agent: its code, its ledger at the gateway, and the resulting row.

Invariant: the agent runs where environments run, never on the loop of the batch or of the gateway.
Its exceptions become `EnvError`s. When the attempt is over, its ledger stops answering.
"""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

from abut.agents import function_agent
from abut.agents.checked_result import result_of
from abut.agents.function_agent import FunctionAgent, kind_of, place_of_agent
from abut.agents.protocol import Agent, AgentResult, Endpoint
from abut.concurrency.clock import TimeLimit
from abut.concurrency.loop_watch import WatchedCall
from abut.concurrency.threads import THREADS, CallQueue
from abut.envs.foreign import AGENT, lent_by, placed, raised_by_env, stands_at
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask, is_pool
from abut.errors import EnvError
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.row import DRAWS_ROW, LIMITS, RowChoice, fill, limit_of
from abut.gateway.play.batch_policy import AgentBatch, AttemptPolicy
from abut.gateway.server.gateway import Gateway
from abut.rollout.named_rewards import RewardKeys
from abut.rollout.rollout import Rollout, StopReason

_GRACE_S = 5.0
"""How long an agent may take to return after its time is over and calls are refused."""


class AgentEpisode:
    """One attempt, on the loop of its batch."""

    def __init__(
        self,
        agent: Agent,
        name: str,
        gateway: Gateway,
        shared: AgentBatch,
        task: RolloutTask,
        attempt: int,
    ) -> None:
        self._agent = agent
        self._name = name
        self._batch = shared.batch
        self._rewards_turns = shared.rewards_turns
        self._task = task
        self._gateway = gateway
        self._id = str(gateway.registry.id_of(task.rollout_id, attempt))
        self._policy = AttemptPolicy(shared, task, attempt)
        self._choice = RowChoice(
            shared.batch.config.branch,
            by_tokens=shared.draws_by_tokens,
            seed=self._policy.seed(DRAWS_ROW),
            auxiliary=shared.batch.config.auxiliary,
        )
        self.ledger = Ledger(self._id, self._policy, shared.session_header)
        self._thread: CallQueue | None = None
        self._call: asyncio.Future[Any] | None = None
        self._lent: Any = None
        """The agent that a pool of agents has lent, if one has."""
        self._is_settled = False
        self._watched: WatchedCall[Any] | None = None
        """The call of an asynchronous agent."""
        self.rollout = Rollout(task.rollout_id, task.index)

    @property
    def request_id(self) -> str:
        """The rollout id in its requests for samples."""
        return self._id

    async def run(self, clock: TimeLimit) -> Rollout:
        """Let the agent play, and make a row from its ledger.

        Args:
            clock: the deadline of the attempt. After it the gateway refuses calls, which ends an
                agent that makes one; any other agent is cancelled a little later.

        Raises:
            EnvError: the agent failed.
            SamplerError: the sampler failed; training must stop.
        """
        self._policy.clock = clock
        clock.on_over(self._time_is_over, _GRACE_S)
        endpoint = dataclasses.replace(
            self._gateway.endpoint(self._id),
            _count_calls=lambda: self.ledger.answered_calls,
            max_context_tokens=self._batch.budget().max_context_tokens,
        )
        if is_pool(self._agent):
            with clock.paused():  # the pool is busy with other rollouts
                self._lent = await lent_by(self._agent, self._task)
        registry = self._gateway.registry
        await registry.ask(lambda: registry.open(self.ledger))
        try:
            self._call = self._begin(endpoint)
            failed = self._policy.failure
            await asyncio.wait({self._call, failed}, return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                result = self._result(self._call)
        finally:
            await registry.ask(lambda: registry.end(self.ledger))
            self._is_settled = True
        if failed.done():  # also if the agent has ended because of it
            failed.result()
        return self._finish(result)

    def end(self) -> None:
        """End the attempt: the gateway stops answering."""
        self._policy.end()
        hangs = False
        if self._call is not None and not self._call.done():
            hangs = True
            self._call.cancel()
        if self._lent is not None:
            self._lent.close()
        if self._thread is not None:
            self._batch.closing.on_thread(self._thread, None, keep=False, hangs=hangs)

    def spared_s(self) -> float:
        """Return the time that does not count for its deadline, because others blocked its loop."""
        return 0.0 if self._watched is None else self._watched.spared_s()

    @property
    def may_have_clashed(self) -> bool:
        """Return whether another agent or an environment blocks its loop permanently."""
        return self._watched is not None and self._watched.is_held_up

    def where(self) -> str:
        """Return the line that its agent is executing, or else the line where its code begins."""
        if (at := stands_at(self._thread, behind=[Path(function_agent.__file__)])) is not None:
            return at
        if self._watched is not None and (at := self._watched.blocked_at):
            return at
        return place_of_agent(self._agent)

    def as_failed(self, error: str) -> Rollout:
        """Return the row of a rollout that failed."""
        row = self._row(AgentResult(None))
        row.stop_reason, row.error, row.reward = StopReason.ERROR, error, None
        return row

    def _begin(self, endpoint: Endpoint) -> asyncio.Future[Any]:
        agent, task = self._lent or self._agent, self._task
        if isinstance(agent, FunctionAgent) and not agent.is_async:
            self._batch.check_thread_limit()
            self._thread = THREADS.call_queue()
            return self._thread.ask(lambda: agent.begin(endpoint, task))
        loop = self._batch.env_loops.of(kind_of(self._agent), self._name, is_agent=True)
        self._watched = loop.call(
            kind_of(self._agent), self._name, lambda: agent.run(endpoint, task)
        )
        return self._watched.future

    def _result(self, call: asyncio.Future[Any]) -> AgentResult:
        """Return the agent's result.

        Raises:
            EnvError: the agent raised, or returned something other than a reward.
        """
        nan = self._batch.warnings.nan_reward
        try:
            returned = call.result()
        except UnplayableRow:
            raise
        except BaseException as error:  # SystemExit of an agent does not end training
            # An agent that is refused because a budget is spent usually raises because of that. Its
            # rollout is not a failure, unless the error says that a retry would not help.
            anyway = bool(self.ledger.calls) and not getattr(error, "may_pass", True)
            if limit_of(self.ledger) is not None and not anyway:
                return AgentResult(None)
            raise self._raised(error) from error
        return result_of(returned, self._name, self.where(), on_nan=lambda: nan(self._name))

    def _raised(self, error: BaseException) -> EnvError:
        raised = raised_by_env(self._name, error, runs=AGENT)
        if not self.ledger.calls:
            return raised
        text, hint, rest = str(raised).partition("\nhint: ")
        said = f"{text} (after {self.ledger.answered_calls} calls){hint}{rest}"
        return placed(EnvError(said, may_pass=raised.may_pass), raised.trace)

    def _time_is_over(self) -> None:
        seconds = self._batch.config.rollout_timeout_s

        async def expire() -> None:
            self.ledger.end(
                f"the rollout took longer than rollout_timeout_s={seconds:g}", StopReason.DEADLINE
            )

        self._gateway.registry.submit(expire)

    def _finish(self, result: AgentResult) -> Rollout:
        """Return the row, now that the ledger no longer changes."""
        row = self._row(result)
        if row.columns is None:
            raise placed(self._why_no_row(), self.where())
        try:
            RewardKeys.of(row, of_turns=self._rewards_turns).check(row.rewards, row.names)
        except ValueError as error:
            # Another attempt would return the same keys.
            unknown = EnvError(f"{self._name}: {error}", may_pass=False)
            raise placed(unknown, self.where()) from None
        return row

    def _why_no_row(self) -> EnvError:
        ledger, name = self.ledger, self._name
        last = f"; the last one was refused: {ledger.refusal}" if ledger.refusal else ""
        if any(branch.delivered_calls for branch in ledger.branches):
            if last or any(branch.caller.train for branch in ledger.branches):
                return EnvError(
                    f"none of the calls of {name} that would be trained was answered{last}"
                )
            return EnvError(
                f"{name} made all its calls with endpoint.named(…, train=False), so there is "
                "nothing to train\n"
                "hint: use train=False for judges only; the agent itself must call "
                "endpoint.base_url, or a name with train=True",
                may_pass=False,
            )
        if ledger.calls:
            return EnvError(f"none of the {len(ledger.calls)} calls of {name} was answered{last}")
        if ledger.refused in LIMITS:
            return EnvError(
                f"the first call of {name} was refused because of {ledger.refused}: the prompt "
                "alone is too long\n"
                "hint: remove such rows from the dataset, or raise the limit",
                may_pass=False,
            )
        if ledger.refusal is not None:
            return EnvError(f"every call of {name} was refused; the last one: {ledger.refusal}")
        return EnvError(
            f"{name} made no call\n"
            "hint: point its client at endpoint.base_url with endpoint.api_key"
        )

    def _row(self, result: AgentResult) -> Rollout:
        """Return the ledger as a rollout."""
        row = Rollout(self.rollout.rollout_id, self.rollout.index, messages=[*self._task.messages])
        fill(row, self.ledger if self._is_settled else None, self._choice, result)
        return row
