//! The logprobs of sampled tokens.
//!
//! Invariant: a sample that passes [`check`] has one logprob for each token, and each is a value that a
//! sampled token can have.

use crate::error::{Error, Result, SampleOf};

/// Refuses a sample whose logprobs are not those of its ids.
pub(crate) fn check<T: Copy + Into<i64>>(
    sample: SampleOf,
    ids: &[T],
    logprobs: &[f32],
) -> Result<()> {
    if ids.len() != logprobs.len() {
        return Err(Error::LogprobCount { sample, ids: ids.len(), logprobs: logprobs.len() });
    }
    // Usually all are possible, and a loop without an early end is faster than the one below.
    if logprobs.iter().fold(true, |all, &logprob| all & is_possible(logprob)) {
        return Ok(());
    }
    for (index, &logprob) in logprobs.iter().enumerate() {
        if let Some(problem) = impossible(logprob) {
            let (id, value) = (ids[index].into(), logprob.to_string());
            return Err(Error::Logprob { sample, index, id, value, problem });
        }
    }
    Ok(())
}

/// Rounding may leave a certain token a little above 0.
const MOST: f32 = 1e-3;
/// vLLM's placeholder for a missing logprob.
const PLACEHOLDER: f32 = -9999.0;

fn is_possible(logprob: f32) -> bool {
    // False for NaN.
    logprob > PLACEHOLDER && logprob <= MOST
}

/// Why no sampled token can have this logprob.
fn impossible(logprob: f32) -> Option<&'static str> {
    if is_possible(logprob) {
        None
    } else if !logprob.is_finite() {
        Some("not finite")
    } else if logprob > MOST {
        Some("above 0")
    } else {
        Some("vLLM's placeholder for a missing logprob")
    }
}
