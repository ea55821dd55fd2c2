"""The protocol of agents, which run their own loop and ask the policy at an endpoint.

Invariant: an agent never sees tokens and the policy never sees the agent; between the two stands
the gateway, which keeps what was said exact to the token.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from abut.agents.clients import ClientKind, codex_args, variables_of
from abut.envs.task import RolloutTask
from abut.messages import Message

AgentFunction: TypeAlias = Callable[..., Any]

# In an address `.` and `..` are no names: clients take them out of it before they ask.
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
# Keys, which no record may hold, and what HTTP itself reads.
_TAKEN = frozenset(
    {"authorization", "x-api-key", "x-goog-api-key", "cookie", "host", "content-type"}
    | {"content-length", "content-encoding", "transfer-encoding", "connection"}
)
NAME_HINT = "a name has 1 to 64 characters: letters a to z and A to Z, digits, '_', '-' and '.'"


@dataclass(frozen=True)
class Endpoint:
    """Where one rollout of an agent asks the policy.

    Attributes:
        base_url: for an OpenAI client; it ends in `/v1`.
        api_key: opens this rollout alone.
        model: the name to ask for; any other one is answered as well.
        rollout_id: its id, with the attempt.
        name: that calls there have; None: none, unless a call gives one by the header
            `x-abut-name`.
        train: whether calls there are trained.
        max_context_tokens: how many tokens a conversation may have; None: no limit is known.
    """

    base_url: str
    api_key: str = field(repr=False)
    model: str
    rollout_id: str
    _count_calls: Callable[[], int] | None = field(default=None, repr=False, compare=False)
    name: str | None = field(default=None, kw_only=True)
    train: bool = field(default=True, kw_only=True)
    max_context_tokens: int | None = field(default=None, kw_only=True)

    @property
    def anthropic_url(self) -> str:
        """The base URL for clients of Anthropic's Messages."""
        return self.base_url.removesuffix("/v1")

    @property
    def gemini_url(self) -> str:
        """The base URL for clients of Gemini's generateContent."""
        return self.base_url.removesuffix("/v1")

    def env(self, kind: ClientKind) -> dict[str, str]:
        """Return the variables of the environment that send a client here.

        They turn off its telemetry too, except gemini-cli's usage statistics. gemini-cli needs a
        settings file, see "Gemini CLI" in docs/integrations/agents.md.

        Args:
            kind: "claude-code", "codex" (with `codex_args` besides), "gemini-cli", or a client of
                the APIs of "openai", "anthropic" or "google".

        Raises:
            ValueError: there is no such kind.
        """
        return variables_of(kind, self.base_url, self.anthropic_url, self.api_key)

    def codex_args(self) -> list[str]:
        """Return the options of `codex` that send it here with the key of `env("codex")`.

        They name the provider, the protocol and the context window, and turn telemetry off:
        `["codex", "exec", *endpoint.codex_args(), "Repair it."]`.
        """
        return codex_args(self.base_url, self.max_context_tokens)

    def named(self, name: str, train: bool = True) -> "Endpoint":
        """Return the endpoint for a part of the agent: a player, a judge, a sub-agent.

        Calls with different names are never one conversation. Rewards go by names
        (`AgentResult.rewards`), and each name is compared with itself alone. The name is in the
        address, so any client in any process can use it.

        Args:
            name: 1 to 64 letters, digits, `_`, `-` and `.`.
            train: False: its calls are recorded and never trained; the same for all calls of a
                name.

        Raises:
            ValueError: it is no such name.
        """
        if not is_name(name):
            raise ValueError(f"endpoint.named({name!r}): not a valid name\nhint: {NAME_HINT}")
        root = self.base_url.removesuffix("/v1").removesuffix(_part(self.name, self.train))
        base_url = f"{root}{_part(name, train)}/v1"
        return replace(self, base_url=base_url, name=name, train=train)

    @property
    def calls(self) -> int:
        """How many calls the policy has answered so far; known where the gateway is.

        Raises:
            RuntimeError: this is another process.
        """
        if self._count_calls is None:
            raise RuntimeError(
                "Endpoint.calls is known only in the gateway's process\n"
                "hint: read it there, before or after the agent runs in another process"
            )
        return self._count_calls()

    def __reduce__(self) -> tuple[Any, ...]:
        """For other processes, which can ask and not count."""
        arguments = self.base_url, self.api_key, self.model, self.rollout_id
        named = {"name": self.name, "train": self.train}
        return Endpoint, arguments, {**named, "max_context_tokens": self.max_context_tokens}


def _part(name: str | None, train: bool) -> str:
    """Return the part of an address that names its calls."""
    return "" if name is None else f"/as/{name}" + ("" if train else "/untrained")


@dataclass(frozen=True)
class AgentResult:
    """The result of an agent's rollout.

    Attributes:
        reward: None is no score.
        extras: more columns for reward functions; a rollout without one of them has None there.
            If a name has a slash, abut logs the mean of its column.
        messages: the conversation as the agent tells it; None: as the gateway heard it.
        measured: False says that nothing was measured: `reward` and `rewards` do not count, no
            reward function may score the rollout (`abut.trl.scored_only`), and none of its
            conversations is trained. A reward of None alone leaves it to the other functions.
        rewards: of parts of the rollout, by key: a name (of all its conversations), a session
            (which beats its name), or the id of an answer (of that turn; needs `credit`). None: no
            score, so the conversation is not trained.
        names: the names of sessions, for calls that have none. A name that may make no call must be
            here before `rewards` may have it.
    """

    reward: float | None
    extras: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Message] | None = None
    measured: bool = True
    rewards: Mapping[str, float | None] = field(default_factory=dict, kw_only=True)
    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)


