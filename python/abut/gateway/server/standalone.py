"""Rollouts without a trainer, of agents that are evaluated or recorded.

Invariant: the first request opens a rollout. The rollout ends once, with a reward or because no
request arrived for some time, and is then recorded. A rollout that has ended is not opened again.
"""

import asyncio
import itertools
import logging
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from abut.agents.protocol import AgentResult
from abut.concurrency.threads import THREADS
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.histories import Histories, find_open_ends, find_repeated
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.ledger.refusal import Refusal, ended, limit_reached
from abut.gateway.ledger.row import DRAWS_ROW, RowChoice, fill
from abut.gateway.ledger.writer import RunWriters
from abut.gateway.server.client_policy import ClientPolicy, SharedSampler
from abut.gateway.server.results import check_keys
from abut.records.recorder import FlushingRecorder, Recorder, ScoreRecorder, recorder_at
from abut.records.scores import score_record
from abut.rollout.budget import Budget, budget_of
from abut.rollout.named_rewards import give_rewards
from abut.rollout.rollout import Rollout, StopReason
from abut.samplers.sampler import BoundedSampler, ForgettingSampler

logger = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
# This many ended rollouts are distinguished from unknown ones. Clients choose the ids here, so an
# id does not show that its rollout belonged to this run.
_ENDED_KEPT = 2**17
_GRACE_S = 10.0
# An idle rollout may still be scored for an hour.
KEPT_S = 3600.0
_MOST_IDLE = 10_000


@dataclass(eq=False)
class _Live:
    """One rollout, from its first request to its end."""

    ledger: Ledger
    policy: ClientPolicy
    began: float
    idle: "asyncio.Task[None] | None" = None


