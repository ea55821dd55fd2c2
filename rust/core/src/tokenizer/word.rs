//! Words that are taken up inside, asked of a tokenizer.

use std::borrow::Cow;

use tokenizers::{NormalizedString, Normalizer};

use super::Tokenizer;
use crate::anchor::{Anchors, Words};
use crate::cut::Cutter;
use crate::encode::Edge;
use crate::file::{Model, caught};

impl Tokenizer {
    /// What is known of places inside a word; `None` where none is.
    pub(crate) fn words(&self) -> Option<&Words> {
        self.anchors.as_ref().and_then(Anchors::words)
    }

    pub(crate) fn model(&self) -> &Model {
        &self.pipeline.model
    }

    /// The bytes of the longest added token.
    pub(crate) fn longest_added(&self) -> usize {
        let normalized = self.normalized.as_ref().map_or(0, Cutter::longest);
        self.raw.longest().max(normalized)
    }

    /// Whether an added token would hold, end or begin at byte `at`, were all of them cut out.
    pub(crate) fn added_touches(&self, text: &str, at: usize) -> bool {
        self.raw.touches(text, at)
            || self.normalized.as_ref().is_some_and(|cutter| cutter.touches(text, at))
    }

    /// Whether the normalizer works on both sides of byte `at` apart, whatever follows.
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
