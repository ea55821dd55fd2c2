//! Open text: more text may join it, and its tokens are those of the whole.
//!
//! Invariant: the tokens of settled text never change, whatever is appended. The tokens of open text
//! are encoded again with everything that joins it. Text is settled up to its last hard token, and
//! from there up to its last anchor. Only the run of characters at its end stays open, usually a word,
//! whatever the length of the conversation. If that run is long, only its end is encoded again,
//! provided that a certificate shows that the tokens before it stay. So the work of an append does not
//! grow with the run.

mod text;
mod trace;

use std::ops::Range;

use crate::anchor::Restart;
use crate::encode::{Edge, Encoded};
use crate::error::Result;
use crate::parts::{Joined, Part};
use crate::provenance::Provenance;
use crate::tokenizer::Tokenizer;
use text::WrittenText;
use trace::{LONG_BYTES, Trace};

/// A run of at most this many tokens is encoded again as a whole, unless its text is walked. A
/// certificate joins and searches up to 512 bytes of text first, so it pays for longer runs only.
const SHORT_RUN_TOKENS: usize = 64;
/// The number of tokens at the end that are encoded again in the first attempt; the second one takes
/// eight. Of 48,000 random BPE texts that were joined, none changed more than four tokens.
const TAIL_TOKENS: usize = 2;
/// The number of further tokens that may be encoded again to get to the edge of a character. An emoji
/// of four bytes is at most four tokens, and a normalizer may compose a few characters to one.
const MOST_INSIDE: usize = 8;
/// The number of bytes before an offset that decide whether encoding can restart there. The normalizer
/// looks back 64 characters at most, which have up to 256 bytes; this is twice that.
const NEAR_BYTES: usize = 512;

/// The open text and its left edge.
#[derive(Debug, Clone)]
pub(crate) struct OpenText {
    text: WrittenText,
    edge: Edge,
    /// The bytes that each of its tokens came from.
    spans: Vec<Range<usize>>,
    /// The state of the pre-tokenizer in the text.
    trace: Trace,
    /// The last two tokens that were found to stay apart. In a run of spaces the same two meet again
    /// and again, and comparing them is cheaper than asking the model.
    apart: Option<[u32; 2]>,
}

/// The last tokens of an open text that more text has joined.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The number of tokens before these, which stay.
    pub kept: usize,
    /// Positions count from the beginning of the open text.
    pub encoded: Encoded,
    /// The offset of the new text, in bytes.
    pub boundary: usize,
    /// The last kept token and the first of these, if they were found to stay apart.
    apart: Option<[u32; 2]>,
}

/// The part of the open text that became final.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The number of final tokens.
    pub tokens: usize,
    /// The number of tokens up to the last hard token; `None` without one.
    pub to_hard_token: Option<usize>,
}

impl Tail {
    /// The offset at which encoding restarted, in bytes. The text before it has no anchor: an earlier
    /// append looked for one there, with the same characters around each offset.
    fn restarted_at(&self) -> usize {
        if self.kept == 0 { 0 } else { self.encoded.spans.first().map_or(0, |span| span.start) }
    }
}

impl OpenText {
    pub fn new(edge: Edge) -> Self {
        Self {
            text: WrittenText::default(),
            edge,
            spans: Vec::new(),
            trace: Trace::new(edge),
            apart: None,
        }
    }

    pub fn edge(&self) -> Edge {
        self.edge
    }

    pub fn bytes(&self) -> usize {
        self.text.as_str().len()
    }

