//! Byte-pair encoding over bytes: GPT-2's way of writing a vocabulary.

use rustc_hash::FxHashMap;
use serde_json::value::RawValue;

use super::characters::{Characters, FirstMerges};
use super::memo::{Key, Scratch};
use super::merges::Merges;
#[cfg(test)]
use super::merges::{Bench, Symbol};
use super::words::Vocabulary;
use crate::byte_chars::byte_chars;
use crate::file::ModelFile;

/// A model whose smallest tokens are the 256 bytes.
#[derive(Debug)]
pub(super) struct ByteLevel {
    bytes: Box<[u32; 256]>,
    characters: Characters,
    merges: Merges,
    vocabulary: Vocabulary,
}

impl ByteLevel {
    /// `None` where the model lacks a byte or has two tokens for one id.
    pub fn new(model: &RawValue, ignore_merges: bool) -> Option<Self> {
        let inverse: FxHashMap<char, u8> = byte_chars().into_iter().zip(0..=255).collect();
        let mut buffer = Vec::new();
        // Text never spells an entry with characters that stand for no byte.
        let mut to_bytes = |entry: &str| -> Option<Vec<u8>> {
            buffer.clear();
            for c in entry.chars() {
                buffer.push(*inverse.get(&c)?);
            }
            Some(buffer.clone())
        };
        let file = ModelFile::new(model).ok()?;
        let mut vocabulary = Vocabulary::new(file.vocab.len());
        for (entry, id) in &file.vocab {
            if let Some(bytes) = to_bytes(entry) {
                if !vocabulary.insert(&bytes, *id) {
                    return None;
                }
            }
        }
        vocabulary.finish();
        if ignore_merges {
            vocabulary.ignore_merges();
        }
        let mut merges = Merges::new(file.merges.len());
        let mut first_merges = FirstMerges::new(vocabulary.ids());
        for (rank, (left, right)) in file.merges.iter().enumerate() {
            let (Some(mut left), Some(right)) = (to_bytes(left), to_bytes(right)) else { continue };
            let pair = (vocabulary.id_of(&left)?, vocabulary.id_of(&right)?);
            let rank = u32::try_from(rank).ok()?;
            first_merges.note((pair.0, &left), (pair.1, &right), rank);
            left.extend_from_slice(&right);
            merges.insert(pair, rank, vocabulary.id_of(&left)?);
        }
        let mut bytes = Box::new([0; 256]);
        for (byte, id) in (0..=255).zip(bytes.iter_mut()) {
            *id = vocabulary.id_of(&[byte])?;
        }
        let characters = Characters::new(vocabulary.entries(), &bytes, &merges, &first_merges);
        Some(Self { bytes, characters, merges, vocabulary })
    }

    /// Writes the tokens of words that follow each other: the first from byte `start` on, each up to
    /// its end.
    pub fn encode(
        &self,
        text: &str,
        mut start: usize,
        ends: &[usize],
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
    ) {
        for &end in ends {
            let key = Key::of(text.as_bytes(), start, end);
            if !key.is_some_and(|key| scratch.write(key, ids)) {
                self.encode_new(&text[start..end], key, scratch, ids);
            }
            start = end;
        }
    }

    #[inline(never)]
    fn encode_new(&self, word: &str, key: Option<Key>, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        if let Some(known) = scratch.recall(key, word.as_bytes()) {
            return ids.extend_from_slice(known);
        }
        let from = ids.len();
        let bench = &mut scratch.bench;
        let tokens = self.vocabulary.tokens(&self.merges, word.as_bytes(), bench, |symbols| {
            self.characters.lay_out(word, &self.bytes, symbols);
        });
        ids.extend(tokens.iter().map(|token| token.id));
        scratch.remember(key, word.as_bytes(), &ids[from..]);
    }

    /// The text of every so many entries, where they are text.
    pub fn sample(&self) -> String {
        self.vocabulary.sample()
    }

    /// How many bytes a token stands for.
    pub fn len_of(&self, id: u32) -> usize {
        self.vocabulary.bytes_of(id).len()
    }
}

#[cfg(test)]
impl ByteLevel {
    /// The tokens of a word, merged from characters and from bytes.
    pub fn tokens_both_ways(&self, word: &str) -> (Vec<u32>, Vec<u32>) {
        let merged = |lay_out: &dyn Fn(&mut Vec<Symbol>)| {
            let mut bench = Bench::default();
            lay_out(&mut bench.symbols);
            self.merges.apply(&mut bench);
            bench.symbols.iter().map(|symbol| symbol.id).collect()
        };
        let of_byte = |(byte, end): (u8, usize)| Symbol { id: self.bytes[usize::from(byte)], end };
        (
            merged(&|symbols| self.characters.lay_out(word, &self.bytes, symbols)),
            merged(&|symbols| symbols.extend(word.bytes().zip(1..).map(of_byte))),
        )
    }

    /// Whether some character of the word is not laid out byte by byte.
    pub fn begins_with_a_character(&self, word: &str) -> bool {
        let mut symbols = Vec::new();
        self.characters.lay_out(word, &self.bytes, &mut symbols);
        symbols.len() < word.len()
    }
}
