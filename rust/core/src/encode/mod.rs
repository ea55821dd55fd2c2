//! The encoders, which write the tokens of one segment: `hf` runs the `tokenizers` crate and is right
//! by definition; `fast` writes the same tokens for the shapes that most models have.

mod edge;
mod encoded;
mod fast;
mod hf;
mod mintable;
mod segment;

pub use edge::Edge;
pub(crate) use edge::{normalizers, pre_tokenizers};
pub(crate) use encoded::{Encoded, HardCut};
pub(crate) use fast::Fast;
pub use fast::look_first_at;
pub(crate) use hf::Pipeline;
pub(crate) use mintable::Mintable;
pub(crate) use segment::Segment;
