//! Prompts that begin differently but go on with a recorded turn: a rewritten history.
//!
//! Two conversations may share their first tokens and mean nothing by it, so a common beginning is
//! no evidence. The place where a sample began is: the end of its prompt and the head of the
//! sample, in a row. A sub-agent that merely quotes the sample has no generation prompt before it.

use rustc_hash::FxHashMap;

use super::call::Call;

/// Tokens around the place where a sample begins, of which at most `HEAD` are sampled.
const WINDOW: usize = 24;
const HEAD: usize = 12;
const BASE: u64 = 0x9E37_79B9_7F4A_7C15;

/// The window around the beginning of each sample, by its length and hash.
pub(super) struct Beginnings<'a> {
    calls: &'a [Call<'a>],
    by_hash: FxHashMap<usize, FxHashMap<u64, usize>>,
}

impl<'a> Beginnings<'a> {
    /// Of the calls in `order`, the first one counts where windows are the same.
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
        // By where it ends; of several that end there, the longest window.
        let mut last: Option<(usize, usize, usize)> = None;
        for (&len, by_hash) in &self.by_hash {
            if len > prompt.len() {
                continue;
            }
            let high = (0..len).fold(1_u64, |power, _| power.wrapping_mul(BASE));
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
    hash.wrapping_mul(BASE).wrapping_add(value(id))
}

fn value(id: i64) -> u64 {
    id.unsigned_abs() + 1
}
