//! How far the pre-tokenizer is in open text.
//!
//! Invariant: the walk took up the normalized text from the last added token, or else from the
//! beginning, to byte `walked`, which no text that follows can change: the normalizer comes apart
//! there, and no added token that is still to come begins before it.

use std::ops::Range;

use crate::anchor::{Restart, Walk};
use crate::encode::Edge;
use crate::tokenizer::Tokenizer;

/// Text of fewer bytes is encoded again as a whole, and not walked.
pub(super) const LONG_BYTES: usize = 128;
/// How far back a place is sought at which the normalizer comes apart, in characters.
const MOST_BACK: usize = 64;
/// A piece that began further back than this is not settled at its beginning. It was tried before.
const MOST_BEHIND: usize = 64;

/// The walk, where it is not lost.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    walked: usize,
    /// What stands before the text that comes next.
    edge: Edge,
    walk: Walking,
    /// The bytes of the added tokens behind `walked`, which were cut out as far as is known.
    added: Vec<Range<usize>>,
}

#[derive(Debug, Clone)]
enum Walking {
    NotBegun,
    At(Walk),
    /// Nothing is known until an added token or an anchor.
    Lost,
}

impl Trace {
    pub fn new(edge: Edge) -> Self {
        Self { walked: 0, edge, walk: Walking::NotBegun, added: Vec::new() }
    }

    /// Up to which byte the text was walked; `None` where it was not.
    pub fn walked(&self) -> Option<usize> {
        matches!(self.walk, Walking::At(_)).then_some(self.walked)
    }

    /// Walks on in `text`, as far as nothing can change it. `added` are the bytes of the added tokens
    /// that were cut out of it from byte `from` on.
    pub fn advance(
        &mut self,
        tokenizer: &Tokenizer,
        text: &str,
        from: usize,
        added: impl Iterator<Item = Range<usize>>,
    ) {
        self.added.retain(|cut| cut.start < from);
        self.added.extend(added.filter(|cut| cut.start >= self.walked));
        let Some(words) = tokenizer.words().filter(|_| text.len() >= LONG_BYTES) else { return };
        let Some(to) = text.len().checked_sub(words.unsettled_bytes()) else { return };
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
        let places = (self.walked + 1..=to).rev().filter(|at| text.is_char_boundary(*at));
        let mut apart = places.take(MOST_BACK).filter(|at| tokenizer.part_normalized(text, *at));
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

    /// Whether `text` can be taken up at byte `at`. It is the end of a text, from byte `base` of it on,
    /// and goes on after what the text had when it was walked.
    pub fn restart(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        base: usize,
        at: usize,
    ) -> Option<Restart> {
        let (words, Walking::At(walk)) = (tokenizer.words()?, &self.walk) else { return None };
        let (at, walked) = (at.checked_sub(base)?, self.walked.checked_sub(base)?);
        if at >= walked || !tokenizer.part_normalized(text, at) {
            return None;
        }
        let normalize = |text| tokenizer.normalize(text, Edge::Interior);
        words.restarts(walk, &normalize(&text[at..walked])?, tokenizer.model(), || {
            Some(normalize(&text[walked..])?.into_owned())
        })
    }

    /// The beginning of the last piece, if it and what follows can be encoded without what stands
    /// before it, whatever is appended.
    pub fn last_piece(&self, tokenizer: &Tokenizer, text: &str) -> Option<usize> {
        let (words, Walking::At(walk)) = (tokenizer.words()?, &self.walk) else { return None };
        let at = walk.origin().filter(|&at| at > 0 && self.walked - at <= MOST_BEHIND)?;
        if !tokenizer.part_normalized(text, at) || tokenizer.added_touches(text, at) {
            return None;
        }
        let tail = tokenizer.normalize(&text[at..self.walked], Edge::Interior)?;
        // It is the first of those that are open, so no rest has a say.
        let restart = words.restarts(walk, &tail, tokenizer.model(), || None);
        restart.filter(|restart| *restart == Restart::Piece).map(|_| at)
    }

    /// Counts bytes from a later one on, which was walked over.
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
