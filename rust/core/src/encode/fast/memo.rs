//! The tokens of words that a thread has met before.
//!
//! Invariant: a word's tokens depend on nothing but its bytes, so they never have to be found again; and
//! all bytes are compared, so that no word gets the tokens of another one. The memory is bounded: short
//! words are in a table of fixed size, long ones in records up to a number of bytes.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use std::hint::black_box;
use std::ops::{BitXor, Range};

use super::long_words::{LongWords, MOST_TOGETHER};
use super::merges::Workspace;
use super::short_words::{BucketIndex, CachedWord, MOST_IDS, ShortWords, bucket_of};
use crate::by_bytes::Key;

/// The number of words that are cut, and then looked for in memory, before the first of them is read.
pub(super) const AT_ONCE: usize = 256;
/// If more than one word in this many has a record, the records of the next words are fetched in advance.
const MANY: usize = 8;
/// Room for the tokens of all words that are looked for at the same time. Each has fewer tokens than are
/// read together, and behind the last one there is room for a whole read.
const ROOM: usize = AT_ONCE * (MOST_TOGETHER - 1) + MOST_TOGETHER;

/// The memory of words and the working room of one thread.
#[derive(Debug)]
pub(super) struct Scratch {
    short: ShortWords,
    long: LongWords,
    /// `None` while it is in use.
    lookups: Option<Box<Lookups>>,
    pub workspace: Workspace,
}

/// Words that are looked for at the same time. Kept from one round to the next, because clearing nine
/// kilobytes for each round took one part in fifty of all time.
#[derive(Debug)]
struct Lookups {
    keys: [Key; AT_ONCE],
    buckets: [BucketIndex; AT_ONCE],
    /// The hashes of words that have no key.
    hashes: [u32; AT_ONCE],
    /// The tokens of words that follow each other and were all found.
    found: [u32; ROOM],
}

impl Default for Lookups {
    fn default() -> Self {
        Self {
            keys: [Key::NONE; AT_ONCE],
            buckets: [0; AT_ONCE],
            hashes: [0; AT_ONCE],
            found: [0; ROOM],
        }
    }
}

impl Lookups {
    /// Fills in the words to look for. They follow each other: the first from byte `start` on, each up to
    /// its end.
    #[inline(never)]
    fn fill(&mut self, text: &[u8], start: usize, ends: &[usize], long: &LongWords) {
        let mut at = start;
        let mut has_others = false;
        for ((key, bucket), &end) in self.keys.iter_mut().zip(&mut self.buckets).zip(ends) {
            // This loop has no call, because registers would have to be kept free for it.
            *key = Key::before_others(text, at, end).unwrap_or_else(|| {
                has_others = true;
                Key::NONE
            });
            *bucket = bucket_of(*key);
            at = end;
        }
        if has_others {
            self.fill_others(text, start, ends, long);
        }
    }

    /// Fills in long words, and short ones at the end of a text.
    #[inline(never)]
    fn fill_others(&mut self, text: &[u8], start: usize, ends: &[usize], long: &LongWords) {
        let mut at = start;
        let others = self.buckets.iter_mut().zip(&mut self.hashes);
        for ((key, (bucket, hash)), &end) in self.keys.iter_mut().zip(others).zip(ends) {
            if key.known().is_none() {
                if let Some(short) = Key::of(text, at, end) {
                    *key = short;
                    *bucket = bucket_of(short);
                } else {
                    *hash = long.fetch(&text[at..end]);
                }
            }
            at = end;
        }
    }
}

impl Scratch {
    pub fn new() -> Self {
        Self {
            short: ShortWords::new(),
            long: LongWords::new(),
            lookups: None,
            workspace: Workspace::default(),
        }
    }

