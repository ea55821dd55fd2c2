//! Short words that a thread has met before, with their tokens: a table of fixed size.
//!
//! Invariant: all bytes of a word are compared. A word that is not forgotten stands in the bucket of its
//! hash, or in the bucket beside, where it has a mark.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use std::hint::black_box;
use std::ops::BitXor;

use super::long_words::Record;
use crate::by_bytes::Key;

/// The most tokens in a slot. With four a slot has 32 bytes, and a bucket of two is one cache line.
pub(super) const MOST_IDS: usize = 4;
/// Where the upper half of a slot holds the number of tokens: above the length, which needs four bits.
const COUNT: u32 = u64::BITS - 4;
/// The index of a bucket. It has as many values as there are buckets, so a look-up needs no check.
pub(super) type BucketIndex = u16;
const BUCKETS: usize = 1 << BucketIndex::BITS;

/// The bucket of the table in which a word may stand.
#[inline(always)]
pub(super) fn bucket_of(key: Key) -> BucketIndex {
    BucketIndex::try_from(key.hash() >> (u32::BITS - BucketIndex::BITS)).expect("its upper half")
}

/// The other bucket of the two lines that a core fetches together.
#[inline(always)]
fn beside(bucket: BucketIndex) -> BucketIndex {
    bucket ^ 1
}

/// One of the two slots of a bucket, each as likely as the other. If it were always the older one, three
/// words that come in turn would each be forgotten before they come again.
#[inline]
fn any_slot(key: Key) -> usize {
    key.hash() as usize % 2
}

/// A word and its tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CachedWord {
    low: u64,
    /// As in the key, and above the length the number of tokens; 0 if they are in a record.
    high: u64,
    /// The tokens, or the record that has them: see [`CachedWord::record`].
    pub ids: [u32; MOST_IDS],
}

impl CachedWord {
    /// A word with at most `MOST_IDS` tokens.
    pub fn of_tokens(key: Key, tokens: &[u32]) -> Self {
        let mut ids = [0; MOST_IDS];
        ids[..tokens.len()].copy_from_slice(tokens);
        Self { low: key.low, high: key.high | (tokens.len() as u64) << COUNT, ids }
    }

    /// A word with more tokens.
    pub fn of_record(key: Key, Record { start, ids, age }: Record) -> Self {
        Self { low: key.low, high: key.high, ids: [start, ids, age, 0] }
    }

    #[inline(always)]
    fn is_of(&self, key: Key) -> bool {
        (self.low ^ key.low) | (self.high ^ key.high) << (u64::BITS - COUNT) == 0
    }

    /// The number of tokens in the slot itself; 0 if they are in a record.
    #[inline(always)]
    pub fn count(&self) -> usize {
        usize::try_from(self.high >> COUNT).expect("four bits")
    }

    fn key(&self) -> Key {
        Key { low: self.low, high: self.high << (u64::BITS - COUNT) >> (u64::BITS - COUNT) }
    }

    /// The mark of the word if it stands in this bucket.
    fn mark_in(&self, bucket: BucketIndex) -> Mark {
        let key = self.key();
        if bucket_of(key) == bucket { Mark::NONE } else { Mark::of(key) }
    }

    /// The record of its tokens, if they are not in the slot.
    #[inline(always)]
    pub fn record(&self) -> Record {
        let [start, ids, age, _] = self.ids;
        Record { start, ids, age }
    }
}

/// Two words that share their hash. A third one moves one of them to the bucket beside. With as many words
/// as buckets, one word in ten is the third of its bucket or a later one.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([CachedWord; 2]);

/// A note about the four slots of two neighbouring buckets: a bit each, and then three for the word of
/// the other bucket that a slot holds, if it holds one.
#[derive(Debug, Clone, Copy, Default)]
struct Pair(u16);

/// Part of the hash of a word that stands in the bucket beside its own; [`Mark::NONE`] for other words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark(u16);

impl Mark {
    const BITS: usize = 3;
    const ALL: u16 = (1 << Self::BITS) - 1;
    const NONE: Self = Self(0);

    #[inline]
    fn of(key: Key) -> Self {
        Self(u16::try_from(key.hash() >> 1 & u32::from(Self::ALL)).expect("few bits").max(1))
    }
}

