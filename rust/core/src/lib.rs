//! abut-core: conversations joined end to end, exact to the token.
//!
//! The invariant that everything here serves: **a token that the model sampled is never tokenized
//! again, and text is tokenized exactly as the whole text would be.**
//!
//! Data flows one way: text or ids → [`Tokenizer`] → [`Trajectory`] → [`Columns`]. Calls that another
//! program recorded come in through [`stitch`], the replies of a server through [`read_completions`].
//! This crate knows no Python, no network and no language model.
//!
//! The modules, in the order of their use: each uses only those above it. `tests/rooms.rs` reads the
//! order here and checks the sources against it.
//!
//! - `error`: every error, with the position and a hint
//! - `parts`: text that remembers its author
//! - `provenance`: the author of a token
//! - `hashing`: the multiplication that every hash begins with
//! - `byte_chars`: the characters that stand for bytes in byte-level vocabularies
//! - `by_bytes`: the words of a vocabulary
//! - `logprob`: the check of a sample's logprobs
//! - `columns`: trajectories as arrays, for a trainer
//! - `reply`: a server's reply, read into arrays
//! - `file`: reading a `tokenizer.json`
//! - `added_tokens`: cutting added tokens out of a text, and finding the hard ones
//! - `anchor`: offsets at which encoding can restart
//! - `encode`: the tokens of one segment, by `tokenizers` or by the encoders of this crate
//! - `tokenizer`: all of that together, for one file
//! - `append`: text that is still open
//! - `seam`: the verdict on one seam
//! - `stitch`: recorded calls, joined to chains
//! - `trajectory`: text and samples, joined as they come

#![forbid(unsafe_code)]

mod added_tokens;
mod anchor;
mod append;
mod by_bytes;
mod byte_chars;
mod columns;
mod encode;
mod error;
mod file;
mod hashing;
mod logprob;
mod parts;
mod provenance;
mod reply;
#[cfg(test)]
#[path = "../tests/support/random/rng.rs"]
#[allow(dead_code, reason = "the integration tests and benchmarks use the rest of it")]
mod rng;
mod seam;
mod stitch;
mod tokenizer;
mod trajectory;

pub use columns::{Batch, Columns, Dimensions, Row, collate};
pub use encode::{Edge, look_first_at};
pub use error::{Error, Result, SampleOf};
pub use file::{AddedToken, Overrides};
pub use parts::{Part, PartKind};
pub use provenance::Provenance;
pub use reply::{Choice, StopReason, read_completions};
pub use seam::{Merge, Seam, SeamKind};
pub use stitch::{Call, Cause, Dropped, OnDrift, Stitched, Transition, TransitionKind, stitch};
pub use tokenizer::{AddedMode, Profile, Spelled, Tokenizer};
pub use trajectory::{Trajectory, Turn};
