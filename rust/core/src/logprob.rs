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
    for (index, &logprob) in logprobs.iter().enumerate() {
        if let Some(problem) = impossible(logprob) {
            let (id, value) = (ids[index].into(), logprob.to_string());
            return Err(Error::Logprob { sample, index, id, value, problem });
        }
    }
    Ok(())
}

/// Why no sampled token can have this logprob.
fn impossible(logprob: f32) -> Option<&'static str> {
    if !logprob.is_finite() {
        Some("not finite")
    } else if logprob > 1e-3 {
        // Rounding may leave a certain token a little above 0.
        Some("above 0")
    } else if logprob <= -9999.0 {
        Some("vLLM's placeholder for a missing logprob")
    } else {
        None
    }
}
