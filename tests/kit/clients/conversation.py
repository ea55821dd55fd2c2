"""What real clients are tested on: one conversation, whichever of them holds it.

The policy looks something up three times, answers, and is asked once more. Each client has to make
of it the row that an environment makes that says the same.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from abut import Tokenizer
from abut.errors import TemplateError
from abut.gateway.ledger.agent_call import AgentRequest
from abut.gateway.ledger.ledger import Ledger
from abut.gateway.server.gateway import Gateway
from abut.rollout.rollout import Rollout
from abut.samplers.sampler import Sample, SampleRequest
from tests.kit.stage.agents import a_call, check_tree, play_agents
from tests.kit.stage.rollouts import Recording, Stage, check_exact

SYSTEM = "You are a finder."
QUESTION = "What is the answer?"
FOLLOW = "And again?"

SAYS = (
    "<think>\nI should look.\n</think>\n\n" + a_call(text="Let me look it up.\n", b=1.0, a="one"),
    a_call(a='caf\u00e9 "q"') + "\n" + a_call(a="two", k=2),
    a_call(a="three"),
    "<think>\nNow I know.\n</think>\n\nThe answer is 42.",
    "Goodbye.",
)
"""What the policy says, turn for turn: thinking, text beside a call, two calls at once, no text."""


SAYS_PLAINLY = SAYS[3:]
"""The same without calls, where the template shows no tools."""


def found(a: str, b: float = 0.0, k: int = 0) -> str:
    """What the tool finds: the same for all clients."""
    return f"found {a} {float(b)} {int(k)}"


REPLIES: tuple[list[dict[str, Any]], ...] = (
    [{"role": "tool", "name": "lookup", "content": found("one", 1.0)}],
    [
        {"role": "tool", "name": "lookup", "content": found('caf\u00e9 "q"')},
        {"role": "tool", "name": "lookup", "content": found("two", k=2)},
    ],
    [{"role": "tool", "name": "lookup", "content": found("three")}],
    [{"role": "user", "content": FOLLOW}],
)
"""What an environment says to each but the last."""

LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "string"},
                "b": {"type": "number"},
                "k": {"type": "integer"},
            },
            "required": ["a"],
        },
    },
}


Turns: TypeAlias = Sequence[str | Callable[[str], str]]
"""What the policy says, turn for turn; a function makes it of the text of the prompt."""

Says: TypeAlias = Turns | Mapping[str, Turns]
"""The turns of one conversation; or of each of several, by a text that stands in its prompt before
any of these other texts."""


class Script:
    """Says the texts of each conversation one after the other, the last one again and again."""

    def __init__(self, tokenizer: Tokenizer, says: Says) -> None:
        self._tokenizer = tokenizer
        self._says = says if isinstance(says, Mapping) else {"": says}
        self._said: Counter[tuple[str, str]] = Counter()

    def __call__(self, request: SampleRequest) -> str:
        prompt = self._tokenizer.decode(request.prompt_ids)
        mark = min((mark for mark in self._says if mark in prompt), key=prompt.index)
        turns, key = self._says[mark], (request.rollout_id, mark)
        self._said[key] += 1
        said = turns[min(self._said[key], len(turns)) - 1]
        return said if isinstance(said, str) else said(prompt)


class Heard:
    """One agent, played, and what its client asked.

    Attributes:
        rollout: of it.
        asked: the requests that were placed, as they were read.
        rewrites: how often a message came back changed, by rule.
    """

    def __init__(
        self,
        stage: Stage,
        monkeypatch: Any,
        agent: Any,
        says: Says = SAYS,
        gateway: Gateway | None = None,
        **options: Any,
    ) -> None:
        self.stage = stage
        self.says = says
        self.asked: list[AgentRequest] = []
        self.sessions: list[Ledger] = []
        place = Ledger.ask

        def ask(session: Ledger, request: AgentRequest, **how: Any) -> Any:
            self.asked.append(request)
            if session not in self.sessions:
                self.sessions.append(session)
            return place(session, request, **how)

        monkeypatch.setattr(Ledger, "ask", ask)
        played = play_agents(
            stage,
            agent,
            sampler=InOrder(stage, says),
            gateway=gateway,
            **{"retries": 0, "completion": 100_000, "max_failed_frac": 1.0} | options,
        )
        self.rollout: Rollout = played.one
        self.sampled = played.sampler.calls

    @property
    def rewrites(self) -> Counter[str]:
        return sum((session.client_rewrites for session in self.sessions), Counter())

    @property
    def trained_frac(self) -> float:
        """The share of the delivered tokens that is trained where each conversation is a row."""
        calls = [call for session in self.sessions for call in session.calls]
        delivered = sum(call.sampled_tokens for call in calls if call.delivered)
        rows = [branch.columns for branch in self.rollout.branches if branch.delivered]
        if self.rollout.columns is not None:
            rows.append(self.rollout.columns)
        return sum(int(columns.env_mask.sum()) for columns in rows) / delivered

    @property
    def causes(self) -> list[str | None]:
        """Why there is each branch; None for the first."""
        return [branch.cause for session in self.sessions for branch in session.branches]

    @property
    def replies(self) -> list[list[dict[str, Any]]]:
        """What its client said to each answer but the last, where it wrote that itself."""
        lengths = [len(request.messages) for request in self.asked]
        return [
            request.messages[length + 1 :]
            for request, length in zip(self.asked[1:], lengths, strict=False)
        ]

    def check(self) -> None:
        """It was played, and each sampled token is trained once."""
        assert self.rollout.error is None, "\n".join(self.rollout.attempt_tracebacks)
        assert self.rollout.reward == 1.0
        check_tree(self.rollout, self.sampled)

    def check_same_as_env(
        self,
        *,
        first: Sequence[dict[str, Any]] | None = None,
        replies: Sequence[list[dict[str, Any]]] | None = None,
    ) -> None:
        """One branch, token for token the row of an environment that says the same.

        Args:
            first: what the conversation begins with.
            replies: what is said to each answer but the last.
        """
        self.check()
        replies = replies or REPLIES[1 - len(self.says) :]
        assert (self.causes, self.rollout.branches) == ([None], [])
        assert len(self.rollout.turns) == len(self.sampled) == len(self.says) == len(replies) + 1
        check_exact(self.rollout.columns, self.sampled)
        first = first or opening(self.stage)
        tools = self.asked[0].tools
        assert all(request.tools == tools for request in self.asked)
        samples = [sample for _, sample in self.sampled]
        columns = _by_env(self.stage, samples, tools, first, replies).columns
        assert columns is not None
        assert self.rollout.columns is not None
        for name in ("prompt_ids", "completion_ids", "env_mask", "logprobs"):
            ours, theirs = getattr(self.rollout.columns, name), getattr(columns, name)
            assert ours.tolist() == theirs.tolist(), name


class InOrder(Recording):
    """Says the texts of a script.

    A text ends with the first stop string of the request in it, as a server that honours these
    ends it.
    """

    def __init__(self, stage: Stage, says: Says) -> None:
        super().__init__(self._script)
        self._stage = stage
        self._says = Script(stage.tokenizer, says)
        self._stop: str | None = None

    def _script(self, request: SampleRequest) -> list[int]:
        text = self._says(request)
        ends = {text.index(stop) + len(stop): stop for stop in request.stop if stop in text}
        end = min(ends, default=None)
        self._stop = None if end is None else ends[end]
        ids = self._stage.tokenizer.encode(text[:end], added="parse")
        return [*ids, *[self._stage.processor.close_token_id] * (end is None)]

    async def sample(self, request: SampleRequest) -> Sample:
        sample = await super().sample(request)
        if self._stop is not None:
            sample = replace(sample, finish_reason="stop", stop_string=self._stop)
            self.calls[-1] = request, sample
        return sample


class Again(Recording):
    """Says what was sampled before, sample for sample."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        super().__init__(lambda request: ())
        self._left = list(samples)

    async def sample(self, request: SampleRequest) -> Sample:
        return self._left.pop(0)


def opening(stage: Stage, system: str = SYSTEM) -> list[dict[str, Any]]:
    """System prompt and question: in one message where the template knows no system messages."""
    asked = {"role": "user", "content": QUESTION}
    try:
        stage.processor.opening(first := [{"role": "system", "content": system}, asked])
    except TemplateError:
        return [{"role": "user", "content": f"{system}\n\n{QUESTION}"}]
    return first


def _by_env(
    stage: Stage,
    samples: Sequence[Sample],
    tools: Any,
    first: Sequence[dict[str, Any]],
    replies: Sequence[list[dict[str, Any]]],
) -> Rollout:
    """The rollout of an environment that says this."""

    class Says:
        reward = 1.0
        alive = True
        steps = 0

        def reset(self, seed: str) -> Any:
            return self, list(first)

        def step(self, action: str) -> Any:
            self.alive = self.steps < len(replies)
            said = replies[self.steps] if self.alive else "over"
            self.steps += 1
            return self, said

    processor = stage.processor.with_tools(tools) if tools else stage.processor
    return stage.play(
        Says,
        sampler=Again(samples),
        task={"processor": processor},
        completion=100_000,
    ).one
