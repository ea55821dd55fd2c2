"""Rollouts of OpenEnv tests: the loop of `OpenEnvRolloutProcessor`, many at once.

The package's own loop calls environments on the event loop, so they play one after the other; it
repeats a step after an error; and if the user's `prompt_builder` fails, it shows the policy the
observation's repr. Here each environment has a thread, and a failure fails its rollout.

Invariant: a test's body finds in a row what that processor leaves there: the messages,
`execution_metadata.extra["step_rewards"]`, usage and duration.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from abut.agents.protocol import Endpoint
from abut.concurrency.threads import THREADS
from abut.envs.task import RolloutTask
from abut.errors import EnvError, text_of
from abut.eval_protocol.imports import import_for
from abut.eval_protocol.live_openenv import LiveOpenEnv
from abut.eval_protocol.openenv_source import OpenEnvSource

logger = logging.getLogger(__name__)

_NOT_SENT = ("model", "base_url", "api_key", "api_base", "system_prompt", "max_tokens")
_OF_LITELLM = ("use_caching", "cache_type", "redis_url", "num_retries", "retry_strategy")
_OVER = "context_length_exceeded"
_CLOSE_S = 5.0


class OpenEnvPlayer:
    """Plays the environments of one source.

    Args:
        source: makes the environments.
        completion_params: parameters of each turn's request; the trainer's sampling settings win.
        max_steps: the most steps of an episode.
        max_rollouts: the most rollouts at once; None: the whole batch.
        max_tokens: the most tokens of a turn; None: as many as the trainer allows.
    """

    has_steps = True

    def __init__(
        self,
        source: OpenEnvSource,
        completion_params: Mapping[str, Any],
        *,
        max_steps: int,
        max_rollouts: int | None,
        max_tokens: int | None,
    ) -> None:
        self._source = source
        left_out = (*_NOT_SENT, *_OF_LITELLM, "extra_body")
        self._asked = {k: v for k, v in completion_params.items() if k not in left_out}
        self._asked |= completion_params.get("extra_body") or {}
        self._system_prompt = completion_params.get("system_prompt")
        self._max_tokens = max_tokens
        self._max_steps = max_steps
        self.max_rollouts = max_rollouts
        self._client: Any = None
        self._has_imported = False
        self._closing: list[asyncio.Future[Any]] = []

    async def start(self) -> None:
        """Make the client that all rollouts of the batch share."""
        import openai

        source = self._source
        if not self._has_imported:
            self._has_imported = True
            theirs = (source.env_factory, source.prompt_builder, source.action_parser)
            await THREADS.ask(lambda: import_for(theirs))
        self._client = openai.AsyncOpenAI(
            base_url="http://each.rollout.has.its.own",
            api_key="too",
            # When a rollout ends, the gateway closes its connections, and another rollout may just
            # have reused one. A retry is safe: it gets the same sample.
            max_retries=5,
            timeout=None,
        )

    async def stop(self) -> None:
        """Wait a few seconds for environments to close; one that hangs keeps its thread."""
        client, self._client = self._client, None
        closing, self._closing = self._closing, []
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_S)
            for closed in closing:
                if not closed.done():
                    logger.warning("an OpenEnv environment did not close within %g s", _CLOSE_S)
                elif not closed.cancelled() and (error := closed.exception()) is not None:
                    logger.debug("an OpenEnv environment failed to close", exc_info=error)
        if client is not None:
            await client.close()

    async def play(self, row: Any, endpoint: Endpoint, task: RolloutTask) -> Any:
        """Play one episode."""
        env = LiveOpenEnv()
        try:
            await env.open(lambda: self._source.make(task.group))
            return await self._episode(row, endpoint, env)
        except Exception as error:
            if "CAPACITY_REACHED" not in str(error):
                raise
            raise EnvError(
                f"{text_of(error)}\nhint: the server has no free session: give the test "
                "max_concurrent_rollouts=, or use abut.openenv.OpenEnv, which waits for a free "
                "session"
            ) from error
        finally:
            self._closing.append(env.close())

    async def _episode(self, row: Any, endpoint: Endpoint, env: LiveOpenEnv) -> Any:
        from eval_protocol.models import Message

        began = time.perf_counter()
        messages, usage = list(row.messages), [0, 0, 0]
        rewards: list[float] = []
        history: list[str] = []
        if self._system_prompt and not any(message.role == "system" for message in messages):
            messages.insert(0, Message(role="system", content=self._system_prompt))
        result = await env.reset()
        if result.done:
            raise EnvError(
                "the environment was done right after reset\n"
                "hint: check the environment's task, which env_vars=, tasks= and env_factory= "
                "choose"
            )
        for step in range(1, self._max_steps + 1):
            if result.done:
                break
            build = self._source.prompt_builder
            # A copy of the history, because the user's function may keep it.
            asked = await env.beside(build, result.observation, step, list(history))
            messages.append(Message(role="user", content=asked))
            answer = await self._ask(endpoint, messages, usage)
            if answer is None:
                messages.pop()
                break
            messages.append(Message(role="assistant", content=answer))
            action = await env.beside(self._source.action_parser, answer)
            result = await env.step(action)
            rewards.append(float(result.reward or 0.0))
            history.append(_line(step, action, rewards[-1], result.observation))
        row.messages = messages
        metadata = row.execution_metadata
        metadata.usage = _usage_of(usage)
        metadata.rollout_duration_seconds = time.perf_counter() - began
        metadata.extra = {**(metadata.extra or {}), "step_rewards": rewards}
        return row

    async def _ask(self, endpoint: Endpoint, messages: list[Any], usage: list[int]) -> str | None:
        """Return the policy's answer; None if its budget is used up."""
        import openai

        client = self._client.with_options(base_url=endpoint.base_url, api_key=endpoint.api_key)
        limit = {} if self._max_tokens is None else {"max_tokens": self._max_tokens}
        try:
            reply = await client.chat.completions.create(
                model=endpoint.model,
                messages=[message.dump_mdoel_for_chat_completion_request() for message in messages],
                extra_body={**self._asked, **limit, "stream": False},
            )
        except openai.BadRequestError as error:
            if error.code == _OVER and endpoint.calls:
                return None  # the steps so far are scored
            raise
        if reply.usage is not None:
            counts = reply.usage
            usage[0] += counts.prompt_tokens
            usage[1] += counts.completion_tokens
            usage[2] += counts.total_tokens
        return reply.choices[0].message.content or ""


def _line(step: int, action: Any, reward: float, observation: Any) -> str:
    """Return a line about a step for the history of the next prompt."""
    said = getattr(action, "action_str", None) or str(action)
    if isinstance(observation, Mapping):
        failed = observation.get("last_action_error")
    else:
        failed = getattr(observation, "last_action_error", None)
    return f"Step {step}: {said} -> reward {reward:+.2f}{' ERROR' if failed else ''}"


def _usage_of(counts: list[int]) -> Any:
    from openai.types import CompletionUsage

    prompt, completion, total = counts
    return CompletionUsage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)
