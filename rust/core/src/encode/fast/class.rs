//! The class of each code point, in one table.
//!
//! Invariant: the classes are those of Oniguruma, the engine that `tokenizers` runs patterns with;
//! a test compares every code point. They are read from `regex-syntax`, whose version is locked.

use std::ops::{BitAnd, BitOr};

use once_cell::race::OnceBox;
use regex_syntax::hir::{Class as HirClass, HirKind};
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

/// One bit for each property.
pub(super) type Class = u16;

/// `\p{Lu}`, `\p{Lt}`.
pub(super) const UPPER: Class = 1;
/// `\p{Ll}`.
pub(super) const LOWER: Class = 1 << 1;
/// `\p{Lm}`, `\p{Lo}`.
pub(super) const CASELESS: Class = 1 << 2;
/// `\p{M}`.
pub(super) const MARK: Class = 1 << 3;
/// `\p{N}`.
pub(super) const NUMBER: Class = 1 << 4;
/// `\s`.
pub(super) const SPACE: Class = 1 << 5;
/// `\r`, `\n`.
pub(super) const NEWLINE: Class = 1 << 6;
/// `\p{P}`, `\p{S}`.
pub(super) const SIGN: Class = 1 << 7;
/// The characters that the second pattern of `DeepSeek` cuts out.
pub(super) const HAN_OR_KANA: Class = 1 << 8;
/// NFC may change it, or the characters before it together with it.
pub(super) const COMPOSES: Class = 1 << 9;
/// Code points below 128.
pub(super) const ASCII: Class = 1 << 10;
/// `\p{L}`.
pub(super) const LETTER: Class = UPPER | LOWER | CASELESS;

pub(super) const PATTERNS: [(&str, Class); 8] = [
    (r"[\p{Lu}\p{Lt}]", UPPER),
    (r"\p{Ll}", LOWER),
    (r"[\p{Lm}\p{Lo}]", CASELESS),
    (r"\p{M}", MARK),
    (r"\p{N}", NUMBER),
    (r"\s", SPACE),
    (r"[\r\n]", NEWLINE),
    (r"[\p{P}\p{S}]", SIGN),
];

const BLOCK: usize = 256;

/// The properties of 64 characters of three bytes that have the first two bytes in common.
#[derive(Clone, Copy)]
struct SixtyFour {
    /// The properties that all of them have.
    all: Class,
    /// The properties that any of them has.
    any: Class,
}

/// The number of characters that have one byte or two.
const LOW: usize = 0x800;
/// The lowest first byte of a character of three bytes, and of one of four.
const FIRST_OF_THREE: u8 = 0xE0;
const FIRST_OF_FOUR: u8 = 0xF0;

/// The classes of all code points: blocks of 256, equal ones stored once.
pub(super) struct Classes {
    /// The classes of the characters of one or two bytes.
    low: [Class; LOW],
    /// By the bits of the first two bytes that are not the same for all characters of three bytes.
    like: Box<[SixtyFour; 1 << 10]>,
    blocks: Vec<u16>,
    in_blocks: Vec<Class>,
}

/// Made when first asked for.
pub(super) fn classes() -> &'static Classes {
    static CLASSES: OnceBox<Classes> = OnceBox::new();
    CLASSES.get_or_init(|| Box::new(Classes::new()))
}

