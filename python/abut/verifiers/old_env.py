"""An environment of verifiers' old API as an agent: `load_environment`, `MultiTurnEnv`, `Rubric`.

Invariant: a rollout is one call of the environment's `rollout`. It is scored once: alone, or with
its group when the whole group has ended. A rollout with an error fails, even where verifiers would
score it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from abut._native import Tokenizer
from abut.agents.dataset_agent import (
    JsonRow,
    Serving,
    choose,
    json_dataset,
    preview,
    row_text,
)
from abut.agents.protocol import AgentResult, Endpoint
from abut.envs.signatures import UnplayableRow
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of, trace_of
from abut.gateway.server.gateway import Gateway
from abut.notices import Once
from abut.pickling import stays
from abut.rollout.rollout import Rollout
from abut.verifiers.old_rewards import Scoring, scoring, watch_rubric

logger = logging.getLogger(__name__)

COLUMN = "verifiers_row"
"""The dataset's column of rows."""
_MOST_WARNINGS = 32  # a function may return something else each time
_OF_OPENAI = ("temperature", "top_p", "max_tokens")
_IN_BODY = ("top_k", "min_p")
"""Settings that clients of openai take in `extra_body` alone."""


def old_verifiers_env(
    id_or_env: Any, *, args: Mapping[str, Any] | None, name: str | None
) -> "OldVerifiersEnv":
    """Make an agent from an environment of the old API.

    Args:
        id_or_env: the environment's id, or the environment.
        args: arguments of its `load_environment`.
        name: the name in logs, errors and the dataset; None: the id.

    Raises:
        TypeError: `args` is given, but the environment is loaded already.
        ValueError: verifiers cannot load it.
    """
    if not isinstance(id_or_env, str):
        if args is not None:
            raise TypeError(
                "args= works only if you pass an id, but this environment is already loaded\n"
                "hint: pass the environment's id"
            )
        found = name or getattr(id_or_env, "env_id", "") or type(id_or_env).__name__
        return OldVerifiersEnv(id_or_env, found)
    # verifiers' own function does not understand `owner/name@version`.
    env_id = id_or_env.split("@", 1)[0]
    try:
        env = import_module("verifiers").load_environment(env_id, **(args or {}))
    except (ImportError, RuntimeError, AttributeError) as error:
        raise ValueError(f"verifiers cannot load {id_or_env!r}: {error}") from error
    return OldVerifiersEnv(env, name or env_id)


