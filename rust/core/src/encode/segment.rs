//! A segment: the text between two added tokens, which is encoded on its own.

use std::ops::Range;

use tokenizers::NormalizedString;
use tokenizers::tokenizer::normalizer::Range as Span;

use super::edge::Edge;
use super::mintable::Mintable;
use crate::added_tokens::Cutter;
use crate::error::Error;
use crate::parts::Joined;

/// One segment, with all that decides about its tokens.
pub(crate) struct Segment<'a> {
    pub text: &'a str,
    pub edge: Edge,
    /// The offset of the segment in the whole text, in bytes.
    pub offset: usize,
    /// Added tokens with `normalized=true`.
    pub normalized: Option<&'a Cutter>,
    /// Control tokens that the model itself could emit.
    pub mintable: &'a Mintable,
    pub unk_id: Option<u32>,
    /// The whole text with its runs of scaffold.
    pub joined: &'a Joined<'a>,
}

impl Segment<'_> {
    /// The added tokens with `normalized=true` in text that the normalizer leaves alone.
    pub fn cuts_of_unchanged(&self) -> Vec<(Range<usize>, u32)> {
        let Some(cutter) = self.normalized else { return Vec::new() };
        let cuts = cutter.cut(self.text, self.joined.any_scaffold(), |range| {
            let whole = self.offset + range.start..self.offset + range.end;
            let run = self.joined.run_around(&whole)?;
            let start = run.start.saturating_sub(self.offset);
            Some(start..(run.end - self.offset).min(self.text.len()))
        });
        cuts.into_iter().map(|cut| (cut.range, cutter.token(cut.token).id)).collect()
    }

    pub fn cannot_avoid(&self, id: u32, text: &str) -> Error {
        let token = self.mintable.text_of(id).expect("a control token").clone();
        Error::CannotAvoid { token, id, text: text.to_owned() }
    }

    /// True if the model wrote a control token for this text. The unknown token is also the model's
    /// answer to text that it cannot write, so it counts only where the text spells it.
    pub fn mints(&self, id: u32, text: &str) -> bool {
        self.mintable.text_of(id).is_some_and(|token| self.unk_id != Some(id) || text == token)
    }

    /// The run of scaffold around a range of the normalized text, as a range of the normalized text.
    /// The original bytes that the range came from decide.
    pub fn run_around_normalized(
        &self,
        normalized: &NormalizedString,
        range: &Range<usize>,
    ) -> Option<Range<usize>> {
        let original = normalized.convert_offsets(Span::Normalized(range.clone()))?;
        let run =
            self.joined.run_around(&(self.offset + original.start..self.offset + original.end))?;
        let start = run.start.saturating_sub(self.offset);
        let end = (run.end - self.offset).min(self.text.len());
        if start == 0 && end == self.text.len() {
            return Some(0..normalized.get().len());
        }
        let run = normalized.convert_offsets(Span::Original(start..end))?;
        // Converting the run can leave out characters at its edges that share their original bytes
        // with a neighbour. The given range lies inside the run, as was found above.
        Some(run.start.min(range.start)..run.end.max(range.end))
    }
}
