//! Finding the words of 64 bytes at once: bits for the kinds of characters, and from them bits for the
//! beginnings of words.
//!
//! Invariant: if a word begins at the first byte, a word begins at each set bit, and no beginning before
//! the last set bit is missing. The bits end before the first character that these rules do not know: a
//! contraction, or a character beyond ASCII that is neither a letter nor a sign. The function for one
//! word at a time goes on there, and a test compares the two.

#![allow(clippy::inline_always, reason = "called for each block, in loops that must stay small")]

use wide::{CmpEq, CmpGt, i8x16};

use super::class::{CASELESS, Classes, LETTER, MARK, NUMBER, SPACE, UPPER};
use super::memo::AT_ONCE;

const BLOCK: usize = 64;
pub(super) type Block = [u8; BLOCK];

/// `ſ`, which without regard to case is an s.
pub(super) const LONG_S: [u8; 2] = [0xC5, 0xBF];

/// The differences between patterns like cl100k's and o200k's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// The most numbers in a word.
    pub digits: usize,
    pub contractions: Contractions,
    /// True if a word ends where a capital follows a small letter, and `/` may stand behind newlines.
    pub cased: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contractions {
    None,
    /// Words of their own.
    Before,
    /// The ends of words.
    Behind,
}

/// For each byte of a block one bit of each kind.
#[derive(Default)]
struct Kinds {
    letters: u64,
    capitals: u64,
    digits: u64,
    spaces: u64,
    /// Tabs, and other ASCII whitespace except spaces and newlines.
    tabs: u64,
    newlines: u64,
    apostrophes: u64,
    slashes: u64,
    /// All bytes but the first of each sign that has more than one.
    tails: u64,
    unknown: u64,
}

/// Calls `each` with many words of a text at once: the start of the first one, and the end of each.
/// Cutting and looking up are two loops, each of which fits the processor better than one for both.
///
/// `starts` finds the words of a block; where it finds too few, `end_of` finds the end of one word.
#[inline(always)]
pub(super) fn words(
    text: &str,
    each: &mut dyn FnMut(usize, &[usize]),
    starts: impl Fn(&Block) -> Option<u64>,
    end_of: impl Fn(usize) -> usize,
) {
    /// In a block with fewer words than this, words are found one by one, and so are some that follow. Their
    /// number doubles with each such block in a row, which is most likely text of another kind.
    const FEW: usize = 4;
    const MOST_ONE_BY_ONE: u32 = 64;
    let mut ends = [0; AT_ONCE];
    let (mut one_by_one, mut next_one_by_one) = (0, 1);
    let mut at = 0;
    while at < text.len() {
        let (start, mut count) = (at, 0);
        while count <= AT_ONCE - BLOCK && at < text.len() {
            if one_by_one == 0 {
                let block = text.as_bytes()[at..].first_chunk();
                let found = block.and_then(&starts).unwrap_or(0);
                let words = found.count_ones() as usize;
                if words < FEW {
                    one_by_one = next_one_by_one;
                    next_one_by_one = MOST_ONE_BY_ONE.min(2 * next_one_by_one);
                } else {
                    next_one_by_one = 1;
                }
                if found != 0 {
                    write_offsets(found, at, words, &mut ends[count..]);
                    count += words;
                    at += found.ilog2() as usize;
                    continue;
                }
            } else {
                one_by_one -= 1;
            }
            at = end_of(at);
            ends[count] = at;
            count += 1;
        }
        each(start, &ends[..count]);
    }
}

/// Writes the offsets of these bits behind `at`. Eight at a time, some of which may be for nothing: the
/// number of bits differs from block to block, and the processor would have to guess the end of a loop
/// over exactly as many.
#[inline(always)]
fn write_offsets(mut bits: u64, at: usize, count: usize, offsets: &mut [usize]) {
    const HIGHEST: u64 = 1 << (u64::BITS - 1);
    for eight in offsets.chunks_exact_mut(8).take(count.div_ceil(8)) {
        for offset in eight {
            // With the highest bit set there is always a bit, which spares a check.
            *offset = at + (bits | HIGHEST).trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
        }
    }
}

/// The beginnings of words by GPT-2's pattern, without the first byte.
#[inline(always)]
pub(super) fn gpt2(classes: &Classes, block: &Block) -> u64 {
    let rules = Rules { digits: usize::MAX, contractions: Contractions::Before, cased: false };
    let Kinds { letters, digits, spaces, tabs, newlines, apostrophes, mut unknown, .. } =
        kinds(classes, block, rules);
    let whitespace = spaces | tabs | newlines;
    let signs = !(letters | digits | whitespace | unknown);

    // A space belongs to the word that follows; other whitespace before a word is a word of its own.
    let plain = !(spaces << 1);
    let words = (first(letters) | first(digits) | first(signs)) & plain
        | first(whitespace)
        | whitespace & !(whitespace >> 1);
    unknown |= possible(block, apostrophes & first(signs) & plain & letters >> 1);
    known(words, unknown, whitespace)
}

