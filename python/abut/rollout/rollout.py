"""The result of a rollout: a trajectory with reward, timing and errors.

A bad rollout is data, not a crash: it is recorded with its reason, and has no weight in training.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abut._native import Columns
from abut.errors import SamplerError
from abut.images import Image, ImageSpan
from abut.messages import Message
from abut.samplers.sampler import Sample

TEACHER_LOGPROBS = "teacher_logprobs"
"""The stream of what a teacher says of each sampled token: its logprobs, `(T,)` float32, nats."""


class StopReason(StrEnum):
    """Why a rollout ended."""

    ENV_DONE = "env_done"
    """The environment said that it is over (`alive` is false), or the agent returned."""
    MAX_TURNS = "max_turns"
    MAX_CALLS = "max_calls"
    """An agent asked for more than `RolloutConfig.max_calls` answers."""
    MAX_ROLLOUT_TOKENS = "max_rollout_tokens"
    """An agent's conversations have sampled `RolloutConfig.max_rollout_tokens` together."""
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    """The next turn would not fit into the completion, or an agent's last answer was cut there."""
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    """The next turn would not fit into what the engine can hold, or an agent's last answer was cut
    there."""
    EMPTY_SAMPLE = "empty_sample"
    """The sampler returned no token."""
    DEADLINE = "deadline"
    """An agent was still asking when its time was over."""
    STALE = "stale"
    """It was sampled with weights that are too old by now, and was ended."""
    ERROR = "error"
    """It failed, after its retries."""


@dataclass
class TurnRecord:
    """One turn: where its sample stands, how it ended, and what it took.

    `Conversation.hear` makes it, `note_sample` fills in what the sampler says, and whoever plays
    adds `env_s` and `reward`.
    """

    start: int
    """First token of the sample in the trajectory."""
    end: int
    """Behind its last token."""
    finish_reason: str = ""
    """As in `Sample`."""
    generate_s: float = 0.0
    """Seconds from the request to the sample."""
    env_s: float = 0.0
    """Seconds that the environment or agent took after it."""
    reward: float | None = None
    """Of this turn alone: the env's reward after its step, or what an agent gave to its answer. The
    reward of an agent's whole rollout is not one of these. None: no score."""
    stop_token: int | None = None
    """The token that ended the turn: its first stop token, or the token that its stop string begins
    in. The env hears what stands before it. None: cut by length, or its stop token is not known."""
    stop_string: str | None = None
    stop_inside: bool = False
    """True if the stop string begins inside `stop_token`, not at its first byte."""
    model_version: str | None = None
    """Of the weights that sampled it, where the sampler knows."""
    streams: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False)
    """Arrays along its tokens by name, each `(end - start, …)`: those of its `Sample`, and what was
    computed later, such as `teacher_logprobs`."""
    newest_version: int | None = None
    """The version that sampled when the turn was complete. If it is newer than the stream
    `versions`, the weights changed during the turn, and some tokens may come from later ones than
    the stream says.
    """
    answer_id: str | None = None
    """The id of the answer, as an agent's client got it; None: an environment's turn."""
    message: int | None = field(default=None, compare=False)
    """The number of its message in its conversation; None: it has none, because nothing was sampled
    or the agent returned other messages."""
    spoken: Message | None = field(default=None, compare=False, repr=False)
    """Its message as its environment or agent got it, with `reasoning_content` and `tool_calls`
    apart from `content`. None: all of its text is content."""

    def note_sample(self, sample: Sample, generate_s: float) -> None:
        """Take over what the sampler says of its sample, which took so many seconds."""
        self.finish_reason, self.generate_s = sample.finish_reason, generate_s
        self.model_version = sample.model_version
        self.streams |= sample.streams
        self.newest_version = sample.newest_version


BranchCause: TypeAlias = Literal[
    "repeated", "rewritten", "tools", "new", "template", "subagent", "compaction"
]
"""Why an agent's conversation branched:

- repeated: another sample was asked for at the same point
- rewritten: the history that it sent is not the one that was said
- tools: it asked with other tools, or with other variables for the template
- new: it began another conversation
- template: the chat template cannot write such messages behind a turn
- subagent: Claude Code or Codex says that a sub-agent asks
- compaction: Codex says that it asks for a summary of its history
"""


