//! The facts about a tokenizer that are known without encoding anything.

use crate::encode::Mintable;
use crate::file::{AddedToken, Loaded, kind};

/// The static facts that decide which seams are safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// The model: BPE, Unigram, WordPiece or WordLevel.
    pub model: String,
    /// The normalizer's type, `None` without one.
    pub normalizer: Option<String>,
    /// The pre-tokenizer's type, `None` without one.
    pub pre_tokenizer: Option<String>,
    /// The number of ids, added tokens included.
    pub vocab_size: usize,
    /// The reason why appending encodes the whole open segment again; `None` where a window is enough.
    pub opaque_because: Option<String>,
    /// The encoder in use: "fast" for the shapes that it knows, else "hf".
    pub encoder: &'static str,
    /// The reason why "fast", which knows the shape, is not used: it was compared with "hf" and
    /// differed.
    pub demoted_because: Option<String>,
    /// Added tokens that no text around them can change.
    pub hard: Vec<String>,
    /// Added tokens that only scaffold may become.
    pub control: Vec<String>,
    /// Added tokens that ordinary text is meant to become.
    pub textual: Vec<String>,
    /// Control tokens that the model's own vocabulary could spell, and is kept from.
    pub mintable: Vec<String>,
    /// Added tokens that begin with whitespace, which an rstrip token before them swallows. Here
    /// alone the tokens are not those of `tokenizers`: it writes the whitespace twice or panics.
    pub swallowed: Vec<String>,
}

impl Profile {
    pub(super) fn new(
        loaded: &Loaded,
        raw: &[AddedToken],
        hard: &[bool],
        mintable: &Mintable,
        vocab_size: usize,
        opaque_because: Option<String>,
    ) -> Self {
        let contents = |keep: &dyn Fn(&AddedToken) -> bool| -> Vec<String> {
            loaded.added.iter().filter(|token| keep(token)).map(|t| t.content.clone()).collect()
        };
        Self {
            model: loaded.settings.kind.clone().unwrap_or_else(|| loaded.model.kind().to_owned()),
            normalizer: kind(&loaded.normalizer).map(str::to_owned),
            pre_tokenizer: kind(&loaded.pre_tokenizer).map(str::to_owned),
            vocab_size,
            opaque_because,
            encoder: "hf",
            demoted_because: None,
            hard: raw
                .iter()
                .zip(hard)
                .filter(|(_, hard)| **hard)
                .map(|(token, _)| token.content.clone())
                .collect(),
            control: contents(&|token| token.control),
            textual: contents(&|token| !token.control),
            mintable: contents(&|token| mintable.text_of(token.id).is_some()),
            swallowed: contents(&|token| {
                // Tokens in normalized text are looked for after whitespace was swallowed in raw text.
                let swallows = |t: &AddedToken| t.rstrip && t.normalized == token.normalized;
                token.content.starts_with(char::is_whitespace) && loaded.added.iter().any(swallows)
            }),
        }
    }
}

/// The number of ids; vocabularies have no holes.
pub(super) fn vocab_size(loaded: &Loaded) -> usize {
    let model = loaded.model.vocab_size();
    let added = loaded.added.iter().map(|token| token.id as usize + 1).max().unwrap_or(0);
    model.max(added)
}

/// Control tokens that stand in the model's own vocabulary.
pub(super) fn mintable(loaded: &Loaded) -> Mintable {
    let tokens = loaded
        .added
        .iter()
        .filter(|token| token.control)
        .filter(|token| loaded.model.id_to_token(token.id).is_some())
        .map(|token| (token.id, token.content.clone()));
    Mintable::new(tokens)
}

/// The id of the token for text that the model cannot write.
pub(super) fn unk_id(loaded: &Loaded) -> Option<u32> {
    let token = loaded.settings.unk_token.as_deref();
    loaded.settings.unk_id.or_else(|| loaded.model.token_to_id(token?))
}