@stays(
    "it holds a client of this process",
    hint="send the arguments of verifiers_env, and call it in the process that trains",
)
class OldVerifiersEnv:
    """An environment of the old API, for `make_rollout_func`; `verifiers_env` makes it.

    Args:
        env: a `verifiers.Environment`.
        name: the name in logs, errors and the dataset's column `environment`.

    Attributes:
        name: the name in logs, errors and the dataset's column `environment`.
    """

    def __init__(self, env: Any, name: str) -> None:
        self.name = self.__name__ = name
        self._env = env
        self._scores_groups = watch_rubric(env.rubric)
        self._client: Serving[Any] = Serving(_client, name)
        self._gateway: Gateway | None = None
        self._states: dict[str, Any] = {}
        self._once = Once(logger, most=_MOST_WARNINGS)

    def dataset(self, n: int | None = None, *, shuffle: bool = False, seed: int = 0) -> Any:
        """Return the environment's rows as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

        Its columns: `prompt`, for people; `environment`, this environment's name, for a `dict` of
        environments; `row_id`, verifiers' `example_id`; and the row as JSON.

        Args:
            n: how many rows; None: all.
            shuffle: whether the rows and their order are random.
            seed: the same seed gives the same rows.

        Raises:
            ValueError: there are no rows, or a row does not survive JSON.
        """
        rows = self._env.get_dataset()
        chosen = choose(range(len(rows)), n, shuffle=shuffle, seed=seed)
        return json_dataset((self._row(dict(rows[i])) for i in chosen), COLUMN, self.name)

    async def start(self, gateway: Gateway) -> None:
        """Connect to the gateway at the first batch."""
        self._gateway = gateway
        self._states.clear()
        await self._client.started()

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one rollout, and score it unless its group is scored together.

        Raises:
            UnplayableRow: the dataset's row holds no row of the environment, or its group is scored
                together but is split over ranks.
            EnvError: the rollout has an error.
        """
        row = json.loads(row_text(task, COLUMN, self.name))
        if self._scores_groups and not task.whole_group:
            raise UnplayableRow(
                f"{self.name} scores all generations of a row together, but this rank has only "
                "some of them\nhint: make per_device_train_batch_size times steps_per_generation "
                "(in evaluation per_device_eval_batch_size) a multiple of num_generations"
            )
        shared = await self._client.started()
        client = shared.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
        state = await self._env.rollout(row, _native(client), endpoint.model, self._sampling())
        error = state.get("error")
        if self._scores_groups and error is None:
            self._states[task.rollout_id] = state
            return AgentResult(None, measured=False)  # until its group is settled
        try:
            if error is not None:
                raise self._failure(error)
            with scoring() as scored:
                await self._env.rubric.score_rollout(state)
        finally:
            await _cleaned(self._env.rubric, [state])
        self._say_faults(scored)
        reward, extras = scored.score_of(state), scored.metrics_of(state, self.name)
        return AgentResult(reward, extras, measured=_is_measured(scored, state))

    async def settle(
        self, played: Sequence[tuple[RolloutTask, Rollout]], tokenizer: Tokenizer
    ) -> None:
        """Score each group whose rollouts are scored together."""
        groups: dict[int, list[tuple[Rollout, Any]]] = {}
        for task, rollout in played:
            state = self._states.pop(task.rollout_id, None)
            if state is not None and not rollout.failed:
                groups.setdefault(task.group, []).append((rollout, state))
        for members in groups.values():
            await self._score_group(members)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    async def _score_group(self, members: Sequence[tuple[Rollout, Any]]) -> None:
        states = [state for _, state in members]
        with scoring() as scored:
            try:
                await self._env.rubric.score_group(states)
            except Exception as error:
                said = "%s did not score a group, so its rollouts have no reward: %s\n%s"
                kind = type(error).__name__
                self._once.warn(kind, said, self.name, text_of(error), trace_of(error))
                return
            finally:
                await _cleaned(self._env.rubric, states)
        self._say_faults(scored)
        for rollout, state in members:
            rollout.reward = scored.score_of(state)
            rollout.measured = _is_measured(scored, state)
            rollout.extras = {**rollout.extras, **scored.metrics_of(state, self.name)}

    def _sampling(self) -> dict[str, Any]:
        """Return the trainer's sampling settings in the form that verifiers takes."""
        assert self._gateway is not None
        settings = {key: v for key, v in self._gateway.sampling.items() if v is not None}
        body = {key: settings[key] for key in _IN_BODY if key in settings}
        ours: dict[str, Any] = {key: settings[key] for key in _OF_OPENAI if key in settings}
        return {**ours, "extra_body": body}

    def _failure(self, error: Any) -> EnvError:
        """Return verifiers' error as the failure of a rollout; verifiers would score it."""
        if not isinstance(error, BaseException):
            return EnvError(f"{self.name}: {error!s:.2000}")
        # An error of the model only wraps the client's error.
        cause = error.__cause__
        inner = "" if cause is None else f", by {text_of(cause)}"
        failure = EnvError(f"{self.name}: {text_of(error)}{inner}")
        failure.trace = trace_of(error)
        return failure

    def _say_faults(self, scored: Scoring) -> None:
        said = "%s: %s %s, which is not a score, so its rollouts have %s."
        for fault in (fault for faults in scored.faults.values() for fault in faults):
            without = "no reward" if fault.counts else "no such metric"
            kind = fault.function, fault.why.partition(":")[0]
            self._once.warn(kind, said, self.name, fault.function, fault.why, without)

    def _row(self, row: dict[str, Any]) -> JsonRow:
        row_id = str(row.get("example_id", ""))
        try:
            text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            changed = [key for key, value in json.loads(text).items() if value != row[key]]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"row {row_id} of {self.name} cannot be written as JSON: {error}"
            ) from None
        if changed:
            raise ValueError(f"row {row_id} of {self.name}: JSON cannot represent {changed[0]!r}")
        prompt = row.get("prompt")
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        said = ((str(one.get("role")), one.get("content")) for one in messages)
        return JsonRow(preview(said, otherwise=f"{self.name} {row_id}"), text, {"row_id": row_id})


def _is_measured(scored: Scoring, state: Any) -> bool:
    """Return True if the trainer's reward functions may score the rollout."""
    return scored.score_of(state) is not None or not scored.has_reward(state)


def _client() -> Any:
    """Return a client that shares its connections among all rollouts, each with its own key."""
    from openai import AsyncOpenAI

    # abut bounds the time of a turn. A client with a shorter timeout would request it again.
    return AsyncOpenAI(base_url="http://each.rollout.has.its.own", api_key="too", timeout=None)


def _native(client: Any) -> Any:
    """Return the client in this version's form; before 0.1.12 it stays as it is."""
    wrapped = getattr(import_module("verifiers"), "OpenAIChatCompletionsClient", None)
    return client if wrapped is None else wrapped(client)


async def _cleaned(rubric: Any, states: Sequence[Any]) -> None:
    """Let a rubric clean up after scored states, as verifiers does; early versions do not."""
    if (cleanup := getattr(rubric, "cleanup", None)) is not None:
        for state in states:
            await cleanup(state)
