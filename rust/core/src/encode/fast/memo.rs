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

/// What is known of two sets that stand beside each other.
#[derive(Debug, Clone, Copy, Default)]
struct Pair(u8);

impl Pair {
    const SLOTS: u8 = 0b1111;

    /// Which slot of a set was written longer ago than the others of both, if any was.
    #[inline]
    fn old_slot(self, set: SetIndex) -> Option<usize> {
        let slots = self.0 >> (2 * (set % 2)) & 0b11;
        (slots != 0b11).then(|| slots.trailing_ones() as usize)
    }

    /// A slot of a set is written. Once all four are, all count as old.
    #[inline]
    fn write(&mut self, set: SetIndex, slot: usize) {
        if self.0 & Self::SLOTS == Self::SLOTS {
            self.0 &= !Self::SLOTS;
        }
        self.0 |= 1 << (2 * usize::from(set % 2) + slot);
    }

    /// Whether words of a set moved to the other one.
    fn has_moved(self, set: SetIndex) -> bool {
        self.0 >> (4 + set % 2) & 1 != 0
    }

    fn set_moved(&mut self, set: SetIndex) {
        self.0 |= 1 << (4 + set % 2);
    }
}

/// What one thread works with.
#[derive(Debug)]
pub(super) struct Scratch {
    sets: Box<[Set; SETS]>,
    /// To wait for the set beside would be one part in twenty of the time that new code takes: this says
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
        let Batch { keys, sets, hashes, found } = &mut *batch;
        let mut has_many_records = false;
        for ends in ends.chunks(AT_ONCE) {
            let mut at = start;
            let places = sets.iter_mut().zip(&mut *hashes);
            for ((key, (set, hash)), &end) in keys.iter_mut().zip(places).zip(ends) {
                *key = if let Some(key) = Key::of(text.as_bytes(), at, end) {
                    *set = set_of(key);
                    key
                } else {
                    *hash = self.long.fetch(&text.as_bytes()[at..end]);
                    Key::NONE
                };
                at = end;
            }
            self.fetch(&sets[..ends.len()]);
            if has_many_records {
                self.fetch_records(&keys[..ends.len()], sets);
            }
            let mut records = 0;
            // Tokens are counted here: to count them in the vector would be a store and a load for each
            // word, which wait for those of the word before.
            let mut count = 0;
            let places = sets.iter().zip(&*hashes);
            for ((&key, (&set, &hash)), &end) in keys.iter().zip(places).zip(ends) {
                match self.slot(key, set) {
                    Some(slot) if slot.count() > 0 => {
                        // All of them, and then less: a copy of unknown length would cost more.
                        found[count..count + MOST_IDS].copy_from_slice(&slot.ids);
                        let before = count;
                        count += slot.count();
                        written(start..end, &found[before..count]);
                    }
                    slot => {
                        let record = match key.known() {
                            Some(_) => slot.map(Slot::record),
                            None => self.long.find(&text.as_bytes()[start..end], hash),
                        };
                        if let Some((tokens, of_word)) =
                            record.and_then(|record| self.long.together(record))
                        {
                            records += usize::from(key.known().is_some());
                            found[count..count + MOST_TOGETHER].copy_from_slice(tokens);
                            let before = count;
                            count += of_word;
                            written(start..end, &found[before..count]);
                        } else {
                            ids.extend_from_slice(&found[..count]);
                            count = 0;
                            let before = ids.len();
                            self.write_other(&text[start..end], key.known(), ids, &encode);
                            written(start..end, &ids[before..]);
                        }
                    }
                }
                start = end;
            }
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
        let Set(both) = &self.sets[usize::from(set)];
        // Which of the two it is changes from word to word: a branch on it would often go wrong.
        let slot = &both[usize::from(both[1].is_of(key))];
        slot.is_of(key).then_some(slot)
    }

    #[inline(never)]
    fn write_other(
        &mut self,
        word: &str,
        key: Option<Key>,
        ids: &mut Vec<u32>,
        encode: impl Fn(&str, Option<Key>, &mut Bench, &mut Vec<u32>),
    ) {
        if let Some(key) = key {
            self.bring_home(key);
        }
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
        if !self.has_moved(home) {
            return;
        }
        let other = usize::from(beside(home));
        if let Some(place) = self.sets[other].0.iter().position(|slot| slot.is_of(key)) {
            let away = self.sets[other].0[place];
            let own = &mut self.sets[usize::from(home)].0[any_slot(key)];
            self.sets[other].0[place] = std::mem::replace(own, away);
        }
    }

    #[inline]
    fn has_moved(&self, set: SetIndex) -> bool {
        self.pairs[usize::from(set) / 2].has_moved(set)
    }

    /// The tokens of a word that is remembered.
    pub fn recall(&self, key: Option<Key>, word: &[u8]) -> Option<&[u32]> {
        if let Some(key) = key {
            let home = set_of(key);
            let away = || self.has_moved(home).then(|| self.slot(key, beside(home)))?;
            return self.tokens_of(self.slot(key, home).or_else(away)?);
        }
        self.long.get(word)
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
                self.sets[usize::from(beside(home))].0[old] = self.sets[usize::from(home)].0[place];
                pair.write(beside(home), old);
                pair.set_moved(home);
            }
            place
        };
        pair.write(home, place);
        self.sets[usize::from(home)].0[place] = slot;
    }
}

#[cfg(test)]
mod tests {
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
        scratch.bring_home(key.expect("a short word"));
        assert!(!is_away(&scratch, key));
        for (number, key, word) in &words {
            assert_eq!(scratch.recall(*key, word), Some(&[*number][..]));
        }
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
