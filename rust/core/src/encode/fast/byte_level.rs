//! Byte-pair encoding over bytes: GPT-2's way of writing a vocabulary.

use std::ops::Range;

use super::characters::{Characters, FirstMerges};
use super::memo::Scratch;
use super::merges::{Merges, Symbol, Workspace};
use crate::by_bytes::{Filter, Key, MOST_BYTES, Word, Words};
use crate::byte_chars::CharToByte;
use crate::file::Bpe;

/// A model whose smallest tokens are the 256 bytes.
#[derive(Debug)]
pub(super) struct ByteLevel {
    bytes: Box<[u32; 256]>,
    characters: Characters,
    merges: Merges,
    entries: Words,
    /// With `ignore_merges`, where a word that is an entry is one token whatever the merges would make
    /// of it: rules out most words that are not entries. To wait for the table of entries was a tenth
    /// of the time that new code takes.
    whole: Option<Filter>,
    /// Words that are one token, those of the first merges in front, which text most likely has.
    known: Vec<u32>,
}

/// The most words that are known before any text is encoded, a quarter of the words remembered.
const MOST_KNOWN: usize = 1 << 15;

impl ByteLevel {
    /// `None` where the model lacks a byte.
    pub fn new(bpe: &Bpe) -> Option<Self> {
        let mut entries = Words::new(bpe.entries.len());
        let chars = CharToByte::new();
        let mut bytes = Vec::new();
        for (entry, id) in bpe.entries.iter() {
            // Text never spells an entry with a character that stands for no byte.
            let is_spelled = write_bytes(&chars, entry, &mut bytes);
            if is_spelled && (bytes.is_empty() || !entries.insert(&bytes, id)) {
                return None;
            }
        }
        entries.finish();
        let mut bytes = Box::new([0; 256]);
        for (byte, id) in (0..=255).zip(bytes.iter_mut()) {
            *id = entries.id_of(Word::new(&[byte]))?;
        }
        let lowest = *bytes.iter().min().expect("256");
        let mut merges = Merges::new(bpe.merges.len(), lowest);
        let mut first_merges = FirstMerges::new(entries.ids());
        for (rank, merge) in (0..).zip(&bpe.merges) {
            let spelled = |id: u32| Some((id, entries.bytes_of(id)?));
            let (Some(left), Some(right)) = (spelled(merge.left), spelled(merge.right)) else {
                continue;
            };
            first_merges.note(left, right, rank);
            merges.insert((merge.left, merge.right), rank, merge.whole);
        }
        let characters = Characters::new(entries.iter(), &bytes, &merges, &first_merges);
        let whole = bpe.ignore_merges.then(|| entries.filter());
        let known = Vec::new();
        let mut model = Self { bytes, characters, merges, entries, whole, known };
        model.known = model.known_words(bpe);
        Some(model)
    }

    /// The entries that are one token if they are a word. Merges may make several tokens of an entry.
    fn known_words(&self, bpe: &Bpe) -> Vec<u32> {
        let mut workspace = Workspace::default();
        let is_one_token = |&id: &u32| {
            let Some(word) = self.entries.bytes_of(id) else { return false };
            word.len() <= MOST_BYTES
                && std::str::from_utf8(word).is_ok_and(|word| {
                    self.whole.is_some()
                        || self.merged(word, &mut workspace).iter().map(|token| token.id).eq([id])
                })
        };
        bpe.merges.iter().map(|merge| merge.whole).take(MOST_KNOWN).filter(is_one_token).collect()
    }

    /// The memory of a new thread. It knows some words before the thread has met any text.
    pub fn scratch(&self) -> Scratch {
        let mut scratch = Scratch::new();
        for &id in self.known.iter().rev() {
            let word = self.entries.bytes_of(id).expect("a word");
            scratch.remember(Key::of(word, 0, word.len()), word, &[id]);
        }
        scratch
    }

