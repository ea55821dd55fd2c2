//! Recorded engine calls to chains: each sampled token is trained at most once, in the context in
//! which it was sampled.
//!
//! Invariant: **the tokens of a chain are the prompt and the sample of its last call, and each
//! prompt in it extends the prompt and sample before it, up to a realigned tail that is context.**
//!
//! A call *extends* another one if its prompt begins with the other's prompt and sample. It *leaves*
//! the other if the two part inside the other's sample. The call with the longest shared history is
//! the parent; if several are equally long, one that is extended comes first.
//!
//! Calls with the same prompt are siblings: the first one recorded goes on with the parent's chain,
//! and each other begins a chain. Of several prompts that extend one call, the one recorded first goes
//! on with its chain, and the others differ in context. Nothing else depends on the order of the calls.
//!
//! If a call extends several equal calls, nothing shows which of them is its parent: it is quarantined.
//! A call that leaves several at one token goes on with none of them and begins a chain. A call that
//! extends a dropped or quarantined call is dropped or quarantined too.
//!
//! Time and memory are linear in the tokens given.

mod call;
mod cause;
mod chains;
mod links;
mod on_drift;
mod rewritten;
mod transition;
mod tree;

use crate::error::Result;
use crate::tokenizer::Tokenizer;
pub use call::Call;
pub use cause::Cause;
pub use chains::{Dropped, Stitched};
use links::Links;
pub use on_drift::OnDrift;
pub use transition::{Transition, TransitionKind};

/// Joins recorded calls.
///
/// # Errors
/// A malformed call (`EmptyPrompt`, `NegativeId`, `LogprobCount` or `Logprob` of
/// [`Error`](crate::Error)); with [`OnDrift::Error`] also `Drift` and `AmbiguousParent`, for the
/// first such call.
pub fn stitch(
    calls: &[Call<'_>],
    on_drift: OnDrift,
    tokenizer: Option<&Tokenizer>,
) -> Result<Stitched> {
    // Negative ids are looked for in the tree, which has each shared token once: a second pass over all
    // prompts would read them again, and they are most of the tokens. A malformed call is then checked
    // from the start, so that the error names the first fault.
    if !calls.iter().all(Call::is_aligned) {
        check(calls)?;
    }
    let links = Links::new(calls, on_drift);
    if links.any_negative {
        check(calls)?;
    }
    if on_drift == OnDrift::Error {
        links.refuse_drift(tokenizer)?;
    }
    Ok(links.join(on_drift, tokenizer))
}

/// Refuses the first malformed call.
fn check(calls: &[Call<'_>]) -> Result<()> {
    calls.iter().enumerate().try_for_each(|(index, call)| call.check(index))
}
