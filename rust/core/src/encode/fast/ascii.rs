//! Runs of ASCII characters of one kind, found eight bytes at a time.
//!
//! Invariant: a byte is of the kinds that the table of classes gives it. A byte beyond ASCII is of no kind,
//! so every run ends where ASCII does. Most words are shorter than eight bytes, and finding the end of such
//! a word takes no branch that the processor could guess wrong.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

const STEP: usize = size_of::<u64>();
/// The highest bit of each byte: set where the byte is of the kind that was asked for.
const FLAGS: u64 = repeated(0x80);

const fn repeated(byte: u8) -> u64 {
    u64::from_ne_bytes([byte; STEP])
}

/// Flags the bytes that, without their highest bit, lie in a range.
#[inline(always)]
const fn in_range(bytes: u64, first: u8, last: u8) -> u64 {
    let low = bytes & !FLAGS;
    (low + repeated(0x80 - first)) & !(low + repeated(0x7F - last))
}

/// `[A-Za-z]`; other flags are those of the complement.
#[inline(always)]
const fn letters(bytes: u64) -> u64 {
    in_range(bytes | repeated(0x20), b'a', b'z') & !bytes & FLAGS
}

#[inline(always)]
const fn capitals(bytes: u64) -> u64 {
    in_range(bytes, b'A', b'Z') & !bytes & FLAGS
}

#[inline(always)]
const fn small_letters(bytes: u64) -> u64 {
    in_range(bytes, b'a', b'z') & !bytes & FLAGS
}

/// `[0-9]`.
#[inline(always)]
const fn digits(bytes: u64) -> u64 {
    in_range(bytes, b'0', b'9') & !bytes & FLAGS
}

/// `\s`.
#[inline(always)]
const fn spaces(bytes: u64) -> u64 {
    (in_range(bytes, b'\t', b'\r') | in_range(bytes, b' ', b' ')) & !bytes & FLAGS
}

/// `[\r\n]`.
#[inline(always)]
const fn newlines(bytes: u64) -> u64 {
    (in_range(bytes, b'\n', b'\n') | in_range(bytes, b'\r', b'\r')) & !bytes & FLAGS
}

/// Neither letters nor digits nor spaces.
#[inline(always)]
const fn signs(bytes: u64) -> u64 {
    !(letters(bytes) | digits(bytes) | spaces(bytes) | bytes) & FLAGS
}

/// The eight bytes from `at` on; bytes of no kind stand in for those behind the end.
#[inline(always)]
fn eight(text: &[u8], at: usize) -> u64 {
    let rest = text.get(at..).unwrap_or_default();
    if let Some(chunk) = rest.first_chunk() { u64::from_le_bytes(*chunk) } else { last(rest) }
}

#[cold]
fn last(rest: &[u8]) -> u64 {
    let mut chunk = [0xFF; STEP];
    chunk[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(chunk)
}

/// The end of the bytes of a kind from `at` on. An error where that is the end of the text or a byte beyond
/// ASCII: the caller then has to look at the character there.
#[inline(always)]
fn run(text: &[u8], mut at: usize, kind: impl Fn(u64) -> u64) -> Result<usize, usize> {
    loop {
        let bytes = eight(text, at);
        let others = kind(bytes) ^ FLAGS;
        if others != 0 {
            let end = at + others.trailing_zeros() as usize / STEP;
            let first = others & others.wrapping_neg();
            return if bytes & first == 0 { Ok(end) } else { Err(end) };
        }
        at += STEP;
    }
}

/// The end of the letters from `at` on.
#[inline(always)]
pub(super) fn letters_end(text: &[u8], at: usize) -> Result<usize, usize> {
    run(text, at, letters)
}

/// The end of the capitals from `at` on.
#[inline(always)]
pub(super) fn capitals_end(text: &[u8], at: usize) -> Result<usize, usize> {
    run(text, at, capitals)
}

/// The end of the small letters from `at` on.
#[inline(always)]
pub(super) fn small_letters_end(text: &[u8], at: usize) -> Result<usize, usize> {
    run(text, at, small_letters)
}

/// The end of the whitespace from `at` on, and of its last newline; errors are those of [`run`].
#[inline(always)]
pub(super) fn spaces_end(text: &[u8], mut at: usize) -> Result<(usize, Option<usize>), usize> {
    let mut behind_newline = None;
    loop {
        let bytes = eight(text, at);
        let others = spaces(bytes) ^ FLAGS;
        // All bits below the first byte that is not whitespace.
        let inside = others.wrapping_sub(1) & !others;
        let newlines = newlines(bytes) & inside;
        if newlines != 0 {
            behind_newline = Some(at + STEP - newlines.leading_zeros() as usize / STEP);
        }
        if others != 0 {
            let end = at + others.trailing_zeros() as usize / STEP;
            let is_ascii = bytes & others & others.wrapping_neg() == 0;
            return if is_ascii { Ok((end, behind_newline)) } else { Err(end) };
        }
        at += STEP;
    }
}

/// The end of the characters from `at` on that are neither letters nor digits nor whitespace.
#[inline(always)]
pub(super) fn signs_end(text: &[u8], at: usize) -> Result<usize, usize> {
    run(text, at, signs)
}

#[cfg(test)]
mod tests {
    use super::super::class::{LETTER, LOWER, NEWLINE, NUMBER, SPACE, UPPER, classes};
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn every_byte_is_of_the_kinds_that_the_table_gives_it() {
        for byte in 0..=u8::MAX {
            let class = (byte < 128).then(|| classes().of(char::from(byte)));
            let is = |of| class.is_some_and(|class| class & of != 0);
            let expected = [
                is(LETTER),
                is(UPPER),
                is(LOWER),
                is(SPACE),
                is(NEWLINE),
                class.is_some_and(|class| class & (LETTER | NUMBER | SPACE) == 0),
            ];
            for at in 0..STEP {
                // Beside every other byte: no kind may depend on a neighbour.
                for beside in [0, 0x7F, 0x80, 0xFF, b'a', b' '] {
                    let mut bytes = [beside; STEP];
                    bytes[at] = byte;
                    let bytes = u64::from_le_bytes(bytes);
                    let flag = |flags: u64| flags >> (8 * at + 7) & 1 == 1;
                    let kinds = [letters, capitals, small_letters, spaces, newlines, signs];
                    assert_eq!(kinds.map(|kind| flag(kind(bytes))), expected, "{byte} {beside}");
                    assert!(kinds.iter().all(|kind| kind(bytes) & !FLAGS == 0));
                }
            }
        }
    }

    #[test]
    fn a_run_ends_where_another_byte_or_the_text_does() {
        for length in 0..40 {
            for end in 0..=length {
                for stop in [b' ', 0xC3] {
                    let mut text = vec![b'x'; length];
                    if end < length {
                        text[end] = stop;
                    }
                    for at in 0..=end {
                        let expected =
                            if end < length && text[end].is_ascii() { Ok(end) } else { Err(end) };
                        assert_eq!(letters_end(&text, at), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn whitespace_ends_and_its_last_newline_is_known() {
        let mut rng = Rng(1);
        for _ in 0..20_000 {
            let mut text = Vec::new();
            for _ in 0..rng.below(32) {
                text.push(rng.pick(b"      \t\n\r"));
            }
            let newline = text.iter().rposition(|byte| matches!(byte, b'\r' | b'\n'));
            let end = text.len();
            assert_eq!(spaces_end(&text, 0), Err(end));
            text.push(b'x');
            assert_eq!(spaces_end(&text, 0), Ok((end, newline.map(|last| last + 1))));
        }
    }
}
