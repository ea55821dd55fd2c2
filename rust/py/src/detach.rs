//! When the GIL is released: for all work that may take longer than about 20 us.
//!
//! Work on text and ids of any length releases it always: its time depends on more than the length.
//! Mere copies do from a length on: who gives the GIL back may wait 5 ms for it behind a busy
//! thread, so giving it back for less costs more than keeping it.

use pyo3::prelude::*;

/// Tokens that are copied in about 20 us, from one array to the next.
const COPIED_TOKENS: usize = 16 * 1024;

/// Copies `tokens` tokens, without the GIL where they are many.
pub fn copying<T: Send>(py: Python<'_>, tokens: usize, copy: impl FnOnce() -> T + Send) -> T {
    if tokens > COPIED_TOKENS { py.detach(copy) } else { copy() }
}
