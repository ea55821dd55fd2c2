//! What kind of character each code point is, in one table.
//!
//! Invariant: the classes are those of Oniguruma, the engine that `tokenizers` runs patterns with;
//! a test compares every code point. They are read from `regex-syntax`, whose version is locked.

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
/// What the second pattern of `DeepSeek` cuts out.
pub(super) const HAN_OR_KANA: Class = 1 << 8;
/// NFC may change it, or what stands before it together with it.
pub(super) const COMPOSES: Class = 1 << 9;
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

/// The classes of all code points: blocks of 256, equal ones stored once.
pub(super) struct Classes {
    ascii: [Class; 128],
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
        let ascii = std::array::from_fn(|code| all[code]);
        Self { ascii, blocks, in_blocks }
    }

    pub fn of(&self, c: char) -> Class {
        let code = c as usize;
        self.in_blocks[usize::from(self.blocks[code / BLOCK]) * BLOCK + code % BLOCK]
    }

    /// The class of the character that begins at byte `at`, and where it ends; `None` at the end
    /// of the text.
    #[allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each byte")]
    pub fn at(&self, text: &str, at: usize) -> Option<(Class, usize)> {
        let first = *text.as_bytes().get(at)?;
        if first < 128 {
            return Some((self.ascii[usize::from(first)], at + 1));
        }
        self.beyond_ascii(text, at)
    }

    fn beyond_ascii(&self, text: &str, at: usize) -> Option<(Class, usize)> {
        let c = text[at..].chars().next()?;
        Some((self.of(c), at + c.len_utf8()))
    }

    /// Where the characters from byte `at` on that have one of these properties end.
    #[inline]
    pub fn run(&self, text: &str, at: usize, of: Class) -> usize {
        self.run_while(text, at, |class| class & of != 0)
    }

    /// Where the characters from byte `at` on that have none of these properties end.
    #[inline]
    pub fn run_without(&self, text: &str, at: usize, of: Class) -> usize {
        self.run_while(text, at, |class| class & of == 0)
    }

    #[inline]
    fn run_while(&self, text: &str, mut at: usize, goes_on: impl Fn(Class) -> bool) -> usize {
        let bytes = text.as_bytes();
        while let Some(&byte) = bytes.get(at) {
            let (class, end) = if byte < 128 {
                (self.ascii[usize::from(byte)], at + 1)
            } else {
                self.beyond_ascii(text, at).expect("a character begins here")
            };
            if !goes_on(class) {
                break;
            }
            at = end;
        }
        at
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
    fn ascii_is_as_in_the_table() {
        for (code, c) in ('\0'..'\u{80}').enumerate() {
            assert_eq!(classes().ascii[code], classes().of(c));
        }
    }
}
