//! The tokens of one word, found without merging where they are known.
//!
//! Invariant: a word's tokens depend on nothing but its bytes, so what was found once holds for
//! good. What is remembered is bounded: one flag for each entry of the vocabulary, and a memo for
//! each thread that encodes at the same time.

use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use rustc_hash::FxHasher;

use super::memo::Scratch;
use super::merges::{Bench, Merges, Symbol};

const EMPTY: u32 = u32::MAX;

/// Scratches that no thread is using. Each has two megabytes of slots: they go with the tokenizer, where
/// thread-locals would stay with every thread that once encoded.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Vec<Scratch>>);

impl Pool {
    /// Lends one to `work`, a new one where another thread is looking for one in this moment.
    ///
    /// It never waits: in a forked process a lock that another thread held is held for ever.
    pub fn with<T>(&self, work: impl FnOnce(&mut Scratch) -> T) -> T {
        let taken = self.idle().and_then(|mut idle| idle.pop());
        let mut scratch = taken.unwrap_or_else(Scratch::new);
        let result = work(&mut scratch);
        scratch.bench.clear();
        if let Some(mut idle) = self.idle() {
            idle.push(scratch);
        }
        result
    }

    fn idle(&self) -> Option<MutexGuard<'_, Vec<Scratch>>> {
        match self.0.try_lock() {
            Ok(idle) => Some(idle),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

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
        if index >= self.table.len() || bytes.is_empty() || self.id_of(bytes).is_some() {
            return false;
        }
        if index >= self.places.len() {
            self.places.resize(index + 1, (0, 0));
        }
        if self.places[index] != (0, 0) {
            return false;
        }
        let place = |len: usize| u32::try_from(len).expect("vocabularies are far smaller");
        self.places[index] = (place(self.bytes.len()), place(self.bytes.len() + bytes.len()));
        self.bytes.extend_from_slice(bytes);
        let hash = hash(bytes);
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        while self.table[slot].0 != EMPTY {
            slot = (slot + 1) & mask;
        }
        self.table[slot] = (id, hash);
        true
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

    pub fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        let hash = hash(bytes);
        let mask = self.table.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let (id, found) = self.table[slot];
            if id == EMPTY {
                return None;
            }
            if found == hash && self.bytes_of(id) == bytes {
                return Some(id);
            }
            slot = (slot + 1) & mask;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_never_waits_for_who_holds_its_lock() {
        let pool = Pool::default();
        assert_eq!(pool.with(|_| 1), 1);
        let held = pool.0.lock().expect("nobody else has it");
        assert_eq!(pool.with(|_| 2), 2);
        assert_eq!(held.len(), 1);
    }
}