@dataclass(frozen=True)
class Branch:
    """A part of a rollout that is not its row; row and branches hold each sampled token once."""

    columns: Columns
    provenance: NDArray[np.uint8] | Sequence[int] = field(default=(), compare=False)
    """As in `Rollout`."""
    cause: BranchCause | None = None
    """Why it branched, or why the row branched from it. None: neither did; the agent only did not
    receive these samples."""
    delivered: bool = True
    """True if the agent received these samples. One that it never received is not its action."""
    followed: bool = True
    """False: the agent asked for several samples at this point, and went on from another one."""
    name: str | None = None
    """The name of its calls, or the one that `Rollout.names` gives to its session."""
    session: str | None = None
    """The session of its calls, where the agent has a `session_header`."""
    reward: float | None = None
    """Its own, by `Rollout.rewards`; None: it shares that of the rollout."""
    trained: bool = True
    """False: it is never a row. Its calls were not to be trained (`train=False`), its own reward is
    None, its rollout was not measured, or it is auxiliary and `RolloutConfig.auxiliary` leaves
    those out."""
    auxiliary: bool = False
    """True: it has no name, no tools and a prompt of its own, while another conversation of the
    rollout has tools. A title or a summary, say. The main conversation never is."""
    turns: Sequence[TurnRecord] = field(default=(), compare=False)
    """Its own ones, which `columns` holds behind the prompt."""
    turns_before: Sequence[TurnRecord] = field(default=(), compare=False)
    """Of a fork: the turns before its own, which `columns` holds in the prompt."""
    images: Sequence[ImageSpan] = ()
    """The images in `columns`, in order; their tokens are counted from the prompt's first one."""
    messages: Sequence[Message] = field(default=(), compare=False, repr=False)
    """Its conversation, up to its last own turn."""
    tools: Sequence[Mapping[str, Any]] = field(default=(), compare=False, repr=False)
    """As in `Rollout`."""

    @property
    def streams(self) -> Mapping[str, NDArray[Any]]:
        """As `Rollout.streams`, for its columns."""
        return _streams_of(self.columns, self.turns)

    @property
    def reverse_kl(self) -> NDArray[np.float64] | None:
        """`(sampled tokens,)`, nats: the logprob of each less the teacher's; None: not scored.

        Their mean over what the policy samples is its reverse KL from the teacher.
        """
        of_teacher = self.streams.get(TEACHER_LOGPROBS)
        if of_teacher is None:
            return None
        sampled = self.columns.env_mask == 1
        own = self.columns.logprobs[sampled].astype(np.float64)
        divergences: NDArray[np.float64] = own - of_teacher[sampled]
        return divergences

    @property
    def before(self) -> list[float | None]:
        """The rewards of the turns before its own; empty if it is not a fork."""
        return [turn.reward for turn in self.turns_before]


@dataclass(frozen=True)
class DroppedImages:
    """Images that an agent left out of its history, or of the conversation that replaced the last.

    The first forks its conversation; the second is how agents show their newest screenshot alone.
    """

    images: tuple[Image, ...]
    cause: BranchCause
    """Of the branch that no longer has them."""
    image_tokens: int
    """How many tokens had stood for them."""
    reread_tokens: int
    """The cost: how many tokens of the branch's first prompt stand behind what it shares with the
    conversation before, so that no engine has them from there."""