    pub fn joined(&self) -> Joined<'_> {
        self.text.after(0)
    }

    /// Encodes the open text, whose tokens are `ids`, and `parts` as one.
    pub fn encode_with_parts(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        parts: &[Part<'_>],
    ) -> Result<Tail> {
        // A walked text of few tokens can still be long: 300 spaces are three tokens of Qwen's.
        let is_walked = self.trace.walked().is_some() && self.bytes() >= LONG_BYTES;
        if is_walked || ids.len() > SHORT_RUN_TOKENS {
            let mut back = TAIL_TOKENS;
            while back < ids.len() {
                if let Some(tail) = self.encode_from(tokenizer, ids, parts, ids.len() - back)? {
                    return Ok(tail);
                }
                // With four times as many each time, the attempts that failed cost a third of the last
                // one together. Doubling would cost as much again as the last one.
                back *= 4;
            }
        }
        let joined = with(self.joined(), parts);
        let encoded = tokenizer.encode_joined(&joined, self.edge)?;
        Ok(Tail { kept: 0, encoded, boundary: self.bytes(), apart: None })
    }

    /// Encodes the text from about token `kept` on; `None` where the tokens before it may change. They
    /// stay if encoding can restart between the two, and the model does not merge the tokens that meet
    /// there.
    fn encode_from(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        parts: &[Part<'_>],
        kept: usize,
    ) -> Result<Option<Tail>> {
        let Some(kept) = self.token_at_character(kept) else { return Ok(None) };
        let at = self.spans[kept].start;
        let text = self.text.as_str();
        // The near text alone is joined and searched: the whole open text may be megabytes long.
        let before = at.saturating_sub(NEAR_BYTES.max(tokenizer.longest_added()));
        let from = (0..=before).rfind(|&from| text.is_char_boundary(from)).unwrap_or(0);
        let near = with(self.text.after(from), parts);
        if tokenizer.added_touches(&near.text, at - from) {
            return Ok(None);
        }
        // The first question costs a few table look-ups and holds for SentencePiece models. The walk is
        // for byte-level models, whose vocabulary has no anchors inside a word.
        let restart = if tokenizer.certifies() && tokenizer.can_restart(&near.text, at - from) {
            Some(Restart::Inside)
        } else {
            self.trace.restart(tokenizer, &near.text, from, at)
        };
        let Some(restart) = restart else { return Ok(None) };
        let mut encoded = tokenizer.encode_joined(&near.after(at - from), Edge::Interior)?;
        let Some(&next) = encoded.ids.first() else { return Ok(None) };
        let pair = [ids[kept - 1], next];
        // At the beginning of a piece no merge crosses the offset, so the model need not be asked.
        let is_certain = restart == Restart::Piece
            || self.apart == Some(pair)
            || tokenizer.stay_apart(pair[0], pair[1]);
        if !is_certain {
            return Ok(None);
        }
        encoded.shift(at, kept);
        let apart = (restart == Restart::Inside).then_some(pair);
        Ok(Some(Tail { kept, encoded, boundary: self.bytes(), apart }))
    }

    /// The last token, at or shortly before `kept`, that begins with a whole character inside the
    /// walked text. Tokens for single bytes of a character have overlapping spans, and text cannot be
    /// cut inside a character.
    fn token_at_character(&self, kept: usize) -> Option<usize> {
        let before_walked = |walked: usize| {
            // Two walks are compared at the end of the walked text, so the one that begins at the token
            // has to walk over at least one character.
            self.spans.partition_point(|span| span.start < walked).saturating_sub(1)
        };
        let last = self.trace.walked().map_or(kept, |walked| kept.min(before_walked(walked)));
        let mut tokens = (1..=last).rev().take(MOST_INSIDE);
        tokens.find(|&kept| self.spans[kept - 1].end == self.spans[kept].start)
    }

    pub fn push(&mut self, parts: &[Part<'_>], provenance: Provenance) {
        for part in parts {
            self.text.push(*part, provenance);
        }
    }

    /// Takes over the spans of the new tokens, and settles all text that can no longer change.
    ///
    /// Three things settle text, in this order: a hard token, an anchor, and the beginning of the last
    /// piece that the walk knows. Each leaves less text for the next.
    pub fn settle(&mut self, tokenizer: &Tokenizer, tail: &Tail) -> Settled {
        let encoded = &tail.encoded;
        self.apart = tail.apart.or(self.apart);
        let mut settled = Settled::default();
        let whole = self.bytes();
        let mut from = tail.restarted_at();
        if let Some(cut) = encoded.hard.last() {
            settled = Settled {
                tokens: cut.tokens_before_end,
                to_hard_token: Some(cut.tokens_before_end),
            };
            self.spans.clear();
            self.spans.extend_from_slice(&encoded.spans[cut.tokens_before_end - tail.kept..]);
            self.forget(cut.bytes.end, 0);
            self.begin(Edge::Segment);
            from = 0;
        } else {
            self.spans.truncate(tail.kept);
            self.spans.extend_from_slice(&encoded.spans);
        }
        let last_anchor = tokenizer.last_anchor(&self.text.as_str()[from..]);
        if let Some((anchor, before)) = last_anchor.and_then(|at| self.tokens_before(from + at)) {
            settled.tokens += before;
            self.forget(anchor, before);
            self.begin(Edge::Interior);
        }
        // The trace counts from the beginning of the text that is left.
        let forgotten = whole - self.bytes();
        let left = encoded.added.iter().filter(|cut| cut.start >= forgotten);
        let added = left.map(|cut| cut.start - forgotten..cut.end - forgotten);
        let from = tail.restarted_at().saturating_sub(forgotten);
        self.trace.advance(tokenizer, self.text.as_str(), from, added);
        let last_piece = self.trace.last_piece(tokenizer, self.text.as_str());
        if let Some((piece, before)) = last_piece.and_then(|piece| self.tokens_before(piece)) {
            settled.tokens += before;
            self.forget(piece, before);
            // Unlike after a hard token or an anchor, the walk goes on: it is in the middle of the piece.
            self.trace.forget(piece);
            self.edge = Edge::Interior;
        }
        settled
    }

    /// The author of each token: the first content that it touches, else scaffold.
    pub fn provenance_of<'a>(&'a self, encoded: &'a Encoded) -> impl Iterator<Item = u8> + 'a {
        self.text.written_by(&encoded.spans)
    }

    /// The offset with the number of tokens before it; `None` where a token reaches over it. No token
    /// of the text crosses an anchor, but its span may: a normalizer that moves characters gives
    /// several of them the same span.
    fn tokens_before(&self, offset: usize) -> Option<(usize, usize)> {
        let spans = &self.spans[..];
        let before = spans.partition_point(|span| span.start < offset);
        let apart = spans[..before].iter().all(|span| span.end <= offset)
            && spans[before..].iter().all(|span| span.start >= offset);
        apart.then_some((offset, before))
    }

    /// Lets the remaining text begin behind this edge, with a new walk.
    fn begin(&mut self, edge: Edge) {
        self.edge = edge;
        self.trace = Trace::new(edge);
    }

    /// Forgets the first `bytes` bytes and their tokens.
    fn forget(&mut self, bytes: usize, tokens: usize) {
        self.spans.drain(..tokens);
        for span in &mut self.spans {
            *span = span.start.saturating_sub(bytes)..span.end.saturating_sub(bytes);
        }
        self.text.forget(bytes);
    }
}

/// The text with these parts appended.
fn with<'a>(mut joined: Joined<'a>, parts: &[Part<'a>]) -> Joined<'a> {
    for part in parts {
        joined.push(*part);
    }
    joined
}

#[cfg(test)]
mod tests;
