//! Restarts inside a word, asked of a tokenizer.

use std::borrow::Cow;

use tokenizers::{NormalizedString, Normalizer};

use super::Tokenizer;
use crate::added_tokens::Cutter;
use crate::anchor::{Anchors, WordRestarts};
use crate::encode::Edge;
use crate::file::{Model, caught};

impl Tokenizer {
    /// The rules for restarting inside a word; `None` where no such restart is safe.
    pub(crate) fn word_restarts(&self) -> Option<&WordRestarts> {
        self.anchors.as_ref().and_then(Anchors::word_restarts)
    }

    pub(crate) fn model(&self) -> &Model {
        &self.pipeline.model
    }

    /// The length of the longest added token, in bytes.
    pub(crate) fn longest_added(&self) -> usize {
        let normalized = self.normalized.as_ref().map_or(0, Cutter::longest);
        self.raw.longest().max(normalized)
    }

    /// True if an added token would hold, end or begin at byte `at`, were all of them cut out.
    pub(crate) fn added_touches(&self, text: &str, at: usize) -> bool {
        self.raw.touches(text, at)
            || self.normalized.as_ref().is_some_and(|cutter| cutter.touches(text, at))
    }

    /// True if the normalizer works on both sides of byte `at` separately, whatever follows.
    pub(crate) fn part_normalized(&self, text: &str, at: usize) -> bool {
        self.anchors.as_ref().is_some_and(|anchors| anchors.part_normalized(text, at))
    }

    /// The normalized text; `None` where the normalizer fails.
    pub(crate) fn normalize<'a>(&self, text: &'a str, edge: Edge) -> Option<Cow<'a, str>> {
        let Some(normalizer) = &self.pipeline.normalizers[edge as usize] else {
            return Some(Cow::Borrowed(text));
        };
        let mut string = NormalizedString::from(text);
        caught(|| normalizer.normalize(&mut string)).ok()?.ok()?;
        Some(Cow::Owned(string.get().to_owned()))
    }
}
