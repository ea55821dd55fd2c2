"""The Rust core. Ids are int64, masks uint8, logprobs float32."""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from abut.parts import Part

__all__ = [
    "Choice",
    "Columns",
    "Merge",
    "Seam",
    "Stitched",
    "Tokenizer",
    "Trajectory",
    "Transition",
    "Turn",
    "__version__",
    "collate",
    "positions_of",
    "read_completions",
    "stitch",
]

__version__: str

_Added = Literal["parse", "text", "raise"]
_Ids = NDArray[np.int64] | Sequence[int]

@final
class Seam:
    """The verdict on one seam: whether it is exact, and the tokens that an append wrote."""

    @property
    def kind(self) -> Literal["barrier", "window", "merged", "opaque"]:
        """How abut decided the verdict; `merged` if the canonical tokens differ across the seam."""

    @property
    def exact(self) -> bool:
        """True if the append did not have to change any earlier token."""

    @property
    def drop(self) -> int:
        """How many tokens to the left of the seam were replaced."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: the new tokens, which follow the old ones without the last `drop`."""

    @property
    def canonical_ids(self) -> NDArray[np.int64] | None:
        """`(T,)` int64: the canonical tokens, from the first that differs to the next hard token.

        Set only if the left side was frozen, because otherwise the canonical tokens are written.
        None if nothing differs, and if there are no canonical tokens: the seam is inside a
        character, or sampled bytes spell text that the vocabulary has only as a control token.
        """

    @property
    def merge(self) -> Merge | None:
        """Both sides of a `merged` seam; None if there are no canonical tokens."""

@final
class Merge:
    """The tokens around a merged seam, from the first that differs to the last."""

    @property
    def left_ids(self) -> NDArray[np.int64]:
        """`(L,)` int64: last tokens of the left side alone; empty if only the right changes."""

    @property
    def right_ids(self) -> NDArray[np.int64]:
        """`(R,)` int64: tokens of the right side alone; the first, if the left changes too."""

    @property
    def merged_ids(self) -> NDArray[np.int64]:
        """`(M,)` int64: the tokens of both sides encoded together."""

    @property
    def left_text(self) -> str:
        """The text of `left_ids`."""

    @property
    def right_text(self) -> str:
        """The text of `right_ids`."""

