//! The end of the word that begins at a byte, by the patterns of well-known tokenizers.
//!
//! A regular expression takes the first of its alternatives that matches, each as long as it can with
//! the text that follows. The functions here return where that match ends.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use super::ascii::{capitals_end, letters_end, signs_end, small_letters_end, spaces_end};
use super::blocks::LONG_S;
use super::class::{CASELESS, Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, SPACE, UPPER};

pub(super) fn gpt2(classes: &Classes, text: &str, at: usize) -> usize {
    if let Some(end) = contraction(text, at, Case::Small) {
        return end;
    }
    // A space belongs to the word that follows, unless that is a space too.
    let begin = at + usize::from(text.as_bytes()[at] == b' ');
    match classes.at(text, begin) {
        Some((class, end)) if class & LETTER != 0 => classes.run(text, end, LETTER),
        Some((class, end)) if class & NUMBER != 0 => classes.run(text, end, NUMBER),
        Some((class, end)) if class & SPACE == 0 => {
            classes.run_without(text, end, LETTER | NUMBER | SPACE)
        }
        _ => spaces(text, at, classes.run(text, at, SPACE)),
    }
}

/// `LETTERS`: the classes that make up a word.
#[inline(always)]
pub(super) fn cl100k<const LETTERS: u16>(
    classes: &Classes,
    text: &str,
    at: usize,
    digits: usize,
    long_s: bool,
) -> usize {
    let Some((class, next)) = classes.at(text, at) else { return at };
    if class & NUMBER != 0 {
        return numbers(classes, text, next, digits);
    }
    if text.as_bytes()[at] == b'\'' {
        let case = if long_s { Case::AnyWithLongS } else { Case::Any };
        if let Some(end) = contraction(text, at, case) {
            return end;
        }
    }
    if class & NEWLINE == 0 {
        // One other character before letters belongs to them.
        let end = letters::<LETTERS>(classes, text, next);
        if end > next || class & LETTERS != 0 {
            return end;
        }
    }
    let others = others::<LETTERS>(classes, text, at);
    if others > at {
        return newlines(text, others);
    }
    spaces_and_newlines(classes, text, at)
}

pub(super) fn o200k(
    classes: &Classes,
    text: &str,
    at: usize,
    digits: usize,
    contractions: bool,
) -> usize {
    let Some((class, next)) = classes.at(text, at) else { return at };
    if class & NUMBER != 0 {
        return numbers(classes, text, next, digits);
    }
    let word = if class & (LETTER | NEWLINE) != 0 {
        cased_word(classes, text, at)
    } else {
        // A mark may stand before a word, and may also be part of one: before capitals
        // alone it is a word, which the first alternative finds when it leaves the sign out.
        let after = cased_word(classes, text, next);
        if class & MARK == 0 || after.is_some_and(|word| word.has_small) {
            after
        } else {
            cased_word(classes, text, at)
        }
    };
    if let Some(CasedWord { end, .. }) = word {
        let case = Case::AnyWithLongS;
        return contraction(text, end, case).filter(|_| contractions).unwrap_or(end);
    }
    let others = others::<LETTER>(classes, text, at);
    if others > at {
        let mut end = others;
        while text.as_bytes().get(end).is_some_and(|byte| matches!(byte, b'\r' | b'\n' | b'/')) {
            end += 1;
        }
        return end;
    }
    spaces_and_newlines(classes, text, at)
}

#[derive(Clone, Copy)]
struct CasedWord {
    end: usize,
    /// True if it ends in letters that are small or have no case.
    has_small: bool,
}

