//! A tokenizer that answers exactly, one segment at a time.
//!
//! Invariant: encoding text that is all scaffold, with [`Edge::Start`], gives the tokens of
//! `tokenizers` without special tokens added; content never becomes a control token.

mod build;
mod bytes;
mod ids;
mod profile;
mod restart;
mod spelled;
#[cfg(test)]
mod tests;
mod word;

use std::ops::{Range, RangeInclusive};

use once_cell::race::OnceBox;
use rustc_hash::{FxHashMap, FxHashSet};

pub use profile::Profile;
pub use spelled::Spelled;

use crate::added_tokens::{Cutter, cut_joined};
use crate::anchor::Anchors;
use crate::by_bytes::BytesById;
use crate::encode::{Edge, Encoded, Fast, HardCut, Mintable, Pipeline, Segment};
use crate::error::{Error, Result};
use crate::file::{AddedToken, caught};
use crate::parts::{Joined, Part};
use bytes::Spelling;

/// The treatment of control tokens that a text spells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddedMode {
    /// They become control tokens: the text is scaffold.
    Parse,
    /// They stay text: the text is content.
    Text,
    /// They are an error.
    Raise,
}

/// A `tokenizer.json`, ready for exact assembly.
pub struct Tokenizer {
    pipeline: Pipeline,
    fast: Option<Fast>,
    raw: Cutter,
    normalized: Option<Cutter>,
    /// For each token of `raw`: hard or not.
    hard: Vec<bool>,
    hard_ids: FxHashSet<u32>,
    /// The lowest and the highest of `hard_ids`. Most vocabularies have them at one end, so the two
    /// rule out nearly all other ids without a look into the set: a third of the time of
    /// `Trajectory::append_sampled` for 273 ids was spent on such looks.
    hard_range: RangeInclusive<u32>,
    control: FxHashMap<u32, String>,
    mintable: Mintable,
    unk_id: Option<u32>,
    added: Vec<AddedToken>,
    vocab_size: usize,
    spelling: Spelling,
    bytes: OnceBox<BytesById>,
    /// `None` where text has no anchors.
    anchors: Option<Anchors>,
    profile: Profile,
}

impl Tokenizer {
    /// The tokens of `text`, which begins the conversation. Never adds BOS or EOS.
    ///
    /// # Errors
    /// [`Error::ControlToken`] with [`AddedMode::Raise`]; [`Error::Encode`] where the model cannot
    /// write the text.
    pub fn encode(&self, text: &str, mode: AddedMode) -> Result<Vec<u32>> {
        self.encode_parts(&[self.part(text, mode)?], Edge::Start)
    }

    /// The tokens of the joined text of `parts`; only scaffold becomes control tokens.
    ///
    /// # Errors
    /// [`Error::Encode`] or [`Error::CannotAvoid`] where the model cannot write the text.
    pub fn encode_parts(&self, parts: &[Part<'_>], edge: Edge) -> Result<Vec<u32>> {
        Ok(self.encode_joined(&Joined::new(parts.iter().copied()), edge)?.ids)
    }

    /// The added tokens, by id.
    #[must_use]
    pub fn added_tokens(&self) -> &[AddedToken] {
        &self.added
    }

    /// True if the text around the token can never change it.
    #[must_use]
    pub fn is_hard(&self, id: u32) -> bool {
        self.hard_range.contains(&id) && self.hard_ids.contains(&id)
    }

    /// The facts that are known without encoding anything.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// True if the length of a text tells how long encoding it takes: about 12 ns for each byte of words.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        self.fast.is_some() && self.anchors.is_some()
    }

    /// The number of ids, added tokens included.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    pub(crate) fn encode_joined(&self, joined: &Joined<'_>, edge: Edge) -> Result<Encoded> {
        // `tokenizers` panics where a file contradicts itself. That fails this text, not the process.
        caught(|| self.encode_between_added_tokens(joined, edge)).unwrap_or_else(|panic| {
            Err(Error::Encode {
                text: joined.text.chars().take(60).collect(),
                reason: format!("{panic}\nhint: check that the tokenizer.json is complete"),
            })
        })
    }

    /// Cuts added tokens with `normalized=false` out of the text and encodes each range between them.
    fn encode_between_added_tokens(&self, joined: &Joined<'_>, edge: Edge) -> Result<Encoded> {
        let cuts = cut_joined(&self.raw, joined);
        let mut out = Encoded { with_spans: joined.with_spans, ..Encoded::default() };
        let mut from = 0;
        for cut in cuts {
            self.encode_range(joined, from..cut.range.start, edge, &mut out)?;
            out.push(self.raw.token(cut.token).id, cut.range.clone());
            out.added.push(cut.range.clone());
            from = cut.range.end;
            if self.hard[cut.token] {
                let tokens_before_end = out.ids.len();
                out.hard.push(HardCut { bytes: cut.range, tokens_before_end });
            }
        }
        self.encode_range(joined, from..joined.text.len(), edge, &mut out)?;
        Ok(out)
    }

    /// Encodes a range without added tokens as a segment.
    fn encode_range(
        &self,
        joined: &Joined<'_>,
        range: Range<usize>,
        edge: Edge,
        out: &mut Encoded,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let segment = Segment {
            text: &joined.text[range.clone()],
            edge: if range.start == 0 { edge } else { Edge::Segment },
            offset: range.start,
            normalized: self.normalized.as_ref(),
            mintable: &self.mintable,
            unk_id: self.unk_id,
            joined,
        };
        if self.fast.as_ref().is_some_and(|fast| fast.encode_segment(&segment, out)) {
            return Ok(());
        }
        self.pipeline.encode_segment(&segment, out)
    }

    /// The text as a part: scaffold under [`AddedMode::Parse`], else content.
    ///
    /// # Errors
    /// [`Error::ControlToken`] with [`AddedMode::Raise`], where the text spells one.
    pub(crate) fn part<'a>(&self, text: &'a str, mode: AddedMode) -> Result<Part<'a>> {
        match mode {
            AddedMode::Parse => Ok(Part::scaffold(text)),
            AddedMode::Text => Ok(Part::content(text)),
            AddedMode::Raise => {
                self.refuse_control_tokens(text)?;
                Ok(Part::content(text))
            }
        }
    }
}
