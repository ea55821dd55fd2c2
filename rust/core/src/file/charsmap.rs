//! The size that the charsmap of a `Precompiled` normalizer says that it has.

use serde_json::Value;

use super::guard::unreadable;
use super::stage::{kind, stages};
use crate::error::Result;

/// Refuses a charsmap that says that more follows than does: `tokenizers` makes room for all of it
/// first, 8 GiB where the file is broken, and a process that cannot have as much is aborted.
pub(crate) fn check_charsmaps(normalizer: &Value) -> Result<()> {
    for stage in stages(normalizer, "normalizers") {
        let charsmap = stage.get("precompiled_charsmap").and_then(Value::as_str);
        let Some(base64) = charsmap.filter(|_| kind(stage) == Some("Precompiled")) else {
            continue;
        };
        let follow = (base64.len() / 4 * 3).saturating_sub(4);
        if let Some(bytes) = trie_bytes(base64).filter(|bytes| *bytes > follow) {
            return Err(unreadable(format!(
                "normalizer: precompiled_charsmap says that {bytes} bytes of a trie follow, but there \
                 are {follow}"
            )));
        }
    }
    Ok(())
}

/// The first four bytes: the size of the trie that follows. `None` where they are no base64.
fn trie_bytes(base64: &str) -> Option<usize> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: &u8| DIGITS.iter().position(|digit| digit == byte);
    let first = base64.as_bytes().first_chunk::<6>()?;
    let bits = first.iter().try_fold(0, |bits, byte| Some(bits << 6 | digit(byte)?))?;
    // Six digits are 36 bits, of which the first 32 are the number, lowest byte first.
    u32::try_from(bits >> 4).ok().map(|bytes| bytes.swap_bytes() as usize)
}