@final
class Tokenizer:
    """A tokenizer from a `tokenizer.json`; the file's truncation and padding are ignored."""

    @staticmethod
    def from_str(
        json: str,
        *,
        control: Collection[str] | None = None,
        textual: Collection[str] | None = None,
    ) -> Tokenizer:
        """Read the text of a `tokenizer.json`.

        Args:
            json: the text.
            control: added tokens to treat as control tokens.
            textual: added tokens to treat as ordinary text.

        Raises:
            TokenizerError: the text is not a `tokenizer.json`, or the tokenizer draws its tokens
                at random.
        """

    @staticmethod
    def from_file(
        path: str | os.PathLike[str],
        *,
        control: Collection[str] | None = None,
        textual: Collection[str] | None = None,
    ) -> Tokenizer:
        """Read a `tokenizer.json`.

        Args:
            path: the file.
            control: as `from_str`.
            textual: as `from_str`.

        Raises:
            OSError: the file cannot be read.
            TokenizerError: as `from_str`, with the path.
        """

    @staticmethod
    def from_pretrained(
        source: Any,
        *,
        control: Collection[str] | None = None,
        textual: Collection[str] | None = None,
    ) -> Tokenizer:
        """Convert a transformers tokenizer, or load one by name or folder with transformers.

        Args:
            source: the tokenizer, its name or its folder.
            control: as `from_str`; added tokens that the chat template writes are included.
            textual: as `from_str`; also for tokens that the chat template writes.

        Raises:
            MissingExtraError: `source` is a name or folder, and transformers is not installed.
            TokenizerError: the tokenizer is not a fast one: it has no `tokenizers` backend.
        """

    def encode(self, text: str, *, added: _Added = "parse") -> NDArray[np.int64]:
        """Return the `(T,)` int64 tokens of `text`. Never adds BOS or EOS.

        Args:
            text: the first text of a conversation.
            added: "parse": control tokens that are spelled become control tokens; "text": they
                stay text; "raise": they are an error.

        Raises:
            ControlTokenError: `added="raise"` and the text spells one.
            TokenizerError: the tokenizer cannot encode the text, or the text is not valid UTF-8.
        """

    def encode_batch(
        self, texts: Sequence[str], *, added: _Added = "parse"
    ) -> list[NDArray[np.int64]]:
        """Encode several texts on all CPU cores; return the tokens of each, in order.

        Ctrl-C stops it between two texts.

        Args:
            texts: each is the first text of a conversation.
            added: as `encode`.

        Raises:
            ControlTokenError: as `encode`, for the first text that has an error; names its index.
            TokenizerError: the same.
        """

    def encode_parts(self, parts: Sequence[Part], *, at_start: bool = True) -> NDArray[np.int64]:
        """Return the `(T,)` int64 tokens of all parts; only scaffold may become control tokens.

        Args:
            parts: scaffold and content, in order.
            at_start: True if the parts begin the conversation.

        Raises:
            TokenizerError: content spells a control token and cannot be written with other
                tokens, or the text is not valid UTF-8.
        """

    def decode_bytes(self, ids: _Ids) -> bytes:
        """Return the bytes of the ids, by table.

        Args:
            ids: `(T,)`.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """

    def decode(self, ids: _Ids) -> str:
        """Return the text of the ids; bytes that do not form a character become U+FFFD.

        Args:
            ids: `(T,)`.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """

    def control_spellings(self, text: str) -> list[tuple[int, str]]:
        """Return the control tokens that `text` spells, as `(index of the first character, token)`.

        `encode(text, added="parse")` would write these tokens; `added="text"` does not.
        """

    def seam(self, a: str, b: str, *, added: _Added = "parse") -> Seam:
        """Return the verdict on the seam between two texts, of which `a` begins a conversation.

        The time depends on `b` and on the run of characters at the seam, not on the length of
        `a`, unless `profile()["opaque_because"]` is set.

        Raises:
            ControlTokenError: `added="raise"` and the text spells one.
            TokenizerError: as `encode`.
        """

    def is_additive(self, a: str, b: str, *, added: _Added = "parse") -> bool:
        """Return True if `encode(a + b)` is literally `encode(a)` followed by `encode(b)`.

        Raises:
            ControlTokenError: `added="raise"` and the text spells one.
            TokenizerError: as `encode`.
        """

    def token_to_id(self, token: str) -> int | None:
        """Return the id of an added token or vocabulary entry; None if it does not exist."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, added tokens included."""

    def __copy__(self) -> Tokenizer: ...
    def __deepcopy__(self, memo: object, /) -> Tokenizer: ...
    def profile(self) -> dict[str, Any]:
        """Return facts about the tokenizer, without encoding anything.

        Keys: model, normalizer, pre_tokenizer, vocab_size; encoder ("fast" is abut's own, "hf" is
        the `tokenizers` package); demoted_because (why "hf" is used although "fast" supports this
        kind of tokenizer: the two gave different tokens for a probe text); opaque_because (why an
        append encodes the open text again; None if a window of it is enough); and the lists
        hard_tokens, control_tokens, textual_tokens, mintable_tokens (control tokens that the
        model's own vocabulary could spell; abut prevents it) and swallowed_tokens (added tokens
        that begin with whitespace, which an rstrip token directly before them removes;
        `tokenizers` writes them anyway).
        """

