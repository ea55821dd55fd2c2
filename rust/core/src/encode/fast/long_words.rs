//! Long words that a thread has met before, and the tokens of short ones that have many.
//!
//! Invariant: the records are bounded in bytes. Once there are too many, all are forgotten, and a
//! [`Record`] from before finds nothing, because its age is another one.

use std::hint::black_box;

use bytemuck::{cast_slice, cast_slice_mut};

use crate::by_bytes::hash;

/// The numbers of a record that are read at once: more than the tokens of any word that has a slot, and of
/// most others.
pub(super) const MOST_TOGETHER: usize = 16;

/// Words that have no [`Key`](crate::by_bytes::Key), and the tokens of words that have too many for a slot.
#[derive(Debug)]
pub(super) struct LongWords {
    /// Two for each hash, the later word first.
    entries: Box<[[Entry; 2]; Self::PAIRS]>,
    /// The tokens of each word, and behind them its bytes if no slot has them, so that one read of memory
    /// brings both.
    records: Vec<u32>,
    /// The number of times that all records were forgotten.
    age: u32,
}

/// The position of a word's tokens among the records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub start: u32,
    /// The number of tokens.
    pub ids: u32,
    /// The age of the records when it was written.
    pub age: u32,
}

/// The start of a word's record, and the numbers of its tokens and bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    hash: u32,
    start: u32,
    ids: u16,
    bytes: u16,
}

impl LongWords {
    const PAIRS: usize = 1 << 16;
    /// Longer words hardly come again.
    const MOST_BYTES_OF_WORD: usize = 256;
    /// When the records have more numbers than this, all are forgotten. With a quarter of it, 400 kB of
    /// random Chinese were forgotten before they came again, and took four times as long.
    const MOST_IN_RECORDS: usize = 1 << 21;

    pub fn new() -> Self {
        let entries = vec![Default::default(); Self::PAIRS].into_boxed_slice();
        let entries = entries.try_into().expect("as many as asked for");
        Self { entries, records: Vec::new(), age: 0 }
    }

    /// Fetches the memory of a word into the cache; returns the word's hash.
    pub fn fetch(&self, word: &[u8]) -> u32 {
        let hash = hash(word);
        let [entry, _] = self.entries[hash as usize % Self::PAIRS];
        black_box(self.records.get(entry.start as usize));
        hash
    }

    /// The record of a word that has no key; `None` where it is not remembered.
    pub fn find(&self, word: &[u8], hash: u32) -> Option<Record> {
        let both = &self.entries[hash as usize % Self::PAIRS];
        let is_like = |entry: &&Entry| entry.hash == hash && usize::from(entry.bytes) == word.len();
        both.iter().filter(is_like).find_map(|entry| {
            let Entry { start, ids, .. } = *entry;
            let bytes = &self.records[start as usize + usize::from(ids)..];
            let record = Record { start, ids: ids.into(), age: self.age };
            cast_slice(bytes).starts_with(word).then_some(record)
        })
    }

    /// The tokens of a word that has no key; `None` where it is not remembered.
    pub fn get(&self, word: &[u8]) -> Option<&[u32]> {
        self.at(self.find(word, hash(word))?)
    }

    /// The tokens of a record; `None` where it was forgotten.
    pub fn at(&self, record: Record) -> Option<&[u32]> {
        let is_kept = record.age == self.age;
        is_kept.then(|| &self.records[record.start as usize..][..record.ids as usize])
    }

    /// The tokens of a record with the numbers behind them, and the number of tokens; `None` where they
    /// were forgotten, are the last of all, or are [`MOST_TOGETHER`] or more.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each word")]
    pub fn together(&self, record: Record) -> Option<(&[u32; MOST_TOGETHER], usize)> {
        let tokens = self.records.get(record.start as usize..)?.first_chunk()?;
        let count = record.ids as usize;
        (record.age == self.age && count < MOST_TOGETHER).then_some((tokens, count))
    }

    /// True if all records were forgotten at least once.
    #[cfg(test)]
    pub fn was_full(&self) -> bool {
        self.age > 0
    }

    /// Writes a record of tokens.
    pub fn add(&mut self, ids: &[u32]) -> Record {
        if self.records.len() > Self::MOST_IN_RECORDS {
            self.entries.fill(Default::default());
            self.records.clear();
            self.age = self.age.wrapping_add(1);
        }
        let number = |count: usize| u32::try_from(count).expect("bounded");
        let start = number(self.records.len());
        self.records.extend_from_slice(ids);
        Record { start, ids: number(ids.len()), age: self.age }
    }

    /// Remembers a word that has no key.
    pub fn remember(&mut self, word: &[u8], ids: &[u32]) {
        if word.len() > Self::MOST_BYTES_OF_WORD {
            return;
        }
        let hash = hash(word);
        let small = |count: usize| u16::try_from(count).expect("a word has few");
        let Record { start, .. } = self.add(ids);
        let entry = Entry { hash, start, ids: small(ids.len()), bytes: small(word.len()) };
        let both = &mut self.entries[hash as usize % Self::PAIRS];
        *both = [entry, both[0]];
        let bytes_at = self.records.len();
        self.records.resize(bytes_at + word.len().div_ceil(size_of::<u32>()), 0);
        cast_slice_mut(&mut self.records[bytes_at..])[..word.len()].copy_from_slice(word);
    }
}
