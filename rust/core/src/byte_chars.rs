//! GPT-2's way of writing bytes as characters, which every byte-level vocabulary has taken over.
//!
//! Bytes that are no printable character get one, so that an entry of the vocabulary is text in a
//! JSON file, and a space (`Ġ`) is no place at which a merge in `merges.txt` comes apart.

/// GPT-2's character for each byte: printable Latin-1 stands for itself, the rest is shifted.
pub(crate) fn byte_chars() -> [char; 256] {
    let mut shifted = 0u32;
    std::array::from_fn(|byte| {
        let byte = u8::try_from(byte).expect("256 bytes");
        let code = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => u32::from(byte),
            _ => {
                shifted += 1;
                255 + shifted
            }
        };
        char::from_u32(code).expect("below U+0200")
    })
}
