//! The words of a vocabulary: ids by their bytes, and bytes by their ids.
//!
//! Invariant: all bytes of a word are compared, so no word gets the id of another one. The bytes of a
//! short word are numbers that stand in the table itself, so one read of memory finds its id.

#![allow(clippy::inline_always, reason = "called for each word, in loops that must stay small")]

use std::hash::Hasher;

use bytemuck::cast;
use rustc_hash::FxHasher;

use crate::hashing::spread;

/// The most bytes of a word that has a key: with its length it is two numbers of 64 bits.
pub(crate) const MOST_BYTES: usize = 15;
/// Where the upper half of a key holds the length: above seven bytes.
const LENGTH: u32 = u64::BITS - 8;

/// The bytes of a short word and its length as two numbers; a longer word has none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub low: u64,
    /// Seven bytes, and the length above them.
    pub high: u64,
}

/// The bytes of a text that are read at once, whatever the length of the word.
const BYTES_READ: usize = size_of::<[u64; 2]>();
/// For each length the bytes of two numbers that a word fills.
const FILLED: [[u64; 2]; MOST_BYTES + 1] = {
    let mut filled = [[0; 2]; MOST_BYTES + 1];
    let mut len = 1;
    while len <= MOST_BYTES {
        let [low, high] = &mut filled[len];
        *low = if len < 8 { u64::MAX >> (8 * (8 - len)) } else { u64::MAX };
        *high = if len > 8 { u64::MAX >> (8 * (BYTES_READ - len)) } else { 0 };
        len += 1;
    }
    filled
};

impl Key {
    /// Not the key of any word.
    pub const NONE: Self = Self { low: 0, high: 0 };

    /// `None` for [`Key::NONE`].
    pub fn known(self) -> Option<Self> {
        (self.high >> LENGTH > 0).then_some(self)
    }

    /// The word from `start` to `end`.
    pub fn of(text: &[u8], start: usize, end: usize) -> Option<Self> {
        Self::before_others(text, start, end).or_else(|| {
            let word = &text[start..end];
            let mut padded = [0; BYTES_READ];
            padded.get_mut(..word.len())?.copy_from_slice(word);
            Self::before_others(&padded, 0, word.len())
        })
    }

    /// The same, without a call; `None` also where the text ends too soon behind the word.
    #[inline(always)]
    pub fn before_others(text: &[u8], start: usize, end: usize) -> Option<Self> {
        let len = end - start;
        let [of_low, of_high] = FILLED.get(len)?;
        let read: [u8; BYTES_READ] = text.get(start..start + BYTES_READ)?.try_into().ok()?;
        let [low, high]: [u64; 2] = cast(read);
        let (low, high) = (u64::from_le(low) & of_low, u64::from_le(high) & of_high);
        Some(Self { low, high: high | (len as u64) << LENGTH })
    }

    #[inline(always)]
    pub fn hash(self) -> u32 {
        mixed(self.low, self.high)
    }
}

#[inline(always)]
fn mixed(low: u64, high: u64) -> u32 {
    const SECOND: u64 = 0xD6E8_FEB8_6659_FD93;
    let mixed = (spread(low) ^ high).rotate_left(32).wrapping_mul(SECOND);
    u32::try_from(mixed >> u32::BITS).expect("the upper half")
}

/// A hash of any word.
pub(crate) fn hash(word: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(word);
    mixed(hasher.finish(), word.len() as u64)
}

/// A word as the table compares it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Word<'a> {
    bytes: &'a [u8],
    hash: u32,
    low: u64,
    high: u32,
}

/// Words of at most as many bytes stand in a slot, with their length above them.
const MOST_IN_SLOT: usize = 11;
/// A length that no such word has. Of others the slot has the hash and the length.
const ELSEWHERE: u32 = u32::MAX;
const NO_ID: u32 = u32::MAX;

impl<'a> Word<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::with_key(bytes, Key::of(bytes, 0, bytes.len()))
    }

    /// A word whose key is known.
    pub fn with_key(bytes: &'a [u8], key: Option<Key>) -> Self {
        match key {
            Some(key @ Key { low, high }) if bytes.len() <= MOST_IN_SLOT => {
                let high = high & 0xFF_FFFF | high >> LENGTH << 24;
                let high = u32::try_from(high).expect("four bytes");
                Self { bytes, hash: key.hash(), low, high }
            }
            _ => {
                let hash = key.map_or_else(|| hash(bytes), Key::hash);
                let low = (bytes.len() as u64) << u32::BITS | u64::from(hash);
                Self { bytes, hash, low, high: ELSEWHERE }
            }
        }
    }
}