impl Pair {
    const SLOTS: usize = 4;
    const RECENT: u16 = (1 << Self::SLOTS) - 1;

    /// The number of a slot among the four.
    #[inline]
    fn number(bucket: BucketIndex, slot: usize) -> usize {
        2 * usize::from(bucket % 2) + slot
    }

    /// The slot of a bucket that was written longer ago than the others of both buckets, if there is one.
    #[inline]
    fn old_slot(self, bucket: BucketIndex) -> Option<usize> {
        let slots = self.0 >> Self::number(bucket, 0) & 0b11;
        (slots != 0b11).then(|| slots.trailing_ones() as usize)
    }

    /// A slot of a bucket is written. Once all four are, all count as old.
    #[inline]
    fn write(&mut self, bucket: BucketIndex, slot: usize, mark: Mark) {
        if self.0 & Self::RECENT == Self::RECENT {
            self.0 &= !Self::RECENT;
        }
        self.0 |= 1 << Self::number(bucket, slot);
        self.set_mark(bucket, slot, mark);
    }

    #[inline]
    fn set_mark(&mut self, bucket: BucketIndex, slot: usize, Mark(mark): Mark) {
        let at = Self::SLOTS + Mark::BITS * Self::number(bucket, slot);
        self.0 = self.0 & !(Mark::ALL << at) | mark << at;
    }

    /// True if one of the slots of a bucket has this mark.
    #[inline]
    fn has_mark(self, bucket: BucketIndex, mark: Mark) -> bool {
        let marks = self.0 >> (Self::SLOTS + Mark::BITS * Self::number(bucket, 0));
        Mark(marks & Mark::ALL) == mark || Mark(marks >> Mark::BITS & Mark::ALL) == mark
    }
}

/// The slot of a word in a bucket, if one comparison finds it. If both words of the bucket begin with the
/// same eight bytes, that in the first slot is not found.
#[inline(always)]
fn slot_in(table: &[Bucket; BUCKETS], key: Key, bucket: BucketIndex) -> Option<&CachedWord> {
    let Bucket(both) = &table[usize::from(bucket)];
    // An index and no branch: which of the two slots it is changes from word to word, and the processor
    // would often guess wrong.
    let slot = &both[usize::from(both[1].low == key.low)];
    slot.is_of(key).then_some(slot)
}

/// The words.
#[derive(Debug)]
pub(super) struct ShortWords {
    buckets: Box<[Bucket; BUCKETS]>,
    /// Shows whether a word may stand in the bucket beside. Always waiting for that bucket would take one
    /// part in thirty of the time of new text.
    pairs: Box<[Pair; BUCKETS / 2]>,
}

impl ShortWords {
    pub fn new() -> Self {
        let buckets = vec![Bucket::default(); BUCKETS].into_boxed_slice();
        let pairs = vec![Pair::default(); BUCKETS / 2].into_boxed_slice();
        Self {
            buckets: buckets.try_into().expect("as many as asked for"),
            pairs: pairs.try_into().expect("as many as asked for"),
        }
    }

    /// Fetches these buckets into the cache: the table is larger than a core's own cache, and memory
    /// delivers many of them at once. The loop does nothing else, so that a core can begin as many loads as
    /// possible before the first one is done.
    #[inline(always)]
    pub fn fetch(&self, buckets: &[BucketIndex]) {
        let first = |&bucket: &BucketIndex| self.buckets[usize::from(bucket)].0[0].low;
        black_box(buckets.iter().map(first).fold(0, BitXor::bitxor));
    }

    /// The slot of a word in a bucket, as [`slot_in`] finds it.
    #[inline(always)]
    pub fn slot(&self, key: Key, bucket: BucketIndex) -> Option<&CachedWord> {
        slot_in(&self.buckets, key, bucket)
    }

