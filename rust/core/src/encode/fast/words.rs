//! The tokens of one word, found without merging where they are known.
//!
//! Invariant: a word's tokens depend on nothing but its bytes, so what was found once holds for
//! good. What is remembered is bounded: one flag for each entry of the vocabulary, and a memo for
//! each thread that encodes at the same time.

use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, Ordering};

use rustc_hash::FxHasher;

use super::merges::{Bench, Merges, Symbol};

const EMPTY: u32 = u32::MAX;

/// The entries of a vocabulary, by their bytes.
#[derive(Debug)]
pub(super) struct Vocabulary {
    bytes: Vec<u8>,
    /// Of each id the place in `bytes`; empty where the vocabulary has a hole.
    places: Vec<(u32, u32)>,
    /// Ids by hash; a power of two, at most half full.
    table: Vec<(u32, u32)>,
    /// Whether the entry is known to be one token as a word.
    whole: Vec<AtomicBool>,
}

impl Vocabulary {
    pub fn new(entries: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(entries * 8),
            places: Vec::with_capacity(entries),
            table: vec![(EMPTY, 0); (2 * entries).next_power_of_two()],
            whole: Vec::new(),
        }
    }

    /// Adds an entry; `false` where its id or its bytes are taken, or ids are far apart.
    pub fn insert(&mut self, bytes: &[u8], id: u32) -> bool {
        let index = id as usize;
        if index >= self.table.len() || bytes.is_empty() {
            return false;
        }
        if index >= self.places.len() {
            self.places.resize(index + 1, (0, 0));
        }
        let hash = hash(bytes);
        let slot = self.slot(bytes, hash);
        if self.places[index] != (0, 0) || self.table[slot].0 != EMPTY {
            return false;
        }
        self.table[slot] = (id, hash);
        let place = |len: usize| u32::try_from(len).expect("vocabularies are far smaller");
        self.places[index] = (place(self.bytes.len()), place(self.bytes.len() + bytes.len()));
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Where an entry of this hash stands, or would stand.
    fn slot(&self, bytes: &[u8], hash: u32) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let (id, found) = self.table[slot];
            if id == EMPTY || (found == hash && self.bytes_of(id) == bytes) {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// No more entries will come.
    pub fn finish(&mut self) {
        self.bytes.shrink_to_fit();
        self.places.shrink_to_fit();
        self.whole.resize_with(self.places.len(), AtomicBool::default);
    }

    /// The text of every so many entries, where they are text.
    pub fn sample(&self) -> String {
        const STEP: usize = 251;
        let entries = self.places.iter().step_by(STEP);
        let bytes = entries.map(|&(start, end)| &self.bytes[start as usize..end as usize]);
        bytes.filter_map(|bytes| std::str::from_utf8(bytes).ok()).collect()
    }

    /// One more than the highest id.
    pub fn ids(&self) -> usize {
        self.places.len()
    }

    /// Each id with its bytes, which are empty where the vocabulary has a hole.
    pub fn entries(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..).zip(&self.places).map(|(id, _)| (id, self.bytes_of(id)))
    }

    /// The bytes of an id; empty where there are none.
    pub fn bytes_of(&self, id: u32) -> &[u8] {
        let (start, end) = self.places[id as usize];
        &self.bytes[start as usize..end as usize]
    }

    /// The bytes of an id; `None` where no entry has it.
    pub fn known_bytes_of(&self, id: u32) -> Option<&[u8]> {
        let &(start, end) = self.places.get(id as usize).filter(|place| **place != (0, 0))?;
        Some(&self.bytes[start as usize..end as usize])
    }

    /// Whether two entries that meet in a word stay as they are.
    pub fn stay_apart(
        &self,
        merges: &Merges,
        [left, right]: [u32; 2],
        bench: &mut Bench,
        lay_out: impl FnOnce(&[u8], &mut Vec<Symbol>),
    ) -> Option<bool> {
        let word = [self.known_bytes_of(left)?, self.known_bytes_of(right)?].concat();
        let tokens = self.tokens(merges, &word, bench, |symbols| lay_out(&word, symbols));
        Some(tokens.iter().map(|token| token.id).eq([left, right]))
    }

    pub fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        Some(self.table[self.slot(bytes, hash(bytes))].0).filter(|id| *id != EMPTY)
    }

    /// Every word that is an entry is one token, whatever the merges would make of it.
    pub fn ignore_merges(&self) {
        self.whole.iter().for_each(|whole| whole.store(true, Ordering::Relaxed));
    }

    /// The tokens of a word, left on the bench. `lay_out` writes those that it has before any merge.
    pub fn tokens<'bench>(
        &self,
        merges: &Merges,
        word: &[u8],
        bench: &'bench mut Bench,
        lay_out: impl FnOnce(&mut Vec<Symbol>),
    ) -> &'bench [Symbol] {
        bench.clear();
        let entry = self.id_of(word).map(|id| (id, &self.whole[id as usize]));
        match entry {
            Some((id, whole)) if whole.load(Ordering::Relaxed) => {
                bench.symbols.push(Symbol { id, end: word.len() });
            }
            _ => {
                lay_out(&mut bench.symbols);
                merges.apply(bench);
                if let (Some((id, whole)), [one]) = (entry, &bench.symbols[..]) {
                    whole.store(one.id == id, Ordering::Relaxed);
                }
            }
        }
        &bench.symbols
    }
}

/// A hash of any word.
pub(super) fn hash(bytes: &[u8]) -> u32 {
    let mut hasher = FxHasher::default();
    hasher.write(bytes);
    let hash = hasher.finish();
    u32::try_from((hash ^ (hash >> 32)) & u64::from(u32::MAX)).expect("the lower half")
}