@runtime_checkable
class Agent(Protocol):
    """Plays whole rollouts. `@agent` makes one of a function.

    One may do more, each once for each batch that it plays in: see `StartingAgent`,
    `SettlingAgent`, `StoppingAgent` and `JudgingAgent`. What `start` and `settle` raise ends the
    batch. One that keeps something open from batch to batch is a `ClosingAgent`. One whose calls
    have sessions is a `SessionAgent`, one with a limit of calls a `LimitedAgent`.

    One that lends agents, as a pool lends environments, has `async lend(task)` besides: each
    rollout is then played by what that returns, whose `close()` gives it back.
    """

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> float | AgentResult | None:
        """Play one rollout against the endpoint; returns its reward, None for no score."""
        ...


@runtime_checkable
class StartingAgent(Protocol):
    """An agent that gets ready for a batch."""

    async def start(self, gateway: Any) -> None:
        """Get ready, before any rollout of a batch; `gateway` is where its rollouts ask."""
        ...


@runtime_checkable
class SettlingAgent(Protocol):
    """An agent that gives scores which take more than one rollout."""

    async def settle(self, played: Sequence[tuple[RolloutTask, Any]], tokenizer: Any) -> None:
        """Score rollouts, when all of a batch (or of a group, where they stream) have ended.

        Called before anything is made of them. It may set `reward`, `measured`, `extras`,
        `rewards`, `names` and `turns[k].reward` of a rollout.

        Args:
            played: each of this agent's as `(task, rollout)`, failed ones too.
            tokenizer: decodes their tokens.
        """
        ...


@runtime_checkable
class StoppingAgent(Protocol):
    """An agent that has something to end after a batch."""

    async def stop(self) -> None:
        """End it; also called where the batch was given up."""
        ...


@runtime_checkable
class ClosingAgent(Protocol):
    """An agent that keeps something open from batch to batch, such as servers of tools."""

    async def close(self) -> None:
        """End it: once, when the gateway stops or the process ends, also after `start` has raised.

        It runs on the event loop of `start` and `run`, but not in their task.
        """
        ...


@runtime_checkable
class SessionAgent(Protocol):
    """An agent whose clients say by a header which session a call belongs to.

    Attributes:
        session_header: the name of that header. Calls of two sessions are never one conversation.
            None: history alone tells conversations apart.
    """

    session_header: str | None


@runtime_checkable
class LimitedAgent(Protocol):
    """An agent with a limit of its own, beside `RolloutConfig.max_calls`.

    Attributes:
        max_calls: how many calls of one rollout are answered; None: no more than the run's limit.
    """

    max_calls: int | None


@runtime_checkable
class JudgingAgent(Protocol):
    """An agent that sends requests which name no rollout; the gateway refuses them otherwise.

    Attributes:
        judge: "policy": such requests are answered from the policy and never trained.
    """

    judge: str | None


def is_closing(agent: Any) -> TypeGuard[ClosingAgent]:
    """Return whether it is a `ClosingAgent`; the `close` of a pool is not async, and not meant."""
    return inspect.iscoroutinefunction(getattr(agent, "close", None))


def is_agent(env: Any) -> bool:
    """Return whether it is an agent; the class of an agent is not."""
    return isinstance(env, Agent) and not inspect.isclass(env)


def name_of(agent: Agent) -> str:
    """Return the name of an agent in errors."""
    return getattr(agent, "__name__", type(agent).__name__)


def session_header_of(agent: Any) -> str | None:
    """Return the header by which an agent's calls name their session, in lower case.

    Raises:
        ValueError: it is not the name of a header, or of one that has another meaning.
    """
    agent = getattr(agent, "__wrapped__", agent)  # what a pool of agents lends
    header = getattr(agent, "session_header", None)
    return None if header is None else checked_session_header(header)


def max_calls_of(agent: Any) -> int | None:
    """Return the most calls that an agent wants answered; None if it does not say.

    Raises:
        ValueError: it is no such number.
    """
    limit = getattr(getattr(agent, "__wrapped__", agent), "max_calls", None)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"max_calls={limit!r}: must be at least 1, or None")
    return limit


def checked_session_header(header: Any) -> str:
    """Return the name of a header in lower case, see `session_header_of`."""
    if not isinstance(header, str) or _HEADER.fullmatch(header) is None:
        raise ValueError(
            f"session_header={header!r}: must be the name of an HTTP header\n"
            'hint: use session_header="x-session-id"'
        )
    if header.lower() in _TAKEN or header.lower().startswith("x-abut-"):
        raise ValueError(
            f"session_header={header!r}: this header already has another meaning\n"
            'hint: use another header, such as "x-session-id"'
        )
    return header.lower()


def is_name(name: Any) -> bool:
    """Return whether calls may have this name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None
