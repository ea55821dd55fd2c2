//! Text that is still open: more may join it, and its tokens are those of the whole.
//!
//! Invariant: the tokens of the text that is settled never change, whatever is appended, and those
//! of what is open are encoded again with everything that joins it. Text is settled up to its last
//! hard token, and from there up to its last anchor: what stays open is the run of characters at
//! its end, usually a word, whatever the length of the conversation. Of a long run without anchors
//! only the end is encoded again, where a certificate says that the tokens before it stay; an append
//! then does no work that grows with the run.

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

/// A run of at most as many tokens is encoded again as a whole, where its text is not walked.
const SHORT_RUN_TOKENS: usize = 64;
/// How many tokens are given back at first where a certificate is tried.
const TAIL_TOKENS: usize = 2;
/// How many tokens more are given back to come to the edge of a character.
const MOST_INSIDE: usize = 8;
/// How much of the text before a place is looked at, in bytes: several times what composes.
const NEAR_BYTES: usize = 512;

/// The open text and what stands before it.
#[derive(Debug, Clone)]
pub(crate) struct OpenText {
    text: WrittenText,
    edge: Edge,
    /// The bytes that each of its tokens came from.
    spans: Vec<Range<usize>>,
    /// How far the pre-tokenizer is in it.
    trace: Trace,
    /// Two tokens that stay apart when they meet: in a run of spaces the same two again and again.
    apart: Option<[u32; 2]>,
}

/// The tokens of an open text from one of them on, when more has joined it.
#[derive(Debug)]
pub(crate) struct Tail {
    /// How many tokens stay before these.
    pub kept: usize,
    /// Positions count from the beginning of the open text.
    pub encoded: Encoded,
    /// Where the new text begins, in bytes.
    pub boundary: usize,
    /// The two tokens that meet before it, which stay apart.
    apart: Option<[u32; 2]>,
}

/// How much of the open text became final.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// How many of its tokens.
    pub tokens: usize,
    /// How many of them up to the last hard token; `None` without one.
    pub to_hard_token: Option<usize>,
}

impl Tail {
    /// Where the text before which no place is an anchor begins, in bytes: the place at which it
    /// was taken up again.
    fn tried(&self) -> usize {
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

    /// The tokens of the open text, which are `ids`, and `parts` as one.
    pub fn encode_with(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        parts: &[Part<'_>],
    ) -> Result<Tail> {
        let is_walked = self.trace.walked().is_some() && self.bytes() >= LONG_BYTES;
        if is_walked || ids.len() > SHORT_RUN_TOKENS {
            let mut back = TAIL_TOKENS;
            while back < ids.len() {
                if let Some(tail) = self.encode_tail(tokenizer, ids, parts, ids.len() - back)? {
                    return Ok(tail);
                }
                // All attempts together then cost at most a third more than the last one.
                back *= 4;
            }
        }
        let joined = with(self.joined(), parts);
        let encoded = tokenizer.encode_joined(&joined, self.edge)?;
        Ok(Tail { kept: 0, encoded, boundary: self.bytes(), apart: None })
    }

    /// The tokens from about `kept` on, where it is certain that those before it stay: the text can
    /// be taken up again between the two, and the model would not merge the tokens that meet there.
    fn encode_tail(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        parts: &[Part<'_>],
        kept: usize,
    ) -> Result<Option<Tail>> {
        let Some(kept) = self.token_apart(kept) else { return Ok(None) };
        let at = self.spans[kept].start;
        let text = self.text.as_str();
        let before = at.saturating_sub(NEAR_BYTES.max(tokenizer.longest_added()));
        let from = (0..=before).rfind(|&from| text.is_char_boundary(from)).unwrap_or(0);
        let near = with(self.text.after(from), parts);
        if tokenizer.added_touches(&near.text, at - from) {
            return Ok(None);
        }
        let restart = if tokenizer.certifies() && tokenizer.can_restart(&near.text, at - from) {
            Some(Restart::Inside)
        } else {
            self.trace.restart(tokenizer, &near.text, from, at)
        };
        let Some(restart) = restart else { return Ok(None) };
        let mut encoded = tokenizer.encode_joined(&near.after(at - from), Edge::Interior)?;
        let Some(&next) = encoded.ids.first() else { return Ok(None) };
        let pair = [ids[kept - 1], next];
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

    /// The last token before which a character ends, at or not far before `kept`, and before the end
    /// of what is walked.
    fn token_apart(&self, kept: usize) -> Option<usize> {
        let before_walked = |walked: usize| {
            // At least one character has to be walked after it.
            self.spans.partition_point(|span| span.start < walked).saturating_sub(1)
        };
        let last = self.trace.walked().map_or(kept, |walked| kept.min(before_walked(walked)));
        let mut places = (1..=last).rev().take(MOST_INSIDE);
        places.find(|&kept| self.spans[kept - 1].end == self.spans[kept].start)
    }

    pub fn push(&mut self, parts: &[Part<'_>], provenance: Provenance) {
        for part in parts {
            self.text.push(*part, provenance);
        }
    }

    /// Takes over where the tokens came from, and settles all that nothing can change any more.
    pub fn settle(&mut self, tokenizer: &Tokenizer, tail: &Tail) -> Settled {
        let encoded = &tail.encoded;
        self.apart = tail.apart.or(self.apart);
        let mut settled = Settled::default();
        let whole = self.bytes();
        // Before the tail all places have been tried.
        let mut from = tail.tried();
        if let Some(cut) = encoded.hard.last() {
            settled = Settled {
                tokens: cut.tokens_before_end,
                to_hard_token: Some(cut.tokens_before_end),
            };
            // Of a long text only its end is looked at from here on.
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
        let forgotten = whole - self.bytes();
        let left = encoded.added.iter().filter(|cut| cut.start >= forgotten);
        let added = left.map(|cut| cut.start - forgotten..cut.end - forgotten);
        let from = tail.tried().saturating_sub(forgotten);
        self.trace.advance(tokenizer, self.text.as_str(), from, added);
        let last_piece = self.trace.last_piece(tokenizer, self.text.as_str());
        if let Some((piece, before)) = last_piece.and_then(|piece| self.tokens_before(piece)) {
            settled.tokens += before;
            self.forget(piece, before);
            self.trace.forget(piece);
            self.edge = Edge::Interior;
        }
        settled
    }

    /// Who wrote each token: the first content that it touches, else scaffold.
    pub fn provenance_of<'a>(&'a self, encoded: &'a Encoded) -> impl Iterator<Item = u8> + 'a {
        self.text.written_by(&encoded.spans)
    }

    /// The place, and how many tokens stand before it, where no token reaches over it: the
    /// characters of a token can't be told apart where a normalizer moved them.
    fn tokens_before(&self, place: usize) -> Option<(usize, usize)> {
        let spans = &self.spans[..];
        let before = spans.partition_point(|span| span.start < place);
        let apart = spans[..before].iter().all(|span| span.end <= place)
            && spans[before..].iter().all(|span| span.start >= place);
        apart.then_some((place, before))
    }

    /// What is left begins behind this edge, and nothing is known of it.
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

/// The text and these parts behind it.
fn with<'a>(mut joined: Joined<'a>, parts: &[Part<'a>]) -> Joined<'a> {
    for part in parts {
        joined.push(*part);
    }
    joined
}

#[cfg(test)]
mod tests;
