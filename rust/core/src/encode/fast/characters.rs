//! Characters that may be laid out whole, not byte by byte.
//!
//! Invariant: between other characters beyond ASCII, the bytes of such a character merge to its
//! token before any of them can merge with a neighbour, and no merge of the token comes before that.
//! So a word may begin with the token in place of the bytes, which saves two of three symbols of Chinese
//! text.

use super::merges::{Merges, Rank, Symbol};

/// No token: the character begins as its bytes.
const NONE: u32 = u32::MAX;
/// The code points that are looked at: those of two and three bytes.
const FIRST: u32 = 0x80;
const LAST: u32 = 0xFFFF;

/// The tokens of characters, by code point.
#[derive(Debug)]
pub(super) struct Characters {
    ids: Box<[u32]>,
}

/// For each token the lowest ranks of its merges with a token before it and behind it, beyond ASCII.
#[derive(Debug)]
pub(super) struct FirstMerges {
    before: Vec<Rank>,
    after: Vec<Rank>,
}

impl FirstMerges {
    pub fn new(ids: usize) -> Self {
        Self { before: vec![Rank::MAX; ids], after: vec![Rank::MAX; ids] }
    }

    /// Notes a merge of two tokens, each with its bytes.
    pub fn note(&mut self, left: (u32, &[u8]), right: (u32, &[u8]), rank: Rank) {
        // A character ends on a continuation byte, and never begins with one.
        if left.1.last().is_some_and(|byte| (0x80..0xC0).contains(byte)) {
            let lowest = &mut self.before[right.0 as usize];
            *lowest = rank.min(*lowest);
        }
        if right.1.first().is_some_and(|byte| *byte >= 0xC0) {
            let lowest = &mut self.after[left.0 as usize];
            *lowest = rank.min(*lowest);
        }
    }

    /// True if no neighbour of these symbols merges with them at this rank or before it.
    fn are_later_than(&self, rank: Rank, first: u32, last: u32) -> bool {
        self.before[first as usize] > rank && self.after[last as usize] > rank
    }
}

impl Characters {
    /// `entries`: the vocabulary; `bytes`: the tokens of the 256 bytes.
    pub fn new<'a>(
        entries: impl Iterator<Item = (u32, &'a [u8])>,
        bytes: &[u32; 256],
        merges: &Merges,
        first_merges: &FirstMerges,
    ) -> Self {
        let mut ids = vec![NONE; (LAST - FIRST + 1) as usize].into_boxed_slice();
        let mut symbols = Vec::new();
        for (id, entry) in entries {
            let mut chars = std::str::from_utf8(entry).unwrap_or_default().chars();
            let (Some(c), None) = (chars.next(), chars.next()) else { continue };
            let Some(index) = index_of(c) else { continue };
            symbols.clear();
            symbols.extend(entry.iter().map(|&byte| bytes[usize::from(byte)]));
            if merge_first(&mut symbols, merges, first_merges) && symbols == [id] {
                ids[index] = id;
            }
        }
        Self { ids }
    }

    /// Writes the symbols that a word begins with.
    pub fn lay_out(&self, word: &str, bytes: &[u32; 256], symbols: &mut Vec<Symbol>) {
        let id_of = |byte: u8| bytes[usize::from(byte)];
        if word.is_ascii() {
            let all = word.bytes().zip(1..);
            return symbols.extend(all.map(|(byte, end)| Symbol { id: id_of(byte), end }));
        }
        let is_ascii_at = |at: usize| word.as_bytes().get(at).is_some_and(u8::is_ascii);
        for (start, c) in word.char_indices() {
            let end = start + c.len_utf8();
            match index_of(c).map(|index| self.ids[index]) {
                Some(id)
                    if id != NONE && !is_ascii_at(end) && !is_ascii_at(start.wrapping_sub(1)) =>
                {
                    symbols.push(Symbol { id, end });
                }
                _ => symbols.extend(
                    (start..end).map(|at| Symbol { id: id_of(word.as_bytes()[at]), end: at + 1 }),
                ),
            }
        }
    }
}

