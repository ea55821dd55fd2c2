"""Tasks of Harbor as one agent of abut: each rollout is a trial.

Invariant: a trial ends with its batch, so no container outlives the batch. Files that are kept of a
trial never hold its rollout's key.
"""

import asyncio
import ipaddress
import json
import logging
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from abut.agents.dataset_agent import (
    JsonRow,
    OutputFolder,
    RewardChoice,
    as_metrics,
    choose,
    json_dataset,
    row_text,
)
from abut.agents.harness_process import delete_folder
from abut.agents.protocol import AgentResult, Endpoint
from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of
from abut.gateway.ledger.row import LIMITS
from abut.harbor.agent_connection import AgentConnection
from abut.harbor.harbor_package import require_harbor
from abut.harbor.trial_score import TrialScore
from abut.pickling import stays
from abut.rollout.rollout import Rollout, StopReason

logger = logging.getLogger(__name__)

_ROW = "harbor_task"
"""The dataset's column that holds the tasks."""
_LONGEST_STOP_S = 60.0
"""How long to wait for a container to stop; after that, the user has to remove it."""
_MOST_LOG_BYTES = 2**26
_OWN_NETWORK = frozenset({"singularity"})
"""Environments whose containers share the network of the host."""


def harbor_tasks(
    path: str | os.PathLike[str],
    *,
    agent: str = "terminus-2",
    agent_kwargs: Mapping[str, Any] | None = None,
    environment: str = "docker",
    reward: str | Callable[[Mapping[str, Any]], float | None] | None = None,
    trials_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
) -> "HarborTasks":
    """Make an agent from unchanged tasks of Harbor, for `make_rollout_func`.

    Args:
        path: the folder of one task, or a folder of tasks.
        agent: Harbor's name of the agent: "terminus-2", "claude-code", "codex", or another one that
            Harbor can point at an endpoint with OpenAI's protocols; or `module:Class`, your own
            `BaseAgent`.
        agent_kwargs: arguments for the agent, such as `max_turns`; `model_name` changes the model
            name that the agent sees.
        environment: Harbor's name of the environment, such as "docker"; or `module:Class`, your
            own `BaseEnvironment`.
        reward: the name of one of the verifier's rewards, or a function of all of them; None: the
            only one.
        trials_dir: where to keep the folders of trials; None: each folder is deleted after its
            trial.
        name: the name in logs, errors, metrics and the dataset's column `environment`; None: the
            name of the folder.

    Raises:
        ValueError: the folder has no task, a task cannot be read, the agent or the environment does
            not exist, or the agent does not take an argument.
        MissingExtraError: harbor is not installed, or this Python is too old for it.
    """
    require_harbor()
    root = Path(path).expanduser().resolve()
    return HarborTasks(
        name or root.name,
        _task_folders(root),
        connection=AgentConnection.of(agent, agent_kwargs or {}),
        environment=_environment_config(environment),
        reward=reward,
        trials_dir=trials_dir,
    )