/// Four of them are a cache line.
#[derive(Debug, Clone, Copy)]
struct Slot {
    low: u64,
    high: u32,
    id: u32,
}

const EMPTY: Slot = Slot { low: 0, high: 0, id: NO_ID };

/// The bytes of each id, one after the other in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct BytesById {
    bytes: Vec<u8>,
    /// The start and end of each id's bytes; [`HOLE`] where an id has none.
    ranges: Vec<(u32, u32)>,
}

const HOLE: (u32, u32) = (u32::MAX, u32::MAX);

impl BytesById {
    fn with_capacity(ids: usize) -> Self {
        const BYTES_OF_WORD: usize = 8;
        let bytes = Vec::with_capacity(BYTES_OF_WORD * ids);
        Self { bytes, ranges: Vec::with_capacity(ids) }
    }

    /// Gives an id its bytes, in place of those that it has.
    pub fn put(&mut self, id: u32, bytes: &[u8]) {
        let index = id as usize;
        if index >= self.ranges.len() {
            self.ranges.resize(index + 1, HOLE);
        }
        // Words are shorter than their file, which is shorter than 4 GiB.
        let offset = |len: usize| u32::try_from(len).expect("shorter than the file");
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.ranges[index] = (offset(start), offset(self.bytes.len()));
    }

    /// The bytes of an id; `None` where it has none.
    #[inline]
    pub fn get(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = self.ranges.get(id as usize).filter(|range| **range != HOLE)?;
        Some(&self.bytes[start as usize..end as usize])
    }

    /// The bytes of all ids, one after the other; `Err` with the position of the first that has none.
    ///
    /// Sixteen bytes are copied for each token that is no longer than that, and the next token
    /// overwrites those that are too many: half the time of copies that each have their own length.
    pub fn joined(&self, ids: &[u32]) -> Result<Vec<u8>, usize> {
        let mut len = 0;
        for (position, &id) in ids.iter().enumerate() {
            len += self.get(id).ok_or(position)?.len();
        }
        let mut joined = vec![0; len + BYTES_READ];
        let mut at = 0;
        for &id in ids {
            let (start, end) = self.ranges[id as usize];
            let (start, end) = (start as usize, end as usize);
            let len = end - start;
            match self.bytes.get(start..start + BYTES_READ) {
                Some(bytes) if len <= BYTES_READ => {
                    joined[at..at + BYTES_READ].copy_from_slice(bytes);
                }
                _ => joined[at..at + len].copy_from_slice(&self.bytes[start..end]),
            }
            at += len;
        }
        joined.truncate(len);
        Ok(joined)
    }

    fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ranges.shrink_to_fit();
    }
}

/// Words with their ids: each id has one word, and each word one id.
#[derive(Debug)]
pub(crate) struct Words {
    by_id: BytesById,
    /// By hash; a power of two, at most three quarters full.
    slots: Box<[Slot]>,
    count: usize,
}

impl Words {
    /// Room for as many words.
    pub fn new(words: usize) -> Self {
        let slots = (words + words / 3 + 2).next_power_of_two();
        Self {
            by_id: BytesById::with_capacity(words),
            slots: vec![EMPTY; slots].into_boxed_slice(),
            count: 0,
        }
    }

    /// Adds a word; `false` where it or its id is there already.
    pub fn insert(&mut self, bytes: &[u8], id: u32) -> bool {
        let word = Word::new(bytes);
        let slot = self.slot(word);
        if self.slots[slot].id != NO_ID || self.by_id.get(id).is_some() {
            return false;
        }
        self.slots[slot] = Slot { low: word.low, high: word.high, id };
        self.by_id.put(id, bytes);
        self.count += 1;
        true
    }

    /// No more words will come.
    pub fn finish(&mut self) {
        self.by_id.shrink_to_fit();
    }

    /// The number of words.
    pub fn len(&self) -> usize {
        self.count
    }

    /// One more than the highest id.
    pub fn ids(&self) -> usize {
        self.by_id.ranges.len()
    }

    #[inline]
    pub fn id_of(&self, word: Word<'_>) -> Option<u32> {
        let id = self.slots[self.slot(word)].id;
        (id != NO_ID).then_some(id)
    }

    /// A filter that rules out most words that are not there.
    pub fn filter(&self) -> Filter {
        // Eight bits or more for each word: about one in ten of the others is looked up.
        let mut filter = Filter(vec![0; self.count.next_power_of_two().div_ceil(8)].into());
        for (_, bytes) in self.iter() {
            let (at, bit) = filter.bit_of(Word::new(bytes));
            filter.0[at] |= bit;
        }
        filter
    }

