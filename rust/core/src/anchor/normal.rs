//! Offsets at which normalizing the two sides separately gives the same as normalizing the whole.
//!
//! Invariant: where [`Normal::around`] returns two characters, the normalized text is the normalized
//! left side followed by the normalized right side, whatever else stands on the left and whatever
//! follows, and those two characters meet there.

use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::{NormalizedString, Normalizer};

use crate::file::{kind, stages};

/// How far back [`Normal::last_of`] looks for a character that composes with nothing before it, in
/// characters. Real text has a few marks in a row (30 at most in Unicode's stream-safe format); behind
/// a longer run there is no anchor.
const MOST_COMPOSED: usize = 64;

/// A normalizer, asked about the characters at one offset.
#[derive(Debug)]
pub(crate) struct Normal {
    rewrites: Vec<Rewrite>,
    composes: bool,
    /// The answer for each ASCII character: most text is ASCII, and to normalize one character takes
    /// several allocations.
    ascii: Vec<Side>,
}

/// One stage of a normalizer.
#[derive(Debug)]
enum Rewrite {
    /// Works on each character by itself, or composes and decomposes.
    Map { normalizer: Box<NormalizerWrapper>, composes: bool },
    /// Removes whitespace at the ends.
    Strip,
    /// Replaces a text of several characters.
    Replace { normalizer: Box<NormalizerWrapper>, pattern: String },
}

/// One character, normalized.
#[derive(Debug, Clone, Copy)]
struct Side {
    /// Its first character once normalized; `None` where text cannot be cut before it.
    first: Option<char>,
    /// Its last character once normalized; `None` where text cannot be cut after it.
    last: Option<char>,
    /// True if it becomes exactly one character.
    is_one: bool,
}

impl Normal {
    /// `Err` names the normalizer that has no such offsets.
    pub fn new(config: &Value) -> Result<Self, String> {
        let mut found = Vec::new();
        for config in stages(config, "normalizers") {
            let name = kind(config).unwrap_or("?");
            let load = || {
                let parsed = serde_json::from_value(config.clone()).map_err(|e| e.to_string())?;
                Ok::<_, String>(Box::new(parsed))
            };
            found.push(match name {
                // Writes only at the left edge of a segment, and `Edge::Interior` leaves it out.
                "Prepend" => continue,
                "NFC" | "NFD" | "NFKC" | "NFKD" | "BertNormalizer" => {
                    Rewrite::Map { normalizer: load()?, composes: true }
                }
                "Lowercase" | "StripAccents" | "Nmt" | "ByteLevel" => {
                    Rewrite::Map { normalizer: load()?, composes: false }
                }
                "Strip" => Rewrite::Strip,
                "Replace" => match config.pointer("/pattern/String").and_then(Value::as_str) {
                    Some(text) if text.chars().nth(1).is_none() && !text.is_empty() => {
                        Rewrite::Map { normalizer: load()?, composes: false }
                    }
                    Some(text) if !text.is_empty() => {
                        Rewrite::Replace { normalizer: load()?, pattern: text.to_owned() }
                    }
                    _ => return Err("normalizer Replace by a regular expression".to_owned()),
                },
                _ => return Err(format!("normalizer {name}")),
            });
        }
        let composes = found.iter().any(|s| matches!(s, Rewrite::Map { composes: true, .. }));
        let mut normal = Self { rewrites: found, composes, ascii: Vec::new() };
        normal.ascii = (0..128u8).map(|code| normal.side(char::from(code))).collect();
        Ok(normal)
    }

    /// The normalized characters that meet between the text `before` and `right`; `next` is the
    /// character after `right`. `ends(c)` is true if an added token may end with `c`, because the text
    /// behind that token is normalized on its own.
    pub fn around(
        &self,
        before: &str,
        right: char,
        next: Option<char>,
        ends: impl Fn(char) -> bool,
    ) -> Option<(char, char)> {
        let left = before.chars().next_back()?;
        if self.rewrites.is_empty() {
            return Some((left, right));
        }
        // The character on the right may still be composed with a mark after it: `e` + U+0301 becomes
        // `é`. ASCII whitespace and digits compose with nothing.
        let settled = !self.composes
            || right.is_ascii_whitespace()
            || right.is_ascii_digit()
            || next.is_some_and(starts_apart);
        let right = self.look_up(right).first.filter(|_| settled)?;
        Some((self.look_up(left).last.or_else(|| self.last_of(before, ends))?, right))
    }

