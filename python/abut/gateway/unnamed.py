"""Whose request it is that names no rollout: one whose history it goes on with, or repeats.

Invariant: a rollout is found by what was said in it alone. Under a trainer a request is never
given to one of two rollouts that fit alike, because the reward belongs to one of them: it waits
until one of the two has moved on.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from abut.gateway.histories import Histories, Spot
from abut.gateway.matching import History
from abut.gateway.place import find_place
from abut.gateway.refusal import Refusal
from abut.gateway.request import ChatRequest
from abut.gateway.session import Session
from abut.gateway.values import text_of

Opening: TypeAlias = tuple[tuple[str, str], ...]
"""Role and text of each message, without the instructions at the beginning."""

_INSTRUCTIONS = ("system", "developer")
_SHOWN = 80
_NAMELESS = (
    "hint: use the endpoint's base_url as it is; or name it by rollout_id in the body, by the "
    "header x-abut-rollout, or by the model policy/ID"
)


def opening_of(messages: Iterable[Mapping[str, Any]]) -> Opening | None:
    """Return what a conversation begins with; None where that is more than text, or nothing."""
    said = itertools.dropwhile(lambda m: m.get("role") in _INSTRUCTIONS, messages)
    opening = [(str(m.get("role")), text_of(m.get("content"))) for m in said]
    if not opening or any(text is None for _, text in opening):
        return None
    return tuple((role, text or "") for role, text in opening)


@dataclass(frozen=True)
class Expected:
    """A rollout whose agent may leave out its id.

    Attributes:
        agent: its name, for errors.
        opening: what its first request says, where that is known.
        quotes: whether a later request may be one message that quotes the answer before it.
        wait_s: how long a request waits that is as well another rollout's.
    """

    agent: str
    opening: Opening | None
    quotes: bool
    wait_s: float


class Unnamed:
    """The rollouts of a trainer's batches that are asked without their ids, on the gateway's loop.

    Attributes:
        matched: how many requests were given to a rollout.
        refused: how many were not.
        last: what the last of these was, and why it was refused.
    """

    def __init__(self, rewrites: Collection[str]) -> None:
        self.matched = self.refused = 0
        self.last = ""
        self._rewrites = rewrites
        self._expected: dict[Session, Expected] = {}
        self._histories = Histories()
        self._histories.on_change = self._has_changed
        self._change: asyncio.Future[None] | None = None

    def expect(self, session: Session, expected: Expected) -> None:
        """Match requests with a rollout from here on."""
        self._expected[session] = expected
        self._histories.add(session)

    def forget(self, session: Session) -> None:
        """Match no request with a rollout any more."""
        if self._expected.pop(session, None) is not None:
            self._histories.remove(session)

    async def session_of(
        self,
        request: ChatRequest,
        body: bytes,
        *,
        retried: bool,
        otherwise: Callable[[], Session] | None = None,
    ) -> Session:
        """Return the rollout that a request belongs to.

        Args:
            request: names none.
            body: of the request.
            retried: whether its client says that it sent it before.
            otherwise: makes what answers a request that belongs to none; None: it is refused.

        Raises:
            Refusal: it belongs to none, or to one of several for longer than they wait.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            found = self._candidates(request, body, retried)
            if len(found) == 1:
                ((session, spot),) = found.items()
                if spot is not None:
                    self._histories.claim(request, spot)
                self.matched += 1
                return session
            if not found and otherwise is not None:
                return otherwise()
            if not found:
                why = "" if not self._expected else ", and its history is that of none in flight"
                raise self._refusal(request, f"the request names no rollout{why}", _NAMELESS)
            wait_s = min(self._expected[session].wait_s for session in found)
            if self._change is None:
                self._change = loop.create_future()
            try:
                async with asyncio.timeout_at(began + wait_s):
                    await asyncio.shield(self._change)
            except TimeoutError:
                raise self._refusal(request, self._ambiguous(found), _NAMELESS) from None

    def _candidates(
        self, request: ChatRequest, body: bytes, retried: bool
    ) -> dict[Session, Spot | None]:
        """The rollouts that a request may belong to, and where it may go on."""
        if again := who_repeats(self._histories, body, retried):
            return dict.fromkeys(again)
        if spots := who_goes_on(self._histories, request, self._rewrites, most=None):
            return {spot.session: spot for spot in spots}
        return dict.fromkeys(self._beginning(request) or self._quoted(request))

    def _beginning(self, request: ChatRequest) -> Sequence[Session]:
        """The rollouts that begin so: those that were asked nothing yet, else all."""
        opening = opening_of(request.messages)
        fit = [s for s, one in self._expected.items() if opening and one.opening == opening]
        return [session for session in fit if self._histories.is_new(session)] or fit

    def _quoted(self, request: ChatRequest) -> Sequence[Session]:
        """The rollouts whose last answer a message repeats: those with the longest."""
        last = request.messages[-1]
        if any(message["role"] == "assistant" for message in request.messages):
            return []
        text = text_of(last.get("content")) or ""
        answers = {s: _last_answer(s) for s, one in self._expected.items() if one.quotes}
        fit = {s: len(said) for s, said in answers.items() if said and said in text}
        longest = max(fit.values(), default=0)
        return [session for session, length in fit.items() if length == longest]

    def _ambiguous(self, found: Collection[Session]) -> str:
        agents = " and ".join(sorted({self._expected[session].agent for session in found}))
        many, none = ("two", "neither") if len(found) == 2 else (str(len(found)), "none of them")
        return f"{many} rollouts of {agents} have this history, and the request names {none}"

    def _refusal(self, request: ChatRequest, why: str, hint: str) -> Refusal:
        self.refused += 1
        first = request.messages[0]
        text = text_of(first.get("content")) or ""
        said = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        count = len(request.messages)
        self.last = f"{count} message{'s' * (count > 1)} from {first['role']} {said!r}: {why}"
        return Refusal(f"{why}\n{hint}", code="unknown_rollout")

    def _has_changed(self) -> None:
        change, self._change = self._change, None
        if change is not None and not change.done():
            change.set_result(None)


