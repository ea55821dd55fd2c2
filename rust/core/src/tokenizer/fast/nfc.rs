//! Normalization form C, by the tables that `tokenizers` uses.
//!
//! Invariant: a character without the class COMPOSES is itself in NFC, and nothing before it
//! changes with it; so text is normalized in pieces that begin with such a character.

use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use super::class::{CLASSES, COMPOSES};

/// The text in NFC; `None` where it already is.
pub(super) fn normalized(text: &str) -> Option<String> {
    let composes = |c: char| !c.is_ascii() && CLASSES.of(c) & COMPOSES != 0;
    if text.is_ascii() || !text.contains(composes) {
        return None;
    }
    let mut out: Option<String> = None;
    let mut written = 0;
    let mut rest = 0;
    while let Some(found) = text[rest..].find(composes).map(|found| rest + found) {
        let before = text[rest..found].chars().next_back().map_or(0, char::len_utf8);
        let start = found - before;
        let end = text[found..].find(|c| !composes(c)).map_or(text.len(), |len| found + len);
        let piece = &text[start..end];
        if is_nfc_quick(piece.chars()) != IsNormalized::Yes {
            let composed: String = piece.nfc().map(|(c, _)| c).collect();
            if composed != piece {
                let out = out.get_or_insert_with(|| String::with_capacity(text.len()));
                out.push_str(&text[written..start]);
                out.push_str(&composed);
                written = end;
            }
        }
        rest = end;
    }
    out.map(|out| out + &text[written..])
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
