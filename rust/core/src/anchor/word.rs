//! Offsets inside a word at which its text can be encoded again.
//!
//! Invariant: where [`WordRestarts::restart`] returns a [`Restart`], encoding from that offset gives
//! the pieces of the whole text from there on, whatever follows; only the first piece lacks the text
//! before the offset. Whether the tokens that meet at the offset stay is a question for the model's
//! certificate: see `docs/background/exactness.md`.
//!
//! The normalizer works on both sides separately, no added token touches the offset, and the
//! pre-tokenizer, followed through the text as a [`Walk`], reaches the same state from there as it
//! does over the whole text.

use once_cell::race::OnceBox;

use super::pieces::Pieces;
use super::walk::{Alignment, Path, Walk};
use crate::file::{Loaded, Model, kind, stages};

/// Bytes that are added to the length of the longest added token: the character behind a token decides
/// whether one with `single_word` matches, and has at most four.
const MARGIN: usize = 4;

/// The rules of a tokenizer for restarting inside its words.
#[derive(Debug)]
pub(crate) struct WordRestarts {
    path: Path,
    /// The number of bytes at the end of a text that are not walked, because an added token could
    /// begin in them.
    unsettled_bytes: usize,
    /// True if a word that begins a text gets a prefix.
    writes_prefix: bool,
    ignores_merges: bool,
    /// True if a character of the vocabulary stands for a byte.
    are_bytes: bool,
    /// The number of bytes of the longest entry of the vocabulary.
    longest: OnceBox<usize>,
}

/// The kind of an offset at which a text can be encoded again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    /// A piece begins there, whatever follows.
    Piece,
    /// A piece reaches over the offset, so the model must not merge the tokens that meet there.
    Inside,
}

impl WordRestarts {
    /// `None` where no restart inside a word is safe.
    pub fn new(loaded: &Loaded, pieces: &Pieces) -> Option<Self> {
        let ignores_merges = loaded.model.ignores_merges()?;
        let marked = |mark: &Option<String>| mark.as_ref().is_some_and(|mark| !mark.is_empty());
        let settings = &loaded.settings;
        let is_marked =
            marked(&settings.continuing_subword_prefix) || marked(&settings.end_of_word_suffix);
        let normalizes = !stages(&loaded.normalizer, "normalizers").is_empty();
        // An added token that swallows whitespace reaches as far as the whitespace does. One that is
        // matched in normalized text, or that the model must not mint there, may come from original
        // text of any length. In both cases no fixed number of bytes at the end is enough.
        let strips = loaded.added.iter().any(|token| token.lstrip || token.rstrip);
        let is_hidden = |id: u32| loaded.model.id_to_token(id).is_some();
        let hides = loaded
            .added
            .iter()
            .any(|token| token.normalized || (token.control && is_hidden(token.id)));
        if is_marked || strips || (normalizes && hides) {
            return None;
        }
        let longest_added = loaded.added.iter().map(|token| token.content.len()).max();
        Some(Self {
            path: Path::new(pieces)?,
            unsettled_bytes: longest_added.unwrap_or(0) + MARGIN,
            writes_prefix: stages(&loaded.pre_tokenizer, "pretokenizers").first().is_some_and(
                |stage| match kind(stage) {
                    Some("Metaspace") => true,
                    Some("ByteLevel") => stage.get("add_prefix_space") != Some(&false.into()),
                    _ => false,
                },
            ),
            ignores_merges,
            are_bytes: pieces.are_bytes(),
            longest: OnceBox::new(),
        })
    }

    /// The number of bytes at the end of a text that are not walked.
    pub fn unsettled_bytes(&self) -> usize {
        self.unsettled_bytes
    }

    /// A walk at the beginning of a text; `None` where a prefix is written before it, so that the
    /// pre-tokenizer sees more than the text.
    pub fn begin(&self, begins_segment: bool) -> Option<Walk> {
        let prefixed = self.writes_prefix && begins_segment;
        (!prefixed).then(|| self.path.begin())
    }

    /// Walks over normalized text, which came from byte `from` of a text; with `is_same` the two are
    /// equal, so that each byte's origin is known. Returns `false` if the walk is lost.
    pub fn walk(&self, walk: &mut Walk, normalized: &str, from: usize, is_same: bool) -> bool {
        normalized.char_indices().all(|(at, c)| {
            let origin = (is_same || at == 0).then_some(from + at);
            self.path.step(walk, c, origin)
        })
    }

    /// The kind of restart at the beginning of `tail`, the last part of the text that `whole` walked;
    /// `None` where it is not safe. `rest` returns the normalized text that follows, up to its end
    /// for now.
    pub fn restart(
        &self,
        whole: &Walk,
        tail: &str,
        model: &Model,
        rest: impl FnOnce() -> Option<String>,
    ) -> Option<Restart> {
        let mut of_tail = self.path.begin();
        let walked = self.walk(&mut of_tail, tail, 0, true);
        let alignment = whole.align(&of_tail).filter(|_| walked)?;
        if !alignment.is_in_first() && !self.path.keeps(whole, alignment, &rest()?) {
            return None;
        }
        match alignment {
            Alignment { before: 0, .. } => Some(Restart::Piece),
            // With `ignore_merges` a word that is an entry of the vocabulary skips the merges, so the
            // certificate about two tokens says nothing of it. A word longer than every entry cannot
            // be one.
            Alignment { before, .. } => {
                (!self.ignores_merges || before >= self.longest(model)).then_some(Restart::Inside)
            }
        }
    }

    fn longest(&self, model: &Model) -> usize {
        let len = |entry: &str| if self.are_bytes { entry.chars().count() } else { entry.len() };
        let longest = || model.entries().map(|(entry, _)| len(&entry)).max().unwrap_or(0);
        *self.longest.get_or_init(|| Box::new(longest()))
    }
}