@stays(
    "its trials run in this process",
    hint="send its arguments, and create it in the process that trains",
)
class HarborTasks:
    """An agent whose rollouts are trials of Harbor; `harbor_tasks` makes it.

    Attributes:
        name: the name in logs, errors, metrics and the dataset.
    """

    def __init__(
        self,
        name: str,
        folders: Sequence[Path],
        *,
        connection: AgentConnection,
        environment: Any,
        reward: RewardChoice,
        trials_dir: str | os.PathLike[str] | None,
    ) -> None:
        self.name = self.__name__ = name
        self._folders = list(folders)
        self._connection, self._environment = connection, environment
        self._reward = reward
        self._keeps_trials = trials_dir is not None
        self._output = OutputFolder(trials_dir, "abut-harbor")
        self._trials_dir = Path()
        self._is_checked = False
        self._rollout_timeout_s = math.inf
        self._scores: dict[str, TrialScore] = {}
        self._trials: set[asyncio.Task[Any]] = set()

    def dataset(self, n: int | None = None, *, shuffle: bool = False, seed: int = 0) -> Any:
        """Return the tasks as a `datasets.Dataset` for `GRPOTrainer(train_dataset=…)`.

        Its columns: `prompt`, the instruction, for people; `environment`, this agent's name, for a
        `dict` of environments; `row_id`, the task's name; and the task's folder.

        Args:
            n: how many tasks; None: all.
            shuffle: draw the tasks at random.
            seed: the seed of the shuffle.

        Raises:
            ValueError: `n` is less than 1, or a task cannot be read.
        """
        from harbor.models.task.task import Task

        tasks = [Task(path) for path in choose(self._folders, n, shuffle=shuffle, seed=seed)]
        rows = [
            JsonRow(
                task.instruction or task.name,
                json.dumps({"path": str(task.task_dir)}),
                {"row_id": task.name},
            )
            for task in tasks
        ]
        return json_dataset(rows, _ROW, self.name)

    async def start(self, gateway: Any) -> None:
        """Check, before the first batch, that trials can run here.

        Raises:
            EnvError: the environment is not available, or the agent could not reach the gateway.
        """
        self._rollout_timeout_s = gateway.registry.rollout_timeout_s
        self._scores.clear()
        if not self._is_checked:
            self._check_reachable(gateway)
            await THREADS.ask(self._check_environment)
            self._is_checked = True
        self._trials_dir = await THREADS.ask(lambda: self._output.path)

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Run one trial.

        Raises:
            UnplayableRow: the trainer's row has no task, or the verifier has several rewards and
                `reward` names none.
            EnvError: the trial failed before its agent made a call.
        """
        path = Path(json.loads(row_text(task, _ROW, self.name))["path"])
        try:
            result = await self._result(path, endpoint)
        except Exception as error:  # such as a folder that is gone
            raise EnvError(f"{self.name}: {path.name} cannot be run: {text_of(error)}") from error
        score = TrialScore.of(result, self._reward, self.name)
        if score.errors and not endpoint.calls:
            raise EnvError(
                f"{self.name}: the trial of {path.name} failed before the agent made a call: "
                + "; ".join(score.errors)
            )
        self._scores[task.rollout_id] = score
        extras = self._extras(score, str(result.trial_name))
        if not score.is_score:
            return AgentResult(None, extras, measured=False)  # until settled
        return AgentResult(score.reward, extras)

    async def settle(self, played: Sequence[tuple[RolloutTask, Rollout]], tokenizer: Any) -> None:
        """Give rollouts that a limit cut short the reward that their verifier still returned."""
        for task, rollout in played:
            score = self._scores.pop(task.rollout_id, None)
            if score is None or rollout.failed or not score.errors:
                continue
            if score.is_cut:
                # The gateway knows only its own limits, and not Harbor's.
                if rollout.stop_reason is StopReason.ENV_DONE:
                    rollout.stop_reason = StopReason.DEADLINE
            elif score.rewards and rollout.stop_reason in LIMITS:
                # Agents raise, or exit with an error, when the gateway refuses a call over a limit.
                rollout.reward, rollout.measured = score.reward, True

    async def stop(self) -> None:
        """Wait until the trials of abandoned rollouts have stopped their environments."""
        if self._trials:
            _, left = await asyncio.wait(self._trials, timeout=_LONGEST_STOP_S)
            if left:
                logger.warning(
                    "%d environments of %s did not stop within %g s",
                    len(left),
                    self.name,
                    _LONGEST_STOP_S,
                )
        await THREADS.ask(self._output.delete)

    async def _result(self, path: Path, endpoint: Endpoint) -> Any:
        """Run a trial. If cancelled, return at once while the trial stops in the background."""
        config = await THREADS.ask(lambda: self._config(path, endpoint))
        trial = asyncio.create_task(_run(config))
        self._trials.add(trial)
        trial.add_done_callback(self._trials.discard)
        try:
            return await asyncio.shield(trial)
        finally:
            trial.cancel()
            if trial.done():
                await THREADS.ask(lambda: self._tidy(config, endpoint.api_key))
            else:
                trial.add_done_callback(
                    lambda _: THREADS.submit(lambda: self._tidy(config, endpoint.api_key))
                )

    def _config(self, path: Path, endpoint: Endpoint) -> Any:
        """Read the task, and return the `TrialConfig` of a rollout."""
        from harbor.models.task.task import Task
        from harbor.models.trial.config import TaskConfig, TrialConfig, VerifierConfig

        task = Task(path).config
        verifier_s = min(task.verifier.timeout_sec, self._rollout_timeout_s / 2)
        agent_s = min(task.agent.timeout_sec or math.inf, self._rollout_timeout_s - verifier_s)
        config = TrialConfig(
            task=TaskConfig(path=path),
            trials_dir=self._trials_dir,
            agent=self._connection.config(endpoint, agent_s if agent_s < math.inf else None),
            environment=self._environment,
            verifier=VerifierConfig(override_timeout_sec=verifier_s),
        )
        # With the rollout's id, so that the folder of a recorded rollout can be found.
        config.trial_name = f"{path.name[:32]}__{endpoint.rollout_id.replace('.', '-')}"
        return config

    def _tidy(self, config: Any, key: str) -> None:
        """Delete the folder of a trial, or remove the rollout's key from its files."""
        folder = Path(config.trials_dir) / config.trial_name
        if not self._keeps_trials:
            delete_folder(folder)
            return
        files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
        for file in files:
            try:
                _remove_key(file, key.encode())
            except OSError as error:  # a container may have written as another user
                logger.warning("could not remove a rollout's key from %s: %s", file, error)

    def _extras(self, score: TrialScore, trial: str) -> dict[str, Any]:
        return {
            "harbor_trial": trial,
            "harbor_error": "; ".join(score.errors) or None,
            **as_metrics(f"{self.name}/reward", score.rewards),
            **as_metrics(f"{self.name}/seconds", score.seconds),
        }

    def _check_reachable(self, gateway: Any) -> None:
        """Refuse a gateway on the loopback for an agent inside a container.

        Raises:
            EnvError: the container could not reach it.
        """
        kind = self._environment.type
        if not self._connection.is_installed or kind is None or kind.value in _OWN_NETWORK:
            return
        host = urlsplit(gateway.base_url).hostname or ""
        if _is_loopback(host):
            raise EnvError(
                f"{self.name}: {self._connection.name} runs inside {kind.value} and cannot reach "
                f"the gateway at {host}\n"
                'hint: make_rollout_func(…, gateway=Gateway(host="0.0.0.0", port=8100, '
                'public_url="http://172.17.0.1:8100")), with an address of this machine that '
                "containers can reach"
            )

    def _check_environment(self) -> None:
        """Let Harbor check that its environment is available.

        Raises:
            EnvError: the environment is not available.
        """
        from harbor.environments.factory import EnvironmentFactory

        config = self._environment
        try:
            EnvironmentFactory.run_preflight(config.type, config.import_path, config.kwargs)
        except (SystemExit, Exception) as error:  # Harbor exits the process if a check fails
            environment = config.import_path or config.type.value
            text = str(error) if isinstance(error, SystemExit) else text_of(error)
            raise EnvError(f"{self.name}: no trial can run in {environment}: {text}") from error


