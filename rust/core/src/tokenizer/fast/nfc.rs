//! Normalization form C, by the tables that `tokenizers` uses.
//!
//! Invariant: a character without the class COMPOSES is itself in NFC, and nothing before it
//! changes with it; so text is normalized in pieces that begin with such a character.

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::class::{CLASSES, COMPOSES};

/// The text in NFC; `None` where it already is.
pub(super) fn normalized(text: &str) -> Option<String> {
    let mut out: Option<String> = None;
    let (mut written, mut at) = (0, 0);
    while let Some(found) = next_composing(text, at) {
        let before = text[at..found].chars().next_back().map_or(0, char::len_utf8);
        let start = found - before;
        at = CLASSES.run(text, found, COMPOSES);
        let piece = &text[start..at];
        if is_nfc_quick(piece.chars()) == IsNormalized::Yes {
            continue;
        }
        let composed: String = piece.nfc().map(|(c, _)| c).collect();
        if composed != piece {
            let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
            out.push_str(&text[written..start]);
            out.push_str(&composed);
            written = at;
        }
    }
    out.map(|out| out + &text[written..])
}

/// The first character from byte `at` on that NFC may change.
fn next_composing(text: &str, mut at: usize) -> Option<usize> {
    const STEP: usize = 16;
    let (bytes, classes) = (text.as_bytes(), &*CLASSES);
    loop {
        // Most text is ASCII, or has long stretches of it.
        while bytes[at..].first_chunk::<STEP>().is_some_and(|chunk| chunk.is_ascii()) {
            at += STEP;
        }
        at += bytes[at..].iter().take_while(|byte| byte.is_ascii()).count();
        while !bytes.get(at)?.is_ascii() {
            let (class, end) = classes.at(text, at)?;
            if class & COMPOSES != 0 {
                return Some(at);
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_normalized_as_a_whole() {
        let parts = [
            "a", "e", "\u{301}", "\u{323}", "é", "ᄀ", "\u{1161}", "\u{11a8}", "한", "Å", "క",
            "\u{c56}", "ﬁ",
        ];
        let mut state = 3u64;
        let mut changed = 0;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..(state >> 33) % 9 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let part = usize::try_from((state >> 33) % parts.len() as u64).expect("small");
                text.push_str(parts[part]);
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(3);
            let whole: String = text.nfc().map(|(c, _)| c).collect();
            let ours = normalized(&text);
            assert_eq!(ours.is_some(), whole != text, "{text:?}");
            changed += u32::from(ours.is_some());
            assert_eq!(ours.unwrap_or_else(|| text.clone()), whole, "{text:?}");
        }
        assert!(changed > 5000);
    }
}
