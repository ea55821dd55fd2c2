//! Ids and the bytes, text and added tokens that they stand for.

use super::Tokenizer;
use super::bytes::{bytes_by_id, is_own};
use crate::by_bytes::BytesById;
use crate::error::{Error, Result};
use crate::parts::{Joined, Part};

impl Tokenizer {
    /// The bytes of the ids, by table.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for an id outside the vocabulary.
    pub fn decode_bytes(&self, ids: &[u32]) -> Result<Vec<u8>> {
        self.byte_table().joined(ids).map_err(|position| self.unknown_id(ids, position))
    }

    fn unknown_id(&self, ids: &[u32], position: usize) -> Error {
        Error::UnknownId { position, id: ids[position].into(), vocab_size: self.vocab_size }
    }

    /// Refuses ids that the tokenizer does not have.
    ///
    /// # Errors
    /// [`Error::UnknownId`] for the first one.
    pub fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let table = self.byte_table();
        match ids.iter().position(|&id| table.get(id).is_none()) {
            None => Ok(()),
            Some(position) => Err(self.unknown_id(ids, position)),
        }
    }

    /// The id of a token by its text: an added token or an entry of the vocabulary.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.added
            .iter()
            .find(|added| added.content == token)
            .map(|added| added.id)
            .or_else(|| self.pipeline.model.token_to_id(token))
    }

    /// The text of ids: added tokens are scaffold, all else is content. A sample can end inside a UTF-8
    /// character, and bytes that are not whole characters have no text. So the result is the text
    /// before the first such bytes, or with `suffix` the text after the last; `None` where that is
    /// empty.
    pub(crate) fn parts_of_ids(
        &self,
        ids: &[u32],
        suffix: bool,
    ) -> Result<Option<Joined<'static>>> {
        let mut runs: Vec<&[u32]> =
            ids.chunk_by(|a, b| self.is_added(*a) == self.is_added(*b)).collect();
        if suffix {
            runs.reverse();
        }
        let mut parts = Vec::with_capacity(runs.len());
        for run in runs {
            let bytes = self.decode_bytes(run)?;
            let text = if suffix { valid_suffix(&bytes) } else { valid_prefix(&bytes) };
            let whole = text.len() == bytes.len();
            parts.push((self.is_added(run[0]), text.to_owned()));
            if !whole {
                break;
            }
        }
        if suffix {
            parts.reverse();
        }
        let joined =
            Joined::new(parts.iter().map(|(added, text)| {
                if *added { Part::scaffold(text) } else { Part::content(text) }
            }));
        Ok((!joined.text.is_empty()).then(|| joined.into_owned()))
    }

    /// True if the id is that of an added token, and of nothing else.
    pub(super) fn is_added(&self, id: u32) -> bool {
        let found = self.added.binary_search_by_key(&id, |token| token.id);
        found.is_ok_and(|index| !is_own(&self.added[index], &self.pipeline.model))
    }

    /// Made when first asked for: a tokenizer that only encodes needs none.
    fn byte_table(&self) -> &BytesById {
        self.bytes.get_or_init(|| {
            Box::new(bytes_by_id(&self.spelling, &self.pipeline.model, &self.added))
        })
    }
}

/// The longest run of whole characters at the start.
fn valid_prefix(bytes: &[u8]) -> &str {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// The longest run of whole characters at the end.
fn valid_suffix(bytes: &[u8]) -> &str {
    let last = bytes.utf8_chunks().last().filter(|chunk| chunk.invalid().is_empty());
    last.map_or("", |chunk| chunk.valid())
}
