//! Places inside a word, from which its tokens are made again.
//!
//! Invariant: where [`Words::restarts`] gives a [`Restart`], taking up the text there makes, whatever
//! follows it, the pieces that the whole text has from there on, but that the first one lacks what
//! stands before the place. A certificate about the tokens that meet there does the rest: see
//! `docs/exactness.md`.
//!
//! The normalizer comes apart there, no added token touches the place, and the pre-tokenizer, which
//! is followed through the text as a [`Walk`], goes on from there in the state in which it is anyway.

use once_cell::race::OnceBox;

use super::pieces::Pieces;
use super::walk::{Meeting, Path, Walk};
use crate::file::{Loaded, Model, kind, stages};

/// Between the longest added token that may still come and the place up to which text is walked.
const MARGIN: usize = 4;

/// What is known of a tokenizer whose words are taken up inside.
#[derive(Debug)]
pub(crate) struct Words {
    path: Path,
    /// How much of the end of a text is not walked: an added token could begin in it.
    unsettled_bytes: usize,
    /// Whether a word that begins a text gets a prefix.
    writes_prefix: bool,
    ignores_merges: bool,
    /// Whether a character of the vocabulary stands for a byte.
    are_bytes: bool,
    /// The bytes of the longest entry of the vocabulary.
    longest: OnceBox<usize>,
}

/// What holds at a place where a text may be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restart {
    /// A piece begins there, whatever follows.
    Piece,
    /// A piece reaches over it: the tokens that meet there have to stay apart.
    Inside,
}

impl Words {
    /// `None` where no place inside a word is known.
    pub fn new(loaded: &Loaded, pieces: &Pieces) -> Option<Self> {
        let ignores_merges = loaded.model.ignores_merges()?;
        let marked = |mark: &Option<String>| mark.as_ref().is_some_and(|mark| !mark.is_empty());
        let settings = &loaded.settings;
        let is_marked =
            marked(&settings.continuing_subword_prefix) || marked(&settings.end_of_word_suffix);
        let normalizes = !stages(&loaded.normalizer, "normalizers").is_empty();
        // Tokens that swallow whitespace reach as far as that does; one that is found, or kept from
        // being written, in normalized text may come from text of any length.
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

    /// How much of the end of a text is not walked, in bytes.
    pub fn unsettled_bytes(&self) -> usize {
        self.unsettled_bytes
    }

    /// At the beginning of a text, which may be that of a segment; `None` where more than the text
    /// is cut.
    pub fn begin(&self, begins_segment: bool) -> Option<Walk> {
        let prefixed = self.writes_prefix && begins_segment;
        (!prefixed).then(|| self.path.begin())
    }

    /// Walks over normalized text, which came from byte `from` of a text and is like it there if
    /// `is_same`; `false` where the walk is lost.
    pub fn walk(&self, walk: &mut Walk, normalized: &str, from: usize, is_same: bool) -> bool {
        normalized.char_indices().all(|(at, c)| {
            let origin = (is_same || at == 0).then_some(from + at);
            self.path.step(walk, c, origin)
        })
    }

    /// Whether the text that `whole` walked can be taken up where its last part, `tail`, begins.
    /// `rest` gives what follows both, normalized, up to where it ends for now.
    pub fn restarts(
        &self,
        whole: &Walk,
        tail: &str,
        model: &Model,
        rest: impl FnOnce() -> Option<String>,
    ) -> Option<Restart> {
        let mut from_place = self.path.begin();
        let walked = self.walk(&mut from_place, tail, 0, true);
        let meeting = whole.meet(&from_place).filter(|_| walked)?;
        if !meeting.is_in_first() && !self.path.keeps(whole, meeting, &rest()?) {
            return None;
        }
        match meeting {
            Meeting { before: 0, .. } => Some(Restart::Piece),
            // A word that stands in the vocabulary skips the merges. Longer than its entries none does.
            Meeting { before, .. } => {
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