    /// The slots of words that follow each other, up to the first that is not found so or has no tokens.
    #[inline(always)]
    pub fn in_a_row<'a>(
        &'a self,
        keys: &'a [Key],
        buckets: &'a [BucketIndex],
    ) -> impl Iterator<Item = &'a CachedWord> {
        // Borrowed once: read through `self`, the pointer would be loaded again for each word.
        let table = &*self.buckets;
        let with_tokens = |slot: &&CachedWord| slot.count() > 0;
        keys.iter()
            .zip(buckets)
            .map_while(move |(&key, &bucket)| slot_in(table, key, bucket).filter(with_tokens))
    }

    /// The slot of a word that is remembered, wherever it stands.
    pub fn find(&mut self, key: Key) -> Option<&CachedWord> {
        self.bring_home(key);
        let Bucket(both) = &self.buckets[usize::from(bucket_of(key))];
        both.iter().find(|slot| slot.is_of(key))
    }

    /// Moves a word from the bucket beside into its own, where the fast look-up finds it.
    fn bring_home(&mut self, key: Key) {
        let home = bucket_of(key);
        let other = beside(home);
        if !self.pairs[usize::from(home) / 2].has_mark(other, Mark::of(key)) {
            return;
        }
        let Bucket(away) = &mut self.buckets[usize::from(other)];
        if let Some(index) = away.iter().position(|slot| slot.is_of(key)) {
            let found = away[index];
            let own_index = any_slot(key);
            let own = std::mem::replace(&mut self.buckets[usize::from(home)].0[own_index], found);
            self.buckets[usize::from(other)].0[index] = own;
            let pair = &mut self.pairs[usize::from(home) / 2];
            pair.set_mark(home, own_index, Mark::NONE);
            pair.set_mark(other, index, own.mark_in(other));
        }
    }

    /// Remembers a word, and forgets one that was written longer ago than the others of its bucket and the
    /// bucket beside.
    pub fn remember(&mut self, key: Key, slot: CachedWord) {
        let home = bucket_of(key);
        let pair = &mut self.pairs[usize::from(home) / 2];
        let index = if let Some(old) = pair.old_slot(home) {
            old
        } else {
            let index = any_slot(key);
            if let Some(old) = pair.old_slot(beside(home)) {
                let moved = self.buckets[usize::from(home)].0[index];
                self.buckets[usize::from(beside(home))].0[old] = moved;
                pair.write(beside(home), old, moved.mark_in(beside(home)));
            }
            index
        };
        pair.write(home, index, Mark::NONE);
        self.buckets[usize::from(home)].0[index] = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(number: u32) -> Key {
        let word = number.to_string();
        Key::of(word.as_bytes(), 0, word.len()).expect("a short word")
    }

    fn remember(words: &mut ShortWords, number: u32) {
        words.remember(key_of(number), CachedWord::of_tokens(key_of(number), &[number]));
    }

    fn token_of(words: &mut ShortWords, number: u32) -> Option<u32> {
        words.find(key_of(number)).map(|slot| slot.ids[0])
    }

    #[test]
    fn a_third_word_of_a_set_moves_one_to_the_set_beside_and_back() {
        let mut words = ShortWords::new();
        let of_one_set = (0..1 << 20).filter(|&number| bucket_of(key_of(number)) == 6);
        let numbers: Vec<u32> = of_one_set.take(3).collect();
        for &number in &numbers {
            remember(&mut words, number);
        }
        let is_away = |words: &ShortWords, number: u32| words.slot(key_of(number), 6).is_none();
        let away: Vec<_> = numbers.iter().filter(|&&number| is_away(&words, number)).collect();
        let [&away] = away[..] else { panic!("{} of 3 moved", away.len()) };
        assert_eq!(token_of(&mut words, away), Some(away));
        assert!(!is_away(&words, away));
        for number in numbers {
            assert_eq!(token_of(&mut words, number), Some(number));
        }
    }

    #[test]
    fn words_that_come_in_turn_are_kept_and_older_ones_forgotten() {
        const MANY: u32 = 50_000;
        let mut words = ShortWords::new();
        let mut is_new = |number: u32| {
            let is_new = token_of(&mut words, number).is_none();
            if is_new {
                remember(&mut words, number);
            }
            is_new
        };
        for text in 0..4 {
            let numbers = || text * MANY..(text + 1) * MANY;
            assert!(numbers().all(&mut is_new), "no number is in two texts");
            // Buckets that forget their oldest words first would forget one in seven, each time.
            let forgotten = numbers().filter(|&number| is_new(number)).count();
            assert!(forgotten < numbers().len() / 9, "{forgotten} forgotten");
        }
    }
}
