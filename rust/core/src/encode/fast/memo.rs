//! The tokens of words that a thread has met before.
//!
//! Invariant: a word's tokens depend on nothing but its bytes, so what was found once holds for
//! good; and all bytes are compared, so that no word has the tokens of another one. What is remembered
//! is bounded: short words in a table of fixed size, long ones up to a number of bytes.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use std::hint::black_box;
use std::ops::{BitXor, Range};

use super::AT_ONCE;
use super::long_words::{LongWords, MOST_TOGETHER, Record};
use super::merges::Bench;
use crate::by_bytes::Key;

/// With as many tokens a slot has 32 bytes, and a set of two is one cache line.
const MOST_IDS: usize = 4;
/// Where more than one word in so many has a record, those of the next words are fetched beforehand.
const MANY: usize = 8;
/// For the tokens of as many words as are looked for at the same time: fewer than are read together, and
/// behind the last of them all that are.
const ROOM: usize = AT_ONCE * (MOST_TOGETHER - 1) + MOST_TOGETHER;
/// Where the upper half of a slot holds the number of tokens: above the length, which needs four bits.
const COUNT: u32 = u64::BITS - 4;
/// As many sets as such an index can name: to look one up needs no check.
type SetIndex = u16;
const SETS: usize = 1 << SetIndex::BITS;

/// The set of the table in which a word may stand.
#[inline(always)]
fn set_of(key: Key) -> SetIndex {
    SetIndex::try_from(key.hash() >> (u32::BITS - SetIndex::BITS)).expect("its upper half")
}

/// The other set of the two lines that a core fetches together.
#[inline(always)]
fn beside(set: SetIndex) -> SetIndex {
    set ^ 1
}

/// One of the two slots of a set, as likely as the other one: with the older one, three words that come in
/// turn would each be forgotten before they come again.
#[inline]
fn any_slot(key: Key) -> usize {
    key.hash() as usize % 2
}

/// A word and its tokens.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    low: u64,
    /// As of the key, and above the length how many tokens; none where they are a record.
    high: u64,
    /// The tokens, or where the record of more of them is: see [`Slot::record`].
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

    fn key(&self) -> Key {
        Key { low: self.low, high: self.high << (u64::BITS - COUNT) >> (u64::BITS - COUNT) }
    }

    /// How it is marked where it stands in this set.
    fn mark_in(&self, set: SetIndex) -> Mark {
        let key = self.key();
        if set_of(key) == set { Mark::NONE } else { Mark::of(key) }
    }

    /// Where its tokens are, if it has none itself.
    #[inline(always)]
    fn record(&self) -> Record {
        let [start, ids, age, _] = self.ids;
        Record { start, ids, age }
    }
}

/// Two words that share their hash. A third one moves one of them to the set beside: of as many words
/// as there are sets, one in ten is a third or a later one.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Set([Slot; 2]);

/// What is known of the four slots of two sets that stand beside each other: a bit each, and then
/// three for the word of the other set that it holds, if it holds one.
#[derive(Debug, Clone, Copy, Default)]
struct Pair(u16);

/// Part of the hash of a word that stands in the set beside its own; of all others [`Mark::NONE`].
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
    fn number(set: SetIndex, slot: usize) -> usize {
        2 * usize::from(set % 2) + slot
    }

    /// Which slot of a set was written longer ago than the others of both, if any was.
    #[inline]
    fn old_slot(self, set: SetIndex) -> Option<usize> {
        let slots = self.0 >> Self::number(set, 0) & 0b11;
        (slots != 0b11).then(|| slots.trailing_ones() as usize)
    }

    /// A slot of a set is written. Once all four are, all count as old.
    #[inline]
    fn write(&mut self, set: SetIndex, slot: usize, mark: Mark) {
        if self.0 & Self::RECENT == Self::RECENT {
            self.0 &= !Self::RECENT;
        }
        self.0 |= 1 << Self::number(set, slot);
        self.set_mark(set, slot, mark);
    }

    #[inline]
    fn set_mark(&mut self, set: SetIndex, slot: usize, Mark(mark): Mark) {
        let at = Self::SLOTS + Mark::BITS * Self::number(set, slot);
        self.0 = self.0 & !(Mark::ALL << at) | mark << at;
    }

    /// Whether one of the slots of a set has this mark.
    #[inline]
    fn has_mark(self, set: SetIndex, mark: Mark) -> bool {
        let marks = self.0 >> (Self::SLOTS + Mark::BITS * Self::number(set, 0));
        Mark(marks & Mark::ALL) == mark || Mark(marks >> Mark::BITS & Mark::ALL) == mark
    }
}