fn index_of(c: char) -> Option<usize> {
    let code = u32::from(c);
    (FIRST..=LAST).contains(&code).then(|| (code - FIRST) as usize)
}

/// Merges the bytes of a character. Returns true if no neighbour would have merged with them before, and
/// none would have had to wait for them.
fn merge_first(symbols: &mut Vec<u32>, merges: &Merges, first_merges: &FirstMerges) -> bool {
    let mut highest = 0;
    while let [first, .., last] = symbols[..] {
        let pairs = symbols.windows(2).map(|pair| merges.rank_and_id(pair[0], pair[1]));
        let Some((at, (rank, id))) = pairs
            .enumerate()
            .filter_map(|(at, merge)| Some((at, merge?)))
            .min_by_key(|(_, (rank, _))| *rank)
        else {
            return false;
        };
        if !first_merges.are_later_than(rank, first, last) {
            return false;
        }
        highest = rank.max(highest);
        symbols.splice(at..at + 2, [id]);
    }
    first_merges.are_later_than(highest, symbols[0], symbols[0])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::byte_level::ByteLevel;
    use crate::byte_chars::byte_chars;
    use crate::file::Bpe;
    use crate::rng::Rng;

    const CHARS: [char; 9] = ['中', '丸', '业', '日', 'か', 'が', 'é', '©', 'a'];

    fn word(rng: &mut Rng) -> String {
        (0..=rng.below(8)).map(|_| CHARS[rng.below(CHARS.len())]).collect()
    }

    /// A model that merges pieces of words at random, half of the time in no sensible order.
    fn model(rng: &mut Rng) -> ByteLevel {
        let bytes = byte_chars();
        let mut merges: Vec<[String; 2]> = Vec::new();
        for _ in 0..40 {
            // Most merges are inside of characters, as in real models.
            let text = if rng.below(3) == 0 {
                word(rng)
            } else {
                CHARS[rng.below(CHARS.len())].to_string()
            };
            let spelled: Vec<String> =
                text.bytes().map(|byte| bytes[usize::from(byte)].to_string()).collect();
            let start = rng.below(spelled.len());
            let middle = start + 1 + rng.below(2);
            let end = middle + 1 + rng.below(2);
            if end <= spelled.len() {
                let pair = [spelled[start..middle].concat(), spelled[middle..end].concat()];
                let known = |part: &String| {
                    part.chars().count() == 1 || merges.iter().any(|merge| merge.concat() == *part)
                };
                if pair.iter().all(known) && !merges.contains(&pair) {
                    merges.push(pair);
                }
            }
        }
        if rng.below(2) == 0 {
            for at in 0..merges.len() {
                let other = rng.below(merges.len());
                merges.swap(at, other);
            }
        }
        let mut tokens: Vec<String> = bytes.iter().map(char::to_string).collect();
        tokens.extend(merges.iter().map(|merge| merge.concat()));
        tokens.sort();
        tokens.dedup();
        let vocab: serde_json::Map<String, Value> =
            tokens.into_iter().zip((0..).map(Value::from)).collect();
        let file = json!({"type": "BPE", "vocab": vocab, "merges": merges}).to_string();
        ByteLevel::new(&Bpe::read(&file)).expect("a model")
    }

    #[test]
    fn a_word_has_the_tokens_that_its_bytes_merge_to() {
        let (mut rng, mut whole, mut cut) = (Rng(5), 0, 0);
        for _ in 0..2_000 {
            let model = model(&mut rng);
            let mut scratch = model.scratch();
            cut += usize::from(model.has_words_of_more_tokens());
            for _ in 0..30 {
                let word = word(&mut rng);
                let (written, from_bytes) = model.tokens_both_ways(&word, &mut scratch);
                assert_eq!(written, from_bytes, "{word}");
                whole += usize::from(model.begins_with_a_character(&word));
            }
        }
        assert!(whole > 5_000, "{whole} words of 60,000 had a character laid out whole");
        assert!(cut > 500, "{cut} models of 2,000 had an entry that is no word of one token");
    }
}