def _remove_key(file: Path, key: bytes) -> None:
    """Replace a key in a file that the agent may have written, be it a link or a sparse terabyte.

    Raises:
        OSError: the file cannot be read or written.
    """
    if not stat.S_ISREG((found := file.lstat()).st_mode) or found.st_size > _MOST_LOG_BYTES:
        return
    if key in (content := file.read_bytes()):
        file.write_bytes(content.replace(key, b"<the rollout's key>"))


async def _run(config: Any) -> Any:
    from harbor.trial.trial import Trial

    trial = await Trial.create(config)
    return await trial.run()


def _task_folders(root: Path) -> list[Path]:
    """Return the folders of tasks in a folder, or the folder itself if it is a task.

    Raises:
        ValueError: there are no tasks, or a task cannot be read.
    """
    from harbor.models.task.task import Task

    if not root.is_dir():
        raise ValueError(
            f"harbor_tasks({str(root)!r}): the folder does not exist\n"
            "hint: `harbor datasets download NAME` downloads a dataset from Harbor's registry"
        )
    found = [root] if (root / "task.toml").exists() else sorted(root.iterdir())
    tasks = [path for path in found if (path / "task.toml").exists()]
    if not tasks:
        raise ValueError(
            f"harbor_tasks({str(root)!r}): no folder in it has a task.toml\n"
            "hint: name the folder of a task, or a folder of such folders"
        )
    for path in tasks:
        try:
            Task(path)
        except Exception as error:
            raise ValueError(f"the task {path} cannot be read: {text_of(error)}") from error
        if not Task.is_valid_dir(path):
            raise ValueError(
                f"the task {path} has neither a folder environment/ nor a docker_image"
            )
    return tasks


def _environment_config(environment: str) -> Any:
    """Return Harbor's `EnvironmentConfig`.

    Raises:
        ValueError: there is no such environment.
    """
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.environment_type import EnvironmentType
    from harbor.models.trial.config import EnvironmentConfig

    if ":" in environment:
        EnvironmentFactory.get_environment_class(import_path=environment)
        return EnvironmentConfig(import_path=environment)
    kinds = [kind.value for kind in EnvironmentType]
    if environment not in kinds:
        raise ValueError(
            f"harbor_tasks(environment={environment!r}): expected one of Harbor's environments: "
            f"{', '.join(kinds)}\nhint: or name your own environment as 'module:Class'"
        )
    return EnvironmentConfig(type=environment)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")
