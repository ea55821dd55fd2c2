//! What is read of a `tokenizer.json`, before anything is made of it.

mod added;
mod load;
mod stage;

pub use added::{AddedToken, Overrides};
pub(crate) use load::{Loaded, ModelSettings, load, unreadable};
pub(crate) use stage::{kind, stages};
