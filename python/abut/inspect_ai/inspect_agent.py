"""A task of Inspect AI as an agent: its solvers play a rollout, its scorers give the reward.

Invariant: the rollout's endpoint answers a sample's calls. A sample with an error is a failed
rollout. A sample that a limit of Inspect ended is scored, as in Inspect.
"""

import asyncio
import copy
import importlib
import json
import math
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from abut.agents.dataset_agent import (
    OutputFolder,
    RewardChoice,
    as_metrics,
    choose,
    choose_reward,
    json_dataset,
    rollout_info,
    row_text,
)
from abut.agents.protocol import AgentResult, Endpoint
from abut.concurrency.threads import THREADS
from abut.envs.foreign import placed
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError
from abut.extras import check_beside, require_extra
from abut.gateway.server.gateway import Gateway
from abut.inspect_ai.sample_scores import scores_of
from abut.inspect_ai.task_loading import (
    SAMPLE,
    SampleId,
    check_sandbox,
    content_types,
    load_samples,
    load_task,
    row_of_sample,
)
from abut.pickling import stays

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from abut.inspect_ai.shared_eval import SharedEval, TaskFeed

# Inspect's providers that use the openai package, and the versions that they need.
_OPENAI = ("openai/", "openai-api/")
_OPENAI_VERSIONS = ">=3.4"

_OF_SAMPLE = ("step", "mode", "group", "generation")
_OF_BATCH = ("run_id", "step", "mode")


def inspect_task(
    task: Any,
    *,
    task_args: Mapping[str, Any] | None = None,
    model_roles: Mapping[str, Any] | None = None,
    reward: str | Callable[[Mapping[str, float | None]], float | None] | None = None,
    values: Mapping[str, float] | None = None,
    sandbox: Any = None,
    log_dir: str | None = "logs",
    limit: int | tuple[int, int] | None = None,
    sample_id: SampleId | Sequence[SampleId] | None = None,
    time_limit: float | None = None,
    name: str | None = None,
) -> "InspectTask":
    """Make an agent from an unchanged task of Inspect, for `make_rollout_func`.

    Args:
        task: a `Task`, a function with `@task`, the name of a task such as
            `"inspect_evals/gsm8k"`, or `"file.py@name"`.
        task_args: arguments for the task function.
        model_roles: the models that play roles, such as `{"grader": "openai/gpt-5"}`; they are
            never trained. The policy plays every other role, but scorers must not use it.
        reward: the score to use as the reward, such as `"includes"` or, where the score is a dict,
            `"scorer/part"`; or a function of all scores by name. None: the only score.
        values: the numbers of scores that are texts, besides C, P, I and N.
        sandbox: replaces the task's sandbox. "local" runs the policy's commands on this machine, so
            a task that has it is an error unless you pass it here.
        log_dir: the folder for logs, one per batch, for `inspect view`; None: no logs.
        limit: the first `limit` samples, or the samples from `start` to `end` for a pair.
        sample_id: the id of a sample, or several.
        time_limit: seconds for a sample, which is scored when they are over. The smallest of this,
            the task's own limit and `RolloutConfig.rollout_timeout_s` counts; the latter is left
            out if the model samples in the trainer's process.
        name: the name in logs, errors and the dataset's column `environment`; None: the task's.

    Raises:
        TypeError: `task` is not a task.
        ValueError: there is no such task or sample, the task has the sandbox "local" and you did
            not pass it, or an argument has a value that is not allowed.
        MissingExtraError: inspect_ai is not installed, or is too old.
    """
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit={time_limit!r}: must be more than 0 seconds")
    require_extra("inspect_ai")
    for role, model in (model_roles or {}).items():
        if isinstance(model, str) and model.startswith(_OPENAI):
            check_beside(f"{model}, the {role} of {task!r},", "openai", _OPENAI_VERSIONS)
    found = load_task(task, dict(task_args or {}))
    samples = load_samples(found, limit, sample_id)
    check_sandbox(found, samples.values(), sandbox)
    return InspectTask(
        found,
        samples,
        name=name or found.name,
        model_roles=dict(model_roles or {}),
        reward=reward,
        values=dict(values or {}),
        sandbox=sandbox,
        log_dir=log_dir,
        time_limit=time_limit,
    )


