//! abut-core: conversations joined end to end, exact to the token.
//!
//! The invariant that everything here serves: **a token that the model sampled is never tokenized
//! again, and text is tokenized exactly as the whole text would be.**
//!
//! Data flows one way: text or ids → [`Tokenizer`] → [`Trajectory`] → [`Columns`]; calls that
//! somebody else recorded come in through [`stitch`], the replies of a server through
//! [`read_completions`]. Nothing here knows Python, a network, or a model.

#![forbid(unsafe_code)]

mod anchor;
mod append;
mod columns;
mod error;
mod logprob;
mod parts;
mod reply;
mod seam;
mod segment;
mod stitch;
mod tokenizer;
mod trajectory;

pub use columns::{Batch, Columns, Row, Shape, collate};
pub use error::{Error, Result, SampleOf};
pub use parts::{Part, PartKind};
pub use reply::{Choice, StopReason, read_completions};
pub use seam::{Merge, Seam, SeamKind};
pub use stitch::{Call, Cause, Dropped, OnDrift, Stitched, Transition, TransitionKind, stitch};
pub use tokenizer::{AddedMode, AddedToken, Edge, Overrides, Profile, Spelled, Tokenizer};
pub use trajectory::{Provenance, Trajectory, Turn};
