"""The ledger of one rollout: an agent's calls, and the conversations that they make.

Invariant: each prompt that the engine gets is a prefix of a branch, and each sample is in its
branch as it was sampled. A request continues where its history ends; if that history is unknown or
was changed, the request begins a new branch. Calls are placed one after the other, because the
place of each depends on those before it, but they are sampled concurrently.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from abut._native import Tokenizer
from abut.concurrency.threads import work_done
from abut.errors import SamplerError, TemplateError, TrajectoryError
from abut.gateway.ledger import prompt
from abut.gateway.ledger.agent_call import (
    AgentCall,
    AgentRequest,
    PolicyAnswer,
    answer_of,
)
from abut.gateway.ledger.branch import LedgerBranch, find_continuation, seen_in, why_root
from abut.gateway.ledger.callers import Caller, Callers
from abut.gateway.ledger.comparable import NewCallIds
from abut.gateway.ledger.matching import History
from abut.gateway.ledger.policy import LedgerObserver, Policy, rollout_allowance
from abut.gateway.ledger.refusal import (
    Refusal,
    conversation_full,
    ended,
    limit_reached,
    no_turn_behind_answer,
)
from abut.gateway.ledger.repeats import PendingRequest, Repeats
from abut.gateway.ledger.writer import Writer
from abut.rollout.budget import Allowance
from abut.rollout.rollout import BranchCause, StopReason
from abut.samplers.sampler import Sample, SampleRequest, check_sample


class Ledger:
    """The calls and branches of one rollout, on the loop of the gateway.

    Attributes:
        rollout_id: the id of the rollout, with its attempt.
        branches: its conversations, in the order in which they began.
        calls: all calls that were placed.
        refused: the limit (or empty sample) that ended the rollout, or that its last refusal named.
        refusal: the message of its last refusal.
        client_rewrites: how often a client changed a message of the policy, by rule.
        tool_choice_unmet: how often a client required a call and the policy did not sample one.
    """

    def __init__(self, rollout_id: str, policy: Policy, session_header: str | None = None) -> None:
        self.rollout_id = rollout_id
        self.branches: list[LedgerBranch] = []
        self.calls: list[AgentCall] = []
        self.refused: StopReason | None = None
        self.refusal: str | None = None
        self.client_rewrites: Counter[str] = Counter()
        self.tool_choice_unmet = 0
        self.callers = Callers(session_header)
        """The parts of the agent that send requests."""
        self.used = time.monotonic()
        """The time of its last request, by the monotonic clock."""
        self.observer: LedgerObserver | None = None
        """An index that finds the rollout by its messages, if requests may leave out its id."""
        self._repeats = Repeats()
        self._policy = policy
        self._lock = asyncio.Lock()
        self._end_refusal: Callable[[], Refusal] | None = None  # None while it is live
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references
        self._sampling: set[asyncio.Task[Any]] = set()
        self._deliveries = 0
        # Mostly empty, so that a request need not look at all calls before it.
        self._undelivered: set[AgentCall] = set()
        self._new_call_ids = NewCallIds()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the policy."""
        return self._policy.tokenizer

    @property
    def answered_calls(self) -> int:
        """How many calls have an answer."""
        return sum(call.sample is not None for call in self.calls)

    @property
    def allowance(self) -> Allowance:
        """How many tokens the rollout may still sample, over all conversations."""
        return rollout_allowance(self._policy, self.calls)

    @property
    def sampling(self) -> Collection[asyncio.Task[Any]]:
        """The tasks that are drawing samples."""
        return tuple(self._sampling)

    def fits_again(self, request: AgentRequest, digest: bytes, retried: bool) -> int:
        """Return how well a request fits as a repetition, see `Repeats.fit`."""
        return self._repeats.fit(self.callers.of(request).digest(digest), retried)

    def end(self, why: str, reason: StopReason | None = None) -> None:
        """Refuse all requests from now on for `why`; `reason` is the limit reached, if any."""
        if self._end_refusal is None:
            self._end_refusal = lambda: limit_reached(why)
            self.refused = reason or self.refused
        for task in self._sampling:
            task.cancel()

    async def close(self) -> None:
        """End the rollout, and wait until it no longer changes."""
        self._end_refusal = self._end_refusal or ended
        self.end("")  # cancels the samples; the refusal above remains
        if self._sampling:
            await asyncio.wait(self._sampling)
        async with self._lock:  # held while a prompt or an answer is being written
            pass

    def ask(
        self, request: AgentRequest, *, digest: bytes, retried: bool, is_open: Callable[[], bool]
    ) -> PendingRequest:
        """Place a request and draw its sample, in a task that continues if the client hangs up.

        A single task, because each further task would cost every call some loop iterations.

        Args:
            request: of the client.
            digest: of the body; equal bodies have the same one.
            retried: whether the client says that it repeats a request.
            is_open: returns whether the client still listens.

        Raises:
            Refusal: the request follows an answer that is not of this rollout.
        """
        request = prompt.with_history(request, self.calls)
        loop = asyncio.get_running_loop()
        placed, answered = loop.create_future(), loop.create_future()
        caller = self.callers.of(request)
        own = caller.digest(digest)
        pending = PendingRequest(request, own, retried, is_open, placed, answered, caller)
        # Now, and not in the task: another client that sends the same body meanwhile would be given
        # the same sample.
        pending.reused = self._reused(pending)
        self._repeats.wait(pending)
        if self.observer is not None:
            self.observer.asked(self, digest)
        task = loop.create_task(self._answer(pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pending

    async def count(self, request: AgentRequest) -> int:
        """Return how many tokens the prompt of a request would have, without placing it."""
        writer = await self._policy.writer_of(request)
        conversation = self._policy.conversation(writer.processor)
        async with self._lock:
            branches = self._branches_of(self.callers.of(request))
            return await prompt.length(request, writer, conversation, branches, self.calls)

    def delivered(self, call: AgentCall) -> None:
        """Note that an answer was delivered."""
        if not call.delivered:
            self._undelivered.discard(call)
            call.delivered, call.delivery = True, self._deliveries
            call.heard_at = self.used = time.monotonic()
            self._deliveries += 1

    async def _answer(self, pending: PendingRequest) -> None:
        try:
            call, turn = await self._call(pending)
            pending.set_placed(call)
            if turn is None:
                await asyncio.wait((call.answered,))
            else:
                await self._sample(call, *turn)
            call.answered.result()
        except BaseException as error:  # raised where the client is answered
            self._settled(pending)
            pending.fail(error)
        else:
            pending.set_answered(call)

    def _settled(self, pending: PendingRequest, call: AgentCall | None = None) -> None:
        self._repeats.settle(pending, call)
        if self.observer is not None:
            self.observer.settled(pending.request)

    async def _call(
        self, pending: PendingRequest
    ) -> tuple[AgentCall, tuple[LedgerBranch, SampleRequest] | None]:
        """Return the call of a request, and the turn to sample for it.

        None as the turn: the request gets the sample of an earlier call.

        Raises:
            Refusal: the request gets no answer.
        """
        self.used = time.monotonic()
        self.callers.note(pending.caller)
        self._require_open()
        if pending.reused is not None:
            self._settled(pending)
            return pending.reused, None
        request = pending.request
        writer = await self._policy.writer_of(request)
        self._policy.note(request)
        async with self._lock:
            self._require_open()
            # Check again, because a client may have hung up meanwhile, which frees its sample.
            if (call := self._reused(pending)) is not None:
                self._settled(pending)
                return call, None
            left, limit = self.allowance
            if left < 1:
                why = f"the rollout has used up {limit}"
                raise self._out_of(limit_reached(why, reason=limit))
            branch = await self._place(pending, writer)
            turn = branch.conversation.sample_request(
                max_tokens=min(left, self._tokens_left(branch, request)),
                seed=self._policy.seed(len(self.calls)),
                rollout_id=self.rollout_id,
                turn=len(branch.calls),
                stop=request.stop,
                messages=lambda: request.messages,
                tools=request.tools or (),
            )
            call = pending.as_call(len(self.calls))
            self.calls.append(call)
            self._undelivered.add(call)
            self._settled(pending, call)
            branch.sampling = True
            return call, (branch, turn)

    # ---- which branch a request continues

    def _reused(self, pending: PendingRequest) -> AgentCall | None:
        """Give a request the sample of an earlier call, if the request is a repeated one."""
        if (call := self._repeats.before(pending.digest, pending.retried)) is not None:
            call.is_open, call.delivered = pending.is_open, False
            self._undelivered.add(call)
        return call

    def _branches_of(self, caller: Caller) -> list[LedgerBranch]:
        return [branch for branch in self.branches if branch.caller == caller]

    async def _place(self, pending: PendingRequest, writer: Writer) -> LedgerBranch:
        """Return the branch in which the request is answered, with all its messages."""
        request, caller = pending.request, pending.caller
        branches = self._branches_of(caller)
        seen = seen_in(self.branches, request.messages)
        history = History(request.messages, seen, writer.joints)
        place = find_continuation(branches, request.frame, history, request.dialect)
        if place is None:
            why = why_root(branches, request.frame, history, request.dialect)
            why = why or ("new" if self.branches else None)
            return await self._new_root(pending, writer, history, why and (request.origin or why))
        branch, found, again = place
        for call in branch.calls[: found.turns] if self._undelivered else ():
            if not call.delivered:
                self.delivered(call)  # its text is in the request
        if found.rewrites:
            self.client_rewrites.update(found.rewrites)
        self._require_turns(found.turns)
        if again:
            target = branch.asked_again(found)
            if target is not branch:
                self.branches.append(target)
            return target
        entries = found.answered_entries
        if self.observer is not None:
            self.observer.passed(self, branch, entries)
        at = branch.conversation.turns[found.turns - 1].end
        # If a turn was begun there and its sample was refused, the trajectory continues after the
        # answer, although the messages do not.
        if entries == len(branch.entries) and at == len(branch.conversation.trajectory):
            target = branch
        else:
            target = branch.forked(
                entries, branch.conversation.fork(at), request.origin or "rewritten"
            )
        target.note_env_time()
        try:
            messages = prompt.with_reasoning(target.in_own_ids(history, found), self.calls)
            await prompt.write_reply(target, messages, request.dialect)
        except TemplateError as error:
            if request.messages[-1]["role"] == "assistant":
                raise no_turn_behind_answer(error) from error
            return await self._new_root(pending, writer, history, "template")
        target.say(history, found)
        if target is not branch:
            self.branches.append(target)
        return target

    async def _new_root(
        self, pending: PendingRequest, writer: Writer, history: History, cause: BranchCause | None
    ) -> LedgerBranch:
        """Return a new conversation, as the template renders it."""
        request = pending.request
        conversation = self._policy.conversation(writer.processor)
        branch = LedgerBranch(request.frame, writer, conversation, cause, caller=pending.caller)
        messages = prompt.with_reasoning(request.messages, self.calls)
        await prompt.write_opening(conversation, writer, messages, self._names(), request.dialect)
        branch.say(history)
        self.branches.append(branch)
        return branch

    def _names(self) -> dict[str, str]:
        """Return the tool that each call of the rollout names, by the call's id."""
        return {id_: name for other in self.branches for id_, name in other.names.items()}

    # ---- limits

    def _require_open(self) -> None:
        if self._end_refusal is not None:
            raise self._end_refusal()

    def _require_turns(self, turns: int) -> None:
        limit = self._policy.max_turns
        if limit is not None and turns >= limit:
            why = f"the conversation has reached max_turns={limit}"
            raise self._out_of(limit_reached(why, reason=StopReason.MAX_TURNS))

    def _tokens_left(self, branch: LedgerBranch, request: AgentRequest) -> int:
        branch.conversation.budget = self._policy.budget()
        left, reason = branch.conversation.allowance
        if left < 1:
            length = len(branch.conversation.trajectory)
            why = f"the conversation has {length} tokens, so {reason.value} leaves no room"
            raise self._out_of(conversation_full(why, reason, length + 1, length + left))
        return left if request.max_tokens is None else min(left, request.max_tokens)

    def _out_of(self, refusal: Refusal) -> Refusal:
        self.refused = refusal.reason
        return refusal

    # ---- samples

    async def _sample(self, call: AgentCall, branch: LedgerBranch, request: SampleRequest) -> None:
        """Draw a turn and write it, whether or not the client still listens."""
        task = asyncio.current_task()
        assert task is not None
        self._sampling.add(task)
        try:
            sample = check_sample(await self._policy.sample(request, call.request), request)
            if not len(sample.ids):
                self.end("the sampler returned no tokens", StopReason.EMPTY_SAMPLE)
                raise limit_reached("the sampler returned no tokens")
            async with self._lock:
                answer = await self._heard(branch, call, request, sample)
            call.generate_s = time.monotonic() - call.asked_at
            call.answered.set_result(answer)
            branch.hear(call)
            if self.observer is not None:
                self.observer.heard(self, branch)
        except asyncio.CancelledError:  # `end` cancelled it, and the client gets a refusal
            call.refuse(self._end_refusal() if self._end_refusal else ended())
        except Refusal as refusal:
            self.refused = refusal.reason or self.refused
            call.refuse(refusal)
        except Exception as error:
            self.end("sampling from the policy failed")
            call.refuse(limit_reached("sampling from the policy failed"))
            self._policy.failed(error)
        finally:
            branch.sampling = False
            self._sampling.discard(task)

    async def _heard(
        self, branch: LedgerBranch, call: AgentCall, request: SampleRequest, sample: Sample
    ) -> PolicyAnswer:
        conversation, chat = branch.conversation, call.request

        def hear() -> PolicyAnswer:
            turn = conversation.hear(sample.ids, sample.logprobs, stop_string=sample.stop_string)
            call.turn, call.sample = turn, sample
            return answer_of(
                turn.text,
                branch.writer.processor,
                branch.writer.call_reader,
                chat,
                id=f"{chat.dialect.id_prefix}{self.rollout_id}-{call.number}",
                number=call.number,
                cut=sample.finish_reason == "length",
                stop_string=sample.stop_string,
                call_id=self._new_call_ids.of,
                prompt_ids=request.prompt_ids,
                ids=sample.ids,
                logprobs=sample.logprobs,
            )

        try:
            answer = await work_done(conversation.is_quick(ids=sample.ids), hear)
        except (TrajectoryError, TypeError, SamplerError) as error:
            raise SamplerError(f"rollout {self.rollout_id}: {error}") from error
        self.tool_choice_unmet += "tool_choice" in chat.unmet and "tool_calls" not in answer.message
        return answer
