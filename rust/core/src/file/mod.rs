//! Reading a `tokenizer.json`, before a tokenizer is built from it.

mod added;
mod bpe;
mod charsmap;
mod entries;
mod guard;
mod load;
mod model;
mod model_file;
mod stage;
mod vocab;

pub use added::{AddedToken, Overrides};
pub(crate) use bpe::Bpe;
pub(crate) use charsmap::check_charsmaps;
pub(crate) use guard::{caught, guarded, unreadable};
pub(crate) use load::{Loaded, ModelSettings, load};
pub(crate) use model::Model;
pub(crate) use stage::{kind, stages};
