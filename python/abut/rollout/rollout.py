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
from abut.removed import with_removed
from abut.samplers.sampler import Sample

TEACHER_LOGPROBS = "teacher_logprobs"
"""The name of the stream with a teacher's logprob of each sampled token, `(T,)` float32, nats."""


class StopReason(StrEnum):
    """The reason why a rollout ended."""

    ENV_DONE = "env_done"
    """The environment ended the episode (`alive` is false), or the agent returned."""
    MAX_TURNS = "max_turns"
    """The rollout has played `RolloutConfig.max_turns` turns."""
    MAX_CALLS = "max_calls"
    """An agent made more calls than `RolloutConfig.max_calls`."""
    MAX_ROLLOUT_TOKENS = "max_rollout_tokens"
    """An agent's conversations have together sampled `RolloutConfig.max_rollout_tokens`."""
    MAX_COMPLETION_TOKENS = "max_completion_tokens"
    """The next turn would not fit into the completion, or an agent's last answer was cut there."""
    MAX_CONTEXT_TOKENS = "max_context_tokens"
    """The next turn would not fit into the engine's context, or an agent's last answer was cut
    there.
    """
    EMPTY_SAMPLE = "empty_sample"
    """The sampler returned no tokens."""
    DEADLINE = "deadline"
    """An agent still made calls when its time was over."""
    STALE = "stale"
    """Its weights became too old, so it was ended."""
    ERROR = "error"
    """The rollout failed after its retries."""


@with_removed
@dataclass
class TurnRecord:
    """One turn: the position of its sample, how it ended, and how long it took.

    `Conversation.hear` makes it, `note_sample` adds the sampler's data, and the player adds `env_s`
    and `reward`.
    """

    start: int
    """The index of the first token of the sample in the trajectory."""
    end: int
    """The index after the last token of the sample."""
    finish_reason: str = ""
    """See `Sample.finish_reason`."""
    generate_s: float = 0.0
    """Seconds from the request to the sample."""
    env_s: float = 0.0
    """Seconds that the environment or agent took after the sample."""
    reward: float | None = None
    """The reward of this turn alone: the environment's reward after its step, or the reward that an
    agent gave to its answer. The reward of an agent's whole rollout is not here. None: no score.
    """
    stop_token: int | None = None
    """The token that ended the turn: its first stop token, or the token that its stop string begins
    in. The environment gets the text before it. None: the turn was cut by length, or its stop token
    is unknown.
    """
    stop_string: str | None = None
    """The stop string that ended the turn; None: it ended otherwise."""
    stop_inside: bool = False
    """True if the stop string begins inside `stop_token`, not at its first byte."""
    model_version: str | None = None
    """The version of the weights that sampled it, if the sampler knows it."""
    streams: dict[str, NDArray[Any]] = field(default_factory=dict, compare=False)
    """Arrays along its tokens by name, each `(end - start, …)`: the streams of its `Sample`, and
    those computed later, such as `teacher_logprobs`.
    """
    newest_version: int | None = None
    """The version of the weights when the turn was complete. If it is newer than the stream
    `versions`, the weights changed during the turn, and some tokens may come from newer weights
    than the stream says.
    """
    answer_id: str | None = None
    """The id of the answer that an agent's client got; None for an environment's turn."""
    message: int | None = field(default=None, compare=False)
    """The index of its message in its conversation; None if it has no message, because the sample
    was empty or the agent returned other messages.
    """
    spoken: Message | None = field(default=None, compare=False, repr=False)
    """Its message as its environment or agent got it, with `reasoning_content` and `tool_calls`
    separated from `content`. None: all of its text is content.
    """

    def note_sample(self, sample: Sample, generate_s: float) -> None:
        """Add the sampler's data about a sample that took so many seconds."""
        self.finish_reason, self.generate_s = sample.finish_reason, generate_s
        self.model_version = sample.model_version
        self.streams |= sample.streams
        self.newest_version = sample.newest_version


BranchCause: TypeAlias = Literal[
    "repeated", "rewritten", "tools", "new", "template", "subagent", "compaction"
]
"""The reason why an agent's conversation branched:

- repeated: the agent requested another sample of the same turn
- rewritten: the history in the request differs from the conversation
- tools: the request has other tools or template variables
- new: the agent began another conversation
- template: the chat template cannot write such messages after a turn
- subagent: Claude Code or Codex says that a sub-agent sent the request
- compaction: Codex says that it requests a summary of its history
"""


