//! One recorded call, read as prompt and sample in a row.

use std::ops::Range;

use crate::error::{Error, Result, SampleOf};
use crate::logprob;

/// One call of an engine, as recorded.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The ids that the engine received.
    pub prompt_ids: &'a [i64],
    /// The ids that it sampled.
    pub completion_ids: &'a [i64],
    /// Nats, one for each sampled id.
    pub logprobs: &'a [f32],
}

impl<'a> Call<'a> {
    /// Refuses a malformed call; `call` names it in the error.
    pub(super) fn check(&self, call: usize) -> Result<()> {
        if self.prompt_ids.is_empty() {
            return Err(Error::EmptyPrompt { call });
        }
        if let Some(token) = self.tokens(0..self.len()).position(|id| id < 0) {
            return Err(Error::NegativeId { call, token, id: self.token(token) });
        }
        self.check_logprobs(call)
    }

    /// As [`Call::check`] except for negative ids, which the tree finds without reading all tokens.
    pub(super) fn is_aligned(&self) -> bool {
        !self.prompt_ids.is_empty() && self.check_logprobs(0).is_ok()
    }

    fn check_logprobs(&self, call: usize) -> Result<()> {
        logprob::check(SampleOf::Call(call), self.completion_ids, self.logprobs)
    }

    /// The call without its sample.
    pub(super) fn prompt(&self) -> Self {
        Self { completion_ids: &[], logprobs: &[], ..*self }
    }

    /// Tokens of prompt and sample.
    pub(super) fn len(&self) -> usize {
        self.prompt_ids.len() + self.completion_ids.len()
    }

    pub(super) fn token(&self, at: usize) -> i64 {
        let sampled = at.checked_sub(self.prompt_ids.len());
        sampled.map_or_else(|| self.prompt_ids[at], |at| self.completion_ids[at])
    }

    /// The tokens of a range, as far as there are any.
    pub(super) fn tokens(&self, range: Range<usize>) -> impl Iterator<Item = i64> + use<'a> {
        self.slices(range).into_iter().flatten().copied()
    }

    /// The first token of `from..to` at which this differs from `other`, else `to`.
    pub(super) fn shared(&self, other: &Call<'_>, from: usize, to: usize) -> usize {
        let (mut left, mut right) = (self.slices(from..to), other.slices(from..to));
        let mut at = from;
        while at < to {
            let [a, b] = [usize::from(left[0].is_empty()), usize::from(right[0].is_empty())];
            let len = left[a].len().min(right[b].len());
            let shared = common_prefix(&left[a][..len], &right[b][..len]);
            at += shared;
            if shared < len || len == 0 {
                break;
            }
            left[a] = &left[a][len..];
            right[b] = &right[b][len..];
        }
        at
    }

    /// The tokens of a range: those of the prompt, and those of the sample.
    pub(super) fn slices(&self, range: Range<usize>) -> [&'a [i64]; 2] {
        let edge = self.prompt_ids.len();
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        [
            &self.prompt_ids[start.min(edge)..end.min(edge)],
            &self.completion_ids[start.saturating_sub(edge)..end.saturating_sub(edge)],
        ]
    }
}

/// True if an id is below zero, found by the sign of all ids together without a branch for each.
pub(super) fn is_any_negative(ids: &[i64]) -> bool {
    ids.iter().fold(0, |all, id| all | id) < 0
}

fn common_prefix(a: &[i64], b: &[i64]) -> usize {
    // Slices of a fixed length are compared several tokens at a time; finding the first difference is
    // left to the last block.
    const BLOCK: usize = 256;
    let pairs = a.chunks_exact(BLOCK).zip(b.chunks_exact(BLOCK));
    let blocks = pairs.take_while(|(a, b)| a == b).count() * BLOCK;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}