def _last_answer(session: Session) -> str:
    """The text of a rollout's last answer, if somebody got it and nothing was asked since."""
    call = session.calls[-1] if session.calls else None
    if call is None or not call.delivered:
        return ""
    return (call.answered.result().message.get("content") or "").strip()


def who_repeats(histories: Histories, body: bytes, retried: bool) -> Sequence[Session]:
    """Return the rollouts that a repeated request fits best; none where it is a new one."""
    fits = [(one.fits_again(body, retried), one) for one in histories.with_body(body)]
    best = max((fit for fit, _ in fits), default=0)
    return [session for fit, session in fits if fit == best] if best else []


def who_goes_on(
    histories: Histories, request: ChatRequest, rewrites: Collection[str], most: int | None = 1
) -> Sequence[Spot]:
    """Return where a request may go on: of the longest histories, those that wait for a request.

    Where none waits, others have gone on from there, and the request begins a branch.

    Args:
        histories: of the rollouts that it may be of.
        request: names none.
        rewrites: the rules by which an answer may have come back changed.
        most: so many are enough; None: all.
    """
    history = History(request.messages)
    exact: dict[Hashable, History] = {}
    fallback: tuple[int, Spot] | None = None
    for level in histories.levels(request.frame, history):
        for spots in ([node.free for node in level], [node.taken for node in level]):
            found: list[Spot] = []
            for spot in itertools.chain.from_iterable(spots):
                joints = spot.branch.shown.joints
                key = tuple(joints.items())
                if (said := exact.get(key)) is None:
                    said = exact[key] = History(request.messages, joints=joints)
                place = find_place([spot.branch], request.frame, said, rewrites)
                turns = 0 if place is None else place.found.turns
                if turns >= spot.turns:
                    found.append(spot)
                    if len(found) == most:
                        return found
                elif turns and (fallback is None or turns > fallback[0]):
                    fallback = turns, spot
            if found:
                return found
    return [] if fallback is None else [fallback[1]]
