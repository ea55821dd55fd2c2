//! The tokens of words that a thread has met before.
//!
//! Invariant: a word's tokens depend on nothing but its bytes, so what was found once holds for
//! good; and all bytes are compared, so that no word has the tokens of another one. What is remembered
//! is bounded: short words in a table of fixed size, long ones up to a number of bytes.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use std::hint::black_box;
use std::ops::{BitXor, Range};

use bytemuck::{cast_slice, cast_slice_mut};

use super::merges::Bench;
use crate::by_bytes::{Key, hash};

/// With as many tokens a slot has 32 bytes, and a set of two is one cache line.
const MOST_IDS: usize = 4;
/// Where the upper half of a slot holds the number of tokens: above the length, which needs four bits.
const COUNT: u32 = u64::BITS - 4;
/// As many sets as such an index can name: to look one up needs no check.
type SetIndex = u16;
const SETS: usize = 1 << SetIndex::BITS;

/// So many words are looked for in memory before the first of them is read.
const AT_ONCE: usize = 128;

/// The set of the table in which a word may stand.
#[inline(always)]
fn set_of(key: Key) -> SetIndex {
    SetIndex::try_from(key.hash >> (u32::BITS - SetIndex::BITS)).expect("its upper half")
}

/// A word and its tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    low: u64,
    /// As of the key, and above the length how many tokens; none where they are among the long words.
    high: u64,
    ids: [u32; MOST_IDS],
}

impl Slot {
    #[inline(always)]
    fn is_of(&self, key: Key) -> bool {
        (self.low ^ key.low) | (self.high ^ key.high) << (u64::BITS - COUNT) == 0
    }

    #[inline(always)]
    fn count(&self) -> usize {
        usize::try_from(self.high >> COUNT).expect("four bits")
    }
}

/// Two words that share their hash, the later one first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Set([Slot; 2]);

/// What one thread works with.
#[derive(Debug)]
pub(super) struct Scratch {
    sets: Box<[Set; SETS]>,
    long: LongWords,
    pub bench: Bench,
}

impl Scratch {
    pub fn new() -> Self {
        let sets = vec![Set::default(); SETS].into_boxed_slice();
        let sets = sets.try_into().expect("as many as asked for");
        Self { sets, long: LongWords::new(), bench: Bench::default() }
    }

    #[inline(always)]
    fn slot(&self, key: Key) -> Option<&Slot> {
        let Set(both) = &self.sets[usize::from(set_of(key))];
        // Which of the two it is changes from word to word: a branch on it would often go wrong.
        let slot = &both[usize::from(both[1].is_of(key))];
        slot.is_of(key).then_some(slot)
    }

    /// Writes the tokens of words that follow each other, the first from byte `start` on, each up to
    /// its end; `encode` those that are not among the short ones. `written` hears of each word and its
    /// tokens.
    #[inline(always)]
    pub fn write_all(
        &mut self,
        text: &str,
        mut start: usize,
        ends: &[usize],
        ids: &mut Vec<u32>,
        mut encode: impl FnMut(Range<usize>, &mut Self, &mut Vec<u32>),
        mut written: impl FnMut(Range<usize>, &[u32]),
    ) {
        let (mut keys, mut sets) = ([Key::NONE; AT_ONCE], [0; AT_ONCE]);
        for ends in ends.chunks(AT_ONCE) {
            let mut at = start;
            for ((key, set), &end) in keys.iter_mut().zip(&mut sets).zip(ends) {
                *key = if let Some(key) = Key::of(text.as_bytes(), at, end) {
                    *set = set_of(key);
                    key
                } else {
                    self.long.fetch(&text.as_bytes()[at..end]);
                    Key::NONE
                };
                at = end;
            }
            self.fetch(&sets[..ends.len()]);
            for (&key, &end) in keys.iter().zip(ends) {
                let from = ids.len();
                if !self.write(key, ids) {
                    encode(start..end, self, ids);
                }
                written(start..end, &ids[from..]);
                start = end;
            }
        }
    }