/// What one thread works with.
#[derive(Debug)]
pub(super) struct Scratch {
    sets: Box<[Set; SETS]>,
    /// To wait for the set beside would be one part in ten of the time that new text takes: this says
    /// when it has to be.
    pairs: Box<[Pair; SETS / 2]>,
    long: LongWords,
    /// `None` while it is in use.
    batch: Option<Box<Batch>>,
    pub bench: Bench,
}

/// Words that are looked for at the same time. Kept, because to clear nine kilobytes for each batch
/// took one part in fifty of all time.
#[derive(Debug)]
struct Batch {
    keys: [Key; AT_ONCE],
    sets: [SetIndex; AT_ONCE],
    /// Of those that have no key.
    hashes: [u32; AT_ONCE],
    /// The tokens of words that follow each other and were all found.
    found: [u32; ROOM],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            keys: [Key::NONE; AT_ONCE],
            sets: [0; AT_ONCE],
            hashes: [0; AT_ONCE],
            found: [0; ROOM],
        }
    }
}

impl Batch {
    /// Fills in what is looked for: words that follow each other, the first from byte `start` on, each
    /// up to its end.
    #[inline(never)]
    fn fill(&mut self, text: &[u8], start: usize, ends: &[usize], long: &LongWords) {
        let mut at = start;
        let mut has_others = false;
        for ((key, set), &end) in self.keys.iter_mut().zip(&mut self.sets).zip(ends) {
            // No call stands in this loop, for which registers would have to be kept free.
            *key = Key::before_others(text, at, end).unwrap_or_else(|| {
                has_others = true;
                Key::NONE
            });
            *set = set_of(*key);
            at = end;
        }
        if has_others {
            self.fill_others(text, start, ends, long);
        }
    }

    /// Fills in what is known of long words, and of those at the end of a text.
    #[inline(never)]
    fn fill_others(&mut self, text: &[u8], start: usize, ends: &[usize], long: &LongWords) {
        let mut at = start;
        let places = self.sets.iter_mut().zip(&mut self.hashes);
        for ((key, (set, hash)), &end) in self.keys.iter_mut().zip(places).zip(ends) {
            if key.known().is_none() {
                if let Some(short) = Key::of(text, at, end) {
                    *key = short;
                    *set = set_of(short);
                } else {
                    *hash = long.fetch(&text[at..end]);
                }
            }
            at = end;
        }
    }
}

/// The slot of a word in a set, if it is easily found there: of two words that begin with the same
/// eight bytes the first slot's is not.
#[inline(always)]
fn slot(table: &[Set; SETS], key: Key, set: SetIndex) -> Option<&Slot> {
    let Set(both) = &table[usize::from(set)];
    // Which of the two it is changes from word to word: a branch on it would often go wrong.
    let slot = &both[usize::from(both[1].low == key.low)];
    slot.is_of(key).then_some(slot)
}

/// The slots of words that follow each other, up to the first that is not found so or has no tokens.
#[inline(always)]
fn slots_in_a_row<'a>(
    table: &'a [Set; SETS],
    keys: &'a [Key],
    sets: &'a [SetIndex],
) -> impl Iterator<Item = &'a Slot> {
    keys.iter()
        .zip(sets)
        .map_while(|(&key, &set)| slot(table, key, set).filter(|slot| slot.count() > 0))
}

impl Scratch {
    pub fn new() -> Self {
        let sets = vec![Set::default(); SETS].into_boxed_slice();
        let sets = sets.try_into().expect("as many as asked for");
        let pairs = vec![Pair::default(); SETS / 2].into_boxed_slice();
        let pairs = pairs.try_into().expect("as many as asked for");
        Self { sets, pairs, long: LongWords::new(), batch: None, bench: Bench::default() }
    }

