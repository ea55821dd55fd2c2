"""The protocol of agents, which run their own loop and call the policy at an endpoint.

Invariant: an agent never sees tokens and the policy never sees the agent; between them is the
gateway, which keeps each conversation exact to the token.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from abut.agents.clients import ClientKind, codex_args, variables_of
from abut.envs.task import RolloutTask
from abut.messages import Message
from abut.removed import with_removed

AgentFunction: TypeAlias = Callable[..., Any]

# In a URL `.` and `..` are not names, because clients resolve them before they send a request.
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]{1,64}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
# Keys, which no record may hold, and what HTTP itself reads.
_TAKEN = frozenset(
    {"authorization", "x-api-key", "x-goog-api-key", "cookie", "host", "content-type"}
    | {"content-length", "content-encoding", "transfer-encoding", "connection"}
)
NAME_HINT = "a name has 1 to 64 characters: letters a to z and A to Z, digits, '_', '-' and '.'"


@with_removed
@dataclass(frozen=True)
class Endpoint:
    """The address and key with which one rollout of an agent calls the policy.

    Attributes:
        base_url: the base URL for OpenAI clients; it ends in `/v1`.
        api_key: the key, valid only for this rollout.
        model: the model name to request; other names are answered too.
        rollout_id: the id of the rollout, with its attempt.
        name: the name of calls at this address; None: no name, unless a call has the header
            `x-abut-name`.
        train: whether calls at this address are trained.
        max_context_tokens: the most tokens of a conversation; None: no known limit.
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
        """Return the environment variables that send a client to this endpoint.

        They also turn off its telemetry, except for gemini-cli's usage statistics. gemini-cli needs
        a settings file, see "Gemini CLI" in docs/integrations/agents.md.

        Args:
            kind: "claude-code", "codex" (also pass `codex_args`), "gemini-cli", or a client of the
                APIs of "openai", "anthropic" or "google".

        Raises:
            ValueError: there is no such kind.
        """
        return variables_of(kind, self.base_url, self.anthropic_url, self.api_key)

    def codex_args(self) -> list[str]:
        """Return the options that send `codex` to this endpoint, with the key in `env("codex")`.

        They set the provider, the protocol and the context window, and turn telemetry off:
        `["codex", "exec", *endpoint.codex_args(), "Fix it."]`.
        """
        return codex_args(self.base_url, self.max_context_tokens)

    def named(self, name: str, train: bool = True) -> "Endpoint":
        """Return the endpoint for a part of the agent: a player, a judge, a sub-agent.

        Calls with different names are never one conversation. Rewards can be given by name
        (`AgentResult.rewards`), and are compared only within a name. The name is part of the
        address, so any client in any process can use it.

        Args:
            name: 1 to 64 letters, digits, `_`, `-` and `.`.
            train: False: its calls are recorded but never trained. Must be the same for all calls
                of a name.

        Raises:
            ValueError: `name` is not valid.
        """
        if not is_name(name):
            raise ValueError(f"endpoint.named({name!r}): not a valid name\nhint: {NAME_HINT}")
        root = self.base_url.removesuffix("/v1").removesuffix(_part(self.name, self.train))
        base_url = f"{root}{_part(name, train)}/v1"
        return replace(self, base_url=base_url, name=name, train=train)

    @property
    def calls(self) -> int:
        """How many calls the policy has answered so far; known only in the gateway's process.

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
        """Pickle it for other processes, which can make calls but not count them."""
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
        reward: a number; None: no score. NaN and infinities count as None.
        extras: more columns for reward functions; rollouts without such a value have None. If a
            name has a slash, abut logs the mean of its column.
        messages: the conversation as the agent reports it; None: the conversation at the gateway.
        measured: False: nothing was measured, so `reward` and `rewards` do not count, reward
            functions must not score the rollout (see `abut.trl.scored_only`), and it is not
            trained. If only `reward` is None, other reward functions can still score it.
        rewards: rewards of parts of the rollout. The key is a name (for all its conversations), a
            session (takes precedence over its name), or the id of an answer (for that turn; needs
            `credit`). None: no score, so the conversation is not trained.
        names: the names of sessions, for calls without a name. If a name in `rewards` may have made
            no calls, it must be listed here.
    """

    reward: float | None
    extras: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[Message] | None = None
    measured: bool = True
    rewards: Mapping[str, float | None] = field(default_factory=dict, kw_only=True)
    names: Mapping[str, str] = field(default_factory=dict, kw_only=True)