    /// The last character of the normalized text where several characters may have composed it. Only
    /// the text from the last character that composes with nothing before it is normalized.
    fn last_of(&self, before: &str, ends: impl Fn(char) -> bool) -> Option<char> {
        let replaces = |rewrite: &Rewrite| matches!(rewrite, Rewrite::Replace { .. });
        if !self.composes || self.rewrites.iter().any(replaces) {
            return None;
        }
        let mut back =
            before.char_indices().rev().take(MOST_COMPOSED).take_while(|(_, c)| !ends(*c));
        let (start, _) = back.find(|(_, c)| starts_apart(*c))?;
        let mut text = before[start..].to_owned();
        for rewrite in &self.rewrites {
            match rewrite {
                Rewrite::Map { normalizer, .. } => {
                    let mut normalized = NormalizedString::from(text.as_str());
                    normalizer.normalize(&mut normalized).ok()?;
                    normalized.get().clone_into(&mut text);
                }
                Rewrite::Strip if text.ends_with(char::is_whitespace) => return None,
                Rewrite::Strip | Rewrite::Replace { .. } => {}
            }
        }
        text.chars().next_back()
    }

    /// The normalized character that comes after that of `right`; `None` where later text may still
    /// change it.
    pub fn after(&self, right: char, next: Option<char>) -> Option<char> {
        if self.rewrites.is_empty() {
            return next;
        }
        if self.composes || !self.look_up(right).is_one {
            return None;
        }
        self.look_up(next?).first
    }

    fn look_up(&self, c: char) -> Side {
        self.ascii.get(c as usize).copied().unwrap_or_else(|| self.side(c))
    }

    fn side(&self, c: char) -> Side {
        let (mut first, mut last) = (true, true);
        let mut text = c.to_string();
        for rewrite in &self.rewrites {
            let (begin, end) = (text.chars().next(), text.chars().next_back());
            let normalizer = match rewrite {
                Rewrite::Strip => {
                    // Whitespace at the end is removed if the text ends there, and kept if more
                    // follows, so nothing can be said about it yet.
                    last &= !end.is_some_and(char::is_whitespace);
                    continue;
                }
                Rewrite::Replace { normalizer, pattern } => {
                    first &= !begin.is_some_and(|c| pattern.contains(c));
                    last &= !end.is_some_and(|c| pattern.contains(c));
                    normalizer
                }
                Rewrite::Map { normalizer, composes } => {
                    if *composes {
                        first &= begin.is_some_and(starts_apart);
                        last &= text.chars().all(starts_apart);
                    }
                    normalizer
                }
            };
            let mut after = NormalizedString::from(text.as_str());
            if normalizer.normalize(&mut after).is_err() {
                return Side { first: None, last: None, is_one: false };
            }
            after.get().clone_into(&mut text);
            if let Rewrite::Map { composes: true, .. } = rewrite {
                last &= text.chars().all(starts_apart);
            }
        }
        Side {
            first: text.chars().next().filter(|_| first),
            last: text.chars().next_back().filter(|_| last),
            is_one: text.chars().count() == 1,
        }
    }
}

/// True if nothing before this character composes or is reordered with it, in any version of Unicode.
///
/// These blocks hold most running text. They are listed here and not read from the tables of
/// `tokenizers`, which are older than Unicode 14 and may change with its next version.
fn starts_apart(c: char) -> bool {
    matches!(
        c,
        '\u{0}'..='\u{2FF}'
            | '\u{370}'..='\u{482}'
            | '\u{48A}'..='\u{52F}'
            | '\u{5D0}'..='\u{5EA}'
            | '\u{620}'..='\u{64A}'
            | '\u{1E00}'..='\u{1EFF}'
            | '\u{200B}'..='\u{200D}'
            | '\u{2010}'..='\u{2027}'
            | '\u{2030}'..='\u{205E}'
            | '\u{2190}'..='\u{2BFF}'
            | '\u{3001}'..='\u{3029}'
            | '\u{3041}'..='\u{3096}'
            | '\u{30A1}'..='\u{30FA}'
            | '\u{3400}'..='\u{4DB5}'
            | '\u{4E00}'..='\u{9FEF}'
            | '\u{AC00}'..='\u{D7A3}'
            | '\u{FE00}'..='\u{FE0F}'
            | '\u{FF01}'..='\u{FF5E}'
            | '\u{1F1E6}'..='\u{1F1FF}'
            | '\u{1F300}'..='\u{1FAFF}'
    )
}

#[cfg(test)]
mod tests {
    use unicode_normalization_alignments::char::canonical_combining_class;
    use unicode_normalization_alignments::{
        IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick,
    };

    use super::*;

    #[test]
    fn nothing_before_a_character_that_starts_apart_is_composed_or_reordered_with_it() {
        for c in ('\0'..=char::MAX).filter(|c| starts_apart(*c)) {
            let first = std::iter::once(c).nfkd().next().expect("a character").0;
            assert_eq!(canonical_combining_class(first), 0, "{c:?}");
            // Normalized on its own, it begins with a character that composes with nothing before it.
            let own = std::iter::once(c).nfc().next().expect("a character").0;
            assert_eq!(is_nfc_quick(std::iter::once(own)), IsNormalized::Yes, "{c:?}");
            let own = std::iter::once(c).nfkc().next().expect("a character").0;
            assert_eq!(is_nfkc_quick(std::iter::once(own)), IsNormalized::Yes, "{c:?}");
        }
        assert!(starts_apart('\u{1fae0}') && starts_apart('\u{200d}') && !starts_apart('\u{301}'));
    }
}