/// Capitals and then small letters, at least one of which is small or has no case; else capitals.
/// `None` where neither is there.
fn cased_word(classes: &Classes, text: &str, at: usize) -> Option<CasedWord> {
    let bytes = text.as_bytes();
    if let Ok(capitals) = capitals_end(bytes, at) {
        let end = match small_letters_end(bytes, capitals) {
            Err(end) if end > capitals => Ok(classes.run(text, end, LOWER | CASELESS | MARK)),
            end => end,
        };
        if let Ok(end) = end {
            return (end > at).then_some(CasedWord { end, has_small: end > capitals });
        }
    }
    let mut capitals = at;
    let mut last_small = None;
    loop {
        // Many at once: letters of most scripts count as capitals and as small letters.
        let both = classes.run(text, capitals, CASELESS | MARK);
        if both > capitals {
            last_small = Some(both);
            capitals = both;
        }
        match classes.at(text, capitals) {
            Some((class, end)) if class & UPPER != 0 => capitals = end,
            Some((class, end)) if class & LOWER != 0 => {
                let end = classes.run(text, end, LOWER | CASELESS | MARK);
                return Some(CasedWord { end, has_small: true });
            }
            _ => break,
        }
    }
    match last_small {
        Some(end) => Some(CasedWord { end, has_small: true }),
        None => (capitals > at).then_some(CasedWord { end: capitals, has_small: false }),
    }
}

/// The letters that a contraction may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Small,
    Any,
    /// To `(?i)` the long s is an s.
    AnyWithLongS,
}

/// The end of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at byte `at`.
fn contraction(text: &str, at: usize, case: Case) -> Option<usize> {
    let rest = text.as_bytes()[at..].strip_prefix(b"'")?;
    let fold = |byte: &u8| if case == Case::Small { *byte } else { byte.to_ascii_lowercase() };
    let first = rest.first().map(fold)?;
    match (first, rest.get(1).map(fold)) {
        (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
        (b'r' | b'v', Some(b'e')) | (b'l', Some(b'l')) => Some(at + 3),
        _ if case == Case::AnyWithLongS && rest.starts_with(&LONG_S) => Some(at + 3),
        _ => None,
    }
}

/// The end of at most `most` numbers, the first of which ends at byte `at`.
pub(super) fn numbers(classes: &Classes, text: &str, mut at: usize, most: usize) -> usize {
    for _ in 1..most {
        match classes.at(text, at) {
            Some((class, end)) if class & NUMBER != 0 => at = end,
            _ => break,
        }
    }
    at
}

/// The end of letters from byte `at` on.
#[inline(always)]
fn letters<const LETTERS: u16>(classes: &Classes, text: &str, at: usize) -> usize {
    letters_end(text.as_bytes(), at).unwrap_or_else(|end| classes.run(text, end, LETTERS))
}

/// The end of an optional space and characters that are neither `LETTERS` nor numbers nor spaces;
/// `at` where there are none.
#[inline(always)]
fn others<const LETTERS: u16>(classes: &Classes, text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let begin = at + usize::from(bytes[at] == b' ');
    let end = signs_end(bytes, begin)
        .unwrap_or_else(|end| classes.run_without(text, end, LETTERS | NUMBER | SPACE));
    if end > begin { end } else { at }
}

/// The end of newlines from byte `at` on.
#[inline(always)]
fn newlines(text: &str, mut at: usize) -> usize {
    while text.as_bytes().get(at).is_some_and(|byte| matches!(byte, b'\r' | b'\n')) {
        at += 1;
    }
    at
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
#[inline(always)]
pub(super) fn spaces_and_newlines(classes: &Classes, text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    match spaces_end(bytes, at) {
        Ok((_, Some(behind_newline))) => behind_newline,
        // The last space belongs to the word that follows.
        Ok((end, None)) if end > at + 1 => end - 1,
        Ok((end, None)) => end,
        Err(_) => all_spaces_and_newlines(classes, text, at),
    }
}

/// As [`spaces_and_newlines`], where the whitespace meets the end of the text or a character beyond ASCII.
#[cold]
fn all_spaces_and_newlines(classes: &Classes, text: &str, at: usize) -> usize {
    let end = classes.run(text, at, SPACE);
    match text[at..end].rfind(['\r', '\n']) {
        Some(last) => at + last + 1,
        None => spaces(text, at, end),
    }
}

/// `\s+(?!\S)|\s+` over the whitespace from `at` to `end`: the last of it belongs to the next word.
fn spaces(text: &str, at: usize, end: usize) -> usize {
    let last = text[at..end].char_indices().next_back().map_or(0, |(last, _)| last);
    if end < text.len() && last > 0 { at + last } else { end }
}