    /// Writes the tokens of words that follow each other, the first from byte `start` on, each up to its
    /// end. `encode` writes those of a word that is not remembered. `written` is called with each word
    /// and its tokens.
    #[inline(always)]
    pub fn write_all(
        &mut self,
        text: &str,
        mut start: usize,
        ends: &[usize],
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, Option<Key>, &mut Workspace, &mut Vec<u32>),
        mut written: impl FnMut(Range<usize>, &[u32]),
    ) {
        let mut lookups = self.lookups.take().unwrap_or_default();
        let mut has_many_records = false;
        for ends in ends.chunks(AT_ONCE) {
            lookups.fill(text.as_bytes(), start, ends, &self.long);
            let Lookups { keys, buckets, hashes, found } = &mut *lookups;
            let (keys, buckets) = (&keys[..ends.len()], &buckets[..ends.len()]);
            self.short.fetch(buckets);
            if has_many_records {
                self.fetch_records(keys, buckets);
            }
            let end_of = |word: usize| ends.get(word).copied();
            // Without a panic, so that the compiler can drop the range where `written` ignores it.
            let range_of = |word: usize| {
                let start = end_of(word.wrapping_sub(1)).unwrap_or(start);
                start..end_of(word).unwrap_or(start)
            };
            let mut records = 0;
            // Tokens are counted here and not in the vector, whose length would be stored and loaded for
            // each word, and each load would wait for the store of the word before.
            let mut count = 0;
            let mut next = 0;
            while next < ends.len() {
                // Most words have slots. A loop for them alone lets the compiler keep its values in
                // registers.
                for slot in self.short.in_a_row(&keys[next..], &buckets[next..]) {
                    let of_word = slot.count();
                    // Copies a whole slot and counts fewer: a copy of unknown length would cost more.
                    found[count..count + MOST_IDS].copy_from_slice(&slot.ids);
                    written(range_of(next), found.get(count..count + of_word).unwrap_or_default());
                    count += of_word;
                    next += 1;
                }
                if next == ends.len() {
                    break;
                }
                let (key, word) = (keys[next], range_of(next));
                let record = match key.known() {
                    Some(_) => self.short.slot(key, buckets[next]).map(CachedWord::record),
                    None => self.long.find(&text.as_bytes()[word.clone()], hashes[next]),
                };
                if let Some((tokens, of_word)) =
                    record.and_then(|record| self.long.together(record))
                {
                    records += usize::from(key.known().is_some());
                    found[count..count + MOST_TOGETHER].copy_from_slice(tokens);
                    written(word, &found[count..count + of_word]);
                    count += of_word;
                } else {
                    ids.extend_from_slice(&found[..count]);
                    count = 0;
                    let before = ids.len();
                    self.write_other(&text[word.clone()], key.known(), ids, &encode);
                    written(word, &ids[before..]);
                }
                next += 1;
            }
            start = ends[ends.len() - 1];
            has_many_records = records > ends.len() / MANY;
            ids.extend_from_slice(&found[..count]);
        }
        self.lookups = Some(lookups);
    }

    /// Fetches the records of those words that have one into the cache.
    fn fetch_records(&self, keys: &[Key], buckets: &[BucketIndex]) {
        let records = keys.iter().zip(buckets).filter_map(|(&key, &bucket)| {
            let slot = self.short.slot(key, bucket).filter(|slot| slot.count() == 0)?;
            self.long.at(slot.record())?.first()
        });
        black_box(records.fold(0, BitXor::bitxor));
    }

    #[inline(never)]
    fn write_other(
        &mut self,
        word: &str,
        key: Option<Key>,
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, Option<Key>, &mut Workspace, &mut Vec<u32>),
    ) {
        if let Some(known) = self.recall(key, word.as_bytes()) {
            return ids.extend_from_slice(known);
        }
        let from = ids.len();
        encode(word, key, &mut self.workspace, ids);
        self.remember(key, word.as_bytes(), &ids[from..]);
    }

    /// The tokens of a word that is remembered.
    pub fn recall(&mut self, key: Option<Key>, word: &[u8]) -> Option<&[u32]> {
        let Some(key) = key else { return self.long.get(word) };
        let slot = self.short.find(key)?;
        match slot.count() {
            0 => self.long.at(slot.record()),
            count => Some(&slot.ids[..count]),
        }
    }

    /// Remembers a word.
    pub fn remember(&mut self, key: Option<Key>, word: &[u8], ids: &[u32]) {
        let Some(key) = key else { return self.long.remember(word, ids) };
        let slot = if ids.len() <= MOST_IDS {
            CachedWord::of_tokens(key, ids)
        } else {
            CachedWord::of_record(key, self.long.add(ids))
        };
        self.short.remember(key, slot);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Other tokens for each word, as many as its last byte says.
    fn tokens_of(number: u32) -> Vec<u32> {
        (0..=number % 12).map(|index| number.wrapping_mul(31) + index).collect()
    }

    /// Short words for even numbers, and others.
    fn word(number: u32) -> Vec<u8> {
        let spelled = number.to_string();
        if number % 2 == 0 { spelled.into_bytes() } else { spelled.repeat(4).into_bytes() }
    }

    #[test]
    fn a_word_has_its_own_tokens_or_is_forgotten() {
        let mut scratch = Scratch::new();
        let (mut found, mut forgotten) = (0, 0);
        for number in 0..600_000_u32 {
            let word_now = word(number);
            let key = Key::of(&word_now, 0, word_now.len());
            scratch.remember(key, &word_now, &tokens_of(number));
            assert_eq!(scratch.recall(key, &word_now), Some(&tokens_of(number)[..]));
            let before = word(number / 2);
            match scratch.recall(Key::of(&before, 0, before.len()), &before) {
                Some(tokens) => {
                    assert_eq!(tokens, tokens_of(number / 2));
                    found += 1;
                }
                None => forgotten += 1,
            }
        }
        assert!(scratch.long.was_full(), "the records were never full");
        assert!(found > 100_000 && forgotten > 100_000, "{found} found, {forgotten} forgotten");
    }

    #[test]
    fn words_of_one_set_that_begin_alike_are_told_apart() {
        let spelled = (0..1_000_000).map(|number: u32| (number, format!("the same{number}")));
        let words: Vec<_> = spelled
            .filter(|(_, word)| {
                bucket_of(Key::of(word.as_bytes(), 0, word.len()).expect("short")) == 1
            })
            .take(2)
            .collect();
        let [(_, first), (_, second)] = &words[..] else { panic!("{words:?}") };
        let (text, ends) = (format!("{first}{second}"), [first.len(), first.len() + second.len()]);
        let mut scratch = Scratch::new();
        let encoded = Cell::new(0);
        for _ in 0..3 {
            let mut ids = Vec::new();
            let encode = |word: &str, _: Option<Key>, _: &mut Workspace, ids: &mut Vec<u32>| {
                encoded.set(encoded.get() + 1);
                ids.push(words.iter().find(|(_, one)| one == word).expect("one of them").0);
            };
            scratch.write_all(&text, 0, &ends, &mut ids, encode, |_, _| ());
            assert_eq!(ids, [words[0].0, words[1].0]);
        }
        assert_eq!(encoded.get(), 2, "both are remembered");
    }
}
