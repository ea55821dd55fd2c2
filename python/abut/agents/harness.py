"""Harnesses as agents: Claude Code and Codex, each rollout in its own process and folder.

Invariant: a harness gets the key of its rollout and only named environment variables, and it ends
with its rollout.
"""

import asyncio
import functools
import json
import logging
import os
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from abut.agents.clients import KNOWN_MODELS
from abut.agents.harness_process import HarnessProcess, delete_folder
from abut.agents.protocol import AgentResult, Endpoint
from abut.concurrency.threads import THREADS
from abut.envs.foreign import call_anywhere
from abut.envs.signatures import check_columns, check_removed, named_keywords
from abut.envs.task import RolloutTask
from abut.errors import EnvError, MissingExtraError

logger = logging.getLogger(__name__)

_SECRET_LENGTH = 8  # a shorter secret may be any word of an output

Filled: TypeAlias = str | PathLike[str] | Callable[..., Any] | None


@dataclass(frozen=True)
class HarnessResult:
    """The result of one run of a harness, passed to its `reward`.

    Attributes:
        cwd: the folder it worked in, which is deleted after `reward` has returned. It is empty if
            the harness deleted it or put a link in its place.
        exit_status: its exit status, negative if a signal ended it; None: its time was over.
        answer: its last message; "" if there is none.
        transcript: the events it wrote, one line of JSON each. If there is more than 1 MiB, the
            middle is left out.
    """

    cwd: Path
    exit_status: int | None
    answer: str
    transcript: str