@stays(
    "it holds an eval of this process",
    hint="send its arguments, and create it in the process that trains",
)
class InspectTask:
    """An agent that plays and scores samples of a task of Inspect; `inspect_task` makes it.

    Attributes:
        name: the name in logs, errors and the dataset.
    """

    def __init__(
        self,
        task: Any,
        samples: Mapping[SampleId, Any],
        *,
        name: str,
        model_roles: Mapping[str, Any],
        reward: RewardChoice,
        values: Mapping[str, float],
        sandbox: Any,
        log_dir: str | None,
        time_limit: float | None,
    ) -> None:
        self.name = self.__name__ = name
        self._task, self._samples = task, samples
        self._model_roles, self._sandbox = model_roles, sandbox
        self._reward, self._values = reward, values
        self._log_dir, self._time_limit = log_dir, time_limit
        self._no_logs = OutputFolder(None, "abut-inspect")
        self._score_names: set[str] = set()
        self._batches = 0
        self._batch: _InspectBatch | None = None

    def dataset(self, n: int | None = None, *, shuffle: bool = False, seed: int = 0) -> Any:
        """Return the task's samples as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

        Its columns: `prompt`, for people; `environment`, this agent's name, for a `dict` of
        environments; and `inspect_sample`, the sample's id.

        Args:
            n: how many samples; None: all.
            shuffle: draw the samples at random.
            seed: the seed of the shuffle.

        Raises:
            ValueError: `n` is less than 1, or a sample has content that is not text or an image.
        """
        ids = choose(list(self._samples), n, shuffle=shuffle, seed=seed)
        rows = [row_of_sample(id_, json.dumps(id_), self._samples[id_], self.name) for id_ in ids]
        return json_dataset(rows, SAMPLE, self.name)

    async def start(self, gateway: Gateway) -> None:
        """Prepare for a batch; its eval begins with its first rollout.

        Raises:
            EnvError: a sample has an image, but the policy takes none.
        """
        # On a thread, because these imports take seconds and would block the loop of all rollouts.
        await THREADS.ask(_import_eval)
        from abut.inspect_ai.policy_api import new_session

        if self._batch is not None:  # it was interrupted
            await self.stop()
        if not gateway.registry.images.roles:
            for id_, sample in self._samples.items():
                if "image" in content_types(sample):
                    raise EnvError(
                        f"sample {id_!r} of {self.name} has an image, but the policy does not "
                        "accept images\n"
                        "hint: train a vision-language model, or leave the sample out with "
                        "sample_id="
                    )
        self._batches += 1
        self._batch = _InspectBatch(gateway, new_session(), self._batches)

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one sample, and score it.

        Raises:
            UnplayableRow: the row is not from `dataset()`, the task cannot start, or there are
                several scores and `reward` names none.
            EnvError: a solver, a tool or a scorer failed.
        """
        from abut.inspect_ai.policy_api import SampleAttempt

        batch = self._batch
        assert batch is not None
        id_ = json.loads(row_text(task, SAMPLE, self.name))
        if id_ not in self._samples:
            raise UnplayableRow(
                f"{self.name} has no sample {id_!r}\nhint: create the dataset again with "
                f"{self.name}.dataset()"
            )
        feed = await batch.joined(lambda: self._join(batch, task))
        sample = self._samples[id_]
        info = rollout_info(task) | {"rollout_id": endpoint.rollout_id}
        metadata = {**(sample.metadata or {}), **_named(info, "rollout_id", *_OF_SAMPLE)}
        sample = sample.model_copy(update={"id": id_, "metadata": metadata})
        played = await feed.play(sample, SampleAttempt(endpoint, batch.session))
        if played.error is not None:
            raise self._failed(played.error)
        scores = scores_of(played.scores, self._values)
        extras = as_metrics(self.name, {**scores, "limit": float(played.limit is not None)})
        return AgentResult(self._reward_of(scores), extras)

    async def stop(self) -> None:
        """End the eval, which writes its log."""
        batch, self._batch = self._batch, None
        if batch is not None:
            await batch.close()
        self._no_logs.delete()

    async def _join(self, batch: "_InspectBatch", first: RolloutTask) -> "TaskFeed":
        """Start the task in the eval of this process, for the first rollout of a batch."""
        from abut.inspect_ai.policy_api import policy_model
        from abut.inspect_ai.shared_eval import LogFolder, TaskFeed, claim_eval

        feed = batch.feed = TaskFeed((self.name, batch.number))
        # A new address for each batch, because `generate(cache=True)` would reuse old answers.
        policy = policy_model(f"{batch.gateway.base_url}#{secrets.token_hex(4)}")
        has_logs = self._log_dir is not None
        folder = LogFolder(self._log_dir or str(self._no_logs.path), samples=has_logs)
        batch.eval = await claim_eval(feed, folder, policy)
        await batch.eval.join(feed, lambda: self._task_of(batch, feed, policy, first))
        return feed

    def _task_of(
        self, batch: "_InspectBatch", feed: "TaskFeed", policy: Any, first: RolloutTask
    ) -> Any:
        """Return a copy of the task for one batch, with the policy as its model."""
        from inspect_ai import task_with

        from abut.inspect_ai.policy_api import without_policy
        from abut.inspect_ai.shared_eval import BATCH, ENVIRONMENT

        task = copy.copy(self._task)  # `task_with` changes what it is given
        setup = task.setup or []
        changes: dict[str, Any] = {} if self._sandbox is None else {"sandbox": self._sandbox}
        if task.scorer:
            changes["scorer"] = [without_policy(scorer) for scorer in task.scorer]
        if roles := {**(task.model_roles or {}), **self._model_roles}:
            changes["model_roles"] = roles
        where = {BATCH: batch.number, ENVIRONMENT: self.name}
        run = batch.gateway.registry
        return task_with(
            task,
            dataset=feed.source(),
            setup=[feed.setup(), *(setup if isinstance(setup, list) else [setup])],
            model=policy,
            epochs=1,
            time_limit=self._time_limit_s(None if run.in_process else run.rollout_timeout_s),
            metadata={
                **(task.metadata or {}),
                **where,
                **_named(rollout_info(first), *_OF_BATCH),
            },
            **changes,
        )

    def _time_limit_s(self, rollout_timeout_s: float | None) -> int | None:
        """Return the time limit of a sample in whole seconds, which Inspect requires, or None."""
        limits = (self._task.time_limit, self._time_limit, rollout_timeout_s)
        return min((math.ceil(limit) for limit in limits if limit is not None), default=None)

    def _reward_of(self, scores: Mapping[str, float | None]) -> float | None:
        self._score_names |= scores.keys()
        if isinstance(self._reward, str) and self._reward not in scores:
            # A scorer may leave any sample without a score, also the first. So an unknown name is
            # an error only when all scorers have given a score.
            given = {name.partition("/")[0] for name in scores}
            if self._reward in self._score_names or len(given) < len(self._task.scorer or ()):
                return None
        return choose_reward(scores, self._reward, self.name)

    def _failed(self, error: Any) -> EnvError:
        """Return a sample's error as the error of its rollout."""
        from abut.inspect_ai.policy_api import JUDGES

        may_pass = error.message != JUDGES
        return placed(EnvError(f"{self.name}: {error.message}", may_pass=may_pass), error.traceback)