/// The beginnings of words by patterns like cl100k's and o200k's, without the first byte.
#[inline(always)]
pub(super) fn by_rules(classes: &Classes, block: &Block, rules: Rules) -> u64 {
    let kinds = kinds(classes, block, rules);
    let Kinds { letters, capitals, digits, newlines, apostrophes, slashes, mut unknown, .. } =
        kinds;
    // A tab goes with letters as a space does, but not with signs.
    let spaces = kinds.spaces | kinds.tabs;
    let signs = !(letters | digits | spaces | newlines | unknown);

    // A sign that has no space before it takes the letters behind it, if it is one sign.
    let plain_signs = first(signs) & !(kinds.spaces << 1);
    // Adding a bit to the lowest of several bits in a row carries it behind the last of them.
    let behind_sign = (plain_signs << 1).wrapping_add(kinds.tails) & !kinds.tails;
    let mut words = plain_signs | first(letters) & !(spaces << 1 | behind_sign);
    if rules.cased {
        words |= capitals & (letters & !capitals) << 1;
        unknown |= slashes & newlines << 1;
    }
    words |= match rules.digits {
        1 => digits,
        3 => threes(digits),
        _ => first(digits),
    };
    // The last space belongs to the word that follows, but spaces before a newline stay together with it,
    // and newlines behind signs with those.
    words |= first(spaces) | spaces & !((spaces | newlines) >> 1);
    words |= first(newlines) & !((signs | spaces) << 1);
    // Spaces between newlines are part of a word that ends with the last newline of all.
    let between = first(spaces) & newlines << 1;
    unknown |= spaces.wrapping_add(between) & !spaces & newlines;
    unknown |= match rules.contractions {
        Contractions::None => 0,
        Contractions::Before => possible(block, apostrophes & plain_signs & letters >> 1),
        Contractions::Behind => {
            let behind = apostrophes & letters << 1;
            // A long s may stand behind it, and the character behind the last byte is not known.
            let before_unknown = behind & (unknown >> 1 | 1 << (BLOCK - 1));
            possible(block, behind & letters >> 1) | before_unknown
        }
    };

    known(words, unknown, spaces | newlines)
}

/// The first of each run.
#[inline(always)]
fn first(kind: u64) -> u64 {
    kind & !(kind << 1)
}

/// The first of each run, and each third one behind it.
#[inline(always)]
fn threes(kind: u64) -> u64 {
    let mut starts = first(kind);
    // The bits whose three predecessors are of the same run: a start three bits before makes one here.
    let mut goes_on = kind & kind << 1 & kind << 2 & kind << 3;
    if goes_on != 0 {
        // Twice as far each time.
        for step in [3, 6, 12, 24, 48] {
            starts |= starts << step & goes_on;
            goes_on &= goes_on << step;
        }
    }
    starts
}

/// The words before the first unknown byte that are certain. The text that follows decides about
/// whitespace at the end.
#[inline(always)]
fn known(words: u64, unknown: u64, whitespace: u64) -> u64 {
    let known = below(unknown.trailing_zeros()) & !whitespace;
    words & below(u64::BITS - known.leading_zeros()) & !1
}

/// The apostrophes that may begin a contraction, out of these.
#[inline(always)]
fn possible(block: &Block, mut apostrophes: u64) -> u64 {
    let mut found = 0;
    while apostrophes != 0 {
        let at = apostrophes.trailing_zeros();
        // A letter stands behind it.
        let letter = block[at as usize + 1];
        let is_possible = matches!(letter | 0x20, b's' | b't' | b'r' | b'v' | b'm' | b'l' | b'd')
            || letter == LONG_S[0];
        found |= u64::from(is_possible) << at;
        apostrophes &= apostrophes - 1;
    }
    found
}

/// The lowest `count` bits.
#[inline(always)]
fn below(count: u32) -> u64 {
    if count == u64::BITS { u64::MAX } else { (1 << count) - 1 }
}

#[inline(always)]
fn kinds(classes: &Classes, block: &Block, rules: Rules) -> Kinds {
    let mut kinds = Kinds::default();
    for (index, bytes) in block.chunks_exact(VECTOR).enumerate() {
        let bytes = Bytes::new(bytes.try_into().expect("one vector"));
        let at = VECTOR * index;
        let newline = bytes.is(b'\n') | bytes.is(b'\r');
        kinds.letters |= Bytes(bytes.0 | i8x16::splat(0x20)).are_in(b'a', b'z') << at;
        kinds.digits |= bytes.are_in(b'0', b'9') << at;
        kinds.spaces |= bytes.is(b' ') << at;
        kinds.tabs |= (bytes.are_in(b'\t', b'\r') & !newline) << at;
        kinds.newlines |= newline << at;
        kinds.unknown |= bytes.beyond_ascii() << at;
        if rules.contractions != Contractions::None {
            kinds.apostrophes |= bytes.is(b'\'') << at;
        }
        if rules.cased {
            kinds.capitals |= bytes.are_in(b'A', b'Z') << at;
            kinds.slashes |= bytes.is(b'/') << at;
        }
    }
    if kinds.unknown != 0 {
        kinds.add_beyond_ascii(classes, block, rules);
    }
    kinds
}