@runtime_checkable
class Agent(Protocol):
    """An agent, which plays whole rollouts. `@agent` turns a function into one.

    An agent may have more methods, called once for each batch: see `StartingAgent`,
    `SettlingAgent`, `StoppingAgent` and `JudgingAgent`. An error in `start` or `settle` ends the
    batch. An agent that keeps resources open between batches is a `ClosingAgent`. An agent whose
    calls have sessions is a `SessionAgent`; with its own limit of calls it is a `LimitedAgent`.

    A pool of agents also has `async lend(task)`: it returns the agent that plays the rollout, whose
    `close()` gives it back.
    """

    async def run(self, endpoint: Endpoint, task: RolloutTask) -> float | AgentResult | None:
        """Play one rollout against the endpoint; return its reward, None for no score."""
        ...


@runtime_checkable
class StartingAgent(Protocol):
    """An agent that prepares for each batch."""

    async def start(self, gateway: Any) -> None:
        """Prepare for a batch, before its first rollout; `gateway` serves the rollouts."""
        ...


@runtime_checkable
class SettlingAgent(Protocol):
    """An agent that scores several rollouts together."""

    async def settle(self, played: Sequence[tuple[RolloutTask, Any]], tokenizer: Any) -> None:
        """Score rollouts, when all of a batch (or of a group, in a stream) have ended.

        Called before rows are made from them. It may set `reward`, `measured`, `extras`, `rewards`,
        `names` and `turns[k].reward` of a rollout.

        Args:
            played: `(task, rollout)` for each rollout of this agent, including failed ones.
            tokenizer: decodes their tokens.
        """
        ...


@runtime_checkable
class StoppingAgent(Protocol):
    """An agent that cleans up after each batch."""

    async def stop(self) -> None:
        """Clean up after a batch; also called if the batch was given up."""
        ...


@runtime_checkable
class ClosingAgent(Protocol):
    """An agent that keeps resources open between batches, such as tool servers."""

    async def close(self) -> None:
        """Close the resources: once, when the gateway stops or the process ends.

        It runs on the event loop of `start` and `run`, but not in their task, and also after
        `start` has raised.
        """
        ...


@runtime_checkable
class SessionAgent(Protocol):
    """An agent whose clients name the session of a call in a header.

    Attributes:
        session_header: the name of that header. Calls of two sessions are never one conversation.
            None: conversations are distinguished only by their history.
    """

    session_header: str | None


@runtime_checkable
class LimitedAgent(Protocol):
    """An agent with its own limit of calls, in addition to `RolloutConfig.max_calls`.

    Attributes:
        max_calls: the most answered calls of one rollout; None: only the run's limit.
    """

    max_calls: int | None


@runtime_checkable
class JudgingAgent(Protocol):
    """An agent that sends requests without a rollout's id, which the gateway normally refuses.

    Attributes:
        judge: "policy": the policy answers such requests, and they are never trained.
    """

    judge: str | None


def is_closing(agent: Any) -> TypeGuard[ClosingAgent]:
    """Return whether it is a `ClosingAgent`; a pool is not, because its `close` is not async."""
    return inspect.iscoroutinefunction(getattr(agent, "close", None))


def is_agent(env: Any) -> bool:
    """Return whether it is an agent, not just the class of one."""
    return isinstance(env, Agent) and not inspect.isclass(env)


def name_of(agent: Agent) -> str:
    """Return the name of an agent in errors."""
    return getattr(agent, "__name__", type(agent).__name__)


def session_header_of(agent: Any) -> str | None:
    """Return the header that names the session of an agent's calls, in lower case.

    Raises:
        ValueError: it is not the name of a header, or the header has another meaning.
    """
    agent = getattr(agent, "__wrapped__", agent)  # an agent that a pool lends
    header = getattr(agent, "session_header", None)
    return None if header is None else checked_session_header(header)


def max_calls_of(agent: Any) -> int | None:
    """Return an agent's own limit of calls; None if it does not have one.

    Raises:
        ValueError: it is not a positive integer.
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
