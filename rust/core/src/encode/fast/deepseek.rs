//! Cutting text into words as `DeepSeek` V3 does: three patterns, one after the other.

use super::class::{Classes, HAN_OR_KANA, LETTER, MARK, NEWLINE, NUMBER, SIGN, SPACE};
use super::word_ends::{numbers, spaces_and_newlines};

/// Calls `each` with the ends of words: numbers first, then Han and kana, then the rest. Each pattern sees
/// only the text that the one before did not match.
pub(super) fn deepseek_v3(classes: &Classes, text: &str, mut each: impl FnMut(usize)) {
    let mut at = 0;
    while let Some((class, next)) = classes.at(text, at) {
        let end = if class & NUMBER != 0 {
            numbers(classes, text, next, 3)
        } else if class & HAN_OR_KANA != 0 {
            classes.run(text, next, HAN_OR_KANA)
        } else {
            let end = classes.run_without(text, next, NUMBER | HAN_OR_KANA);
            deepseek_v3_rest(classes, &text[..end], at, &mut each);
            at = end;
            continue;
        };
        // Kana can be marks and signs that the last pattern cuts further.
        if class & HAN_OR_KANA == 0 {
            each(end);
        } else {
            deepseek_v3_rest(classes, &text[..end], at, &mut each);
        }
        at = end;
    }
}

/// Words of the last pattern from byte `at` on; text that it does not match is a word too.
fn deepseek_v3_rest(classes: &Classes, text: &str, mut at: usize, each: &mut impl FnMut(usize)) {
    let mut unmatched = at;
    while let Some((_, next)) = classes.at(text, at) {
        let Some(end) = deepseek_v3_word(classes, text, at) else {
            at = next;
            continue;
        };
        if unmatched < at {
            each(at);
        }
        each(end);
        (at, unmatched) = (end, end);
    }
    if unmatched < at {
        each(at);
    }
}

fn deepseek_v3_word(classes: &Classes, text: &str, at: usize) -> Option<usize> {
    const WORD: u16 = LETTER | MARK;
    let (class, next) = classes.at(text, at)?;
    let bytes = text.as_bytes();
    if bytes[at].is_ascii_punctuation() {
        let letters = bytes[next..].iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        if letters > 0 {
            return Some(next + letters);
        }
    }
    if class & (NEWLINE | LETTER | SIGN) == 0 {
        let end = classes.run(text, next, WORD);
        if end > next {
            return Some(end);
        }
    }
    if class & WORD != 0 {
        return Some(classes.run(text, next, WORD));
    }
    let signs = at + usize::from(bytes[at] == b' ');
    let end = classes.run(text, signs, SIGN);
    if end > signs {
        return Some(classes.run(text, end, NEWLINE));
    }
    (class & SPACE != 0).then(|| spaces_and_newlines(classes, text, at))
}
