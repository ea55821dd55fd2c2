"""One attempt at a rollout: an environment, a trajectory, and the turns between them.

Everything that is not waiting happens in `_begin`, `_observe` and `_answer`, which run on worker
threads: the event loop only waits. An attempt that timed out is dropped whole, so whatever such a
thread still does to it is seen by nobody.
"""

import asyncio
import inspect
import threading
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from abut._native import Seam, Trajectory
from abut.deadline import Deadline, DeadlineExpired
from abut.env import (
    EnvPool,
    Reply,
    accepted_keywords,
    check_no_awaitable,
    check_reply,
    close_env,
    env_alive,
    env_attribute,
    env_reward_value,
    is_async,
    is_pool,
    lend_env,
    make_env,
)
from abut.error_text import text_of
from abut.errors import EnvError, SamplerError, TrajectoryError
from abut.messages import Message, container_copy, texts_of
from abut.rollout import Rollout, RolloutTask, StopReason, TurnRecord
from abut.sampler import Sample, SampleRequest, check_sample
from abut.turn_close import stops_in, turn_close

if TYPE_CHECKING:
    from abut.engine import Engine

T = TypeVar("T")


class Episode:
    """One episode on one fresh environment."""

    def __init__(self, engine: "Engine", task: RolloutTask, attempt: int) -> None:
        self._engine = engine
        self._config = engine.config
        self._processor = task.processor or engine.processor
        self._stop_token_ids = engine.stop_token_ids(self._processor)
        self._task = task
        self._attempt = attempt
        self._env: Any = None
        self._claimed: Any = None
        self._lock = threading.Lock()
        self._over = False
        self._deadline = Deadline()
        self._trajectory = Trajectory(engine.tokenizer)
        self.rollout = Rollout(task.rollout_id, task.index, messages=list(task.messages))

    async def run(self, clock: asyncio.Timeout) -> Rollout:
        """Play the episode to its end.

        Args:
            clock: the deadline of the attempt; it stands still while a model in this process
                samples, and while the rollout waits in line for an environment, since that is
                also the time of all other rollouts.

        Raises:
            EnvError: the environment failed; the episode may be tried again on a fresh one.
            SamplerError: the sampler failed; training must stop.
        """
        if is_pool(self._task.make_env):
            with _stopped(clock):
                await self._lend(self._task.make_env)  # type: ignore[arg-type]
        await self._within("reset", self._config.reset_timeout_s, self._reset)
        while not await self._turn(clock):
            pass
        await self._score()
        return self._finish()

    def end(self) -> Any:
        """End the attempt; returns the environment to close, None where none was made."""
        self._deadline.close()
        with self._lock:
            self._over = True
            self._engine.release(self._claimed)
            return self._env

    async def _lend(self, pool: EnvPool) -> None:
        # Outside of `env_slots`: rollouts that wait in line would keep the one with the
        # environment from its next step.
        env = await lend_env(pool, self._task)
        self._claim(env)
        self._env = env

    def _claim(self, env: Any) -> None:
        self._engine.claim(env)
        # Held until the end: an address is only one environment's while that lives.
        self._claimed = env

    def _make(self) -> None:
        env = make_env(self._task.make_env)  # type: ignore[arg-type]
        with self._lock:
            late = self._over
            if not late:
                self._claim(env)
                self._env = env
        if late:  # the attempt timed out meanwhile, and nobody else knows this environment
            close_env(env)

    async def _reset(self) -> None:
        task = self._task
        if self._env is None:
            await self._on_thread(self._make)
        keywords = accepted_keywords(self._env, task.columns, task.episode_seed)
        if is_async(self._env):
            returned = await self._on_env_loop(
                "reset", lambda: self._env.reset(task.seed, **keywords)
            )
            await self._on_thread(lambda: self._begin(returned))
        else:
            await self._on_thread(
                lambda: self._begin(self._call_env("reset", task.seed, **keywords))
            )

    def _begin(self, returned: Any) -> None:
        self._env, reply = check_reply(self._env, "reset", returned)
        if not env_alive(self._env):
            raise EnvError(
                f"{type(self._env).__name__}.alive is False after reset\n"
                "hint: reset must set alive to True, also on an environment that was used before"
            )
        self.rollout.messages += _messages_of(reply)
        if all(message["role"] == "system" for message in self.rollout.messages):
            # Nobody has said anything: the policy begins, after an empty user turn.
            self.rollout.messages.append(_said(""))
        self._count_spellings(self.rollout.messages)
        opening = self._processor.opening(self.rollout.messages)
        self._note(self._trajectory.append_parts(opening, provenance="prompt"))

    async def _turn(self, clock: asyncio.Timeout) -> bool:
        """Play one turn; returns whether the episode is over."""
        sample, turn = await self._sample(clock)
        timeout_s = self._config.step_timeout_s
        return await self._within("step", timeout_s, lambda: self._step(sample, turn))

    async def _sample(self, clock: asyncio.Timeout) -> tuple[Sample, TurnRecord]:
        """Sample one turn: what was sampled, and what is known of the turn before it is written."""
        request = SampleRequest(
            prompt_ids=self._trajectory.request(),
            max_tokens=self._budget()[0],
            stop_token_ids=self._stop_token_ids,
            seed=self._engine.sample_seed(self._task, self._attempt, len(self.rollout.turns)),
            rollout_id=self._task.rollout_id,
            turn=len(self.rollout.turns),
        )
        if self.rollout.prompt_ids is None:
            self.rollout.prompt_ids = request.prompt_ids
        if request.max_tokens < 1:
            raise EnvError(
                f"the prompt has {len(request.prompt_ids)} tokens and leaves no room for a sample"
                f" ({self._budget()[1].value})\n"
                "hint: shorten the prompt, or raise max_context_tokens"
            )
        began = time.monotonic()
        if self._engine.in_process:
            with _stopped(clock):
                sample = await self._engine.sample(request)
        else:
            sample = await self._sample_in_time(request)
        generate_s = time.monotonic() - began
        sample = check_sample(sample, request)
        start = len(request.prompt_ids)
        return sample, TurnRecord(start, start + len(sample.ids), sample.finish_reason, generate_s)

    async def _sample_in_time(self, request: SampleRequest) -> Sample:
        seconds = self._config.turn_timeout_s
        try:
            return await self._deadline.keep(self._engine.sample(request), seconds)
        except DeadlineExpired:
            raise EnvError(
                f"turn {request.turn} was not sampled within turn_timeout_s={seconds:g}"
            ) from None

    async def _step(self, sample: Sample, turn: TurnRecord) -> bool:
        """Hand the sample to the environment; returns whether the episode is over."""
        if is_async(self._env):
            action = await self._on_thread(lambda: self._observe(sample, turn))
            if action is None:
                return True
            began = time.monotonic()
            returned = await self._on_env_loop("step", lambda: self._env.step(action))
            env_s = time.monotonic() - began
            return await self._on_thread(lambda: self._answer(sample, returned, env_s))

        def observe_step_answer() -> bool:
            action = self._observe(sample, turn)
            if action is None:
                return True
            began = time.monotonic()
            returned = self._call_env("step", action)
            return self._answer(sample, returned, time.monotonic() - began)

        return await self._on_thread(observe_step_answer)

    def _observe(self, sample: Sample, turn: TurnRecord) -> str | None:
        """Write the sample; return the action, or None where nothing was sampled."""
        try:
            self._note(self._trajectory.append_sampled(sample.ids, sample.logprobs))
        except (TrajectoryError, TypeError) as error:
            raise SamplerError(f"rollout {self._task.rollout_id}: {error}") from error
        self.rollout.turns.append(turn)
        if not len(sample.ids):
            self.rollout.stop_reason = StopReason.EMPTY_SAMPLE
            return None
        text = self._spoken(sample, turn)
        self.rollout.messages.append({"role": "assistant", "content": text})
        return self._processor.parse_agent_output(text)[1]

    def _spoken(self, sample: Sample, turn: TurnRecord) -> str:
        """The text before what ended the turn, which is noted in `turn`."""
        tokenizer, ids = self._engine.tokenizer, sample.ids
        if stops := stops_in(ids, self._stop_token_ids):
            turn.stop_token = turn.start + stops[0]
            ids = ids[: stops[0]]
        if sample.stop_string is None:
            return tokenizer.decode(ids)

        def bytes_before(token: int) -> bytes:
            return tokenizer.decode_bytes(ids[:token])

        spoken = bytes_before(len(ids))
        at = spoken.find(sample.stop_string.encode())
        if at < 0 or not sample.stop_string:
            raise SamplerError(
                f"rollout {self._task.rollout_id}, turn {len(self.rollout.turns) - 1}: the sample "
                f"ended on the stop string {sample.stop_string!r}, which is not in its text\n"
                "hint: return all sampled ids, those of the stop string included"
            )
        token = bisect_right(range(1, len(ids)), at, key=lambda end: len(bytes_before(end)))
        turn.stop_token, turn.stop_string = turn.start + token, sample.stop_string
        turn.stop_inside = at > len(bytes_before(token))
        return spoken[:at].decode("utf-8", errors="replace")

    def _answer(self, sample: Sample, returned: Any, env_s: float) -> bool:
        """Write the env's reply; returns whether the episode is over."""
        self._env, reply = check_reply(self._env, "step", returned)
        turn = self.rollout.turns[-1]
        turn.env_s = env_s
        turn.reward = env_reward_value(self._env)
        messages = _messages_of(reply)
        self.rollout.messages += messages
        self._count_spellings(messages)
        if not env_alive(self._env):
            self.rollout.stop_reason = StopReason.ENV_DONE
            return True
        if len(self.rollout.turns) >= self._config.max_turns:
            self.rollout.stop_reason = StopReason.MAX_TURNS
            return True
        if not messages:
            # An env that has nothing to say is no failure: its silence is an empty user turn.
            messages = [_said("")]
            self.rollout.messages += messages
        # Cut by length, or ended on another stop token: the template needs its own close.
        closing = turn_close(
            self._processor,
            self._engine.tokenizer,
            sample.ids,
            messages,
            stop_token_ids=self._stop_token_ids,
        )
        if closing:
            self._note(self._trajectory.append_parts(closing, provenance="close"))
        increment = self._processor.increment(messages)
        self._note(self._trajectory.append_parts(increment))
        left, reason = self._budget()
        if left < 1:
            self.rollout.stop_reason = reason
        return left < 1

    async def _score(self) -> None:
        """Let an env that scores whole episodes do so, whatever ended this one."""
        score = env_attribute(self._env, "score_episode")
        # An empty sample took no step.
        stepped = [turn for turn in self.rollout.turns if turn.end > turn.start]
        if score is None or not stepped:
            return
        # A copy: what it changes there would be in the record, and in the prompt of a retry.
        method, messages = "score_episode", container_copy(self.rollout.messages)

        def ask() -> Awaitable[Any]:
            if is_async(self._env):
                return self._on_env_loop(method, lambda: score(messages))
            return self._on_thread(
                lambda: check_no_awaitable(self._env, method, self._call_env(method, messages))
            )

        await self._within(method, self._config.step_timeout_s, ask)
        stepped[-1].reward = env_reward_value(self._env)

    def _count_spellings(self, messages: Sequence[Message]) -> None:
        """Count the control tokens that somebody spells who is neither developer nor policy."""
        counts = self.rollout.control_spellings
        for message in messages:
            if message["role"] in ("system", "developer", "assistant"):
                continue
            for text in texts_of(message):
                for _, token in self._engine.tokenizer.control_spellings(text):
                    counts[token] = counts.get(token, 0) + 1

    def _budget(self) -> tuple[int, StopReason]:
        """How many tokens the next turn may have, and which limit would end the rollout."""
        length = len(self._trajectory)
        turns = self.rollout.turns
        prompt = turns[0].start if turns else length
        limits = self._engine.limits
        left, reason = (
            limits.max_completion_tokens - (length - prompt),
            StopReason.MAX_COMPLETION_TOKENS,
        )
        context = self._engine.max_context_tokens
        if context is not None and context - length < left:
            left, reason = context - length, StopReason.MAX_CONTEXT_TOKENS
        if self._config.max_turn_tokens is not None:
            left = min(left, self._config.max_turn_tokens)
        return left, reason

    def _finish(self) -> Rollout:
        rollout = self.rollout
        if rollout.sampled_tokens:
            rollout.columns = self._trajectory.columns()
            length = len(rollout.columns.prompt_ids) + len(rollout.columns.completion_ids)
            rollout.provenance = self._trajectory.provenance[:length]
        rewards = rollout.step_rewards
        if rollout.stop_reason is StopReason.EMPTY_SAMPLE:
            rewards.pop()  # there was no action, so the env's last step is that of the turn before
        if self._config.reward == "sum":
            scored = [reward for reward in rewards if reward is not None]
            rollout.reward = sum(scored) if len(scored) == len(rewards) and rewards else None
        else:
            rollout.reward = rewards[-1] if rewards else None
        return rollout

    def _note(self, seam: Seam) -> None:
        self.rollout.seams.append((seam.kind, seam.exact))

    def _call_env(self, method: str, /, *args: Any, **keywords: Any) -> Any:
        try:
            return getattr(self._env, method)(*args, **keywords)
        except BaseException as error:  # SystemExit of an environment does not end training
            raise self._env_raised(method, error) from error

    def _env_raised(self, method: str, error: BaseException) -> EnvError:
        if isinstance(error, EnvError):
            return error  # says already what failed
        name = f"{type(self._env).__name__}.{method}"
        return EnvError(f"{name} raised {text_of(error)}")

    def _on_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        return self._engine.threads.ask(call, self._engine.mailbox)

    def _on_env_loop(self, method: str, call: Callable[[], Any]) -> Awaitable[Any]:
        async def run() -> Any:
            try:
                awaitable = call()
                if inspect.isawaitable(awaitable):
                    return await awaitable
            except BaseException as error:
                raise self._env_raised(method, error) from error
            raise EnvError(
                f"{type(self._env).__name__}.{method} is not async, but step is\n"
                "hint: make reset and step both `async def`"
            )

        return self._engine.env_loop.ask(run, self._engine.mailbox)

    async def _within(self, what: str, timeout_s: float, call: Callable[[], Awaitable[T]]) -> T:
        """Call it in one of the slots for environments; the wait for the slot is not counted."""
        slots = self._engine.env_slots
        await slots.take(len(self.rollout.turns))
        try:
            return await self._deadline.keep(call(), timeout_s)
        except DeadlineExpired:
            name = getattr(self._task.make_env, "__name__", "the environment")
            if self._env is not None:
                name = type(self._env).__name__
            limit = "reset_timeout_s" if what == "reset" else "step_timeout_s"
            raise EnvError(f"{name}.{what} did not answer within {limit}={timeout_s:g}") from None
        finally:
            slots.give()


@contextmanager
def _stopped(clock: asyncio.Timeout) -> Iterator[None]:
    due, began = clock.when(), time.monotonic()
    clock.reschedule(None)
    yield
    clock.reschedule(None if due is None else due + time.monotonic() - began)


def _messages_of(reply: Reply) -> list[Message]:
    """Return the messages of a reply: a non-empty string is a user turn."""
    if isinstance(reply, str):
        return [_said(reply)] if reply else []
    return list(reply)


def _said(text: str) -> Message:
    return {"role": "user", "content": text}
