//! abut-core: conversations joined end to end, exact to the token.
//!
//! The invariant that everything here serves: **a token that the model sampled is never tokenized
//! again, and text is tokenized exactly as the whole text would be.**
//!
//! Data flows one way: text or ids → [`Tokenizer`] → [`Trajectory`] → [`Columns`]; calls that
//! somebody else recorded come in through [`stitch`], the replies of a server through
//! [`read_completions`]. Nothing here knows Python, a network, or a model.
//!
//! The rooms of the house, in the order of their use: each uses only those above it. `tests/rooms.rs`
//! reads the order here and holds the sources to it.
//!
//! - `error`: what can be wrong, where, and what to do about it
//! - `parts`: text with a memory of who wrote it
//! - `provenance`: who wrote a token
//! - `byte_chars`: how byte-level vocabularies spell bytes
//! - `by_bytes`: the words of a vocabulary
//! - `logprob`: what a logprob of a sampled token can be
//! - `columns`: trajectories as arrays, for a trainer
//! - `reply`: what a server answers, read into arrays
//! - `file`: what is read of a `tokenizer.json`, before anything is made of it
//! - `cut`: where added tokens are cut out of a text, and which of them nothing can change
//! - `anchor`: places where a text can be taken up again
//! - `encode`: the tokens of one segment, by `tokenizers` or by an encoder of our own
//! - `tokenizer`: all of that together, for one file
//! - `append`: text that is still open
//! - `seam`: the verdict on one seam
//! - `stitch`: recorded calls, joined to chains
//! - `trajectory`: text and samples, joined as they come

#![forbid(unsafe_code)]

mod anchor;
mod append;
mod by_bytes;
mod byte_chars;
mod columns;
mod cut;
mod encode;
mod error;
mod file;
mod logprob;
mod parts;
mod provenance;
mod reply;
mod seam;
mod stitch;
mod tokenizer;
mod trajectory;

pub use columns::{Batch, Columns, Row, Shape, collate};
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