@final
class Turn:
    """The position of one sample in its trajectory."""

    @property
    def start(self) -> int:
        """The position of its first token, which is the length of the request that it answers."""

    @property
    def end(self) -> int:
        """The position after its last token; equal to `start` if nothing was sampled."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Trajectory:
    """Tokens in the order in which the engine saw and sampled them.

    A token has a finite logprob exactly if it was sampled. Tokens that `request` returned
    never change. Calls release the GIL, so other threads run meanwhile; a thread that calls a
    trajectory which is in use gets a `TrajectoryError`. `Trajectory(tokenizer)` is empty.
    """

    def __new__(cls, tokenizer: Tokenizer) -> Trajectory: ...
    def append_text(
        self,
        text: str,
        *,
        added: _Added = "text",
        provenance: Literal["prompt", "env", "close"] = "env",
    ) -> Seam:
        """Append context: content, or scaffold if `added="parse"`.

        Args:
            text: joined to the text before it, back to the last token that was frozen or sampled.
                The tokens do not depend on how the text was split into appends.
            added: "parse": control tokens that are spelled become control tokens; "text": they
                stay text; "raise": they are an error.
            provenance: the author of the text; "close": abut, which ends a turn for the policy.

        Returns:
            The seam between the tokens before it and the appended ones.

        Raises:
            ControlTokenError: `added="raise"` and the text spells one; nothing is written.
            TokenizerError: as `Tokenizer.encode`; nothing is written.
        """

    def append_parts(
        self, parts: Sequence[Part], *, provenance: Literal["prompt", "env", "close"] = "env"
    ) -> Seam:
        """Append context as typed parts, of which only scaffold may become control tokens.

        Args:
            parts: scaffold and content, in order; they join as in `append_text`.
            provenance: the author of the content.

        Returns:
            The seam between the tokens before it and the appended ones.

        Raises:
            TokenizerError: as `Tokenizer.encode_parts`; nothing is written.
        """

    def request(self) -> NDArray[np.int64]:
        """Return all ids so far, `(T,)` int64, to send to the engine, and freeze them.

        The array is a read-only view that never changes: all requests of a trajectory share one
        buffer, and a turn writes only the ids that it adds. `torch.tensor(ids)` copies it.
        `torch.from_numpy` and `torch.as_tensor` share the buffer (torch warns about this), so do
        not write to their result: it would change all requests of the trajectory.
        """

    def append_sampled(self, ids: _Ids, logprobs: NDArray[np.float32] | Sequence[float]) -> Seam:
        """Append the tokens that the engine sampled, unchanged.

        Args:
            ids: `(T,)`.
            logprobs: `(T,)`, nats, finite, aligned with `ids`.

        Returns:
            The seam between the request and the sample.

        Raises:
            TrajectoryError: `request` was not called directly before, or the logprobs are not one
                finite number per id; nothing is written.
            TokenizerError: an id outside the vocabulary.
        """

    def fork(self, at: int) -> Trajectory:
        """Return a new trajectory, equal to this one when it had `at` tokens.

        The two are independent from then on. The fork has the turns that start before `at`, and
        costs a copy of the tokens before it. What the fork may do next depends on `at`; the first
        of these cases that fits counts:

        - 0: it is empty.
        - The start of a turn: the fork is as after `request`, so another sample of that request
          may follow at once. This also holds if another turn ends there or if nothing was
          sampled, because after a request everything is possible that is possible after a sample.
        - The length: the fork is as this trajectory is now. An unanswered request may be answered
          in both, and open text stays open: an append may change its last tokens.
        - The end of a turn: the fork is as after `append_sampled`.

        Args:
            at: the position, in tokens.

        Raises:
            TrajectoryError: any other position; the message names the nearest possible ones.
        """

    @property
    def ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: a copy of all ids."""

    @property
    def sampled_mask(self) -> NDArray[np.uint8]:
        """`(T,)` uint8: 1 where the policy sampled the token."""

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """`(T,)` float32, nats; NaN where the token was not sampled."""

    @property
    def provenance(self) -> NDArray[np.uint8]:
        """`(T,)` uint8: each token's author, as an index of `abut.trajectory.PROVENANCE`."""

    @property
    def turns(self) -> list[Turn]:
        """The position of each sample, in order."""

    def columns(self) -> Columns:
        """Return the row for a trainer, which ends with the last sampled token.

        Raises:
            TrajectoryError: the trajectory has no sampled token.
        """

    def __len__(self) -> int: ...

