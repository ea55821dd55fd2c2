//! Prompts that begin differently but go on with a recorded turn: a rewritten history.
//!
//! Two conversations may share their first tokens by chance, so a common beginning is no evidence. The
//! tokens around the start of a sample are: the end of its prompt followed by the head of the sample. A
//! sub-agent that merely quotes the sample has no generation prompt before it.

use rustc_hash::FxHashMap;

use super::call::Call;
use crate::hashing::spread;

/// The tokens around the start of a sample, of which at most `HEAD` are sampled. Twelve tokens before it
/// hold more than the generation prompt (Qwen's has three), and twelve sampled ones are seldom the same
/// by chance. Windows with equal hashes are compared token by token, so a collision costs only time.
const WINDOW: usize = 24;
const HEAD: usize = 12;

/// The window around the start of each sample, by its length and hash. Samples near the beginning of a
/// prompt, or short ones, have shorter windows.
pub(super) struct Beginnings<'a> {
    calls: &'a [Call<'a>],
    by_hash: FxHashMap<usize, FxHashMap<u64, usize>>,
}

impl<'a> Beginnings<'a> {
    /// If windows of several calls are the same, the first call in `order` counts.
    pub fn new(calls: &'a [Call<'a>], order: &[usize]) -> Self {
        let mut by_hash: FxHashMap<usize, FxHashMap<u64, usize>> = FxHashMap::default();
        for &call in order {
            let window = window(&calls[call]);
            let hash = window.clone().fold(0, |hash, at| push(hash, calls[call].token(at)));
            by_hash.entry(window.len()).or_default().entry(hash).or_insert(call);
        }
        Self { calls, by_hash }
    }

    /// The last turn that the prompt of `call` repeats, of calls with shorter prompts.
    pub fn find(&self, call: usize, work: &mut usize) -> Option<usize> {
        let prompt = self.calls[call].prompt_ids;
        // The window that ends last counts, and of several with the same end the longest.
        let mut last: Option<(usize, usize, usize)> = None;
        for (&len, by_hash) in &self.by_hash {
            if len > prompt.len() {
                continue;
            }
            // A rolling hash (Rabin and Karp): each step adds one token and takes one away.
            let high = (0..len).fold(1, |power, _| spread(power));
            let mut hash = 0;
            for (at, &id) in prompt.iter().enumerate() {
                *work += 1;
                hash = push(hash, id);
                if at >= len {
                    hash = hash.wrapping_sub(high.wrapping_mul(value(prompt[at - len])));
                }
                let Some(&found) = by_hash.get(&hash).filter(|_| at + 1 >= len) else { continue };
                let other = &self.calls[found];
                let here = &prompt[at + 1 - len..=at];
                *work += len;
                let same = window(other).zip(here).all(|(at, &id)| other.token(at) == id);
                if same && other.prompt_ids.len() < prompt.len() {
                    last = last.max(Some((at, len, found)));
                }
            }
        }
        last.map(|(_, _, found)| found)
    }
}

fn window(call: &Call<'_>) -> std::ops::Range<usize> {
    let end = call.prompt_ids.len() + call.completion_ids.len().min(HEAD);
    end.saturating_sub(WINDOW)..end
}

fn push(hash: u64, id: i64) -> u64 {
    spread(hash).wrapping_add(value(id))
}

fn value(id: i64) -> u64 {
    id.unsigned_abs() + 1
}
