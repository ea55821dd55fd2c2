//! The model of a file: that of `tokenizers`, or the parts from which it is made when it is needed.
//!
//! Most tokenizers never need the model of `tokenizers`, because a fast encoder writes their text.
//! Making it takes longer than everything else that loading does, and most of the memory.

use std::borrow::Cow;

use once_cell::race::OnceBox;
use tokenizers::Model as _;
use tokenizers::models::ModelWrapper;
use tokenizers::models::unigram::Unigram;

use super::bpe::Bpe;

/// A model, which writes words as tokens and has a text for each token.
pub(crate) struct Model {
    parts: Option<Box<Bpe>>,
    /// Threads that ask for it at the same time each make one, of which one stays: a lock would
    /// keep a forked process waiting for ever. Without parts it is here from the beginning.
    hf: OnceBox<ModelWrapper>,
}

impl Model {
    pub fn of_parts(bpe: Bpe) -> Self {
        Self { parts: Some(Box::new(bpe)), hf: OnceBox::new() }
    }

    /// As `tokenizers` has read it, with its parts where they are known.
    pub fn read(hf: ModelWrapper, bpe: Option<Bpe>) -> Self {
        Self { parts: bpe.map(Box::new), hf: OnceBox::with_value(Box::new(hf)) }
    }

    /// The parts of a BPE model, where they are known.
    pub fn parts(&self) -> Option<&Bpe> {
        self.parts.as_deref()
    }

    /// Keeps the model of `tokenizers` alone.
    pub fn forget_parts(&mut self) {
        self.hf();
        self.parts = None;
    }

    /// The model of `tokenizers`, made now unless it was made before.
    pub fn hf(&self) -> &ModelWrapper {
        self.hf.get_or_init(|| {
            let bpe = self.parts().expect("without parts it is here from the beginning");
            Box::new(ModelWrapper::BPE(bpe.whole()))
        })
    }

    /// True if the model of `tokenizers` has been made.
    #[cfg(test)]
    pub fn has_hf(&self) -> bool {
        self.hf.get().is_some()
    }

    /// One that writes `text`, as the model sees it, as this one does, and may not know other text;
    /// `None` where there is no smaller one.
    pub fn narrowed(&self, text: &str) -> Option<Self> {
        self.parts().map(|bpe| Self::read(ModelWrapper::BPE(bpe.narrowed(text)), None))
    }

    /// One that writes all text as this one does and leaves nothing behind; `None` where this one
    /// cannot be made again.
    pub fn uncached(&self) -> Option<Self> {
        self.parts().map(|bpe| Self::read(ModelWrapper::BPE(bpe.whole_uncached()), None))
    }

    /// Its type, as files name it.
    pub fn kind(&self) -> &'static str {
        match self.parts {
            Some(_) => "BPE",
            None => match self.hf() {
                ModelWrapper::BPE(_) => "BPE",
                ModelWrapper::WordPiece(_) => "WordPiece",
                ModelWrapper::WordLevel(_) => "WordLevel",
                ModelWrapper::Unigram(_) => "Unigram",
            },
        }
    }

    /// For a BPE model, true if a word that is an entry skips the merges; `None` for other models.
    pub fn ignores_merges(&self) -> Option<bool> {
        match (self.parts(), self.hf.get()) {
            (Some(bpe), _) => Some(bpe.ignore_merges),
            (None, Some(ModelWrapper::BPE(bpe))) => Some(bpe.ignore_merges),
            _ => None,
        }
    }

    /// A Unigram model; `None` of others.
    pub fn unigram(&self) -> Option<&Unigram> {
        match (self.parts(), self.hf.get()) {
            (None, Some(ModelWrapper::Unigram(unigram))) => Some(unigram),
            _ => None,
        }
    }

    /// The number of entries of its vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.parts().map_or_else(|| self.hf().get_vocab_size(), |bpe| bpe.entries.len())
    }

    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        match self.parts() {
            Some(bpe) => bpe.entries.id_of(token),
            None => self.hf().token_to_id(token),
        }
    }

    pub fn id_to_token(&self, id: u32) -> Option<Cow<'_, str>> {
        match self.parts() {
            Some(bpe) => bpe.entries.text_of(id).map(Cow::Borrowed),
            None => self.hf().id_to_token(id).map(Cow::Owned),
        }
    }

    /// All entries with their ids, in no certain order.
    pub fn entries(&self) -> Box<dyn Iterator<Item = (Cow<'_, str>, u32)> + '_> {
        if let Some(bpe) = self.parts() {
            return Box::new(bpe.entries.iter().map(|(text, id)| (Cow::Borrowed(text), id)));
        }
        Box::new(self.hf().get_vocab().into_iter().map(|(text, id)| (Cow::Owned(text), id)))
    }
}