impl Classes {
    fn new() -> Self {
        let mut all = vec![0; 0x11_0000];
        let mut put = |first: char, last: char, class: Class| {
            all[first as usize..=last as usize].iter_mut().for_each(|of| *of |= class);
        };
        for (pattern, class) in PATTERNS {
            let hir = regex_syntax::parse(pattern).expect("a class").into_kind();
            let HirKind::Class(HirClass::Unicode(set)) = hir else { unreachable!("a class") };
            set.ranges().iter().for_each(|range| put(range.start(), range.end(), class));
        }
        for (first, last) in [('\u{4e00}', '\u{9fa5}'), ('\u{3040}', '\u{30ff}')] {
            put(first, last, HAN_OR_KANA);
        }
        put('\0', '\x7f', ASCII);
        // No later plane holds a character that NFC changes, and planes are large.
        for c in ('\u{80}'..='\u{2ffff}').chain('\u{e0000}'..='\u{e0fff}') {
            if canonical_combining_class(c) != 0
                || is_nfc_quick(std::iter::once(c)) != IsNormalized::Yes
            {
                put(c, c, COMPOSES);
            }
        }
        let mut known = rustc_hash::FxHashMap::default();
        let (mut blocks, mut in_blocks) = (Vec::new(), Vec::new());
        for block in all.chunks(BLOCK) {
            let next = u16::try_from(known.len()).expect("fewer than all blocks");
            blocks.push(*known.entry(block).or_insert_with(|| {
                in_blocks.extend_from_slice(block);
                next
            }));
        }
        let low = std::array::from_fn(|code| all[code]);
        let like = Box::new(std::array::from_fn(|prefix| {
            let classes = &all[prefix << 6..(prefix + 1) << 6];
            SixtyFour {
                all: classes.iter().fold(Class::MAX, BitAnd::bitand),
                any: classes.iter().fold(0, BitOr::bitor),
            }
        }));
        Self { low, like, blocks, in_blocks }
    }

    #[cfg(test)]
    pub fn of(&self, c: char) -> Class {
        self.of_code(c as usize)
    }

    #[inline]
    fn of_code(&self, code: usize) -> Class {
        self.in_blocks[usize::from(self.blocks[code / BLOCK]) * BLOCK + code % BLOCK]
    }

