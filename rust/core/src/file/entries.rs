//! The entries of a vocabulary, by their ids and by their texts.
//!
//! Invariant: each id has one text, and each text one id.

use std::borrow::Cow;

use super::vocab::id_limit;
use crate::by_bytes::{Word, Words};

#[derive(Debug)]
pub(crate) struct Entries(Words);

impl Entries {
    /// `None` where an id or a text stands twice, or an id is far above the others.
    pub fn new(vocab: &[(Cow<'_, str>, u32)]) -> Option<Self> {
        let highest = vocab.iter().map(|(_, id)| *id as usize).max().unwrap_or(0);
        if highest >= id_limit(vocab.len()) {
            return None;
        }
        let mut words = Words::new(vocab.len());
        let all_new = vocab.iter().all(|(text, id)| words.insert(text.as_bytes(), *id));
        words.finish();
        all_new.then_some(Self(words))
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.0.id_of(Word::new(text.as_bytes()))
    }

    pub fn text_of(&self, id: u32) -> Option<&str> {
        self.0.bytes_of(id).map(text)
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(id, bytes)| (text(bytes), id))
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it came as text")
}
