"""`OpenEnv`: environments on OpenEnv servers, lent one by one.

Invariant: an episode is played on one session from reset to end. If the session breaks, the episode
ends with an `EnvError`, and the engine plays it again from the start on another session.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, TypeAlias

from abut.address import Address, check_one_authorization, checked_headers
from abut.concurrency.threads import THREADS
from abut.envs.source import question_of
from abut.envs.task import RolloutTask
from abut.openenv.open_env_episode import EpisodeContext, EpisodeRules, OpenEnvEpisode
from abut.openenv.session_pool import SessionPool
from abut.openenv.target import Target, servers_of
from abut.openenv.text import Act, Observe
from abut.openenv.wire import Observation, SessionLimits
from abut.pickling import stays

ResetKwargs: TypeAlias = Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]]


@stays(
    "it holds sessions on servers and an event loop of this process",
    hint="start the servers once, and create an OpenEnv with their addresses in the other process",
)
class OpenEnv:
    """A pool of environments on OpenEnv servers, for `make_rollout_func`.

    Sessions are opened when they are needed, and kept for the next episode. abut does not start or
    connect to a server before the first session is needed.

    `observe`, `act`, `reset` and `reward` are called on several threads at the same time.

    Args:
        target: the servers: an address `http://…`, `serve:package.server.app:app`, `hf:org/space`,
            `docker:image`, a `Serve` or `Docker` with settings, or a list of these.
        observe: returns the text or messages that the policy gets for an observation, a dict of its
            fields with `reward` and `done`. None: chosen from the server's schema.
        act: returns the action or actions in the policy's text, or raises `InvalidAction`. With a
            second parameter it also gets the observation that the text answers, so that it can
            refuse illegal moves. None: chosen from the server's schema.
        history: "repeated" if each observation repeats all earlier ones, so that the policy gets
            only the new part; "new" if not. "auto": "repeated" if `observe` is None, the
            observation has `messages`, and its text begins with the previous one.
        reset: more arguments for the server's `reset`; or a function that returns them for the
            row's columns.
        tasks: more arguments for the server's `reset`; each group gets the next entry in turn.
        reward: returns the reward of an observation; None: its `reward`.
        on_invalid: after an invalid action of the policy, "tell" it what is wrong and continue, or
            "end" the episode.
        on_error: after an exception of the server for an action (EXECUTION_ERROR), "fail" the
            episode; or "tell" the policy and continue, for servers that raise on illegal moves.
        invalid_reward: the reward of an action that the policy is told about.
        max_sessions: most sessions on one server; None: as many as the server allows.
        reuse_sessions: True to reset a session for the next episode, False to open a new one.
        headers: HTTP headers for the servers, such as `{"Authorization": "Bearer …"}`.
        connect_timeout_s: how many seconds to try a server that cannot be reached, or whose
            sessions other clients use.
        session_timeout_s: how many seconds the server may take to create an environment.
        idle_timeout_s: after how many seconds an unused session is closed, for other clients.
        max_message_bytes: largest reply and schema. The default is enough for BrowserGym's
            observations, whose screenshot is a list of numbers.

    Raises:
        TypeError: `target` or `tasks` has a wrong type.
        ValueError: an address or a setting is invalid.
        EnvError: a server cannot be started, because the system has no process groups (Windows).
    """

    def __init__(
        self,
        target: Target | Sequence[Target],
        *,
        observe: Observe | None = None,
        act: Act | None = None,
        history: Literal["auto", "repeated", "new"] = "auto",
        reset: ResetKwargs | None = None,
        tasks: Sequence[Mapping[str, Any]] = (),
        reward: Callable[[Observation], float | None] | None = None,
        on_invalid: Literal["tell", "end"] = "tell",
        on_error: Literal["tell", "fail"] = "fail",
        invalid_reward: float | None = 0.0,
        max_sessions: int | None = None,
        reuse_sessions: bool = True,
        headers: Mapping[str, str] | None = None,
        connect_timeout_s: float = 60,
        session_timeout_s: float = 300,
        idle_timeout_s: float = 300,
        max_message_bytes: int = 64 * 2**20,
    ) -> None:
        known = history in ("auto", "repeated", "new")
        _check("history", history, known, "'auto', 'repeated' or 'new'")
        _check("on_invalid", on_invalid, on_invalid in ("tell", "end"), "'tell' or 'end'")
        _check("on_error", on_error, on_error in ("tell", "fail"), "'tell' or 'fail'")
        few = max_sessions is not None and max_sessions < 1
        _check("max_sessions", max_sessions, not few, "at least 1, or None")
        headers = checked_headers("OpenEnv", headers or {})
        servers = servers_of(target)
        for server in servers:
            check_one_authorization("OpenEnv", Address(server.name, server.headers), headers)
        pool = SessionPool(
            servers,
            SessionLimits(connect_timeout_s, session_timeout_s, idle_timeout_s, max_message_bytes),
            max_sessions=max_sessions,
            reuse=reuse_sessions,
            headers=headers,
        )
        rules = EpisodeRules(observe, act, history, reward, on_invalid, on_error, invalid_reward)
        self._reset = reset
        self._tasks = [dict(task) for task in tasks]
        self._context = EpisodeContext(pool, rules, max_message_bytes)
        self._close = weakref.finalize(self, self._context.close)

    async def lend(self, task: RolloutTask) -> OpenEnvEpisode:
        """Wait for a session; the episode's `close` returns it to the pool.

        Raises:
            EnvError: no session is available.
        """
        task_kwargs = self._tasks[task.group % len(self._tasks)] if self._tasks else {}
        reset, context = self._reset or {}, self._context

        async def make_kwargs() -> dict[str, Any]:
            more = await THREADS.ask(lambda: reset(task.columns)) if callable(reset) else reset
            return {"seed": task.episode_seed, **task_kwargs, **more}

        asked = any(message["role"] == "user" for message in task.messages)
        question = "" if asked else question_of(task)
        episode = OpenEnvEpisode(context, make_kwargs, group=task.episode_seed, question=question)
        return await episode.begin()

    def list_tools(self) -> list[dict[str, Any]]:
        """The tools of an MCP environment as JSON schemas, for `ChatTemplateProcessor(tools=…)`.

        Raises:
            EnvError: no session is available, or the environment has no tools.
        """
        return self._context.loop.submit(self._context.list_tools).result()

    def close(self) -> None:
        """Close the sessions and end the servers that abut started; also called at exit."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(name: str, value: Any, holds: bool, allowed: str) -> None:
    if not holds:
        raise ValueError(f"OpenEnv({name}={value!r}): must be {allowed}")
