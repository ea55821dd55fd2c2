//! The state of the pre-tokenizer in open text.
//!
//! Invariant: the walk covers the normalized text from the last added token, or else from the
//! beginning, to byte `walked`. No later text can change it: the normalizer works separately on both
//! sides of `walked`, and no added token that is still to come begins before it.

use std::ops::Range;

use crate::anchor::{Restart, Walk};
use crate::encode::Edge;
use crate::tokenizer::Tokenizer;

/// Text of fewer bytes is encoded again as a whole and not walked. Nearly all open text is one word, and
/// encoding a word costs less than stepping an expression over each of its characters.
pub(super) const LONG_BYTES: usize = 128;
/// How far before the end of the settled text an offset may lie at which the normalizer works on both
/// sides separately, in characters. Without such an offset the walk waits for more text.
const MOST_BACK: usize = 64;
/// The most bytes of a piece before `walked` that [`Trace::last_piece`] walks again. A piece that began
/// earlier was tried when it was shorter, with the same answer.
const MOST_BEHIND: usize = 64;

/// The walk over open text, as far as it goes.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    /// The end of the walked text, in bytes.
    walked: usize,
    /// The left edge of the text that is walked next.
    edge: Edge,
    walk: Walking,
    /// The bytes of the added tokens behind `walked`, as they were cut out of the text so far.
    added: Vec<Range<usize>>,
}

#[derive(Debug, Clone)]
enum Walking {
    NotBegun,
    At(Walk),
    /// The state is unknown until the next added token or anchor.
    Lost,
}

impl Trace {
    pub fn new(edge: Edge) -> Self {
        Self { walked: 0, edge, walk: Walking::NotBegun, added: Vec::new() }
    }

    /// The end of the walked text; `None` where it is not walked.
    pub fn walked(&self) -> Option<usize> {
        matches!(self.walk, Walking::At(_)).then_some(self.walked)
    }

    /// Walks on in `text`, up to where later text can change it. `added` are the bytes of the added
    /// tokens that were cut out of it from byte `from` on.
    pub fn advance(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        from: usize,
        added: impl Iterator<Item = Range<usize>>,
    ) {
        self.added.retain(|cut| cut.start < from);
        self.added.extend(added.filter(|cut| cut.start >= self.walked));
        let Some(words) = tokenizer.word_restarts().filter(|_| text.len() >= LONG_BYTES) else {
            return;
        };
        let Some(to) = text.len().checked_sub(words.unsettled_bytes()) else { return };
        // The pre-tokenizer begins anew behind an added token, and so does the walk.
        let settled = self.added.partition_point(|cut| cut.start < to);
        if let Some(last) = self.added[..settled].last() {
            let walked = last.end;
            self.added.drain(..settled);
            let added = std::mem::take(&mut self.added);
            *self = Self { walked, added, ..Self::new(Edge::Segment) };
        }
        if matches!(self.walk, Walking::NotBegun) {
            self.walk = words.begin(self.edge.is_left_edge()).map_or(Walking::Lost, Walking::At);
        }
        let Walking::At(walk) = &mut self.walk else { return };
        let offsets = (self.walked + 1..=to).rev().filter(|at| text.is_char_boundary(*at));
        let mut apart = offsets.take(MOST_BACK).filter(|at| tokenizer.part_normalized(text, *at));
        let Some(to) = apart.next() else { return };
        let new = &text[self.walked..to];
        let goes_on = tokenizer.normalize(new, self.edge).is_some_and(|normalized| {
            words.walk(walk, &normalized, self.walked, &*normalized == new)
        });
        (self.walked, self.edge) = (to, Edge::Interior);
        if !goes_on {
            self.walk = Walking::Lost;
        }
    }

    /// The kind of restart at byte `at` of the walked text; `None` where it is not safe. `text` is the
    /// walked text from byte `base` on, with the new text behind it.
    pub fn restart(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        base: usize,
        at: usize,
    ) -> Option<Restart> {
        let Walking::At(walk) = &self.walk else { return None };
        let (at, walked) = (at.checked_sub(base)?, self.walked.checked_sub(base)?);
        if at >= walked || !tokenizer.part_normalized(text, at) {
            return None;
        }
        let normalize = |text| tokenizer.normalize(text, Edge::Interior);
        let tail = normalize(&text[at..walked])?;
        tokenizer.word_restarts()?.restart(walk, &tail, tokenizer.model(), || {
            Some(normalize(&text[walked..])?.into_owned())
        })
    }

    /// The beginning of the last piece, if encoding can restart there whatever is appended.
    pub fn last_piece(&self, tokenizer: &Tokenizer, text: &str) -> Option<usize> {
        let Walking::At(walk) = &self.walk else { return None };
        let at = walk.origin().filter(|&at| at > 0 && self.walked - at <= MOST_BEHIND)?;
        if !tokenizer.part_normalized(text, at) || tokenizer.added_touches(text, at) {
            return None;
        }
        let tail = tokenizer.normalize(&text[at..self.walked], Edge::Interior)?;
        // The piece is the first open attempt of the walk. No attempt before it can still change, so
        // the text behind `walked` is not asked for.
        let restarts = tokenizer.word_restarts()?;
        let restart = restarts.restart(walk, &tail, tokenizer.model(), || None);
        restart.filter(|restart| *restart == Restart::Piece).map(|_| at)
    }

    /// Counts bytes from a later one on, which the walk has passed.
    pub fn forget(&mut self, bytes: usize) {
        self.walked -= bytes;
        for cut in &mut self.added {
            *cut = cut.start - bytes..cut.end - bytes;
        }
        if let Walking::At(walk) = &mut self.walk {
            walk.forget(bytes);
        }
    }
}