class _InspectBatch:
    """One batch: its connections, and its task in the eval."""

    def __init__(self, gateway: Gateway, session: "ClientSession", number: int) -> None:
        self.gateway, self.session, self.number = gateway, session, number
        self.feed: TaskFeed | None = None
        self.eval: SharedEval | None = None
        self._joining: asyncio.Task[TaskFeed] | None = None

    async def joined(self, join: "Callable[[], Coroutine[Any, Any, TaskFeed]]") -> "TaskFeed":
        """Return the task's feed. The first call starts the task, and other calls wait for it."""
        if self._joining is None:
            self._joining = asyncio.create_task(join())
        # Cancelling one waiting rollout must not cancel the eval, which the other rollouts share.
        return await asyncio.shield(self._joining)

    async def close(self) -> None:
        """End the task, and the connections."""
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.wait({self._joining})
        if self.eval is not None and self.feed is not None:
            await self.eval.leave(self.feed)
        await self.session.close()


def _import_eval() -> None:
    """Import the modules of an eval, most of which Inspect would import during the first one."""
    importlib.import_module("abut.inspect_ai.shared_eval")
    with suppress(ImportError):
        importlib.import_module("inspect_ai.agent._acp.server")


def _named(info: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return parts of a rollout's info as metadata, with names such as `abut_step`."""
    return {f"abut_{key.removesuffix('_id')}": info[key] for key in keys}
