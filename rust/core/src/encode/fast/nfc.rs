//! Normalization form C, by the tables that `tokenizers` uses.
//!
//! Invariant: a character without the class COMPOSES is itself in NFC, and nothing before it
//! changes with it; so text is normalized in pieces that begin with such a character.

use std::ops::Range;

use tokenizers::NormalizedString;
use tokenizers::tokenizer::normalizer::Range as Span;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use super::class::{ASCII, COMPOSES, classes};

/// Text that NFC changed, and where its characters came from.
#[derive(Debug, Default)]
pub(super) struct Composed {
    pub text: String,
    /// The characters of the pieces that changed, in order, and the end of each such piece.
    moved: Vec<Moved>,
}

/// The bytes of a character, and the bytes that it stands for.
#[derive(Debug)]
struct Moved {
    bytes: Range<usize>,
    original: Range<usize>,
}

impl Composed {
    /// The bytes that a range of whole characters stands for.
    pub fn original(&self, range: &Range<usize>) -> Range<usize> {
        let start = match self.at_or_before(range.start) {
            None => range.start,
            Some(moved) if range.start < moved.bytes.end => moved.original.start,
            Some(moved) => range.start - moved.bytes.end + moved.original.end,
        };
        let end = match self.at_or_before(range.end - 1) {
            None => range.end,
            Some(moved) if range.end <= moved.bytes.end => moved.original.end,
            Some(moved) => range.end - moved.bytes.end + moved.original.end,
        };
        start..end
    }

    fn at_or_before(&self, byte: usize) -> Option<&Moved> {
        let next = self.moved.partition_point(|moved| moved.bytes.start <= byte);
        self.moved[..next].last()
    }

    /// Takes over a piece of the original, from byte `start` on, as it became.
    fn push(&mut self, piece: &NormalizedString, start: usize) {
        let base = self.text.len();
        for (at, c) in piece.get().char_indices() {
            let bytes = at..at + c.len_utf8();
            let original = piece.convert_offsets(Span::Normalized(bytes.clone()));
            let original = original.expect("a character of the piece");
            self.moved.push(Moved {
                bytes: base + bytes.start..base + bytes.end,
                original: start + original.start..start + original.end,
            });
        }
        self.text.push_str(piece.get());
        let (end, original) = (self.text.len(), start + piece.get_original().len());
        self.moved.push(Moved { bytes: end..end, original: original..original });
    }
}

/// The text in NFC; `None` where it already is.
pub(super) fn composed(text: &str) -> Option<Composed> {
    let mut out: Option<Composed> = None;
    let (mut written, mut at) = (0, 0);
    while let Some(found) = next_composing(text, at) {
        let before = text[at..found].chars().next_back().map_or(0, char::len_utf8);
        let start = found - before;
        at = classes().run(text, found, COMPOSES);
        let piece = &text[start..at];
        if is_nfc_quick(piece.chars()) == IsNormalized::Yes {
            continue;
        }
        let mut normalized = NormalizedString::from(piece);
        normalized.nfc();
        if normalized.get() != piece {
            let out = out.get_or_insert_default();
            out.text.push_str(&text[written..start]);
            out.push(&normalized, start);
            written = at;
        }
    }
    if let Some(out) = &mut out {
        out.text.push_str(&text[written..]);
    }
    out
}

/// The end of ASCII text from byte `at` on, in whole steps.
fn behind_ascii<const STEP: usize>(bytes: &[u8], mut at: usize) -> usize {
    while bytes[at..].first_chunk::<STEP>().is_some_and(|chunk| chunk.is_ascii()) {
        at += STEP;
    }
    at
}

/// The first character from byte `at` on that NFC may change.
fn next_composing(text: &str, mut at: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    loop {
        // Most text is ASCII, or has long stretches of it.
        at = behind_ascii::<64>(bytes, at);
        at = behind_ascii::<16>(bytes, at);
        at += bytes[at..].iter().take_while(|byte| byte.is_ascii()).count();
        at = classes().run_without(text, at, COMPOSES | ASCII);
        if !bytes.get(at)?.is_ascii() {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn text_is_normalized_as_a_whole() {
        let parts = [
            "a", "e", "\u{301}", "\u{323}", "é", "ᄀ", "\u{1161}", "\u{11a8}", "한", "Å", "క",
            "\u{c56}", "ﬁ",
        ];
        let mut rng = Rng(3);
        let mut changed = 0;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..rng.below(9) {
                text.push_str(rng.pick(&parts));
            }
            let mut whole = NormalizedString::from(text.as_str());
            whole.nfc();
            let ours = composed(&text);
            assert_eq!(ours.is_some(), whole.get() != text, "{text:?}");
            let Some(ours) = ours else { continue };
            changed += 1;
            assert_eq!(ours.text, whole.get(), "{text:?}");
            let offsets: Vec<usize> =
                ours.text.char_indices().map(|(at, _)| at).chain([ours.text.len()]).collect();
            for (index, &start) in offsets.iter().enumerate() {
                for &end in &offsets[index + 1..] {
                    let expected = whole.convert_offsets(Span::Normalized(start..end));
                    assert_eq!(Some(ours.original(&(start..end))), expected, "{text:?} {start}");
                }
            }
        }
        assert!(changed > 2000, "{changed}");
    }
}
