//! Text that is still open: more may join it, and its tokens are those of the whole.
//!
//! Invariant: the tokens of the text that is settled never change, whatever is appended, and those
//! of what is open are encoded again with everything that joins it. Text is settled up to its last
//! hard token, and from there up to its last anchor: what stays open is the run of characters at
//! its end, usually a word, whatever the length of the conversation. Of a long run without anchors
//! only the end is encoded again, where a certificate says that the tokens before it stay.

use std::ops::Range;

use crate::encode::{Edge, Encoded};
use crate::error::Result;
use crate::parts::{Joined, Part, PartKind};
use crate::provenance::Provenance;
use crate::tokenizer::Tokenizer;

/// A part of the open text.
#[derive(Debug, Clone)]
struct OpenPart {
    kind: PartKind,
    provenance: Provenance,
    text: String,
}

/// A run of at most as many tokens is encoded again as a whole.
const SHORT_RUN_TOKENS: usize = 64;
/// How many tokens are given back at first where a certificate is tried.
const TAIL_TOKENS: usize = 8;

/// The open text and what stands before it.
#[derive(Debug, Clone)]
pub(crate) struct OpenText {
    parts: Vec<OpenPart>,
    edge: Edge,
    /// The bytes that each of its tokens came from.
    spans: Vec<Range<usize>>,
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
    /// All of the text, old and new.
    text: String,
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
        Self { parts: Vec::new(), edge, spans: Vec::new() }
    }

    pub fn edge(&self) -> Edge {
        self.edge
    }

    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.text.len()).sum()
    }

    pub fn joined(&self) -> Joined {
        let parts = self.parts.iter().map(|part| Part { kind: part.kind, text: &part.text });
        // Where each token came from decides who wrote it, and which of them are settled.
        Joined { with_spans: true, ..Joined::new(parts) }
    }

    /// The tokens of the open text, which are `ids`, and `parts` as one.
    pub fn encode_with(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        parts: &[Part<'_>],
    ) -> Result<Tail> {
        let mut joined = self.joined();
        let boundary = joined.text.len();
        for part in parts {
            joined.push(*part);
        }
        if ids.len() > SHORT_RUN_TOKENS {
            let mut back = TAIL_TOKENS;
            while back < ids.len() {
                let kept = ids.len() - back;
                if let Some(encoded) = self.encode_tail(tokenizer, ids, &joined, kept)? {
                    return Ok(Tail { kept, encoded, boundary, text: joined.text });
                }
                // All attempts together then cost at most a third more than the last one.
                back *= 4;
            }
        }
        let encoded = tokenizer.encode_joined(&joined, self.edge)?;
        Ok(Tail { kept: 0, encoded, boundary, text: joined.text })
    }

    /// The tokens from `kept` on, where it is certain that those before it stay: the text can be
    /// taken up again between the two, and the model would not merge the tokens that meet there.
    fn encode_tail(
        &self,
        tokenizer: &Tokenizer,
        ids: &[u32],
        joined: &Joined,
        kept: usize,
    ) -> Result<Option<Encoded>> {
        let at = self.spans[kept].start;
        if self.spans[kept - 1].end != at || !tokenizer.can_restart(&joined.text, at) {
            return Ok(None);
        }
        let tail = joined.after(at);
        let mut encoded = tokenizer.encode_joined(&tail, Edge::Interior)?;
        let begins_hard = encoded.hard_at(0);
        let next = encoded.ids.first().copied();
        if begins_hard || !next.is_some_and(|next| tokenizer.stay_apart(ids[kept - 1], next)) {
            return Ok(None);
        }
        encoded.shift(at, kept);
        Ok(Some(encoded))
    }

    pub fn push(&mut self, parts: &[Part<'_>], provenance: Provenance) {
        self.parts.extend(parts.iter().filter(|part| !part.text.is_empty()).map(|part| OpenPart {
            kind: part.kind,
            provenance,
            text: part.text.to_owned(),
        }));
    }

    /// Takes over where the tokens came from, and settles all that nothing can change any more.
    pub fn settle(&mut self, tokenizer: &Tokenizer, tail: &Tail) -> Settled {
        let encoded = &tail.encoded;
        self.spans.truncate(tail.kept);
        self.spans.extend(encoded.spans.iter().cloned());
        let mut settled = Settled::default();
        // Before the tail all places have been tried.
        let (mut text, mut from) = (&tail.text[..], tail.tried());
        if let Some(cut) = encoded.hard.last() {
            settled = Settled {
                tokens: cut.tokens_before_end,
                to_hard_token: Some(cut.tokens_before_end),
            };
            self.forget(cut.bytes.end, cut.tokens_before_end);
            self.edge = Edge::Segment;
            (text, from) = (&text[cut.bytes.end..], 0);
        }
        if let Some(anchor) = tokenizer.last_anchor(&text[from..]).map(|anchor| from + anchor) {
            let spans = &self.spans[..];
            let before = spans.partition_point(|span| span.start < anchor);
            // The characters of a token can't be told apart where a normalizer moved them.
            let apart = spans[..before].iter().all(|span| span.end <= anchor)
                && spans[before..].iter().all(|span| span.start >= anchor);
            if apart {
                settled.tokens += before;
                self.forget(anchor, before);
                self.edge = Edge::Interior;
            }
        }
        settled
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
        // Most tokens lie in the part that the one before lies in.
        let (mut within, mut written_by) = (0..0, 0);
        let of_span = |span: &Range<usize>| {
            if within.start <= span.start && span.start < span.end && span.end <= within.end {
                return written_by;
            }
            let first = ends.partition_point(|&end| end <= span.start).min(parts.len() - 1);
            let last = ends.partition_point(|&end| end < span.end).clamp(first, parts.len() - 1);
            let touched = &parts[first..=last];
            let content = touched.iter().find(|part| part.kind == PartKind::Content);
            within =
                if first == last { ends[first] - touched[0].text.len()..ends[first] } else { 0..0 };
            written_by = of_part(content.unwrap_or(&touched[0]));
            written_by
        };
        encoded.spans.iter().map(of_span).collect()
    }

    /// Forgets the first `bytes` bytes and their tokens.
    fn forget(&mut self, mut bytes: usize, tokens: usize) {
        self.spans.drain(..tokens);
        for span in &mut self.spans {
            *span = span.start.saturating_sub(bytes)..span.end.saturating_sub(bytes);
        }
        let forgotten = self
            .parts
            .iter()
            .take_while(|part| {
                let whole = part.text.len() <= bytes;
                bytes -= if whole { part.text.len() } else { 0 };
                whole
            })
            .count();
        self.parts.drain(..forgotten);
        if let Some(part) = self.parts.first_mut() {
            part.text.drain(..bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{AddedMode, Overrides, Trajectory};

    /// A number below `n`, from a state: enough to make merges and texts at random.
    fn below(state: &mut u64, n: u64) -> usize {
        *state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((*state >> 33) % n).expect("small")
    }

    /// BPE over `a`, `b` and `c` without a pre-tokenizer, in whose vocabulary all pairs meet.
    fn tokenizer(state: &mut u64) -> Tokenizer {
        let mut pieces: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut merges: Vec<[String; 2]> = Vec::new();
        while pieces.len() < 24 {
            let pair = [(); 2].map(|()| pieces[below(state, pieces.len() as u64)].clone());
            if !pieces.contains(&pair.concat()) {
                pieces.push(pair.concat());
                merges.push(pair);
            }
        }
        for pair in ["aa", "ab", "ac", "ba", "bb", "bc", "ca", "cb", "cc"] {
            if !pieces.iter().any(|piece| piece == pair) {
                pieces.push(pair.to_owned());
            }
        }
        let vocab: serde_json::Map<String, Value> =
            pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), id.into())).collect();
        let model = json!({"type": "BPE", "vocab": vocab, "merges": merges});
        let json = json!({"version": "1.0", "model": model}).to_string();
        Tokenizer::from_json(&json, &Overrides::default()).expect("a tokenizer")
    }

    fn text(state: &mut u64, most: u64) -> String {
        (0..=below(state, most)).map(|_| ['a', 'b', 'c'][below(state, 3)]).collect()
    }

    #[test]
    fn a_certificate_keeps_the_tokens_of_a_long_run() {
        let (mut state, mut certified) = (7, 0);
        for _ in 0..40 {
            let tokenizer = Arc::new(tokenizer(&mut state));
            let mut trajectory = Trajectory::new(tokenizer.clone());
            let mut open = OpenText::new(Edge::Start);
            let mut ids: Vec<u32> = Vec::new();
            let mut whole = String::new();
            for _ in 0..60 {
                let piece = text(&mut state, 20);
                whole.push_str(&piece);
                let part = [Part::content(&piece)];
                let tail = open.encode_with(&tokenizer, &ids, &part).expect("it can be written");
                certified += usize::from(tail.kept > 0);
                open.push(&part, Provenance::Env);
                let settled = open.settle(&tokenizer, &tail);
                assert_eq!(settled, Settled::default(), "nothing here is an anchor");
                ids.truncate(tail.kept);
                ids.extend(tail.encoded.ids);
                trajectory.append_parts(&part, Provenance::Env).expect("it can be written");
                let expected =
                    tokenizer.encode(&whole, AddedMode::Text).expect("it can be written");
                assert_eq!((trajectory.ids(), &ids), (&expected[..], &expected), "{whole}");
            }
        }
        assert!(certified > 1500, "{certified} of 2400 appends were certified");
    }

    #[test]
    fn certified_tokens_stay_and_of_the_others_some_do_not() {
        let (mut state, mut stayed, mut changed) = (11, 0, 0);
        for _ in 0..200 {
            let tokenizer = tokenizer(&mut state);
            let encode = |text: &str| tokenizer.encode(text, AddedMode::Text).expect("known");
            for _ in 0..200 {
                let (a, b) = (text(&mut state, 12), text(&mut state, 12));
                let (left, right, joined) = (encode(&a), encode(&b), encode(&(a.clone() + &b)));
                let (last, first) = (left[left.len() - 1], right[0]);
                let same = joined == [left, right].concat();
                if tokenizer.stay_apart(last, first) {
                    assert!(same, "{a} | {b}");
                    stayed += 1;
                } else {
                    changed += usize::from(!same);
                }
            }
        }
        assert!(stayed > 1000 && changed > 1000, "{stayed} stayed, {changed} changed");
    }
}