    /// The bytes of an id; `None` where it has no word.
    #[inline]
    pub fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        self.by_id.get(id)
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(&self.by_id.ranges).filter_map(|(id, _)| Some((id, self.bytes_of(id)?)))
    }

    /// The text of every so many words, where they are text.
    pub fn sample(&self) -> String {
        let texts = self.iter().step_by(251).filter_map(|(_, word)| std::str::from_utf8(word).ok());
        texts.collect()
    }

    /// Where a word stands, or would stand.
    #[inline]
    fn slot(&self, word: Word<'_>) -> usize {
        let bits = self.slots.len().ilog2();
        let mut at = (word.hash >> (u32::BITS - bits)) as usize;
        loop {
            let Slot { low, high, id } = self.slots[at];
            let is_alike = low == word.low && high == word.high;
            let is_it = || high != ELSEWHERE || self.bytes_of(id) == Some(word.bytes);
            if id == NO_ID || is_alike && is_it() {
                return at;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

/// Says of most words that are not there that they are not, from a thirtieth of the table's memory.
#[derive(Debug)]
pub(crate) struct Filter(Box<[u64]>);

impl Filter {
    #[inline]
    pub fn may_have(&self, word: Word<'_>) -> bool {
        let (at, bit) = self.bit_of(word);
        self.0[at] & bit != 0
    }

    #[inline]
    fn bit_of(&self, word: Word<'_>) -> (usize, u64) {
        let at = (word.hash / u64::BITS) as usize & (self.0.len() - 1);
        (at, 1 << (word.hash % u64::BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of all lengths, many of which differ in one byte, at all distances from the text's end.
    #[test]
    fn a_word_is_found_by_all_its_bytes() {
        let text: Vec<u8> = (0..40).flat_map(|at: u8| [at % 7, 0, at % 3]).collect();
        let mut all: Vec<&[u8]> = (0..text.len())
            .flat_map(|start| (start..text.len().min(start + 40)).map(move |end| (start, end)))
            .map(|(start, end)| &text[start..end])
            .collect();
        all.sort_unstable();
        all.dedup();
        let mut words = Words::new(all.len());
        for (id, word) in (0..).zip(&all) {
            assert_eq!(words.id_of(Word::new(word)), None, "{word:?}");
            assert!(words.insert(word, 2 * id));
            assert!(!words.insert(word, 2 * id + 1), "the word is there");
        }
        assert!(!words.insert(b"another", 0), "the id is there");
        assert_eq!(words.len(), all.len());
        let filter = words.filter();
        assert!(all.iter().all(|word| filter.may_have(Word::new(word))));
        let other = |number: u32| filter.may_have(Word::new(&number.to_be_bytes()));
        assert!((1 << 30..(1 << 30) + 1000).filter(|number| other(*number)).count() < 250);
        for (id, word) in (0..).zip(&all) {
            assert_eq!(words.id_of(Word::new(word)), Some(2 * id), "{word:?}");
            assert_eq!(words.bytes_of(2 * id), Some(*word));
            assert_eq!(words.bytes_of(2 * id + 1), None);
        }
        assert!(words.iter().map(|(_, word)| word).eq(all.iter().copied()));
        for start in 0..text.len() {
            for end in start..text.len().min(start + 20) {
                let word = Word::with_key(&text[start..end], Key::of(&text, start, end));
                assert_eq!(words.id_of(word), words.id_of(Word::new(&text[start..end])));
            }
        }
    }

    /// Short and long words, in all neighbourhoods, at the end of the table, and ids without a word.
    #[test]
    fn the_bytes_of_ids_are_those_of_each_joined() {
        let mut table = BytesById::default();
        let words: Vec<Vec<u8>> =
            (0..40_u8).map(|len| (0..len).map(|at| 5 * len + at).collect()).collect();
        for (id, word) in (0..).step_by(2).zip(&words) {
            table.put(id, word);
        }
        for step in 1..words.len() {
            let drawn = (0..100).map(|at| (at * step + at * at) % words.len());
            let (ids, each): (Vec<u32>, Vec<&[u8]>) =
                drawn.map(|word| (2 * u32::try_from(word).expect("few"), &words[word][..])).unzip();
            assert_eq!(table.joined(&ids), Ok(each.concat()));
        }
        assert_eq!(table.joined(&[]), Ok(vec![]));
        assert_eq!(table.joined(&[2, 4, 3, 1]), Err(2), "3 has no word");
        assert_eq!(table.joined(&[2, u32::MAX]), Err(1), "behind the table");
    }
}
