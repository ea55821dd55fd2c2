//! Releasing the GIL, for work on text and ids that may take longer than about 20 us.
//!
//! A thread that releases the GIL may wait 5 ms for it behind a busy thread, and each release costs a
//! switch, so for short work it is cheaper to keep it. Work on text keeps the GIL only if its time
//! depends on nothing but the length: see [`Tokenizer::is_linear`].

use abut_core::Tokenizer;
use pyo3::prelude::*;

/// Tokens that are copied in about 20 us, from one array to the next.
const COPIED_TOKENS: usize = 16 * 1024;
/// Tokens that are looked up in about 20 us, each in a table of the vocabulary.
const LOOKED_UP_TOKENS: usize = 1024;

/// Text that is encoded in about 50 us: a reply of some kilobytes is not worth a switch.
const ENCODED_BYTES: usize = 4 * 1024;

/// Works on `bytes` bytes of text, without the GIL where they are many.
pub fn encoding<T: Send>(
    py: Python<'_>,
    tokenizer: &Tokenizer,
    bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> T {
    if bytes > ENCODED_BYTES || !tokenizer.is_linear() { py.detach(work) } else { work() }
}

/// Copies `tokens` tokens, without the GIL where they are many.
pub fn copying<T: Send>(py: Python<'_>, tokens: usize, copy: impl FnOnce() -> T + Send) -> T {
    if tokens > COPIED_TOKENS { py.detach(copy) } else { copy() }
}

/// Looks up `tokens` tokens, without the GIL where they are many.
pub fn looking_up<T: Send>(py: Python<'_>, tokens: usize, look_up: impl FnOnce() -> T + Send) -> T {
    if tokens > LOOKED_UP_TOKENS { py.detach(look_up) } else { look_up() }
}
