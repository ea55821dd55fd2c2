//! The entries of a vocabulary, by their ids and by their texts.
//!
//! Invariant: each id has one text, and each text one id.

use std::borrow::Cow;
use std::hash::Hasher;

use rustc_hash::FxHasher;

use super::vocab::id_limit;

/// All texts, one after the other, and two tables that find them.
#[derive(Debug)]
pub(crate) struct Entries {
    texts: String,
    /// Of each id where its text begins and ends; [`HOLE`] where the vocabulary has none.
    places: Vec<(u32, u32)>,
    /// Ids by the hash of their text; a power of two, at most half full.
    by_text: Box<[u32]>,
    count: usize,
}

const HOLE: (u32, u32) = (u32::MAX, u32::MAX);
const EMPTY: u32 = u32::MAX;

impl Entries {
    /// `None` where an id or a text stands twice, or an id is far above the others.
    pub fn new(vocab: &[(Cow<'_, str>, u32)]) -> Option<Self> {
        let highest = vocab.iter().map(|(_, id)| *id as usize).max().unwrap_or(0);
        if highest >= id_limit(vocab.len()) {
            return None;
        }
        let mut entries = Self {
            texts: String::with_capacity(vocab.iter().map(|(text, _)| text.len()).sum()),
            places: vec![HOLE; highest + 1],
            by_text: vec![EMPTY; (2 * vocab.len()).next_power_of_two()].into_boxed_slice(),
            count: vocab.len(),
        };
        vocab.iter().all(|(text, id)| entries.insert(text, *id)).then_some(entries)
    }

    /// `false` where the id or the text is taken.
    fn insert(&mut self, text: &str, id: u32) -> bool {
        let slot = self.slot(text);
        if self.by_text[slot] != EMPTY || self.places[id as usize] != HOLE {
            return false;
        }
        self.by_text[slot] = id;
        // Texts are shorter than their file, which is shorter than 4 GiB.
        let place = |len: usize| u32::try_from(len).expect("shorter than the file");
        let start = self.texts.len();
        self.texts.push_str(text);
        self.places[id as usize] = (place(start), place(self.texts.len()));
        true
    }

    /// Where a text stands in the table, or would stand.
    fn slot(&self, text: &str) -> usize {
        let mask = self.by_text.len() - 1;
        let mut slot = hash(text) & mask;
        while self.by_text[slot] != EMPTY && self.text_of(self.by_text[slot]) != Some(text) {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn id_of(&self, text: &str) -> Option<u32> {
        Some(self.by_text[self.slot(text)]).filter(|id| *id != EMPTY)
    }

    pub fn text_of(&self, id: u32) -> Option<&str> {
        let &(start, end) = self.places.get(id as usize).filter(|place| **place != HOLE)?;
        Some(&self.texts[start as usize..end as usize])
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        (0..).zip(&self.places).filter_map(|(id, _)| Some((self.text_of(id)?, id)))
    }
}

fn hash(text: &str) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    let hash = hasher.finish();
    // Tables have fewer slots than half of the bits can count.
    usize::try_from((hash ^ hash >> 32) & u64::from(u32::MAX)).expect("half of the bits")
}