    /// The class of the character that begins at byte `at`, and its end; `None` at the end of the text.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]
    pub fn at(&self, text: &str, at: usize) -> Option<(Class, usize)> {
        let first = *text.as_bytes().get(at)?;
        if first < 128 {
            return Some((self.low[usize::from(first)], at + 1));
        }
        let (class, len) = self.beyond_ascii(&text.as_bytes()[at..])?;
        Some((class, at + len))
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each character")]
    fn of_two_bytes(&self, first: u8, second: u8) -> Class {
        self.low[usize::from(first & 0x1F) << 6 | usize::from(second & 0x3F)]
    }

    /// The class of the character beyond ASCII that begins here, and how many bytes it has; `None`
    /// where not all of them are there.
    #[inline]
    pub fn beyond_ascii(&self, bytes: &[u8]) -> Option<(Class, usize)> {
        match *bytes {
            [first @ ..FIRST_OF_THREE, second, ..] => Some((self.of_two_bytes(first, second), 2)),
            [first @ FIRST_OF_THREE..FIRST_OF_FOUR, second, third, ..] => {
                Some((self.of_three_bytes(first, second, third), 3))
            }
            [first @ FIRST_OF_FOUR..=u8::MAX, second, third, fourth, ..] => {
                let code = usize::from(first & 0x07) << 18
                    | usize::from(second & 0x3F) << 12
                    | usize::from(third & 0x3F) << 6
                    | usize::from(fourth & 0x3F);
                Some((self.of_code(code), 4))
            }
            _ => None,
        }
    }

    #[inline]
    fn of_three_bytes(&self, first: u8, second: u8, third: u8) -> Class {
        let SixtyFour { all, any } = self.like(first, second);
        // Mostly all 64 are alike, which saves two loads that wait for each other.
        if all == any {
            return all;
        }
        self.of_code(
            usize::from(first & 0x0F) << 12
                | usize::from(second & 0x3F) << 6
                | usize::from(third & 0x3F),
        )
    }

    /// The end of the characters from byte `at` on that have one of these properties.
    #[inline]
    pub fn run(&self, text: &str, at: usize, of: Class) -> usize {
        self.run_while(text, at, |class| class & of != 0, |like| like.all & of != 0)
    }

    /// The end of the characters from byte `at` on that have none of these properties.
    #[inline]
    pub fn run_without(&self, text: &str, at: usize, of: Class) -> usize {
        self.run_while(text, at, |class| class & of == 0, |like| like.any & of == 0)
    }

    /// The end of the characters that `goes_on` accepts; `surely` accepts 64 of them at once where it can.
    #[inline]
    fn run_while(
        &self,
        text: &str,
        mut at: usize,
        goes_on: impl Fn(Class) -> bool,
        surely: impl Fn(SixtyFour) -> bool,
    ) -> usize {
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(at) {
            let (class, end) = if byte < 128 {
                (self.low[usize::from(byte)], at + 1)
            } else if byte < FIRST_OF_THREE {
                (self.of_two_bytes(byte, bytes[at + 1]), at + 2)
            } else if byte < FIRST_OF_FOUR && surely(self.like(byte, bytes[at + 1])) {
                at += 3;
                continue;
            } else {
                let (class, len) = self.beyond_ascii(&bytes[at..]).expect("a whole character");
                (class, at + len)
            };
            if !goes_on(class) {
                break;
            }
            at = end;
        }
        at
    }

    /// The properties of a character of three bytes, as far as its first two bytes tell them.
    #[inline]
    fn like(&self, first: u8, second: u8) -> SixtyFour {
        self.like[usize::from(first & 0x0F) << 6 | usize::from(second & 0x3F)]
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{
        NormalizedString, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer,
        SplitDelimiterBehavior,
    };

    use super::*;

    fn every_char() -> impl Iterator<Item = char> {
        '\0'..=char::MAX
    }

    #[test]
    fn every_code_point_has_the_class_that_oniguruma_gives_it() {
        let all: String = every_char().collect();
        let others = [("[一-龥぀-ゟ゠-ヿ]", HAN_OR_KANA), (r"\p{L}", LETTER)];
        for (pattern, class) in PATTERNS.into_iter().chain(others) {
            let regex = SplitPattern::Regex(pattern.to_owned());
            // Inverted: what does not match is removed.
            let split = Split::new(regex, SplitDelimiterBehavior::Removed, true).expect("a class");
            let mut pieces = PreTokenizedString::from(all.as_str());
            split.pre_tokenize(&mut pieces).expect("it splits");
            let kept = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let onig: Vec<char> = kept.iter().flat_map(|(piece, _, _)| piece.chars()).collect();
            let ours: Vec<char> = every_char().filter(|c| classes().of(*c) & class != 0).collect();
            assert!(ours == onig, "{pattern}");
        }
    }

    #[test]
    fn nfc_leaves_every_other_character_alone() {
        let changed = |c: char| {
            let mut text = NormalizedString::from(format!("e{c}"));
            text.nfc();
            text.get() != format!("e{c}")
        };
        for c in every_char().filter(|c| classes().of(*c) & COMPOSES == 0) {
            assert!(!changed(c) && canonical_combining_class(c) == 0, "{c:?}");
        }
        assert!(changed('\u{301}') && changed('\u{212b}'));
    }

    #[test]
    fn runs_end_where_a_class_does() {
        let classes = classes();
        for of in [LETTER, LETTER | MARK, SPACE, LETTER | NUMBER | SPACE, COMPOSES] {
            for (ends_with, runs) in [(true, false), (false, true)] {
                let has = |c: char| classes.of(c) & of != 0;
                let text: String = every_char().filter(|c| has(*c) != ends_with).collect();
                let tail: String = text.chars().rev().step_by(10_007).collect();
                for stop in every_char().step_by(101).filter(|c| has(*c) == ends_with) {
                    let whole = format!("{tail}{stop}{tail}");
                    let end = if runs {
                        classes.run(&whole, 0, of)
                    } else {
                        classes.run_without(&whole, 0, of)
                    };
                    assert_eq!(end, tail.len(), "{of} {stop:?}");
                }
                let end = if runs {
                    classes.run(&text, 0, of)
                } else {
                    classes.run_without(&text, 0, of)
                };
                assert_eq!(end, text.len());
            }
        }
    }

    #[test]
    fn low_characters_are_as_in_the_table() {
        for (code, c) in ('\0'..'\u{800}').enumerate() {
            assert_eq!(classes().low[code], classes().of(c));
        }
    }
}