    /// Has these sets come from memory, which looks for many of them at once: the table is larger than
    /// a core's own cache. Nothing else stands in this loop, so that a core sees as many of its loads
    /// as it can before the first of them has come.
    #[inline(always)]
    fn fetch(&self, sets: &[SetIndex]) {
        let first = |&set: &SetIndex| self.sets[usize::from(set)].0[0].low;
        black_box(sets.iter().map(first).fold(0, BitXor::bitxor));
    }

    /// Writes the tokens of a word; `false` where it has to be asked for with [`Scratch::recall`].
    #[inline(always)]
    fn write(&self, key: Key, ids: &mut Vec<u32>) -> bool {
        let Some(slot) = self.slot(key) else { return false };
        // All of them, and then less: a copy of unknown length would cost more.
        let (before, count) = (ids.len(), slot.count());
        ids.extend_from_slice(&slot.ids);
        ids.truncate(before + count);
        count > 0
    }

    /// The tokens of a word that is remembered.
    pub fn recall(&self, key: Option<Key>, word: &[u8]) -> Option<&[u32]> {
        let slot = match key {
            Some(key) => Some(self.slot(key)?),
            None => None,
        };
        match slot {
            Some(slot) if slot.count() > 0 => Some(&slot.ids[..slot.count()]),
            _ => self.long.get(word),
        }
    }

    /// Remembers a word, a short one in place of the older one of its set.
    pub fn remember(&mut self, key: Option<Key>, word: &[u8], ids: &[u32]) {
        let fits = ids.len() <= MOST_IDS;
        if let Some(key) = key {
            let Set([first, second]) = &mut self.sets[usize::from(set_of(key))];
            *second = *first;
            let count = if fits { ids.len() } else { 0 };
            first.low = key.low;
            first.high = key.high | (count as u64) << COUNT;
            first.ids[..count].copy_from_slice(&ids[..count]);
        }
        if key.is_none() || !fits {
            self.long.remember(word, ids);
        }
    }
}

/// Words that have no [`Key`], or more tokens than a slot.
#[derive(Debug)]
struct LongWords {
    /// One place for each hash.
    places: Box<[Place]>,
    /// Of each word its tokens, and behind them its bytes: whoever finds one has the other.
    records: Vec<u32>,
}

/// Where the record of a word begins, and how many tokens and bytes it has.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    hash: u32,
    start: u32,
    ids: u16,
    bytes: u16,
}

impl LongWords {
    const PLACES: usize = 1 << 15;
    /// Longer words hardly come again.
    const MOST_BYTES_OF_WORD: usize = 256;
    /// When all records have more numbers, all are forgotten.
    const MOST_IN_RECORDS: usize = 1 << 19;

    fn new() -> Self {
        let places = vec![Place::default(); Self::PLACES].into_boxed_slice();
        Self { places, records: Vec::new() }
    }

    /// Has what is remembered of a word come from memory.
    fn fetch(&self, word: &[u8]) {
        let place = self.places[hash(word) as usize % Self::PLACES];
        black_box(self.records.get(place.start as usize));
    }

    fn get(&self, word: &[u8]) -> Option<&[u32]> {
        let hash = hash(word);
        let place = self.places[hash as usize % Self::PLACES];
        if place.hash != hash || usize::from(place.bytes) != word.len() {
            return None;
        }
        let (ids, bytes) = self.records[place.start as usize..].split_at(usize::from(place.ids));
        cast_slice(bytes).starts_with(word).then_some(ids)
    }

    fn remember(&mut self, word: &[u8], ids: &[u32]) {
        if word.len() > Self::MOST_BYTES_OF_WORD {
            return;
        }
        if self.records.len() > Self::MOST_IN_RECORDS {
            self.places.fill(Place::default());
            self.records.clear();
        }
        let hash = hash(word);
        let small = |count: usize| u16::try_from(count).expect("a word has few");
        let start = u32::try_from(self.records.len()).expect("bounded");
        let (ids_len, bytes) = (small(ids.len()), small(word.len()));
        self.places[hash as usize % Self::PLACES] = Place { hash, start, ids: ids_len, bytes };
        self.records.extend_from_slice(ids);
        let bytes_at = self.records.len();
        self.records.resize(bytes_at + word.len().div_ceil(size_of::<u32>()), 0);
        cast_slice_mut(&mut self.records[bytes_at..])[..word.len()].copy_from_slice(word);
    }
}