    /// Writes the tokens of words that follow each other, the first from byte `start` on, each up to
    /// its end; `encode` those of a word that is not remembered. `written` hears of each word and its
    /// tokens.
    #[inline(always)]
    pub fn write_all(
        &mut self,
        text: &str,
        mut start: usize,
        ends: &[usize],
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, Option<Key>, &mut Bench, &mut Vec<u32>),
        mut written: impl FnMut(Range<usize>, &[u32]),
    ) {
        let mut batch = self.batch.take().unwrap_or_default();
        let mut has_many_records = false;
        for ends in ends.chunks(AT_ONCE) {
            batch.fill(text.as_bytes(), start, ends, &self.long);
            let Batch { keys, sets, hashes, found } = &mut *batch;
            let (keys, sets) = (&keys[..ends.len()], &sets[..ends.len()]);
            self.fetch(sets);
            if has_many_records {
                self.fetch_records(keys, sets);
            }
            let end_of = |word: usize| ends.get(word).copied();
            // Without a panic, so that whoever hears of no word does not wait for where it is.
            let range_of = |word: usize| {
                let start = end_of(word.wrapping_sub(1)).unwrap_or(start);
                start..end_of(word).unwrap_or(start)
            };
            let mut records = 0;
            // Tokens are counted here: to count them in the vector would be a store and a load for each
            // word, which wait for those of the word before.
            let mut count = 0;
            let mut next = 0;
            while next < ends.len() {
                // Of words that follow each other most have slots: a loop of nothing else has the
                // processor keep in registers what it needs.
                let in_a_row = slots_in_a_row(&self.sets, &keys[next..], &sets[next..]);
                for slot in in_a_row {
                    let of_word = slot.count();
                    // All of them, and then less: a copy of unknown length would cost more.
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
                    Some(_) => self.slot(key, sets[next]).map(Slot::record),
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
        self.batch = Some(batch);
    }

    /// Has these sets come from memory, which looks for many of them at once: the table is larger than
    /// a core's own cache. Nothing else stands in this loop, so that a core sees as many of its loads
    /// as it can before the first of them has come.
    #[inline(always)]
    fn fetch(&self, sets: &[SetIndex]) {
        let first = |&set: &SetIndex| self.sets[usize::from(set)].0[0].low;
        black_box(sets.iter().map(first).fold(0, BitXor::bitxor));
    }

    /// The same for the records of those words that have one.
    fn fetch_records(&self, keys: &[Key], sets: &[SetIndex]) {
        let records = keys.iter().zip(sets).filter_map(|(&key, &set)| {
            let slot = self.slot(key, set).filter(|slot| slot.count() == 0)?;
            self.long.at(slot.record())?.first()
        });
        black_box(records.fold(0, BitXor::bitxor));
    }

    #[inline(always)]
    fn slot(&self, key: Key, set: SetIndex) -> Option<&Slot> {
        slot(&self.sets, key, set)
    }

    #[inline(never)]
    fn write_other(
        &mut self,
        word: &str,
        key: Option<Key>,
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, Option<Key>, &mut Bench, &mut Vec<u32>),
    ) {
        if let Some(known) = self.recall(key, word.as_bytes()) {
            return ids.extend_from_slice(known);
        }
        let from = ids.len();
        encode(word, key, &mut self.bench, ids);
        self.remember(key, word.as_bytes(), &ids[from..]);
    }

    /// Moves a word that stands in the set beside its own, where most are looked for, into that one.
    fn bring_home(&mut self, key: Key) {
        let home = set_of(key);
        let other = beside(home);
        if !self.pairs[usize::from(home) / 2].has_mark(other, Mark::of(key)) {
            return;
        }
        let Set(away) = &mut self.sets[usize::from(other)];
        if let Some(place) = away.iter().position(|slot| slot.is_of(key)) {
            let found = away[place];
            let own_place = any_slot(key);
            let own = std::mem::replace(&mut self.sets[usize::from(home)].0[own_place], found);
            self.sets[usize::from(other)].0[place] = own;
            let pair = &mut self.pairs[usize::from(home) / 2];
            pair.set_mark(home, own_place, Mark::NONE);
            pair.set_mark(other, place, own.mark_in(other));
        }
    }

    /// The tokens of a word that is remembered.
    pub fn recall(&mut self, key: Option<Key>, word: &[u8]) -> Option<&[u32]> {
        let Some(key) = key else { return self.long.get(word) };
        self.bring_home(key);
        let Set(both) = &self.sets[usize::from(set_of(key))];
        self.tokens_of(both.iter().find(|slot| slot.is_of(key))?)
    }

    /// The tokens of a word that has a slot; `None` where its record was forgotten.
    #[inline(always)]
    fn tokens_of<'a>(&'a self, slot: &'a Slot) -> Option<&'a [u32]> {
        match slot.count() {
            0 => self.long.at(slot.record()),
            count => Some(&slot.ids[..count]),
        }
    }

    /// Remembers a word, a short one in place of one that was written longer ago than the others of
    /// its set and the set beside.
    pub fn remember(&mut self, key: Option<Key>, word: &[u8], ids: &[u32]) {
        let Some(key) = key else { return self.long.remember(word, ids) };
        let mut slot = Slot { low: key.low, high: key.high, ids: [0; MOST_IDS] };
        if ids.len() <= MOST_IDS {
            slot.high |= (ids.len() as u64) << COUNT;
            slot.ids[..ids.len()].copy_from_slice(ids);
        } else {
            let Record { start, ids, age } = self.long.add(ids);
            slot.ids = [start, ids, age, 0];
        }
        let home = set_of(key);
        let pair = &mut self.pairs[usize::from(home) / 2];
        let place = if let Some(old) = pair.old_slot(home) {
            old
        } else {
            let place = any_slot(key);
            if let Some(old) = pair.old_slot(beside(home)) {
                let moved = self.sets[usize::from(home)].0[place];
                self.sets[usize::from(beside(home))].0[old] = moved;
                pair.write(beside(home), old, moved.mark_in(beside(home)));
            }
            place
        };
        pair.write(home, place, Mark::NONE);
        self.sets[usize::from(home)].0[place] = slot;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Other tokens for each word, as many as its last byte says.
    fn tokens_of(number: u32) -> Vec<u32> {
        (0..=number % 12).map(|place| number.wrapping_mul(31) + place).collect()
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
    fn a_third_word_of_a_set_moves_one_to_the_set_beside_and_back() {
        let mut scratch = Scratch::new();
        let numbered = (0..1 << 20).map(|number: u32| (number, number.to_string().into_bytes()));
        let keyed = numbered.map(|(number, word)| (number, Key::of(&word, 0, word.len()), word));
        let mut of_one_set = keyed.filter(|(_, key, _)| key.is_some_and(|key| set_of(key) == 6));
        let words: Vec<_> = of_one_set.by_ref().take(3).collect();
        for (number, key, word) in &words {
            scratch.remember(*key, word, &[*number]);
        }
        let is_away = |scratch: &Scratch, key: &Option<Key>| {
            scratch.slot(key.expect("a short word"), 6).is_none()
        };
        let away: Vec<_> = words.iter().filter(|(_, key, _)| is_away(&scratch, key)).collect();
        let [(number, key, word)] = away[..] else { panic!("{} of 3 moved", away.len()) };
        assert_eq!(scratch.recall(*key, word), Some(&[*number][..]));
        assert!(!is_away(&scratch, key));
        for (number, key, word) in &words {
            assert_eq!(scratch.recall(*key, word), Some(&[*number][..]));
        }
    }

    #[test]
    fn words_of_one_set_that_begin_alike_are_told_apart() {
        let spelled = (0..1_000_000).map(|number: u32| (number, format!("the same{number}")));
        let words: Vec<_> = spelled
            .filter(|(_, word)| {
                set_of(Key::of(word.as_bytes(), 0, word.len()).expect("short")) == 1
            })
            .take(2)
            .collect();
        let [(_, first), (_, second)] = &words[..] else { panic!("{words:?}") };
        let (text, ends) = (format!("{first}{second}"), [first.len(), first.len() + second.len()]);
        let mut scratch = Scratch::new();
        let encoded = Cell::new(0);
        for _ in 0..3 {
            let mut ids = Vec::new();
            let encode = |word: &str, _: Option<Key>, _: &mut Bench, ids: &mut Vec<u32>| {
                encoded.set(encoded.get() + 1);
                ids.push(words.iter().find(|(_, one)| one == word).expect("one of them").0);
            };
            scratch.write_all(&text, 0, &ends, &mut ids, encode, |_, _| ());
            assert_eq!(ids, [words[0].0, words[1].0]);
        }
        assert_eq!(encoded.get(), 2, "both are remembered");
    }

    #[test]
    fn words_that_come_in_turn_are_kept_and_older_ones_forgotten() {
        const MANY: u32 = 50_000;
        let mut scratch = Scratch::new();
        let mut is_new = |number: u32| {
            let word = number.to_string().into_bytes();
            let key = Key::of(&word, 0, word.len());
            let is_new = scratch.recall(key, &word).is_none();
            if is_new {
                scratch.remember(key, &word, &[number]);
            }
            is_new
        };
        for text in 0..4 {
            let words = || text * MANY..(text + 1) * MANY;
            assert!(words().all(&mut is_new), "no number is in two texts");
            // Sets that the oldest words leave first would forget one in seven, each time.
            let forgotten = words().filter(|&number| is_new(number)).count();
            assert!(forgotten < words().len() / 9, "{forgotten} forgotten");
        }
    }
}