class Harness(ABC):
    """The base class of harnesses; see `ClaudeCode`."""

    _title: ClassVar[str]
    _extra: ClassVar[str]
    _known_model: ClassVar[str]
    _package: ClassVar[tuple[str, str]]
    """The module that has the program, and the program's path in it."""

    def __init__(
        self,
        task: str | Callable[..., Any],
        reward: Callable[..., Any],
        cwd: Filled = None,
        *,
        model: str | None = None,
        args: Sequence[str] = (),
        max_calls: int | None = None,
        timeout_s: float | None = None,
        environ: Mapping[str, str] | None = None,
        command_prefix: Sequence[str] = (),
        program: str | None = None,
    ) -> None:
        if not hasattr(os, "killpg"):  # Windows
            raise EnvError(
                f"{self._title} cannot run here: this system has no process groups, so abut "
                "could not end the harness together with the processes it starts\n"
                "hint: train on Linux or macOS"
            )
        for name, words in (("args", args), ("command_prefix", command_prefix)):
            if isinstance(words, str):
                raise TypeError(f"{name}={words!r} is a string\nhint: use {name}={words.split()!r}")
        if not callable(reward):
            raise TypeError(
                f"reward={reward!r} is not a function\n"
                "hint: define reward(result, …), which returns a number, None or an AgentResult"
            )
        self.model = model or self._known_model
        self.max_calls = max_calls
        self._task, self._reward, self._cwd = task, reward, cwd
        self._args = list(args)
        self._timeout_s = timeout_s
        self._own_environ = dict(environ or {})
        self._prefix = list(command_prefix)
        self._program = program or self._packaged()

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> AgentResult:
        """Play one rollout in a new folder, which is deleted afterwards.

        Raises:
            EnvError: the harness could not start; or it exited with an error or its time was over,
                and `reward` returned None.
            UnplayableRow: the row lacks a column that `task`, `cwd` or `reward` needs.
        """
        # One thread for all that holds the folder, in this order: it is deleted once the process
        # has ended, also where this coroutine is cancelled twice and waits for neither.
        thread = THREADS.call_queue()
        folder = Path(await thread.ask(lambda: tempfile.mkdtemp(prefix="abut-harness-")))
        process: HarnessProcess | None = None
        try:
            cwd = folder / "work"
            for name in ("work", "home", "tmp"):
                (folder / name).mkdir()
            await self._fill(cwd, task)
            prompt = await _called(self._task, task) if callable(self._task) else self._task
            if not isinstance(prompt, str):
                raise EnvError(
                    f"task of {self._title} returned {type(prompt).__name__}: expected a string"
                )
            environ = self._environ(endpoint, folder)
            process = HarnessProcess(
                self._with_prefix(self._command(endpoint), environ, folder),
                cwd=cwd,
                environ=environ,
                prompt=prompt,
                timeout_s=self._timeout_s,
                secret_names=self._secret_names(endpoint),
            )
            try:
                await thread.ask(process.run)
            except OSError as error:
                raise EnvError(f"{self._title} could not start: {error}") from error
            await thread.ask(lambda: _restore(folder, cwd))
            return await self._result(process, cwd, task)
        finally:
            if process is not None:
                process.stop()
            await asyncio.shield(thread.ask(lambda: _delete(folder), last=True))

    @abstractmethod
    def _command(self, endpoint: Endpoint) -> list[str]:
        """Return the command line, without a prefix."""

    @abstractmethod
    def _variables(self, endpoint: Endpoint) -> dict[str, str]:
        """Return the environment variables that send it to the endpoint."""

    @staticmethod
    @abstractmethod
    def _answer(event: Mapping[str, Any]) -> str | None:
        """Return the text of an event that has the answer; None for any other event."""

    def _packaged(self) -> str:
        module, path = self._package
        found = find_spec(module)
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            if (program := Path(folder) / path).is_file():
                return str(program)
        raise MissingExtraError(
            f"abut.agents.{type(self).__name__} needs {self._title}: pip install "
            f"'abut[{self._extra}]', or program='/path/to/it'"
        )

    def _environ(self, endpoint: Endpoint, folder: Path) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **self._variables(endpoint),
            **self._own_environ,
        }

    def _with_prefix(
        self, command: list[str], environ: Mapping[str, str], folder: Path
    ) -> list[str]:
        words: list[str] = []
        for word in self._prefix:
            if word == "{env}":  # by name alone, since a command line is public
                # A PATH of another machine's root would find nothing.
                words += [f"--env={name}" for name in environ if name != "PATH"]
            else:
                words.append(
                    word.replace("{folder}", str(folder)).replace("{cwd}", str(folder / "work"))
                )
        return [*words, *command]

    def _secret_names(self, endpoint: Endpoint) -> dict[str, str]:
        return {
            form: f"<{name}>"
            for name, value in {**self._own_environ, "KEY": endpoint.api_key}.items()
            if len(value) >= _SECRET_LENGTH
            # A transcript is JSON, which escapes the lines of a private key, for example.
            for form in (
                value,
                json.dumps(value)[1:-1],
                json.dumps(value, ensure_ascii=False)[1:-1],
            )
        }

    async def _fill(self, cwd: Path, task: RolloutTask) -> None:
        if callable(self._cwd):
            await _called(self._cwd, task, cwd)
        elif self._cwd is not None:
            source = self._cwd
            await THREADS.ask(
                lambda: shutil.copytree(source, cwd, symlinks=True, dirs_exist_ok=True)
            )

    async def _result(self, process: HarnessProcess, cwd: Path, task: RolloutTask) -> AgentResult:
        transcript = process.transcript.text()
        answer = self._last_answer(transcript)
        status = process.exit_status
        given = await _called(self._reward, task, HarnessResult(cwd, status, answer, transcript))
        result = given if isinstance(given, AgentResult) else AgentResult(given)
        unscored = result.reward is None and not result.rewards and result.measured
        if status != 0 and unscored:
            how = (
                f"did not end within timeout_s={self._timeout_s:g}"
                if status is None
                else (f"exited with status {status}")
            )
            raise EnvError(f"{self._title} {how}; the end of its output:\n{process.last_lines()}")
        kept = {"transcript": transcript, "exit_status": status}
        return replace(result, extras={**kept, **result.extras})

    def _last_answer(self, transcript: str) -> str:
        for line in reversed(transcript.splitlines()):
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):  # a warning, or a line that was left out in part
                continue
            if isinstance(event, Mapping) and (answer := self._answer(event)) is not None:
                return answer
        return ""


