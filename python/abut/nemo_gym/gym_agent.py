"""The agents of a NeMo Gym as one agent of abut: each row is played by the agent it names.

Invariant: a rollout is one request to `/run`. The agent's calls reach the gateway under the
rollout's id, and the row is made from the gateway's ledger.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any, Literal

from abut.agents.dataset_agent import json_dataset
from abut.agents.protocol import AgentResult, Endpoint
from abut.concurrency.threads import THREADS, work_done
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.gateway.server.gateway import Gateway
from abut.gateway.server.registry import EndpointId
from abut.nemo_gym.checks import trouble_behind
from abut.nemo_gym.doctor import findings_of_batch
from abut.nemo_gym.head import Head
from abut.nemo_gym.rows import AGENT, ROW, File, check_weights, lines_of, mixed, row_of
from abut.nemo_gym.run_request import RunSession, expected_of, run_request
from abut.nemo_gym.run_result import Outcome, RunResult, read_result, settled, unheard
from abut.nemo_gym.servers import PlayedBy, Servers
from abut.pickling import stays
from abut.rollout.rollout import Rollout

logger = logging.getLogger(__name__)

_SMALL_BYTES = 2**18
_PROBE_S = 300.0
_UNKNOWN = "unknown"
_JUDGE_CALLS = "rollout/judge_calls"


@stays(
    "it holds connections of this process",
    hint="send its arguments, and make the NemoGym in the process that trains",
)
class NemoGym:
    """The agents of one NeMo Gym, for `make_rollout_func`.

        gym = NemoGym("http://127.0.0.1:11000")
        GRPOTrainer(..., train_dataset=gym.dataset("train.jsonl"), reward_funcs=env_reward,
                    rollout_func=make_rollout_func(gym, gateway=Gateway(port=8100)))

    Gym's `policy_base_url` is the gateway's address and its `policy_api_key` the gateway's key.

    Args:
        head_url: the address of Gym's head server.
        name: the name in logs, errors and the dataset's column `environment`.
        batch_timeout_s: seconds after which all unfinished rollouts of a batch fail; None:
            `RolloutConfig.rollout_timeout_s` is the only limit.
        judge: "policy": the policy answers requests without a rollout's id, such as those of a
            judge that uses the policy's model server, and they are never trained; None: they are
            refused.
        check: the checks before the first batch: "all" lets each agent of the dataset play a
            scripted rollout, "config" only reads Gym's configuration, None skips all checks.

    Attributes:
        name: the name in logs, errors and the dataset's column `environment`.
        judge: the value of the parameter `judge`.

    Raises:
        ValueError: an argument has an invalid value.
        MissingExtraError: PyYAML is not installed.
    """

    def __init__(
        self,
        head_url: str,
        *,
        name: str = "nemo_gym",
        batch_timeout_s: float | None = None,
        check: Literal["all", "config"] | None = "all",
        judge: Literal["policy"] | None = None,
    ) -> None:
        if batch_timeout_s is not None and not batch_timeout_s > 0:
            raise ValueError(f"batch_timeout_s={batch_timeout_s!r}: must be more than 0, or None")
        if check not in ("all", "config", None):
            raise ValueError(f"check={check!r}: must be 'all', 'config' or None")
        if judge not in ("policy", None):
            raise ValueError(f"judge={judge!r}: must be 'policy' or None")
        self.name = self.__name__ = name
        self.judge = judge
        self._head = Head(head_url)
        self._batch_timeout_s = batch_timeout_s
        self._check = check
        self._examples: dict[str, str] = {}
        self._gateway: Gateway | None = None
        self._session: RunSession | None = None
        self._ends_at: float | None = None
        self._agents: dict[str, str] = {}
        self._results: dict[str, RunResult] = {}

    def dataset(
        self,
        jsonl: File | Sequence[File],
        *,
        agent: str | Sequence[str | None] | None = None,
        weights: Sequence[float] | None = None,
    ) -> Any:
        """Return rows of NeMo Gym as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

        Its columns are `prompt`, for display; `environment`, this object's name, for a `dict` of
        environments; `nemo_gym_agent`; and the row itself, exactly as in the file.

        Args:
            jsonl: one file of JSON lines, or several, which are mixed evenly.
            agent: the agent of rows that do not name one; one for all files, or one for each.
            weights: the share of each file. Every row is used; rows of files with a larger weight
                repeat. None: each row once.

        Raises:
            EnvError: the head cannot be reached.
            ValueError: a line is not a row, or its agent does not exist; names the line and the
                agents that exist.
        """
        files = [jsonl] if isinstance(jsonl, str | os.PathLike) else list(jsonl)
        if not files:
            raise ValueError("jsonl is empty: pass at least one file")
        agents = [agent] * len(files) if agent is None or isinstance(agent, str) else list(agent)
        if len(agents) != len(files):
            raise ValueError(f"agent= has {len(agents)} names, but jsonl has {len(files)} files")
        check_weights(weights, len(files))
        self._head.forget()
        servers = self._head.servers()
        read = [lines_of(f, servers, a) for f, a in zip(files, agents, strict=True)]
        lines = list(mixed(read, weights))
        for line in lines:
            self._examples.setdefault(line.columns[AGENT], line.text)
        return json_dataset(lines, ROW, self.name)

    async def start(self, gateway: Gateway) -> None:
        """Get the agents' addresses from the head; before the first batch, check the configuration.

        Raises:
            EnvError: the head cannot be reached, or training would go wrong.
        """
        if self.judge is not None and gateway.registry.rank is not None:
            raise EnvError(
                f'{self.name}: judge="policy" works only with one process: with several, a '
                "request that names no rollout may reach a rank that has no sampler at that "
                "moment\n"
                "hint: give the judge its own model server in Gym's configuration"
            )
        self._gateway = gateway
        self._agents.clear()
        self._results.clear()
        self._head.forget()
        servers = await THREADS.ask(self._head.servers)
        # With several ranks Gym calls the gateway of rank 0, which forwards requests to the others.
        if self._check is not None and not gateway.registry.rank:
            await self._checked(gateway, servers)
            self._check = None
        self._session = RunSession()
        loop = asyncio.get_running_loop()
        limit_s = self._batch_timeout_s
        self._ends_at = None if limit_s is None else loop.time() + limit_s

    async def _checked(self, gateway: Gateway, servers: Servers) -> None:
        """Check Gym before the first batch, and log the findings.

        Raises:
            EnvError: training would go wrong; names everything that must change.
        """
        found = await findings_of_batch(
            gateway,
            self._head.url,
            servers,
            self._examples,
            probes=self._check == "all",
            timeout_s=_PROBE_S,
            judge=self.judge,
        )
        for one in found:
            if one.level != "error" or one.may_pass:
                logger.log(logging.INFO if one.level == "ok" else logging.WARNING, "%s", one)
        if errors := [str(one) for one in found if one.level == "error" and not one.may_pass]:
            raise EnvError("\n".join(errors))

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Let the row's agent play.

        Raises:
            UnplayableRow: the row's agent does not exist.
            EnvError: the rollout failed; `may_pass` says whether another attempt may succeed.
        """
        row, known = row_of(task, self.name)
        servers = await THREADS.ask(self._head.servers)
        try:
            agent = servers.agent_of(row, known)
            played = servers.of(agent)
        except ValueError as error:
            raise UnplayableRow(f"{self.name}: {error}") from None
        self._agents[task.rollout_id] = agent
        if _is_again(endpoint.rollout_id):
            played = await self._checked_again(servers, agent)
        assert self._gateway is not None
        body = run_request(
            row,
            played,
            rollout_id=endpoint.rollout_id,
            sampling=self._gateway.registry.settings,
            group=task.group,
            place=task.member,
        )
        registry = self._gateway.registry
        expected = expected_of(servers, agent, row, registry.turn_timeout_s)
        await registry.ask(lambda: registry.expect(endpoint.rollout_id, expected))
        result = await self._played(played, body)
        if not endpoint.calls:
            raise unheard(played.agent, registry.unnamed)
        self._results[task.rollout_id] = result
        return AgentResult(result.reward)

    async def _checked_again(self, servers: Servers, agent: str) -> PlayedBy:
        """Check the servers that an agent needs before it plays a rollout again.

        Gym keeps calling a server that has ended, so without this check another attempt would also
        fail only after its full time limit.

        Raises:
            EnvError: a server that the agent needs does not answer, even at the head's current
                address for it.
        """
        trouble = await THREADS.ask(lambda: trouble_behind(servers, agent))
        if trouble is not None:
            self._head.forget()
            servers = await THREADS.ask(self._head.servers)
            trouble = await THREADS.ask(lambda: trouble_behind(servers, agent))
        if trouble is not None:
            raise EnvError(f"agent {agent} of {self.name} cannot play: {trouble}", may_pass=False)
        return servers.of(agent)

    async def settle(self, played: Sequence[tuple[RolloutTask, Rollout]], tokenizer: Any) -> None:
        """Compare agents' tokens with the ledger, and give each rollout its reward and metrics."""
        drifted: list[str] = []
        counted = self._judge_calls(len(played))
        for task, rollout in played:
            agent = self._agents.get(task.rollout_id, _UNKNOWN)
            result = None if rollout.failed else self._results.get(task.rollout_id)
            if settled(rollout, agent, result) is Outcome.DRIFT:
                drifted.append(agent)
            rollout.extras = {**rollout.extras, **counted}
        if drifted:
            logger.warning(
                "%d rollouts have no reward, because their agents (%s) answered with tokens that "
                "this gateway did not sample\n"
                "hint: check that every model server of theirs calls the gateway: abut doctor "
                "--nemo-gym %s",
                len(drifted),
                ", ".join(sorted({*drifted})),
                self._head.url,
            )
        self._say_unnamed()
        self._agents.clear()
        self._results.clear()

    def _judge_calls(self, rollouts: int) -> dict[str, float]:
        """Return the number of judge calls per rollout, as an extra for so many rollouts."""
        if self.judge is None or self._gateway is None:
            return {}
        judge = self._gateway.registry.judge
        return {_JUDGE_CALLS: (judge.take_calls() if judge is not None else 0) / rollouts}

    def _say_unnamed(self) -> None:
        """Warn once for each batch about requests without a rollout's id."""
        assert self._gateway is not None
        unnamed = self._gateway.registry.unnamed
        if unnamed.matched or unnamed.refused:
            rest = f"; the last one was {unnamed.last}" if unnamed.refused else ""
            logger.warning(
                "requests without a rollout id: %d were matched to a rollout by their history, "
                "%d were refused%s",
                unnamed.matched,
                unnamed.refused,
                rest,
            )
        unnamed.matched = unnamed.refused = 0

    async def stop(self) -> None:
        """Close the connections to agents."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _played(self, played: PlayedBy, body: dict[str, Any]) -> RunResult:
        """Ask the agent to play, and return its result.

        Raises:
            EnvError: the rollout failed, or the batch took too long.
        """
        assert self._session is not None
        where = f"agent {played.agent} of {self.name} at {played.url}"
        try:
            async with asyncio.timeout_at(self._ends_at) as clock:
                status, answer = await self._session.run(played.url, body)
        except TimeoutError:
            if not clock.expired():
                raise
            limit = f"batch_timeout_s={self._batch_timeout_s:g}"
            error = EnvError(f"{where} did not finish within {limit}", may_pass=False)
            raise error from None
        except OSError as error:
            self._head.forget()
            raise EnvError(f"{where} cannot be reached: {error}") from error
        quick = len(answer) <= _SMALL_BYTES
        return await work_done(quick, lambda: read_result(played.agent, status, answer))


def _is_again(endpoint_id: str) -> bool:
    read = EndpointId.read(endpoint_id)
    return read is not None and read.attempt > 0
