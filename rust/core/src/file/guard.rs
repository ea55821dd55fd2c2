//! A guard around `tokenizers`, which panics at some broken files.
//!
//! Invariant: no panic of `tokenizers` leaves this crate; it becomes an error.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

const HINT_FILE: &str = "pass the tokenizer.json that transformers' save_pretrained writes, \
                         not tokenizer_config.json, vocab.json or tokenizer.model";

/// The error for a file that is not a `tokenizer.json`, or holds something unknown.
pub(crate) fn unreadable(reason: String) -> Error {
    Error::Load { reason, hint: HINT_FILE }
}

/// Reads or uses a part of the file. The error names it as `part`.
pub(crate) fn guarded<T, E: Display>(
    part: &str,
    read: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<T> {
    let read = caught(read).map_err(|panic| {
        unreadable(format!(
            "{part}: the tokenizers crate panicked while it read this part: {panic}"
        ))
    })?;
    read.map_err(|e| unreadable(format!("{part}: {e}")))
}

/// The message of a panic, where there is one.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> std::result::Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(panic.as_ref()).to_owned())
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say why")
}
