"""Plays a rollout: attempts until one succeeds, each with a fresh environment.

Messages of a synchronous environment are written on its thread, so that each turn switches threads
only twice. For an asynchronous environment the batch's loop writes short messages itself, because
switching to a thread costs more than that; longer ones are written on a thread, because every
rollout waits for that loop.

An attempt that timed out is dropped completely, so later changes by its thread have no effect.
"""

import asyncio
import functools
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from abut.concurrency.clock import Deadline, DeadlineExpired, TimeLimit
from abut.concurrency.threads import THREADS
from abut.envs.attributes import check_extras
from abut.envs.foreign import placed
from abut.envs.source import task_envs
from abut.envs.task import RolloutTask
from abut.errors import (
    EnvError,
    ImageError,
    SamplerError,
    TemplateError,
    TokenizerError,
    TrajectoryError,
)
from abut.messages import Message, container_copy
from abut.rollout.batch import Batch
from abut.rollout.budget import Allowance
from abut.rollout.image_spans import images_before
from abut.rollout.live_env import Answer, LiveEnv
from abut.rollout.player import AnyEpisode, player_of
from abut.rollout.rollout import Rollout, StopReason
from abut.samplers.sampler import Sample, SampleRequest, check_sample

T = TypeVar("T")


# The errors of one rollout. Any other is the sampler's failure or a defect, and ends the batch.
_ROLLOUT_ERRORS = (EnvError, TokenizerError, TemplateError, ImageError)


