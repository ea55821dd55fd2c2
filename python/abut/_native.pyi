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
    "read_completions",
    "stitch",
]

__version__: str

_Added = Literal["parse", "text", "raise"]
_Ids = NDArray[np.int64] | Sequence[int]

@final
class Seam:
    """The verdict on one seam, with the tokens that were written there."""

    @property
    def kind(self) -> Literal["barrier", "window", "merged", "opaque"]:
        """The way in which it was decided; `merged` if the canonical tokens differ across it."""

    @property
    def exact(self) -> bool:
        """Appending in the right left context changed no earlier token."""

    @property
    def drop(self) -> int:
        """The number of tokens on the left that were replaced."""

    @property
    def ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: the left tokens without the last `drop`, then these, are the whole."""

    @property
    def canonical_ids(self) -> NDArray[np.int64] | None:
        """`(T,)` int64: the canonical tokens, from the first that differs to the next hard token.

        Only where the left side was frozen: elsewhere the canonical tokens are written. None where
        nothing differs, and where no canonical tokens exist: the seam lies inside a character, or
        sampled bytes spell text that the vocabulary has as a control token only.
        """

    @property
    def merge(self) -> Merge | None:
        """The tokens and texts that meet in a `merged` seam; None where no canonical ones exist."""

@final
class Merge:
    """The tokens around a merged seam, from the first that differs to the last."""

    @property
    def left_ids(self) -> NDArray[np.int64]:
        """`(L,)` int64: the last tokens of the left alone; empty where only the right changes."""

    @property
    def right_ids(self) -> NDArray[np.int64]:
        """`(R,)` int64: tokens of the right side alone; its first, where the left changes too."""

    @property
    def merged_ids(self) -> NDArray[np.int64]:
        """`(M,)` int64: the tokens of both together."""

    @property
    def left_text(self) -> str:
        """The text of `left_ids`."""

    @property
    def right_text(self) -> str:
        """The text of `right_ids`."""

@final
class Tokenizer:
    """A `tokenizer.json`, ready for exact assembly. Truncation and padding in it are ignored."""

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
            control: added tokens to treat as control tokens, whatever their spelling.
            textual: added tokens to treat as ordinary text.

        Raises:
            TokenizerError: it is not one, or its tokens are drawn at random.
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
        """Take over a transformers tokenizer, or load one by name or folder with transformers.

        Args:
            source: the tokenizer, its name or its folder.
            control: as `from_str`; so are those that the chat template spells.
            textual: as `from_str`, whatever the chat template spells.

        Raises:
            MissingExtraError: a name or folder, and transformers is not installed.
            TokenizerError: it has no `tokenizers` backend.
        """

    def encode(self, text: str, *, added: _Added = "parse") -> NDArray[np.int64]:
        """Return the `(T,)` int64 tokens of `text`. Never adds BOS or EOS.

        Args:
            text: the first text of a conversation.
            added: "parse": control tokens that are spelled become control tokens; "text": they
                stay text; "raise": they are an error.

        Raises:
            ControlTokenError: `added="raise"` and the text spells one.
            TokenizerError: the text has no tokens, or no UTF-8.
        """

    def encode_batch(
        self, texts: Sequence[str], *, added: _Added = "parse"
    ) -> list[NDArray[np.int64]]:
        """Return what `encode` returns for each text of a list, in order; uses all cores.

        Ctrl-C ends it between two texts.

        Args:
            texts: each the first text of a conversation.
            added: as `encode`.

        Raises:
            ControlTokenError: as `encode`, for the first text that has an error; names its index.
            TokenizerError: the same.
        """

    def encode_parts(self, parts: Sequence[Part], *, at_start: bool = True) -> NDArray[np.int64]:
        """Return the `(T,)` int64 tokens of the whole; only scaffold becomes control tokens.

        Args:
            parts: scaffold and content, in order.
            at_start: whether they begin the conversation.

        Raises:
            TokenizerError: content spells a control token that cannot be written otherwise, or the
                text has no UTF-8.
        """

    def decode_bytes(self, ids: _Ids) -> bytes:
        """Return the bytes of the ids, by table.

        Args:
            ids: `(T,)`.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """

    def decode(self, ids: _Ids) -> str:
        """Return `decode_bytes` as text; bytes that are no character become U+FFFD.

        Args:
            ids: `(T,)`.

        Raises:
            TokenizerError: an id outside the vocabulary.
        """

    def control_spellings(self, text: str) -> list[tuple[int, str]]:
        """Return each control token that `text` spells, behind the index of its first character.

        They are what `encode(text, added="parse")` would make, and `added="text"` does not.
        """

    def seam(self, a: str, b: str, *, added: _Added = "parse") -> Seam:
        """Return the verdict on the seam between two texts, of which `a` begins a conversation.

        Takes as long as `b` and the run of characters at the seam, however long `a` is; where
        `profile()` says `opaque_because`, as long as both.

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
        """Return the id of an added token or an entry of the vocabulary; None if there is none."""

    @property
    def vocab_size(self) -> int:
        """The number of ids, added tokens included."""

    def __copy__(self) -> Tokenizer: ...
    def __deepcopy__(self, memo: object, /) -> Tokenizer: ...
    def profile(self) -> dict[str, Any]:
        """Return the facts that are known without encoding anything.

        Keys: model, normalizer, pre_tokenizer, vocab_size, encoder ("fast" for the shapes that it
        knows, else "hf", which is `tokenizers` itself), demoted_because (why "fast" is not used
        although it knows the shape: its tokens of a probe text were others), opaque_because (why
        an append encodes the open text again; None where a window is enough), and the lists
        hard_tokens, control_tokens, textual_tokens, mintable_tokens (control tokens that the
        model's own vocabulary could spell, and is kept from), swallowed_tokens (added tokens that
        begin with whitespace, which an rstrip token directly before them swallows; `tokenizers`
        writes them besides).
        """

