//! Control tokens that a text spells, and would mint if it were scaffold.

use super::Tokenizer;
use crate::added_tokens::cut_joined;
use crate::encode::Edge;
use crate::error::{Error, Result};
use crate::parts::{Joined, Part};

/// A control token that a text spells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spelled {
    /// Its first character in the text.
    pub position: usize,
    /// The token.
    pub token: String,
}

impl Tokenizer {
    /// The control tokens that would come out if `text` were scaffold, from left to right.
    ///
    /// Where added tokens match the raw text and the model can spell none, which is the usual case,
    /// the matcher alone decides and nothing is encoded.
    ///
    /// # Errors
    /// [`Error::Encode`] where the model cannot write the text.
    pub fn control_spellings(&self, text: &str) -> Result<Vec<Spelled>> {
        let mut joined = Joined::new([Part::scaffold(text)]);
        let found: Vec<(u32, usize, usize)> =
            if self.normalized.is_none() && self.mintable.is_empty() {
                cut_joined(&self.raw, &joined)
                    .into_iter()
                    .map(|cut| (self.raw.token(cut.token).id, cut.range.start, cut.range.end))
                    .collect()
            } else {
                joined.with_spans = true;
                let parsed = self.encode_joined(&joined, Edge::Start)?;
                let spans = parsed.spans.iter().map(|span| (span.start, span.end));
                parsed.ids.iter().zip(spans).map(|(id, (start, end))| (*id, start, end)).collect()
            };
        let mut spelled = Vec::new();
        let (mut chars, mut counted) = (0, 0);
        for (id, start, end) in found {
            let Some(token) = self.control.get(&id) else { continue };
            let written = &text[start..end];
            // The unknown token is also the model's answer to text that spells no token.
            if self.unk_id == Some(id) && !written.contains(token.as_str()) {
                continue;
            }
            let begin = end - written.trim_start().len();
            chars += text[counted..begin].chars().count();
            counted = begin;
            spelled.push(Spelled { position: chars, token: token.clone() });
        }
        Ok(spelled)
    }

    pub(super) fn refuse_control_tokens(&self, text: &str) -> Result<()> {
        match self.control_spellings(text)?.into_iter().next() {
            Some(Spelled { position, token }) => Err(Error::ControlToken { token, position }),
            None => Ok(()),
        }
    }
}
