//! The characters of open text and their authors.
//!
//! Invariant: the runs lie end to end over the whole text, none is empty, and neighbours differ.

use std::ops::Range;

use crate::parts::{Joined, Part, PartKind};
use crate::provenance::Provenance;

/// Characters of one author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    end: usize,
    kind: PartKind,
    provenance: Provenance,
}

impl Run {
    fn written_by(&self) -> u8 {
        match (self.provenance, self.kind) {
            // Text with which abut ends a turn is scaffold too, but this is the more precise answer.
            (Provenance::Close, _) => Provenance::Close as u8,
            (_, PartKind::Scaffold) => Provenance::Scaffold as u8,
            (provenance, PartKind::Content) => provenance as u8,
        }
    }
}

/// Text of several authors.
#[derive(Debug, Clone, Default)]
pub(super) struct WrittenText {
    text: String,
    runs: Vec<Run>,
}

impl WrittenText {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn push(&mut self, part: Part<'_>, provenance: Provenance) {
        if part.text.is_empty() {
            return;
        }
        self.text.push_str(part.text);
        let run = Run { end: self.text.len(), kind: part.kind, provenance };
        match self.runs.last_mut() {
            Some(last) if (last.kind, last.provenance) == (run.kind, run.provenance) => *last = run,
            _ => self.runs.push(run),
        }
    }

    /// The text from byte `from` on.
    pub fn after(&self, from: usize) -> Joined<'_> {
        let first = self.runs.partition_point(|run| run.end <= from);
        let mut start = from;
        let parts = self.runs[first..].iter().map(|run| {
            let text = &self.text[start..run.end];
            start = run.end;
            Part { kind: run.kind, text }
        });
        // The spans of tokens decide about their authors, and about which of them are settled.
        Joined { with_spans: true, ..Joined::new(parts) }
    }

    /// The authors of the tokens of these bytes: the first content that each token touches, else
    /// scaffold.
    pub fn written_by<'a>(&'a self, spans: &'a [Range<usize>]) -> impl Iterator<Item = u8> + 'a {
        // Most tokens lie in the same run as the token before, so that run is tried first.
        let (mut within, mut written_by) = (0..0, 0);
        spans.iter().map(move |span| {
            if within.start <= span.start && span.start < span.end && span.end <= within.end {
                return written_by;
            }
            let runs = &self.runs;
            let first = runs.partition_point(|run| run.end <= span.start).min(runs.len() - 1);
            let last = runs.partition_point(|run| run.end < span.end).clamp(first, runs.len() - 1);
            let touched = &runs[first..=last];
            let content = touched.iter().find(|run| run.kind == PartKind::Content);
            let start = first.checked_sub(1).map_or(0, |before| runs[before].end);
            within = if first == last { start..runs[first].end } else { 0..0 };
            written_by = content.unwrap_or(&touched[0]).written_by();
            written_by
        })
    }

    /// Forgets the first `bytes` bytes.
    pub fn forget(&mut self, bytes: usize) {
        self.text.drain(..bytes);
        let gone = self.runs.partition_point(|run| run.end <= bytes);
        self.runs.drain(..gone);
        self.runs.iter_mut().for_each(|run| run.end -= bytes);
    }
}
