//! Text that is still open: more may join it, and its tokens are those of the whole.
//!
//! Invariant: the tokens of the text that was closed never change, whatever is appended, and those
//! of what is open are encoded again with everything that joins it. Text is closed up to its last
//! hard token, and from there up to its last anchor: what stays open is the run of characters at
//! its end, usually a word, whatever the length of the conversation.

use crate::error::Result;
use crate::parts::{Joined, Part, PartKind};
use crate::tokenizer::{Edge, Encoded, Tokenizer};
use crate::trajectory::Provenance;

/// A part of the open text.
#[derive(Debug)]
struct OpenPart {
    kind: PartKind,
    provenance: Provenance,
    text: String,
}

/// The open text and what stands before it.
#[derive(Debug)]
pub(crate) struct OpenText {
    parts: Vec<OpenPart>,
    edge: Edge,
}

/// How much of the open text became final.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Closed {
    /// How many of its tokens.
    pub tokens: usize,
    /// How many of them up to the last hard token; `None` without one.
    pub to_hard_token: Option<usize>,
}

impl OpenText {
    pub fn new(edge: Edge) -> Self {
        Self { parts: Vec::new(), edge }
    }

    pub fn edge(&self) -> Edge {
        self.edge
    }

    pub fn joined(&self) -> Joined {
        let parts = self.parts.iter().map(|part| Part { kind: part.kind, text: &part.text });
        // Where each token came from decides who wrote it, and which of them are closed.
        Joined { with_spans: true, ..Joined::new(parts) }
    }

    /// The open text and `parts` as one, encoded; also where the two meet, in bytes.
    pub fn encode_with(
        &self,
        tokenizer: &Tokenizer,
        parts: &[Part<'_>],
    ) -> Result<(Encoded, usize)> {
        let mut joined = self.joined();
        let boundary = joined.text.len();
        for part in parts {
            joined.push(*part);
        }
        Ok((tokenizer.encode_joined(&joined, self.edge)?, boundary))
    }

    pub fn push(&mut self, parts: &[Part<'_>], provenance: Provenance) {
        self.parts.extend(parts.iter().filter(|part| !part.text.is_empty()).map(|part| OpenPart {
            kind: part.kind,
            provenance,
            text: part.text.to_owned(),
        }));
    }

    /// Closes all of it that nothing can change any more. `encoded` is what it is now.
    pub fn close(&mut self, tokenizer: &Tokenizer, encoded: &Encoded) -> Closed {
        let mut closed = Closed::default();
        if let Some(cut) = encoded.hard.last() {
            closed = Closed {
                tokens: cut.tokens_before_end,
                to_hard_token: Some(cut.tokens_before_end),
            };
            self.drop_bytes(cut.bytes.end);
            self.edge = Edge::Segment;
        }
        let dropped = encoded.hard.last().map_or(0, |cut| cut.bytes.end);
        let text = self.joined().text;
        if let Some(anchor) = tokenizer.last_anchor(&text) {
            let at = dropped + anchor;
            let spans = &encoded.spans[closed.tokens..];
            let before = spans.partition_point(|span| span.start < at);
            // The characters of a token can't be told apart where a normalizer moved them.
            let apart = spans[..before].iter().all(|span| span.end <= at)
                && spans[before..].iter().all(|span| span.start >= at);
            if apart {
                closed.tokens += before;
                self.drop_bytes(anchor);
                self.edge = Edge::Interior;
            }
        }
        closed
    }

    /// Who wrote each token: the first content that it touches, else scaffold.
    pub fn provenance_of(&self, encoded: &Encoded) -> Vec<u8> {
        let of_part = |part: &OpenPart| match (part.provenance, part.kind) {
            (Provenance::Close, _) => Provenance::Close as u8,
            (_, PartKind::Scaffold) => Provenance::Scaffold as u8,
            (provenance, PartKind::Content) => provenance as u8,
        };
        let parts = &self.parts;
        if let [only] = &parts[..] {
            return vec![of_part(only); encoded.ids.len()];
        }
        let mut ends = Vec::with_capacity(parts.len());
        for part in parts {
            ends.push(ends.last().copied().unwrap_or(0) + part.text.len());
        }
        encoded
            .spans
            .iter()
            .map(|span| {
                let first = ends.partition_point(|&end| end <= span.start).min(parts.len() - 1);
                let last =
                    ends.partition_point(|&end| end < span.end).clamp(first, parts.len() - 1);
                let touched = &parts[first..=last];
                let content = touched.iter().find(|part| part.kind == PartKind::Content);
                of_part(content.unwrap_or(&touched[0]))
            })
            .collect()
    }

    /// Forgets the first `bytes` bytes.
    fn drop_bytes(&mut self, mut bytes: usize) {
        let closed = self
            .parts
            .iter()
            .take_while(|part| {
                let whole = part.text.len() <= bytes;
                bytes -= if whole { part.text.len() } else { 0 };
                whole
            })
            .count();
        self.parts.drain(..closed);
        if let Some(part) = self.parts.first_mut() {
            part.text.drain(..bytes);
        }
    }
}