    /// The tokens of a word, left in the workspace.
    fn merged<'workspace>(
        &self,
        word: &str,
        workspace: &'workspace mut Workspace,
    ) -> &'workspace [Symbol] {
        self.merges.tokens(workspace, |symbols| self.characters.lay_out(word, &self.bytes, symbols))
    }

    /// True if the model leaves two tokens of one word as they are when they meet; `None` where text
    /// never spells one of them.
    pub fn stay_apart(&self, left: u32, right: u32, workspace: &mut Workspace) -> Option<bool> {
        let word = [self.entries.bytes_of(left)?, self.entries.bytes_of(right)?].concat();
        if self.one_token(Word::new(&word)).is_some() {
            return Some(false);
        }
        let ids = word.iter().map(|&byte| self.bytes[usize::from(byte)]);
        let symbols = ids.zip(1..).map(|(id, end)| Symbol { id, end });
        let merged = self.merges.tokens(workspace, |workspace| workspace.extend(symbols));
        Some(merged.iter().map(|token| token.id).eq([left, right]))
    }

    /// The token of a word that is never merged.
    fn one_token(&self, word: Word<'_>) -> Option<u32> {
        self.whole
            .as_ref()
            .filter(|whole| whole.may_have(word))
            .and_then(|_| self.entries.id_of(word))
    }

    /// Writes the tokens of words that follow each other: the first from byte `start` on, each up to
    /// its end. Calls `written` with each word and its tokens.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "so that a `written` that does nothing costs nothing")]
    pub fn encode_words(
        &self,
        text: &str,
        start: usize,
        ends: &[usize],
        scratch: &mut Scratch,
        ids: &mut Vec<u32>,
        written: impl FnMut(Range<usize>, &[u32]),
    ) {
        let encode =
            |word: &str, key: Option<Key>, workspace: &mut Workspace, ids: &mut Vec<u32>| {
                if let Some(id) = self.one_token(Word::with_key(word.as_bytes(), key)) {
                    return ids.push(id);
                }
                ids.extend(self.merged(word, workspace).iter().map(|token| token.id));
            };
        scratch.write_all(text, start, ends, ids, encode, written);
    }

    /// The text of every so many entries, where they are text.
    pub fn sample(&self) -> String {
        self.entries.sample()
    }

    /// The number of bytes that a token stands for.
    pub fn len_of(&self, id: u32) -> usize {
        self.entries.bytes_of(id).expect("a token that was written").len()
    }
}

/// Writes the bytes of an entry. Returns `false` if a character stands for no byte.
fn write_bytes(chars: &CharToByte, entry: &str, bytes: &mut Vec<u8>) -> bool {
    bytes.clear();
    entry.chars().all(|c| {
        let byte = chars.byte(c);
        bytes.extend(byte);
        byte.is_some()
    })
}

#[cfg(test)]
impl ByteLevel {
    /// The tokens of a word, as they are written and merged from bytes.
    pub fn tokens_both_ways(&self, word: &str, scratch: &mut Scratch) -> (Vec<u32>, Vec<u32>) {
        let mut written = Vec::new();
        self.encode_words(word, 0, &[word.len()], scratch, &mut written, |_, _| ());
        let of_byte = |(byte, end): (u8, usize)| Symbol { id: self.bytes[usize::from(byte)], end };
        let lay_out =
            |symbols: &mut Vec<Symbol>| symbols.extend(word.bytes().zip(1..).map(of_byte));
        let merged = self.merges.tokens(&mut scratch.workspace, lay_out);
        (written, merged.iter().map(|token| token.id).collect())
    }

    /// True if some entry, taken as a word, is several tokens.
    pub fn has_words_of_more_tokens(&self) -> bool {
        self.known.len() + self.bytes.len() < self.entries.len()
    }

    /// True if some character of the word is not laid out byte by byte.
    pub fn begins_with_a_character(&self, word: &str) -> bool {
        let mut symbols = Vec::new();
        self.characters.lay_out(word, &self.bytes, &mut symbols);
        symbols.len() < word.len()
    }
}
