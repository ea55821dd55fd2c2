//! The tokens of words that a thread has met before.
//!
//! Invariant: a word's tokens depend on nothing but its bytes, so what was found once holds for
//! good; and all bytes are compared, so that no word has the tokens of another one. What is remembered
//! is bounded: short words in a table of fixed size, long ones up to a number of bytes.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use std::hint::black_box;
use std::ops::BitXor;

use super::merges::Bench;
use crate::by_bytes::{Key, hash};

/// With as many tokens a slot has 32 bytes, and a set of two is one cache line.
const MOST_IDS: usize = 4;
/// Where the upper half of a slot holds the number of tokens: above the length, which needs four bits.
const COUNT: u32 = u64::BITS - 4;
/// As many sets as such an index can name: to look one up needs no check.
type SetIndex = u16;
const SETS: usize = 1 << SetIndex::BITS;

/// The set of the table in which a word may stand.
#[inline(always)]
pub(super) fn set_of(key: Key) -> SetIndex {
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

    /// Has these sets come from memory, which looks for many of them at once: the table is larger than
    /// a core's own cache. Nothing else stands in this loop, so that a core sees as many of its loads
    /// as it can before the first of them has come.
    #[inline(always)]
    pub fn fetch(&self, sets: &[SetIndex]) {
        let first = |&set: &SetIndex| self.sets[usize::from(set)].0[0].low;
        black_box(sets.iter().map(first).fold(0, BitXor::bitxor));
    }

    /// Writes the tokens of a word; `false` where it has to be asked for with [`Scratch::recall`].
    #[inline(always)]
    pub fn write(&self, key: Key, ids: &mut Vec<u32>) -> bool {
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
    bytes: Vec<u8>,
    ids: Vec<u32>,
}

/// Where a word and its tokens begin, and how many bytes and tokens it has.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    hash: u32,
    byte: u32,
    id: u32,
    bytes: u16,
    ids: u16,
}

impl LongWords {
    const PLACES: usize = 1 << 15;
    /// Longer words hardly come again.
    const MOST_BYTES_OF_WORD: usize = 256;
    /// When they have more, all are forgotten.
    const MOST_BYTES: usize = 1 << 20;

    fn new() -> Self {
        let places = vec![Place::default(); Self::PLACES].into_boxed_slice();
        Self { places, bytes: Vec::new(), ids: Vec::new() }
    }

    fn get(&self, word: &[u8]) -> Option<&[u32]> {
        let hash = hash(word);
        let place = self.places[hash as usize % Self::PLACES];
        let start = place.byte as usize;
        let is_it =
            place.hash == hash && self.bytes[start..start + usize::from(place.bytes)] == *word;
        let first = place.id as usize;
        is_it.then(|| &self.ids[first..first + usize::from(place.ids)])
    }

    fn remember(&mut self, word: &[u8], ids: &[u32]) {
        if word.len() > Self::MOST_BYTES_OF_WORD {
            return;
        }
        if self.bytes.len() > Self::MOST_BYTES {
            self.places.fill(Place::default());
            self.bytes.clear();
            self.ids.clear();
        }
        let hash = hash(word);
        let number = |count: usize| u32::try_from(count).expect("bounded");
        let small = |count: usize| u16::try_from(count).expect("a word has few");
        self.places[hash as usize % Self::PLACES] = Place {
            hash,
            byte: number(self.bytes.len()),
            id: number(self.ids.len()),
            bytes: small(word.len()),
            ids: small(ids.len()),
        };
        self.bytes.extend_from_slice(word);
        self.ids.extend_from_slice(ids);
    }
}