class ClaudeCode(Harness):
    """Claude Code as an agent; install it with `pip install 'abut[claude-code]'`.

    Each rollout has a new folder, in which Claude Code works without asking for permission; edits
    outside it are denied, and so are other tools that ask for permission, such as WebFetch and MCP
    tools. Claude Code itself enforces this; it is not a sandbox, so its shell can do whatever your
    user can. Pass `command_prefix` to run it in a sandbox. `reward` runs outside of the sandbox.

    Args:
        task: the task, as a string; or a function of columns of the row that returns it.
        reward: a function of a `HarnessResult` and of columns of the row. It returns a number, None
            or an `AgentResult`, like an agent. It is called however the harness ended; if the exit
            status is not 0 and it returns None, the rollout counts as failed.
        cwd: a folder that is copied for each rollout, or a function that fills a rollout's folder;
            it gets the path of the folder, and columns of the row. None: an empty folder.
        model: the model name passed to Claude Code. The policy answers to any name, but Claude
            Code's prompt depends on it. None: a name that Claude Code knows.
        args: more command line arguments.
        max_calls: the most calls that the policy answers, over all conversations of the rollout;
            None: `RolloutConfig.max_calls`.
        timeout_s: seconds after which it is ended, together with all processes it started; None:
            only `RolloutConfig.rollout_timeout_s` limits it.
        environ: more environment variables. Of this process's variables it gets only PATH. abut
            sets HOME and TMPDIR (in the rollout's folder), LANG, TERM, ABUT_HARNESS and the
            variables of `Endpoint.env`.
        command_prefix: words before its command line, such as `docker run …` or `bwrap …`.
            `{folder}` is replaced by the rollout's folder, `{cwd}` by the folder in it where the
            harness works, and the word `{env}` by `--env=NAME` for each of its variables except
            PATH.
        program: the path of the program; None: the program in the package.

    Attributes:
        model: the model name passed to it.
        max_calls: the argument.

    Raises:
        MissingExtraError: the package is not installed, and `program` is None.
        EnvError: this system has no process groups.
        TypeError: an argument has a wrong type.
    """

    _title = "Claude Code"
    _extra = "claude-code"
    _known_model = KNOWN_MODELS["claude-code"]
    _package = ("claude_agent_sdk", "_bundled/claude")

    def _command(self, endpoint: Endpoint) -> list[str]:
        return [
            self._program,
            "--print",
            f"--model={self.model}",
            "--output-format=stream-json",
            "--verbose",
            "--permission-mode=acceptEdits",
            "--allowedTools=Bash",
            *self._args,
        ]

    def _variables(self, endpoint: Endpoint) -> dict[str, str]:
        return endpoint.env("claude-code")

    @staticmethod
    def _answer(event: Mapping[str, Any]) -> str | None:
        return str(event.get("result", "")) if event.get("type") == "result" else None


class Codex(Harness):
    """Codex as an agent; install it with `pip install 'abut[codex]'`.

    It has the arguments of `ClaudeCode`, with this difference: Codex runs commands in its own
    sandbox, which lets them write only to the rollout's folder and blocks the network. Many
    containers do not allow this sandbox; there, pass `args=["--sandbox=danger-full-access"]`, and
    your own sandbox as `command_prefix`.
    """

    _title = "Codex"
    _extra = "codex"
    _known_model = KNOWN_MODELS["codex"]
    _package = ("codex_cli_bin", "bin/codex")

    def _command(self, endpoint: Endpoint) -> list[str]:
        return [
            self._program,
            "exec",
            *endpoint.codex_args(),
            f"--model={self.model}",
            "--json",
            "--skip-git-repo-check",
            "-c",
            'sandbox_mode="workspace-write"',
            "-c",
            "sandbox_workspace_write.exclude_slash_tmp=true",
            *self._args,
            "-",
        ]

    def _variables(self, endpoint: Endpoint) -> dict[str, str]:
        return endpoint.env("codex")

    @staticmethod
    def _answer(event: Mapping[str, Any]) -> str | None:
        item = event.get("item")
        if isinstance(item, Mapping) and item.get("type") == "agent_message":
            return str(item.get("text", ""))
        return None


async def _called(function: Callable[..., Any], task: RolloutTask, *args: Any) -> Any:
    """Call a function of the user with columns of the row.

    Raises:
        UnplayableRow: the row lacks a column that it needs.
    """
    name = getattr(function, "__name__", type(function).__name__)
    bound = functools.partial(function, *args)
    check_removed(bound, name, task, gets_seed=False)
    offered = {**task.columns, "episode_seed": task.episode_seed}
    called = functools.partial(bound, **named_keywords(bound, offered))
    check_columns(called, name, task)
    return await call_anywhere(called)


def _restore(*folders: Path) -> None:
    """Replace folders that are none any more by empty ones, so that `reward` follows no link."""
    for folder in folders:
        if folder.is_symlink() or not folder.is_dir():
            folder.unlink(missing_ok=True)
            folder.mkdir(mode=stat.S_IRWXU)


def _delete(folder: Path) -> None:
    if not delete_folder(folder):  # a container may have written as another user
        logger.warning("the folder of a harness could not be deleted: %s", folder)