impl Kinds {
    /// Adds the characters beyond ASCII, up to the first that no rule knows.
    #[inline(always)]
    fn add_beyond_ascii(&mut self, classes: &Classes, block: &Block, rules: Rules) {
        // Some patterns take marks for letters and others do not. Where the case tells words apart, a
        // letter without case may belong to the letters before it or behind it, as later ones decide.
        let no_rule = NUMBER | SPACE | MARK | if rules.cased { CASELESS } else { 0 };
        while self.unknown != 0 {
            let at = self.unknown.trailing_zeros();
            let Some((class, len)) = classes.beyond_ascii(&block[at as usize..]) else { return };
            if class & no_rule != 0 {
                return;
            }
            let bytes = ((1 << len) - 1) << at;
            let if_it = |is: bool| if is { u64::MAX } else { 0 };
            self.unknown ^= bytes;
            self.letters |= bytes & if_it(class & LETTER != 0);
            self.capitals |= bytes & if_it(class & UPPER != 0);
            self.tails |= bytes & bytes << 1 & if_it(class & LETTER == 0);
        }
    }
}

/// Bytes that are compared at once, as signed numbers: a byte beyond ASCII is below all others.
#[derive(Clone, Copy)]
struct Bytes(i8x16);

const VECTOR: usize = size_of::<i8x16>();

impl Bytes {
    #[inline(always)]
    fn new(bytes: [u8; VECTOR]) -> Self {
        Self(i8x16::new(bytes.map(signed)))
    }

    /// A bit for each byte that is this one, of ASCII.
    #[inline(always)]
    fn is(self, byte: u8) -> u64 {
        bits(self.0.cmp_eq(i8x16::splat(signed(byte))))
    }

    /// A bit for each byte from `first` to `last`.
    #[inline(always)]
    fn are_in(self, first: u8, last: u8) -> u64 {
        let above = self.0.cmp_gt(i8x16::splat(signed(first) - 1));
        bits(above & i8x16::splat(signed(last) + 1).cmp_gt(self.0))
    }

    #[inline(always)]
    fn beyond_ascii(self) -> u64 {
        bits(self.0)
    }
}

/// The highest bit of each byte.
#[inline(always)]
fn bits(bytes: i8x16) -> u64 {
    u64::try_from(bytes.move_mask()).expect("sixteen bits")
}

#[inline(always)]
fn signed(byte: u8) -> i8 {
    i8::from_ne_bytes([byte])
}

#[cfg(test)]
mod tests {
    use super::super::scanner::Scanner;
    use crate::rng::Rng;

    #[test]
    fn blocks_have_the_words_that_are_found_one_by_one() {
        const PARTS: [&str; 61] = [
            "a",
            "b",
            "s",
            "T",
            "l",
            "L",
            "r",
            "e",
            "E",
            "v",
            "m",
            "D",
            "Z",
            "word",
            "Word",
            "WORD",
            "camelCase",
            "'",
            "'",
            "'s",
            "'LL",
            "0",
            "7",
            "12",
            "345",
            "6789",
            " ",
            " ",
            " ",
            "  ",
            "    ",
            "\n",
            "\r\n",
            "\n  \n",
            "(",
            "):",
            "/",
            "//",
            "_",
            "\t",
            "\t",
            "\u{b}",
            "\u{c}",
            "é",
            "É",
            "ß",
            "ж",
            "Ж",
            "ế",
            "Ế",
            "ª",
            "ǅ",
            "中",
            "«",
            "“",
            "—",
            "²",
            "🙂",
            "\u{301}",
            "\u{a0}",
            "ſ",
        ];
        let mut patterns = vec![Scanner::Gpt2];
        for digits in [1, 3, usize::MAX] {
            for flag in [false, true] {
                patterns.push(Scanner::O200k { digits, contractions: flag });
                patterns.push(Scanner::Cl100k { digits, marks_are_letters: flag, long_s: true });
            }
        }
        let mut rng = Rng(7);
        for _ in 0..4_000 {
            // Few parts again and again, so that rare neighbours meet.
            let kinds: Vec<&str> = (0..=rng.below(8)).map(|_| rng.pick(&PARTS)).collect();
            let text: String = (0..rng.below(200)).map(|_| rng.pick(&kinds)).collect();
            for pattern in &patterns {
                let cut = |by_blocks| {
                    let mut words = vec![0];
                    pattern.cut(&text, by_blocks, &mut |start, ends| {
                        assert_eq!(words.last(), Some(&start));
                        words.extend_from_slice(ends);
                    });
                    words
                };
                assert_eq!(cut(true), cut(false), "{pattern:?} {text:?}");
            }
        }
    }
}