class Standalone:
    """The rollouts of a gateway that serves without a trainer, on its loop.

    Attributes:
        ended: how many rollouts have ended.
        image_roles: see `SharedSampler`.
    """

    def __init__(
        self,
        shared: SharedSampler,
        *,
        recorder: Recorder | str | os.PathLike[str] | None,
        idle_s: float,
        session_header: str | None = None,
    ) -> None:
        """Begin without rollouts.

        Args:
            shared: draws their samples.
            recorder: keeps them when they have ended.
            idle_s: seconds without a request after which a rollout ends.
            session_header: see `Ledger`.
        """
        if not idle_s > 0:
            raise ValueError(f"idle_s={idle_s!r}: must be more than 0 seconds")
        if isinstance(recorder, str | os.PathLike):
            recorder = recorder_at(recorder)
        self.ended = 0
        self.image_roles = shared.image_roles
        self.on_open: Callable[[str], object] = lambda id_: None
        """Called with the id of a rollout that begins."""
        self.on_end: Callable[[str], object] = lambda id_: None
        """Called with the id of a rollout that has ended."""
        self._counted = (0, 0)
        self._shared = shared
        self._recorder = recorder
        self._idle_s = idle_s
        self._session_header = session_header
        self._run_id = secrets.token_hex(8)
        self._of_record = {"run_id": self._run_id, "tokenizer": shared.source}
        self._live: dict[str, _Live] = {}
        self._histories = Histories()
        """The histories of the rollouts that clients have not named."""
        self._ended_ids: OrderedDict[str, None] = OrderedDict()
        self._idle = IdleRollouts()
        self._numbers = itertools.count()
        self._stack = AsyncExitStack()
        self._stops = False

    @property
    def live(self) -> int:
        """How many rollouts have not ended."""
        return len(self._live)

    def answered(self, id_: str) -> int:
        """How many calls of live rollouts were answered."""
        live = self._live.get(id_)
        return 0 if live is None else live.ledger.answered_calls

    def counts(self, ledgers: Sequence[Ledger] | None = None) -> tuple[int, int]:
        """How many calls were answered and tokens sampled, by ended rollouts and by `ledgers`.

        None counts all live rollouts.
        """
        if ledgers is None:
            ledgers = [live.ledger for live in list(self._live.values())]
        calls, tokens = self._counted
        for ledger in ledgers:
            calls += ledger.answered_calls
            tokens += sum(call.sampled_tokens for call in list(ledger.calls))
        return calls, tokens

    async def start(self) -> None:
        """Enter the sampler.

        Raises:
            SamplerError: it cannot sample.
            ValueError: a rollout has no token limit.
        """
        sampler = self._shared.sampler
        if hasattr(sampler, "__aenter__"):
            await self._stack.enter_async_context(sampler)  # type: ignore[arg-type]
        try:
            self.bounds()
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self) -> None:
        """End all live rollouts, after their samples are drawn or take too long."""
        self._stops = True
        if busy := [task for live in self._live.values() for task in live.ledger.sampling]:
            await asyncio.wait(busy, timeout=_GRACE_S)
        for id_ in list(self._live):
            await self.end(id_, AgentResult(None))
        await self._stack.aclose()
        if isinstance(self._recorder, FlushingRecorder):
            await THREADS.ask(self._recorder.flush)

    async def ledger_of(
        self, id_: str | None, request: AgentRequest, digest: bytes, *, retried: bool
    ) -> Ledger:
        """Return the ledger of a request's rollout, found by its history if it is not named.

        Raises:
            Refusal: the rollout has ended.
        """
        if id_ is None:
            return self._found(request, digest, retried) or self._open_unnamed()
        if (live := self._live.get(id_)) is not None:
            return live.ledger
        self._require_not_ended(id_)
        check_id(id_)
        return self._open(id_)

    def ledger(self, id_: str) -> Ledger | None:
        """Return the ledger of a live rollout; None if no request has opened it so far.

        Raises:
            Refusal: the rollout has ended.
        """
        self._require_not_ended(id_)
        live = self._live.get(id_)
        return None if live is None else live.ledger

    @property
    def writers(self) -> RunWriters:
        """The tokenizer, and the writers of its template."""
        return RunWriters(self._shared.tokenizer, self._shared.writers)

    def refused(self, id_: str, refusal: Refusal) -> None:
        """Note that a rollout's request was refused; a first request opens it nevertheless."""
        live = self._live.get(id_)
        if live is None:
            if id_ in self._ended_ids or self._stops or _ID.fullmatch(id_) is None:
                return
            self._open(id_)
            live = self._live[id_]
        live.ledger.refusal, live.ledger.used = str(refusal), time.monotonic()

    async def end_or_score(self, id_: str, result: AgentResult) -> dict[str, Any]:
        """End a rollout, or score one that ended because it was idle; return a summary of it.

        Raises:
            Refusal: as for `end`, or the recorder does not take scores.
        """
        if id_ not in self._idle or result.reward is None:
            return said_of(await self.end(id_, result))
        if result.rewards or result.names:
            raise Refusal(
                f"this rollout ended because no request arrived for {self._idle_s:g} s, so you "
                "can still give its reward but no rewards or names\n"
                "hint: leave out rewards and names, or raise idle_s",
                param="rewards",
            )
        if (recorder := self._recorder) is not None:
            if not isinstance(recorder, ScoreRecorder):
                name = type(recorder).__name__
                raise Refusal(
                    f"this rollout is already recorded, and its recorder {name} has no method "
                    "write_scores to add a reward"
                )
            reward = float(result.reward)
            line = score_record(self._run_id, id_, {"reward": reward}, total=reward)
            await THREADS.ask(lambda: recorder.write_scores([line]))
        return self._idle.scored(id_, result.reward)

    def _require_not_ended(self, id_: str) -> None:
        if id_ in self._ended_ids:
            idle = id_ in self._idle
            raise ended(f"no request arrived for {self._idle_s:g} s" if idle else "")

    async def end(self, id_: str, result: AgentResult) -> Rollout:
        """End a rollout and record it.

        Raises:
            Refusal: there is no such rollout, it has ended, or the result has a reward that does
                not belong to anything in it.
        """
        if id_ in self._live:
            check_keys(self._live[id_].ledger, result)
        live = self._live.pop(id_, None)
        if live is None:
            self._require_not_ended(id_)
            raise Refusal(f"the gateway has no rollout {id_[:200]!r}", code="unknown_rollout")
        self._ended_ids[id_] = None
        if len(self._ended_ids) > _ENDED_KEPT:
            self._ended_ids.popitem(last=False)
        if live.idle is not None and live.idle is not asyncio.current_task():
            live.idle.cancel()
        self._histories.remove(live.ledger)
        await live.ledger.close()
        if isinstance(self._shared.sampler, ForgettingSampler):
            self._shared.sampler.forget(id_)
        self.on_end(id_)
        rollout = self._row(live, result)
        if (recorder := self._recorder) is not None:
            try:
                await THREADS.ask(lambda: recorder.write(rollout, **self._of_record))
            except Exception:
                logger.exception("could not record rollout %s", id_)
        return rollout

    # ---- which rollout

    def _found(self, request: AgentRequest, digest: bytes, retried: bool) -> Ledger | None:
        """Return the rollout that a request without a name continues.

        Of several rollouts with equal histories any one will do, but two requests must not get the
        same one, so it is claimed here, before anything is awaited.
        """
        if again := find_repeated(self._histories, request, digest, retried):
            return again[0]
        open_ends = find_open_ends(self._histories, request)
        if not open_ends:
            return None
        self._histories.claim(request, open_ends[0])
        return open_ends[0].ledger

    def _open_unnamed(self) -> Ledger:
        ledger = self._open(f"rollout-{secrets.token_hex(6)}")
        self._histories.add(ledger)
        return ledger

    def _open(self, id_: str) -> Ledger:
        if self._stops:
            raise limit_reached("the gateway is stopping")
        policy = ClientPolicy(self._shared, id_, self.bounds)
        ledger = Ledger(id_, policy, self._session_header)
        live = _Live(ledger, policy, time.monotonic())
        self._live[id_] = live
        self.on_open(id_)
        live.idle = asyncio.ensure_future(self._end_idle(id_, ledger))
        return ledger

    async def _end_idle(self, id_: str, ledger: Ledger) -> None:
        """End a rollout when no request has arrived for `idle_s`."""
        while (left_s := ledger.used + self._idle_s - time.monotonic()) > 0 or ledger.sampling:
            await asyncio.sleep(max(left_s, min(1.0, self._idle_s)))
        self._idle.add(id_, await self.end(id_, AgentResult(None)))

    def bounds(self) -> Budget:
        """Return the token limits of a conversation."""
        sampler = self._shared.sampler
        holds = sampler.max_context_tokens if isinstance(sampler, BoundedSampler) else None
        return budget_of(self._shared.config, holds)

    # ---- its row

    def _row(self, live: _Live, result: AgentResult) -> Rollout:
        ledger = live.ledger
        rollout = Rollout(ledger.rollout_id, next(self._numbers))
        rollout.seconds = time.monotonic() - live.began
        config = self._shared.config
        seed = live.policy.seed(DRAWS_ROW)
        choice = RowChoice(config.branch, seed=seed, auxiliary=config.auxiliary)
        fill(rollout, ledger, choice, result)
        give_rewards(rollout, self._shared.config.auxiliary)
        if live.policy.error is not None:
            rollout.stop_reason, rollout.error = StopReason.ERROR, live.policy.error
            rollout.reward = None
        elif rollout.columns is None:
            untrained = any(branch.delivered_calls for branch in ledger.branches)
            rollout.stop_reason = StopReason.ERROR
            rollout.error = f"no call {'that would be trained ' * untrained}was answered"
            if ledger.refusal is not None:
                rollout.error += f"; the last one was refused: {ledger.refusal}"
        self.ended += 1
        self._counted = self.counts([ledger])
        return rollout


