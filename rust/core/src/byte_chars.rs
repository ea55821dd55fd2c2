//! GPT-2's way of writing bytes as characters, which every byte-level vocabulary uses.
//!
//! Bytes that are not a printable character get one, so that an entry of the vocabulary is text in a
//! JSON file, and a space (`Ġ`) does not separate the halves of a merge in `merges.txt`.

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

/// The byte that each of [`byte_chars`] stands for.
pub(crate) struct CharToByte([Option<u8>; Self::CHARS]);

impl CharToByte {
    /// More than the highest code point that stands for a byte.
    const CHARS: usize = 1 << 9;

    pub fn new() -> Self {
        let mut inverse = [None; Self::CHARS];
        for (byte, c) in (0..=255).zip(byte_chars()) {
            inverse[c as usize] = Some(byte);
        }
        Self(inverse)
    }

    /// `None` for a character that stands for no byte.
    pub fn byte(&self, c: char) -> Option<u8> {
        self.0.get(c as usize).copied().flatten()
    }
}