@final
class Turn:
    """The position of one sample in its trajectory."""

    @property
    def start(self) -> int:
        """Its first token: the length of the request that it answers."""

    @property
    def end(self) -> int:
        """Behind its last token; `start` where nothing was sampled."""

    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Trajectory:
    """Tokens in the order in which the engine saw and sampled them.

    A token has a finite logprob exactly when it was sampled; what `request` froze never changes.
    Other threads go on while a call works; one that calls the same trajectory gets a
    `TrajectoryError`. `Trajectory(tokenizer)` is empty.
    """

    def __new__(cls, tokenizer: Tokenizer) -> Trajectory: ...
    def append_text(
        self,
        text: str,
        *,
        added: _Added = "text",
        provenance: Literal["prompt", "env", "close"] = "env",
    ) -> Seam:
        """Append context. With `added="parse"` it is scaffold, else content.

        Args:
            text: it joins the text before it, back to what was frozen or sampled; the tokens are
                those of the whole, whatever the pieces in which it arrived.
            added: "parse": control tokens that are spelled become control tokens; "text": they
                stay text; "raise": they are an error.
            provenance: the author; "close": abut, in place of the policy.

        Returns:
            The seam between what stood there and what was appended.

        Raises:
            ControlTokenError: `added="raise"` and the text spells one; nothing is written.
            TokenizerError: as `Tokenizer.encode`; nothing is written.
        """

    def append_parts(
        self, parts: Sequence[Part], *, provenance: Literal["prompt", "env", "close"] = "env"
    ) -> Seam:
        """Append context whose scaffold and content are apart.

        Args:
            parts: scaffold and content, in order; they join as in `append_text`.
            provenance: the author of the content.

        Returns:
            The seam between what stood there and what was appended.

        Raises:
            TokenizerError: as `Tokenizer.encode_parts`; nothing is written.
        """

    def request(self) -> NDArray[np.int64]:
        """Return all ids so far, `(T,)` int64, which the engine gets. Freezes them.

        A read-only view that stays as it is: all requests of a trajectory share one array, and a
        turn writes only the ids that it adds. `torch.tensor(ids)` copies it. `torch.from_numpy` and
        `torch.as_tensor` share it, which torch warns of: what is written there stands in all
        requests of the trajectory, so don't.
        """

    def append_sampled(self, ids: _Ids, logprobs: NDArray[np.float32] | Sequence[float]) -> Seam:
        """Append the tokens that the engine sampled, unchanged.

        Args:
            ids: `(T,)`.
            logprobs: `(T,)`, nats, finite, aligned with `ids`.

        Returns:
            The seam between what stood there and what was sampled.

        Raises:
            TrajectoryError: no request stands directly before it, or the logprobs are not one
                finite number per id; nothing is written.
            TokenizerError: an id outside the vocabulary.
        """

    def fork(self, at: int) -> Trajectory:
        """Return a new trajectory: this one as it was when it had `at` tokens.

        The two share nothing that changes, and each goes on as if it had been built alone. The fork
        has the turns that start before `at`, and costs a copy of the tokens before it. The first of
        these that `at` is decides what the fork may do next:

        - 0: it is empty.
        - The start of a turn: it is requested, so that another sample of that request may follow at
          once. A turn may end there too, or have sampled nothing there; that makes no difference,
          because everything that is possible after a sample is possible after a request.
        - The length: it is as this one is. A request without an answer may be answered in both, and
          open text stays open: text that is appended may change its last tokens.
        - The end of a turn: it is as `append_sampled` left this one.

        Args:
            at: the offset, in tokens.

        Raises:
            TrajectoryError: any other offset; the message names the nearest possible ones.
        """

    @property
    def ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: all ids, a copy."""

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
        """Return the row for a trainer: up to the last sampled token.

        Raises:
            TrajectoryError: nothing was sampled.
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
    """Pad rows to rectangles: prompts on the left, completions on the right.

    Costs about as much as copying as many bytes. The arrays are views of one block of memory: it is
    kept for as long as one of them is.

    Args:
        columns: B rows.
        pad_id: the padding of `prompt_ids` and `completion_ids`; the others are padded with 0.

    Returns:
        `prompt_ids` int64 and `prompt_mask` uint8, `(B, P)`; `completion_ids` int64,
        `completion_mask` uint8, `logprobs` float32 and `env_mask` uint8, `(B, T)`.

    Raises:
        TrajectoryError: an array of a row was changed so that mask and logprob disagree.
    """