def check_id(id_: str) -> None:
    """Refuse a string that is not a valid rollout id.

    Raises:
        Refusal: it is too long, or has other characters.
    """
    if _ID.fullmatch(id_) is None:
        raise Refusal(
            f"{id_[:200]!r} is not a valid rollout id: an id has 1 to 200 letters, digits, '_', "
            "'-' and '.'",
            code="unknown_rollout",
        )


class IdleRollouts:
    """Rollouts that ended because they were idle, oldest first; each can still be scored once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    def __contains__(self, id_: object) -> bool:
        self._drop_old()
        return id_ in self._kept

    def add(self, id_: str, rollout: Rollout) -> None:
        """Keep the summary of a rollout."""
        self._kept[id_] = time.monotonic(), said_of(rollout)
        self._drop_old()
        while len(self._kept) > _MOST_IDLE:
            self._kept.popitem(last=False)

    def scored(self, id_: str, reward: float) -> dict[str, Any]:
        """Return the summary with a reward, and forget the rollout."""
        return self._kept.pop(id_)[1] | {"reward": reward}

    def _drop_old(self) -> None:
        before = time.monotonic() - KEPT_S
        while self._kept and next(iter(self._kept.values()))[0] < before:
            self._kept.popitem(last=False)


def said_of(rollout: Rollout) -> dict[str, Any]:
    """Return a summary of a rollout, the answer to a request that ends it."""
    return {
        "rollout_id": rollout.rollout_id,
        "reward": rollout.reward,
        "turns": len(rollout.turns),
        "branches": len(rollout.branches),
        "stop_reason": rollout.stop_reason.value,
        "error": rollout.error,
    }
