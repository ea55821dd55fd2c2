//! One error type. Each message has the fault, its position, both sides, and a `hint:` line with the cure.

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Where sampled tokens came from, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleOf {
    /// A turn of a trajectory.
    Turn(usize),
    /// A call that another program recorded.
    Call(usize),
    /// A choice in the reply of a server.
    Choice(usize),
}

impl std::fmt::Display for SampleOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Turn(turn) => write!(f, "turn {turn}"),
            Self::Call(call) => write!(f, "call {call}"),
            Self::Choice(choice) => write!(f, "choice {choice}"),
        }
    }
}

/// Everything that can go wrong. `Display` is the whole message that a user reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file is not a usable `tokenizer.json`.
    #[error("not a tokenizer.json: {reason}\nhint: {hint}")]
    Load {
        /// The fault of the file.
        reason: String,
        /// The cure.
        hint: &'static str,
    },
    /// An override of a token's class that cannot be followed.
    #[error("{token:?} {reason}\nhint: profile() lists the added tokens and their classes")]
    Override {
        /// The token that the override names.
        token: String,
        /// The fault of the override.
        reason: &'static str,
    },
    /// The tokenizer draws its tokens at random, so no exact answer exists.
    #[error(
        "the tokenizer is not deterministic: {what}\n\
         hint: set it to null in tokenizer.json; random tokenization is only for pre-training"
    )]
    NotDeterministic {
        /// The setting that makes it random.
        what: String,
    },
    /// The `tokenizers` crate refused an input.
    #[error("the tokenizer cannot encode {text:?}: {reason}")]
    Encode {
        /// The piece of text, shortened.
        text: String,
        /// The reason that `tokenizers` gave.
        reason: String,
    },
    /// The model has no way to write this text without the control token.
    #[error(
        "content spells the control token {token:?} (id {id}), and the vocabulary has no other way \
        to write {text:?}\nhint: if the text is meant to be a control token, pass added=\"parse\""
    )]
    CannotAvoid {
        /// The control token.
        token: String,
        /// Its id.
        id: u32,
        /// The text of one character.
        text: String,
    },
    /// `added="raise"` met a control token.
    #[error(
        "the text spells the control token {token:?} at character {position}\n\
         hint: added=\"text\" keeps the text; added=\"parse\" writes the control token"
    )]
    ControlToken {
        /// The control token.
        token: String,
        /// Where it begins, in characters from 0.
        position: usize,
    },
    /// An id that the tokenizer does not have.
    #[error(
        "token {position} has id {id}, which is outside the vocabulary ({vocab_size} ids)\n\
         hint: check whether the ids come from another tokenizer or from the embedding's padding rows"
    )]
    UnknownId {
        /// Index in the given ids, from 0.
        position: usize,
        /// The id.
        id: i64,
        /// How many ids there are.
        vocab_size: usize,
    },
    /// The ids of one sample and their logprobs have different lengths.
    #[error(
        "{sample} has {ids} sampled ids but {logprobs} logprobs\n\
         hint: pass one logprob per sampled id, the stop token included"
    )]
    LogprobCount {
        /// The sample.
        sample: SampleOf,
        /// How many ids.
        ids: usize,
        /// How many logprobs.
        logprobs: usize,
    },
    /// A sampled token without a logprob that can be one.
    #[error(
        "{sample}: sampled token {index} (id {id}) has logprob {value}, which is {problem}\n\
         hint: ask the engine for the logprob of each sampled token, after temperature and filters"
    )]
    Logprob {
        /// The sample.
        sample: SampleOf,
        /// Index in the sample, from 0.
        index: usize,
        /// The sampled id.
        id: i64,
        /// The value, as text.
        value: String,
        /// Why no sampled token can have it.
        problem: &'static str,
    },
    /// Sampled tokens that answer no request.
    #[error(
        "append_sampled needs a request() directly before it: {reason}\n\
         hint: send request() to the engine, then append the sample, then the reply"
    )]
    NoRequest {
        /// The reason why no request is open.
        reason: &'static str,
    },
    /// An offset at which a trajectory can't be forked.
    #[error(
        "a trajectory of {tokens} tokens cannot be forked at {at}: the nearest {nearest}\n\
         hint: fork at 0, at the start or end of a turn, or at the length; a token elsewhere may be \
         one of a longer text"
    )]
    ForkPoint {
        /// The offset, in tokens. It is signed because Python has negative ones.
        at: i64,
        /// The number of tokens of the trajectory.
        tokens: usize,
        /// The fork points on both sides of it, with their names.
        nearest: String,
    },
    /// A trajectory that holds nothing to train.
    #[error(
        "the trajectory of {tokens} tokens has no sampled token, so there is nothing to train\n\
         hint: call append_sampled before columns()"
    )]
    NothingSampled {
        /// How many tokens it has.
        tokens: usize,
    },
    /// A row whose values contradict each other.
    #[error(
        "columns {row}: completion token {index} {problem}\n\
         hint: for a sampled token env_mask is 1 and the logprob finite; for others both are 0"
    )]
    ColumnValue {
        /// The row, from 0.
        row: usize,
        /// Index in the completion, from 0.
        index: usize,
        /// The contradiction.
        problem: String,
    },
    /// Columns whose arrays do not have the same length.
    #[error(
        "columns {row}: {name} has {len} entries but completion_ids has {expected}\n\
         hint: each array of a row must be as long as its completion_ids"
    )]
    ColumnLength {
        /// The row, from 0.
        row: usize,
        /// The array.
        name: &'static str,
        /// Its length.
        len: usize,
        /// The length that it should have.
        expected: usize,
    },
    /// A recorded call without a prompt.
    #[error(
        "call {call} has an empty prompt\n\
         hint: pass the ids that the engine received, the generation prompt included"
    )]
    EmptyPrompt {
        /// The call, from 0.
        call: usize,
    },
    /// A recorded call with an id that no engine receives or samples.
    #[error(
        "call {call}: token {token} has id {id}, which is negative\n\
         hint: remove padding such as -1 or -100; pass the ids that the engine received and sampled"
    )]
    NegativeId {
        /// The call, from 0.
        call: usize,
        /// Index in prompt and completion, from 0.
        token: usize,
        /// The id.
        id: i64,
    },
    /// A recorded prompt that differs from what stood there.
    #[error(
        "call {call} does not extend call {parent}: \
         token {token} is {right} in its prompt but {left}{texts}\n\
         hint: {hint}; or use on_drift=\"split\""
    )]
    Drift {
        /// The call, from 0.
        call: usize,
        /// The call that it should go on with.
        parent: usize,
        /// The first token that differs, from 0.
        token: usize,
        /// The id in the prompt.
        right: String,
        /// The id that stood there, and whether it was sampled.
        left: String,
        /// With a tokenizer: two lines with the text on both sides.
        texts: String,
        /// The cure for the cause.
        hint: &'static str,
    },
    /// A recorded prompt that goes on with several calls equally well.
    #[error(
        "call {call} has more than one possible parent: its prompt is the same as call {first} and \
         call {second} up to token {token}\n\
         hint: stitch each conversation separately; or use on_drift=\"split\", which {split}"
    )]
    AmbiguousParent {
        /// The call, from 0.
        call: usize,
        /// One parent.
        first: usize,
        /// Another.
        second: usize,
        /// Where the shared history ends, exclusive.
        token: usize,
        /// The effect of "split" on the call.
        split: &'static str,
    },
    /// Bytes that are not the reply of a completions endpoint.
    #[error(
        "the {bytes} bytes of the reply are not a completion: {reason}\n\
         hint: pass the whole body of a 200 answer of /v1/completions or /inference/v1/generate"
    )]
    Reply {
        /// How many bytes.
        bytes: usize,
        /// The fault of the reply.
        reason: String,
    },
    /// A choice without its ids or logprobs.
    #[error("choice {choice} of the reply has no {name}\nhint: {hint}")]
    ReplyArray {
        /// The choice, as the server numbers it.
        choice: usize,
        /// The array.
        name: &'static str,
        /// The setting to send with the request.
        hint: &'static str,
    },
    /// A value that is not a token id.
    #[error(
        "choice {choice} of the reply: {name}[{index}] is {value}, which is not a token id\n\
         hint: check that the server is vLLM and that nothing between it and abut rewrites replies"
    )]
    ReplyId {
        /// The choice, as the server numbers it.
        choice: usize,
        /// The array.
        name: &'static str,
        /// Index in the array, from 0.
        index: usize,
        /// The value, shortened.
        value: String,
    },
}