@final
class Transition:
    """The way in which one recorded call follows another."""

    @property
    def call(self) -> int:
        """Index of the call, as recorded."""

    @property
    def parent(self) -> int | None:
        """The call that it extends, leaves or repeats.

        None where no recorded sample shares its history, and where several calls could be it.
        """

    @property
    def chain(self) -> int | None:
        """Index in `Stitched.chains`; None where it was dropped or quarantined."""

    @property
    def kind(self) -> Literal["clean", "realigned", "forked", "quarantined"]:
        """The verdict.

        - clean: it extends its parent exactly and goes on with its chain; or it is the first call
          with this prompt, which has no parent.
        - realigned: it goes on with its parent's chain, in which the differing tail of the
          parent's sample is context now.
        - forked: it does not go on with its parent's chain. It begins one of its own, or was
          dropped (`chain` is None). Where its prompt is that of another call, `parent` is that
          call's, which may be None.
        - quarantined: it extends more than one call exactly, or a call that is quarantined.
        """

    @property
    def token(self) -> int | None:
        """The first token that differs from what stood there; None where nothing differs.

        An index from 0 in the prompt, or its length where it ends inside a sample.
        """

    @property
    def cause(
        self,
    ) -> (
        Literal["bos", "bpe_merge", "thinking", "separator", "tool_call", "rewritten", "unknown"]
        | None
    ):
        """A guess at why it differs.

        None where nothing differs, and where several calls are left at `token`; then `left` and
        `right` are None, too.
        """

    @property
    def left(self) -> str | None:
        """The text around `token` in what stood there; None without `tokenizer`."""

    @property
    def right(self) -> str | None:
        """The text around `token` in the prompt; None without `tokenizer`."""

@final
class Stitched:
    """Recorded calls, joined: in all chains together, no sampled token is trained twice."""

    @property
    def chains(self) -> list[Columns]:
        """One row each, in the order in which their first calls were recorded."""

    @property
    def transitions(self) -> list[Transition]:
        """One for each call with a sample, as recorded."""

    @property
    def dropped(self) -> dict[Literal["empty", "truncated", "quarantined"], int]:
        """The numbers of calls in no chain: nothing was sampled, cut off, no certain parent."""

def stitch(
    calls: Iterable[tuple[_Ids, _Ids, NDArray[np.float32] | Sequence[float]]],
    *,
    on_drift: Literal["error", "truncate", "split", "realign"] = "error",
    tokenizer: Tokenizer | None = None,
) -> Stitched:
    """Join calls that another program recorded. Linear in the tokens given.

    Args:
        calls: `(prompt_ids, completion_ids, logprobs)` of each, in any order; contiguous int64
            arrays are read in place.
        on_drift: the handling of a prompt that differs from what stood there. "error": refuse the
            recording; "truncate": the chain ends before the call, which is dropped with what
            extends it; "split": the call begins a chain; "realign": the differing tail of a sample
            becomes context, and elsewhere as "split".
        tokenizer: for texts and better guesses at causes; it decides nothing.

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
        """The server's own number of the choice."""

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """`(T,)` int64: the sampled ids, the stop token included."""

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """`(T,)` float32, nats, aligned with `token_ids`."""

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length`, `abort`, …; None where the server gave none."""

    @property
    def stop_reason(self) -> int | str | None:
        """The stop token or stop string; None for the end-of-sequence token."""

    @property
    def text(self) -> str | None:
        """The text as the server decoded it; None from `/inference/v1/generate`."""

    @property
    def prompt_token_ids(self) -> NDArray[np.int64] | None:
        """`(P,)` int64: the ids that the engine received; None where the server omits them."""

def read_completions(body: bytes, /) -> list[Choice]:
    """Read the reply of `/v1/completions` or `/inference/v1/generate`, asked for ids and logprobs.

    Args:
        body: all of it.

    Raises:
        SamplerError: no such reply, ids or logprobs are missing, an id is no id, or the logprobs
            are not one possible number for each id. Names the choice and the index.
    """
