//! Cutting text into runs that no merge crosses.
//!
//! Invariant: two characters that a token holds side by side were brought together by a merge whose
//! left part ends with the one and whose right part begins with the other. Where no merge does
//! that, no token crosses the offset, and each side has the tokens that it has alone. Holding pairs
//! that no merge has only makes runs longer.

use crate::hashing::spread;

/// The pairs of characters that merges bring together, and a few others.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// For each ASCII character: those that may follow it.
    ascii: Box<[[u64; 2]; 128]>,
    /// One bit for each hash of a pair with other characters.
    others: Box<[u64]>,
}

impl Neighbours {
    pub fn new(pairs: &[(char, char)]) -> Self {
        // Sparse, so that pairs seldom share a bit; a power of two.
        let words = pairs.len().div_ceil(4).next_power_of_two();
        let mut all =
            Self { ascii: Box::new([[0; 2]; 128]), others: vec![0; words].into_boxed_slice() };
        for &(left, right) in pairs {
            if left.is_ascii() && right.is_ascii() {
                let (half, bit) = halved(right);
                all.ascii[left as usize][half] |= 1 << bit;
            } else {
                let (word, bit) = all.bit_of(left, right);
                all.others[word] |= bit;
            }
        }
        all
    }

    /// As [`Self::meet`], for two ASCII characters.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each character")]
    pub fn ascii_meet(&self, left: char, right: u8) -> bool {
        let (half, bit) = halved(char::from(right & 0x7F));
        self.ascii[left as usize & 0x7F][half] >> bit & 1 != 0
    }

    /// True if a merge may bring the two characters together.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each character")]
    pub fn meet(&self, left: char, right: char) -> bool {
        if let (true, Ok(ascii @ ..0x80)) = (left.is_ascii(), u8::try_from(right)) {
            return self.ascii_meet(left, ascii);
        }
        let (word, bit) = self.bit_of(left, right);
        self.others[word] & bit != 0
    }

    #[inline]
    fn bit_of(&self, left: char, right: char) -> (usize, u64) {
        let pair = u64::from(u32::from(left)) << 32 | u64::from(u32::from(right));
        let hash = spread(pair ^ pair >> 29) >> 32;
        let bit = 1 << (hash & 63);
        let word = usize::try_from(hash >> 6).expect("26 bits") & (self.others.len() - 1);
        (word, bit)
    }
}

/// The bit of an ASCII character in two numbers: to shift one of 128 bits takes several steps.
#[inline]
fn halved(c: char) -> (usize, u32) {
    let code = u32::from(c);
    ((code / u64::BITS) as usize, code % u64::BITS)
}