@dataclass
class Rollout:
    """A trajectory with reward, timing and errors."""

    rollout_id: str
    index: int
    columns: Columns | None = None
    """None where nothing was sampled."""
    provenance: NDArray[np.uint8] | Sequence[int] = field(default=(), compare=False)
    """One code per token of `columns`, prompt and completion; see `abut.trajectory.PROVENANCE`."""
    prompt_ids: NDArray[np.int64] | Sequence[int] | None = field(default=None, compare=False)
    """The prompt of the first request; None if there was no request."""
    images: Sequence[ImageSpan] = ()
    """As in `Branch`, of the row. An image behind the last sampled token is not part of it."""
    branches: Sequence[Branch] = field(default=(), compare=False)
    """The tokens that an agent sampled outside the conversation that became the row."""
    dropped_images: Sequence[DroppedImages] = field(default=(), compare=False)
    """The images that an agent left out of its history, an entry for each branch."""
    name: str | None = None
    """As in `Branch`, of the conversation that became the row. So are `session`, `row_reward` and
    `row_trained`."""
    session: str | None = None
    row_reward: float | None = None
    row_trained: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    """The names of sessions, from `AgentResult.names`."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """The rewards of conversations and turns, by name, session or answer, from
    `AgentResult.rewards`."""
    asked_by: Collection[str] = field(default=(), compare=False)
    """The names and sessions of all calls, those that were refused among them."""
    teacher: str | None = None
    """The name of the teacher whose logprobs are the stream `teacher_logprobs`."""
    unscored_rows: int = 0
    """How many of its conversations are not trained because the teacher did not score them."""
    reward: float | None = None
    measured: bool = True
    """False: the adapter says that nothing was measured. Then nothing of the rollout has a reward
    or is trained, and no reward function may score it."""
    turns: list[TurnRecord] = field(default_factory=list)
    turns_before: Sequence[TurnRecord] = field(default=(), compare=False)
    """As in `Branch`: those in the prompt, where the row was drawn and is a fork."""
    seams: list[tuple[str, bool]] = field(default_factory=list)
    """For each seam its kind and whether it is exact."""
    messages: list[Message] = field(default_factory=list)
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the tools that the chat template showed the policy."""
    control_spellings: dict[str, int] = field(default_factory=dict)
    """How often users, tools and the environment have spelled each control token; none was made."""
    stop_reason: StopReason = StopReason.ERROR
    error: str | None = None
    attempts: int = 1
    attempt_errors: list[str] = field(default_factory=list)
    """The errors of the attempts that failed, also where a later one succeeded."""
    attempt_tracebacks: list[str] = field(default_factory=list)
    """Where each of them came from, with the environment's file and line."""
    seconds: float = 0.0
    extras: Mapping[str, Any] = field(default_factory=dict)
    """The columns that an agent or environment gives reward functions besides its reward."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """`prompt_tokens` and `completion_tokens` of all its answers, as a hosted model counts them."""
    client_rewrites: Mapping[str, int] = field(default_factory=dict)
    """How often an agent's client changed a message of the policy, by rule.

    The rules are in docs/integrations/agents.md.
    """
    tool_choice_unmet: int = 0
    """How often an agent asked for a call and none was sampled."""

    @property
    def main_row(self) -> Branch | None:
        """The conversation that became its row; None where nothing was sampled."""
        if self.columns is None:
            return None
        return Branch(
            self.columns,
            self.provenance,
            name=self.name,
            session=self.session,
            reward=self.row_reward,
            trained=self.row_trained,
            turns=self.turns,
            turns_before=self.turns_before,
            images=self.images,
            messages=self.messages,
            tools=self.tools,
        )

    @property
    def trainable(self) -> bool:
        """True if it has tokens that were sampled: none if nothing was, or by a `TextSampler`."""
        return self.columns is not None

    @property
    def failed(self) -> bool:
        """True if it ended with an error."""
        return self.stop_reason is StopReason.ERROR

    @property
    def streams(self) -> Mapping[str, NDArray[Any]]:
        """Arrays `(T, …)` by name, aligned with `completion_ids`, made of those of its turns.

        NaN, or -1 in an array of integers, where the token was not sampled. Unsigned integers have
        become signed ones.
        """
        return {} if self.columns is None else _streams_of(self.columns, self.turns)

    @property
    def step_rewards(self) -> list[float | None]:
        """The env's reward after each turn."""
        return [turn.reward for turn in self.turns]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled in the turns of the row."""
        return sum(turn.end - turn.start for turn in self.turns)

    @property
    def dropped_tokens(self) -> int:
        """How many it sampled in other branches."""
        return sum(int(branch.columns.env_mask.sum()) for branch in self.branches)


def give_stream(turns: Sequence[TurnRecord], name: str, values: NDArray[Any]) -> None:
    """Give the turns of a row an array along all its sampled tokens.

    Args:
        turns: of the row, in order.
        name: of the stream.
        values: `(sampled tokens, …)`.

    Raises:
        ValueError: the turns have another number of tokens.
    """
    tokens = sum(turn.end - turn.start for turn in turns)
    if len(values) != tokens:
        raise ValueError(
            f"stream {name!r}: got {len(values)} values for the {tokens} sampled tokens of a row"
        )
    start = 0
    for turn in turns:
        end = start + turn.end - turn.start
        turn.streams[name] = values[start:end]
        start = end


def _streams_of(columns: Columns, turns: Sequence[TurnRecord]) -> dict[str, NDArray[Any]]:
    """Return the streams of a row's turns, aligned with its completion."""
    start, length = len(columns.prompt_ids), len(columns.env_mask)
    names = dict.fromkeys(name for turn in turns for name in turn.streams)
    found = {}
    for name in names:
        pieces = [(turn, turn.streams[name]) for turn in turns if name in turn.streams]
        shapes = {values.shape[1:]: turn for turn, values in pieces}
        if len(shapes) > 1:
            raise SamplerError(
                f"stream {name!r} has different shapes in the turns of one row: "
                f"{', '.join(map(str, shapes))}\n"
                "hint: after the first dimension, all arrays of a stream must have the same shape"
            )
        aligned = _unsampled(length, pieces)
        for turn, values in pieces:
            aligned[turn.start - start : turn.end - start] = values
        found[name] = aligned
    return found


def _unsampled(length: int, pieces: Sequence[tuple[TurnRecord, NDArray[Any]]]) -> NDArray[Any]:
    """Return so many tokens that nobody sampled, of the type and shape of a stream's pieces."""
    dtype = np.result_type(*(values.dtype for _, values in pieces))
    if dtype.kind in "bu":  # these have no -1
        dtype = np.promote_types(dtype, np.int8)
    return np.full((length, *pieces[0][1].shape[1:]), np.nan if dtype.kind == "f" else -1, dtype)