class Episode:
    """One episode on one fresh environment."""

    def __init__(self, batch: Batch, task: RolloutTask, attempt: int) -> None:
        self._batch = batch
        self._config = batch.config
        self._task = task
        self._attempt = attempt
        self._env = LiveEnv(batch, task)
        self._deadline = Deadline()
        self._conversation = talk = batch.conversation(task.processor)
        made = task_envs(task)
        self._speak = None if made is None else made.spoken
        self.rollout = Rollout(
            task.rollout_id,
            task.index,
            messages=talk.messages,
            seams=talk.seams,
            tools=() if made is None else made.tools,
            control_spellings=talk.control_spellings,
        )

    @property
    def request_id(self) -> str:
        """The `rollout_id` of its requests for samples."""
        return self._task.rollout_id

    async def run(self, clock: TimeLimit) -> Rollout:
        """Play the episode to its end.

        Args:
            clock: the deadline of the attempt; paused while a model in this process samples, and
                while the rollout waits for an environment, because both depend on all other
                rollouts.

        Raises:
            EnvError: the environment failed; the episode may be retried with a fresh one.
            SamplerError: the sampler failed; training must stop.
        """
        if (pool := self._task.pool) is not None:
            # Without a slot of `env_slots`, because waiting rollouts would hold all slots, and the
            # rollout that has the environment could not take its next step.
            with clock.paused():
                await self._env.lend(pool)
        reset_timeout_s = self._config.reset_timeout_s
        await self._within("reset", reset_timeout_s, lambda: self._env.reset(self._open))
        while not await self._turn(clock):
            pass
        await self._score()
        return self._finish()

    def end(self) -> None:
        """End the attempt, and close its environment in the background."""
        self._deadline.close()
        self._env.end()

    @property
    def may_have_clashed(self) -> bool:
        """Return whether others may have caused a failure: they forked, or blocked its loop."""
        return self._env.may_have_clashed

    def spared_s(self) -> float:
        """The seconds that do not count for its deadline, because others blocked its loop."""
        return self._env.spared_s()

    def where(self) -> str:
        """The line that its environment is executing, for errors."""
        return self._env.where("step")

    def as_failed(self, error: str) -> Rollout:
        """Return a failed rollout: a copy, so that a thread which still plays cannot change it."""
        partial = self.rollout
        return Rollout(
            partial.rollout_id,
            partial.index,
            prompt_ids=partial.prompt_ids,
            turns=list(partial.turns),
            seams=list(partial.seams),
            messages=list(partial.messages or self._task.messages),
            control_spellings=dict(partial.control_spellings),
            stop_reason=StopReason.ERROR,
            error=error,
        )

    def _open(self, said: Sequence[Message]) -> None:
        """Write the prompt."""
        messages = [*self._task.messages, *said]
        if all(message["role"] == "system" for message in messages):
            messages.append(_empty_turn())  # there are no messages, so the policy begins
        try:
            self._conversation.open(messages)
        except (TemplateError, ImageError) as error:
            raise self._env.unwritable("reset", error, said) from error

    async def _turn(self, clock: TimeLimit) -> bool:
        """Play one turn; return whether the episode is over."""
        sample, generate_s = await self._sample(clock)
        timeout_s = self._config.step_timeout_s
        return await self._within("step", timeout_s, lambda: self._step(sample, generate_s))

    async def _sample(self, clock: TimeLimit) -> tuple[Sample, float]:
        """Sample one turn; return the sample and the seconds that it took."""
        left, reason = self._allowance()
        turn = len(self.rollout.turns)
        request = self._conversation.sample_request(
            max_tokens=left,
            seed=sample_seed(self._config.seed, self._task, self._attempt, turn),
            rollout_id=self._task.rollout_id,
            turn=turn,
            # Without the episode, because keeping a request would keep the environment alive.
            messages=functools.partial(_spoken, self._speak, self.rollout.messages),
            tools=self.rollout.tools,
        )
        if self.rollout.prompt_ids is None:
            self.rollout.prompt_ids = request.prompt_ids
        if request.max_tokens < 1:
            raise EnvError(
                f"the prompt has {len(request.prompt_ids)} tokens and leaves no room for sampled "
                f"tokens (limit: {reason.value})\n"
                f"hint: shorten the prompt, or raise {reason.value}"
            )
        began = time.monotonic()
        if self._batch.in_process:
            with clock.paused():
                sample = await self._batch.sample(request)
        else:
            sample = await self._sample_in_time(request)
        return check_sample(sample, request), time.monotonic() - began

    async def _sample_in_time(self, request: SampleRequest) -> Sample:
        seconds = self._config.turn_timeout_s
        try:
            return await self._deadline.keep(self._batch.sample(request), seconds)
        except DeadlineExpired:
            raise EnvError(
                f"turn {request.turn} was not sampled within turn_timeout_s={seconds:g}"
            ) from None

    async def _step(self, sample: Sample, generate_s: float) -> bool:
        """Pass the sample to the environment; return whether the episode is over."""
        hear = functools.partial(self._hear, sample, generate_s)
        if self._env.has_thread:
            over = await self._env.step_between(hear, self._answer)
            return over is None or over  # None: there was no action
        action = await self._write(self._conversation.is_quick(ids=sample.ids), hear)
        if action is None:
            return True
        answer = await self._env.step(action)
        quick = self._conversation.is_quick(messages=answer.messages or [_empty_turn()])
        return await self._write(quick, lambda: self._answer(answer))

    async def _write(self, quick: bool, write: Callable[[], T]) -> T:
        """Call `write` here if it is quick, otherwise on a thread.

        All rollouts share this loop, so slow work here would delay all of them.
        """
        return write() if quick else await THREADS.ask(write)

    def _hear(self, sample: Sample, generate_s: float) -> str | None:
        """Write the sample; return the action, or None for an empty sample."""
        rollout_id = self._task.rollout_id
        try:
            turn = self._conversation.hear(
                sample.ids, sample.logprobs, stop_string=sample.stop_string
            )
        except (TrajectoryError, TypeError) as error:
            raise SamplerError(f"rollout {rollout_id}: {error}") from error
        except SamplerError as error:
            raise SamplerError(f"rollout {rollout_id}, {error}") from None
        turn.record.note_sample(sample, generate_s)
        self.rollout.turns.append(turn.record)
        if turn.start == turn.end:
            self.rollout.stop_reason = StopReason.EMPTY_SAMPLE
            return None
        action = self._conversation.action(turn)
        if self._speak is not None:
            # Its text, not that of the message: it knows which control tokens are only spelled.
            (said,) = self._speak([{"role": "assistant", "content": turn.text}])
            turn.record.spoken = said
        return action

    def _answer(self, answer: Answer) -> bool:
        """Write the environment's reply; return whether the episode is over."""
        turn = self.rollout.turns[-1]
        turn.env_s, turn.reward = answer.seconds, answer.reward
        self._conversation.note(answer.messages)
        if not answer.alive:
            self.rollout.stop_reason = StopReason.ENV_DONE
            return True
        if len(self.rollout.turns) >= self._config.max_env_turns:
            self.rollout.stop_reason = StopReason.MAX_TURNS
            return True
        if not answer.messages:
            self._conversation.note([_empty_turn()])
        try:
            self._conversation.reply()
        except (TemplateError, ImageError) as error:
            raise self._env.unwritable("step", error, answer.messages) from error
        left, reason = self._allowance()
        if left < 1:
            self.rollout.stop_reason = reason
        return left < 1

    def _allowance(self) -> Allowance:
        self._conversation.budget = self._batch.budget()
        return self._conversation.allowance

    async def _score(self) -> None:
        """Let an environment that scores whole episodes score this one, however it ended."""
        # An empty sample took no step.
        stepped = [turn for turn in self.rollout.turns if turn.end > turn.start]
        if not self._env.scores_episode or not stepped:
            return
        # A copy, because changes would appear in the record and in the prompt of a retry.
        messages = container_copy(self.rollout.messages)
        stepped[-1].reward = await self._within(
            "score_episode",
            self._config.step_timeout_s,
            lambda: self._env.score_episode(messages),
        )

    def _finish(self) -> Rollout:
        rollout, trajectory = self.rollout, self._conversation.trajectory
        if rollout.sampled_tokens:
            rollout.columns = trajectory.columns()
            length = len(rollout.columns.prompt_ids) + len(rollout.columns.completion_ids)
            rollout.provenance = trajectory.provenance[:length]
            rollout.images = images_before(self._conversation.images, length)
        rollout.extras = self._env.extras
        rewards = rollout.step_rewards
        if rollout.stop_reason is StopReason.EMPTY_SAMPLE:
            rewards.pop()  # there was no action, so the last step belongs to the previous turn
        if self._config.reward == "sum":
            scored = [reward for reward in rewards if reward is not None]
            rollout.reward = sum(scored) if len(scored) == len(rewards) and rewards else None
        else:
            rollout.reward = rewards[-1] if rewards else None
        return rollout

    async def _within(self, what: str, timeout_s: float, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call in one of the slots for environments; waiting for a slot does not count."""
        slots = self._batch.env_slots
        await slots.take(len(self.rollout.turns))
        try:
            return await self._deadline.keep(call(), timeout_s, spared=self._env.waited_s)
        except DeadlineExpired:
            limit = "reset_timeout_s" if what == "reset" else "step_timeout_s"
            slow = EnvError(
                f"{self._env.name}.{what} did not answer within {limit}={timeout_s:g}"
                f"{self._env.held_up_by}"
            )
            raise placed(slow, self._env.where(what)) from None
        finally:
            slots.give()


async def play_rollout(batch: Batch, task: RolloutTask) -> Rollout:
    """Play one rollout: complete episodes until one succeeds or the retries are used up.

    Raises:
        EnvError: an extra of its environment has the name of another column.
    """
    began = time.monotonic()
    errors: list[str] = []
    traces: list[str] = []
    number, left = 0, batch.config.retries
    while True:
        episode = _episode(batch, task, number)
        try:
            rollout, may_pass = await _attempt(batch, episode, number)
        finally:
            episode.end()
        if rollout.error is not None:
            errors.append(rollout.error)
            traces += rollout.attempt_tracebacks
        rollout.attempts, rollout.attempt_errors = number + 1, errors
        rollout.attempt_tracebacks = traces
        rollout.seconds = time.monotonic() - began
        if not rollout.failed or not may_pass:
            break
        number += 1
        if episode.may_have_clashed:
            # Its class takes turns from now on, or has another loop, so this happens once.
            continue
        if not left:
            break
        left -= 1
    if rollout.failed and batch.config.on_failure == "zero":
        rollout.reward = 0.0
    if player_of(task) is None:
        check_extras(rollout.extras, task)  # here: no other attempt, and no other rollout, helps
    return rollout


def _episode(batch: Batch, task: RolloutTask, number: int) -> AnyEpisode:
    if (player := player_of(task)) is not None:
        return player.episode(batch, task, number)
    return Episode(batch, task, number)


async def _attempt(batch: Batch, episode: AnyEpisode, number: int) -> tuple[Rollout, bool]:
    """Play one episode; return its rollout, failed or not, and whether a retry may succeed."""
    with batch.attempts.plays(episode.request_id) as attempt:
        limit_s = batch.config.rollout_timeout_s
        try:
            async with TimeLimit(limit_s, episode.spared_s) as deadline:
                return await episode.run(deadline), True
        except _ROLLOUT_ERRORS as error:
            may_pass = not isinstance(error, EnvError) or error.may_pass
            return _failed(batch, episode, number, error), may_pass
        except TimeoutError:
            if not deadline.expired():
                raise
            slow = EnvError(f"the rollout took longer than rollout_timeout_s={limit_s:g}")
            return _failed(batch, episode, number, placed(slow, episode.where())), True
        except asyncio.CancelledError:
            # `update` cancels a stale attempt. If the batch ends in the same moment, it has
            # cancelled this task a second time, and then the batch must win.
            if not attempt.is_stale or attempt.task.uncancel():
                raise
            stale = episode.as_failed("")
            stale.stop_reason, stale.error, stale.reward = StopReason.STALE, None, None
            return stale, True


def _failed(batch: Batch, episode: AnyEpisode, number: int, error: Exception) -> Rollout:
    text, trace = batch.failures.note(error, episode.rollout.rollout_id, number)
    rollout = episode.as_failed(text)
    rollout.attempt_tracebacks = [trace]
    return rollout


def sample_seed(seed: int, task: RolloutTask, attempt: int, turn: int) -> int:
    """Return the seed of one turn: equal for equal config, task and attempt."""
    key = task.rollout_id if task.sample_key is None else task.sample_key
    parts = f"{seed}/{key}/{attempt}/{turn}"
    digest = hashlib.blake2b(parts.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _spoken(
    speak: Callable[[Sequence[Message]], list[Message]] | None, messages: Sequence[Message]
) -> Sequence[Message]:
    """Return the conversation so far, with the policy's calls as `tool_calls`."""
    return messages if speak is None else speak(messages)


def _empty_turn() -> Message:
    """Return an empty user turn: an environment that replies with nothing has not failed."""
    return {"role": "user", "content": ""}