@final
class Columns:
    """One row for a trainer. The three arrays after the prompt are aligned.

    Args:
        prompt_ids: `(P,)`.
        completion_ids: `(T,)`.
        logprobs: `(T,)`, nats: finite where `env_mask` is 1, else 0.0.
        env_mask: `(T,)`: 1 where the policy sampled the token, else 0.

    Raises:
        TrajectoryError: an id is negative, a length differs, or mask and logprob disagree.
    """

    def __new__(
        cls, *, prompt_ids: _Ids, completion_ids: _Ids, logprobs: Any, env_mask: Any
    ) -> Columns: ...
    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, NDArray[Any]]]: ...
    @property
    def prompt_ids(self) -> NDArray[np.int64]:
        """`(P,)` int64: all ids before the first sampled one."""

    @property
    def completion_ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: all ids from the first to the last sampled one."""

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """`(T,)` float32, nats; 0.0 where `env_mask` is 0."""

    @property
    def env_mask(self) -> NDArray[np.uint8]:
        """`(T,)` uint8: 1 where the policy sampled the token."""

def collate(columns: Sequence[Columns], *, pad_id: int) -> dict[str, NDArray[Any]]:
    """Pad rows to one rectangle each: prompts on the left, completions on the right.

    Takes about as long as copying the bytes. All arrays are views of one block of memory,
    which lives as long as one of them.

    Args:
        columns: B rows.
        pad_id: the padding of `prompt_ids` and `completion_ids`; other arrays are padded with
            0.

    Returns:
        `prompt_ids` int64 and `prompt_mask` uint8, `(B, P)`; `completion_ids` int64,
        `completion_mask` uint8, `logprobs` float32 and `env_mask` uint8, `(B, T)`.

    Raises:
        TrajectoryError: an array of a row was changed, so that mask and logprob disagree.
    """

@final
class Transition:
    """How one recorded call follows another."""

    @property
    def call(self) -> int:
        """The position of the call in the recording."""

    @property
    def parent(self) -> int | None:
        """The position of the call that this one extends, leaves or repeats.

        None if no recorded sample shares the call's history, or if several calls could be the
        parent.
        """

    @property
    def chain(self) -> int | None:
        """The position in `Stitched.chains`; None if the call was dropped or quarantined."""

    @property
    def kind(self) -> Literal["clean", "realigned", "forked", "quarantined"]:
        """The verdict.

        - clean: the call extends its parent exactly and continues the parent's chain; or it is
          the first call with this prompt, without a parent.
        - realigned: the call continues its parent's chain, in which the tail of the parent's
          sample that differs has become context.
        - forked: the call does not continue its parent's chain. It begins a new chain, or was
          dropped (`chain` is None). If another call has the same prompt, `parent` is the parent
          of that call, which may be None.
        - quarantined: the call extends more than one call exactly, or a quarantined call.
        """

    @property
    def token(self) -> int | None:
        """The position of the first token that differs; None if nothing differs.

        Counted from 0 in the prompt; the prompt's length if it ends inside a sample.
        """

    @property
    def cause(
        self,
    ) -> (
        Literal["bos", "bpe_merge", "thinking", "separator", "tool_call", "rewritten", "unknown"]
        | None
    ):
        """Why the prompt probably differs.

        None if nothing differs, or if several calls differ at `token`; then `left` and `right`
        are None, too.
        """

    @property
    def left(self) -> str | None:
        """The recorded text around `token`; None without `tokenizer`."""

    @property
    def right(self) -> str | None:
        """The text around `token` in the prompt; None without `tokenizer`."""

@final
class Stitched:
    """Recorded calls, joined into chains; no sampled token is trained in more than one chain."""

    @property
    def chains(self) -> list[Columns]:
        """One row for each chain, in the order in which the first calls were recorded."""

    @property
    def transitions(self) -> list[Transition]:
        """One transition for each call with a sample, in the order of the recording."""

    @property
    def dropped(self) -> dict[Literal["empty", "truncated", "quarantined"], int]:
        """How many calls are in no chain: empty sample, truncated, or no certain parent."""

def stitch(
    calls: Iterable[tuple[_Ids, _Ids, NDArray[np.float32] | Sequence[float]]],
    *,
    on_drift: Literal["error", "truncate", "split", "realign"] = "error",
    tokenizer: Tokenizer | None = None,
) -> Stitched:
    """Join calls that another program recorded; the time is linear in the number of tokens.

    Args:
        calls: `(prompt_ids, completion_ids, logprobs)` of each call, in any order; contiguous
            int64 arrays are read without a copy.
        on_drift: what to do if a prompt differs from the recorded tokens. "error": raise an
            error; "truncate": end the chain before the call, and drop the call and all that
            extend it; "split": begin a new chain with the call; "realign": turn the tail of a
            sample that differs into context, and otherwise do the same as "split".
        tokenizer: adds texts and better causes to the verdicts; it does not change the
            chains.

    Returns:
        The chains, one row each, and a verdict on each call.

    Raises:
        TrajectoryError: a call is malformed: an empty prompt, a negative id, or logprobs that are
            not one finite number per sampled id.
        SeamError: with `on_drift="error"`, a prompt differs or has more than one possible parent.
    """

@final
class Choice:
    """One choice in the reply of a vLLM server."""

    @property
    def index(self) -> int:
        """The number that the server gave the choice."""

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: the sampled ids, the stop token included."""

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """`(T,)` float32, nats, aligned with `token_ids`."""

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length`, `abort`, …; None if the server did not give one."""

    @property
    def stop_reason(self) -> int | str | None:
        """The stop token or stop string; None for the end-of-sequence token."""

    @property
    def text(self) -> str | None:
        """The text as the server decoded it; None from `/inference/v1/generate`."""

    @property
    def prompt_token_ids(self) -> NDArray[np.int64] | None:
        """`(P,)` int64: the ids that the engine received; None if the server omits them."""

def read_completions(body: bytes, /) -> list[Choice]:
    """Read a vLLM reply with ids and logprobs: `/v1/completions` or `/inference/v1/generate`.

    Args:
        body: the whole body of the reply.

    Raises:
        SamplerError: the body is not such a reply, ids or logprobs are missing, an id is not
            valid, or the logprobs are not one possible number for each id; names the choice
            and the index.
    """

def positions_of(
    ids: NDArray[np.signedinteger[Any]] | Sequence[int], tokens: Sequence[int], /
) -> list[int]:
    """Return the positions of any of these tokens in the ids.

    Args:
        ids: `(T,)`, of any signed integers.
        tokens: those to look for, at most a few.
    """