@with_removed
@dataclass(frozen=True)
class Branch:
    """A part of a rollout that is not its row; row and branches hold each sampled token once."""

    columns: Columns
    provenance: NDArray[np.uint8] | Sequence[int] = field(default=(), compare=False)
    """See `Rollout.provenance`."""
    cause: BranchCause | None = None
    """The reason why it branched, or why the row branched from it. None: there was no branching;
    the agent just did not receive these samples.
    """
    delivered: bool = True
    """True if the agent received these samples; other samples are not its actions."""
    followed: bool = True
    """False: the agent requested several samples at this point, and continued from another one."""
    name: str | None = None
    """The name of its calls, or the name of its session in `Rollout.names`."""
    session: str | None = None
    """The session of its calls, if the agent has a `session_header`."""
    reward: float | None = None
    """Its own reward, from `Rollout.rewards`; None: it shares the reward of the rollout."""
    trained: bool = True
    """False: it is never a row. Either its calls were not to be trained (`train=False`), its own
    reward is None, its rollout was not measured, or it is auxiliary and `RolloutConfig.auxiliary`
    leaves those out.
    """
    auxiliary: bool = False
    """True: it has no name, no tools and its own prompt, while another conversation of the rollout
    has tools. Examples are titles and summaries. The main conversation is never auxiliary.
    """
    turns: Sequence[TurnRecord] = field(default=(), compare=False)
    """Its own turns, which `columns` holds after the prompt."""
    turns_before: Sequence[TurnRecord] = field(default=(), compare=False)
    """For a fork: the turns before its own, which `columns` holds in the prompt."""
    images: Sequence[ImageSpan] = ()
    """The images in `columns`, in order; token positions are counted from the first token of the
    prompt.
    """
    messages: Sequence[Message] = field(default=(), compare=False, repr=False)
    """Its conversation, up to its last own turn."""
    tools: Sequence[Mapping[str, Any]] = field(default=(), compare=False, repr=False)
    """See `Rollout.tools`."""

    @property
    def streams(self) -> Mapping[str, NDArray[Any]]:
        """Like `Rollout.streams`, for the columns of this branch."""
        return _streams_of(self.columns, self.turns)

    @property
    def reverse_kl(self) -> NDArray[np.float64] | None:
        """The logprob of each sampled token minus the teacher's, nats; None: not scored.

        Shape `(sampled tokens,)`.

        The mean over tokens sampled from the policy is its reverse KL from the teacher.
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
        """The rewards of the turns before its own turns; empty if it is not a fork."""
        return [turn.reward for turn in self.turns_before]


@dataclass(frozen=True)
class DroppedImages:
    """Images that an agent left out of its history, or of the conversation that replaced the last.

    Leaving an image out of a history forks the conversation. Agents that show only their newest
    screenshot start a conversation that replaces the last one.
    """

    images: tuple[Image, ...]
    cause: BranchCause
    """The cause of the branch that no longer has them."""
    image_tokens: int
    """How many tokens had represented them."""
    reread_tokens: int
    """The cost: how many tokens of the branch's first prompt come after the part that it shares
    with the previous conversation, so an engine must process them again.
    """


@with_removed
@dataclass
class Rollout:
    """A trajectory with reward, timing and errors."""

    rollout_id: str
    """Its id, unique within a run."""
    index: int
    """Its position in the batch."""
    columns: Columns | None = None
    """The token columns of the row; None if nothing was sampled."""
    provenance: NDArray[np.uint8] | Sequence[int] = field(default=(), compare=False)
    """One code per token of `columns`, prompt and completion; see `abut.trajectory.PROVENANCE`."""
    prompt_ids: NDArray[np.int64] | Sequence[int] | None = field(default=None, compare=False)
    """The prompt of the first request, `(P,)` int64; None if there was no request."""
    images: Sequence[ImageSpan] = ()
    """The images of the row, see `Branch.images`. An image after the last sampled token is not part
    of the row."""
    branches: Sequence[Branch] = field(default=(), compare=False)
    """The parts that an agent sampled outside of the conversation that became the row."""
    dropped_images: Sequence[DroppedImages] = field(default=(), compare=False)
    """The images that an agent left out of its history, one entry per branch."""
    name: str | None = None
    """The name of the conversation that became the row; see `Branch.name`."""
    session: str | None = None
    """The session of that conversation; see `Branch.session`."""
    row_reward: float | None = None
    """The own reward of that conversation; see `Branch.reward`."""
    row_trained: bool = True
    """False: that conversation is not trained; see `Branch.trained`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The names of sessions, from `AgentResult.names`."""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    """The rewards by name, session or answer, from `AgentResult.rewards`."""
    asked_by: Collection[str] = field(default=(), compare=False)
    """The names and sessions of all calls, including refused ones."""
    teacher: str | None = None
    """The name of the teacher whose logprobs are the stream `teacher_logprobs`."""
    unscored_rows: int = 0
    """How many of its conversations are not trained because the teacher did not score them."""
    reward: float | None = None
    """The environment's or agent's reward for the whole rollout; None: it has no score."""
    measured: bool = True
    """False: nothing was measured, so no part of the rollout has a reward or is trained, and reward
    functions must not score it."""
    turns: list[TurnRecord] = field(default_factory=list)
    """The turns of the row, in order."""
    turns_before: Sequence[TurnRecord] = field(default=(), compare=False)
    """See `Branch.turns_before`; not empty if the row was drawn at random and is a fork."""
    seams: list[tuple[str, bool]] = field(default_factory=list)
    """The kind of each seam, and whether it is exact."""
    messages: list[Message] = field(default_factory=list)
    """The conversation that became the row."""
    tools: Sequence[Mapping[str, Any]] = ()
    """JSON schemas of the tools that the chat template showed the policy."""
    control_spellings: dict[str, int] = field(default_factory=dict)
    """How often users, tools and the environment spelled each control token, as ordinary text."""
    stop_reason: StopReason = StopReason.ERROR
    """The reason why it ended."""
    error: str | None = None
    """Why it failed; None if it did not fail."""
    attempts: int = 1
    """How often it was played, failed attempts included."""
    attempt_errors: list[str] = field(default_factory=list)
    """The errors of the attempts that failed, even if a later attempt succeeded."""
    attempt_tracebacks: list[str] = field(default_factory=list)
    """The traceback of each attempt error, with the environment's file and line."""
    seconds: float = 0.0
    """Seconds from the start of the first attempt to the end of the last one."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """The columns that an agent or environment gives reward functions besides its reward."""
    usage: Mapping[str, int] = field(default_factory=dict)
    """`prompt_tokens` and `completion_tokens` of all its answers, as a hosted model counts them."""
    client_rewrites: Mapping[str, int] = field(default_factory=dict)
    """How often an agent's client changed a message of the policy, by rule; the rules are in
    docs/integrations/agents.md."""
    tool_choice_unmet: int = 0
    """How often an agent required a call and the policy did not sample one."""

    @property
    def main_row(self) -> Branch | None:
        """The conversation that became its row; None if nothing was sampled."""
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
        """True if it has sampled tokens; False for an empty sample or a `TextSampler`."""
        return self.columns is not None

    @property
    def failed(self) -> bool:
        """True if it ended with an error."""
        return self.stop_reason is StopReason.ERROR

    @property
    def streams(self) -> Mapping[str, NDArray[Any]]:
        """Arrays `(T, …)` by name, aligned with `completion_ids`; see `TurnRecord.streams`.

        The value is NaN, or -1 in integer arrays, where the token was not sampled. Unsigned
        integers become signed.
        """
        return {} if self.columns is None else _streams_of(self.columns, self.turns)

    @property
    def step_rewards(self) -> list[float | None]:
        """The environment's reward after each turn."""
        return [turn.reward for turn in self.turns]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the policy sampled in the turns of the row."""
        return sum(turn.end - turn.start for turn in self.turns)

    @property
    def dropped_tokens(self) -> int:
        """How many tokens the policy sampled in other branches."""
        return sum(int(branch.columns.env_mask.sum()) for branch in self.branches)


def give_stream(turns: Sequence[TurnRecord], name: str, values: NDArray[Any]) -> None:
    """Split an array over the sampled tokens of a row, and add it to the turns as a stream.

    Args:
        turns: of the row, in order.
        name: of the stream.
        values: `(sampled tokens, …)`.

    Raises:
        ValueError: the array does not have one value for each sampled token.
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
    found = {}
    for name in dict.fromkeys(name for turn in turns for name in turn.streams):
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
    """Return values for `length` unsampled tokens, in the dtype and shape of a stream."""
    dtype = np.result_type(*(values.dtype for _, values in pieces))
    if dtype.kind in "bu":  # these have no -1
        dtype = np.promote_types(dtype, np.int8)
    return np.full((length, *pieces[0][1].shape[1:]), np.nan if dtype.kind == "f" else -1, dtype)
