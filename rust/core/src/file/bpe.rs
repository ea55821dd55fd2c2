//! A BPE model by its parts, from which the one of `tokenizers` is made where it is needed.
//!
//! Invariant: **[`Bpe::whole`] is the model that `tokenizers` reads from the same file.** Both halves of
//! each merge and the token that they become are entries, which is all that `tokenizers` asks of them.

use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab as HfVocab};

use super::entries::Entries;
use super::model_file::{BpeFile, ModelFile, Vocab, WrittenMerges};
use crate::hashing::spread;

/// Entries, merges and settings.
#[derive(Debug)]
pub(crate) struct Bpe {
    pub entries: Entries,
    /// By rank. A later merge of the same pair counts, and not an earlier one.
    pub merges: Vec<MergeRule>,
    pub unk_token: Option<String>,
    pub end_of_word_suffix: Option<String>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

/// The ids of two tokens that merge, and of the token that they become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeRule {
    pub left: u32,
    pub right: u32,
    pub whole: u32,
}

impl Bpe {
    /// `None` where something in it is out of the ordinary: how `tokenizers` reads it then, or why it
    /// does not, only it can say.
    pub(super) fn new(file: &BpeFile<'_>) -> Option<Self> {
        // Chance is refused with its name, and a dropout below zero by `tokenizers`.
        if file.dropout.is_some_and(|dropout| dropout != 0.0) {
            return None;
        }
        let is_marked = file.continuing_subword_prefix.as_ref().is_some_and(|p| !p.is_empty());
        let (entries, merges) = parts(&file.vocab, &file.merges).filter(|_| !is_marked)?;
        Some(Self {
            entries,
            merges,
            unk_token: file.unk_token.clone(),
            end_of_word_suffix: file.end_of_word_suffix.clone(),
            fuse_unk: file.fuse_unk,
            byte_fallback: file.byte_fallback,
            ignore_merges: file.ignore_merges,
        })
    }

    /// The parts of a model that `tokenizers` has read, and does not hand out.
    pub(super) fn of(read: &BPE, file: &ModelFile<'_>) -> Option<Self> {
        let is_marked = read.continuing_subword_prefix.as_ref().is_some_and(|p| !p.is_empty());
        let (entries, merges) = parts(&file.vocab, &file.merges).filter(|_| !is_marked)?;
        Some(Self {
            entries,
            merges,
            unk_token: read.unk_token.clone(),
            end_of_word_suffix: read.end_of_word_suffix.clone(),
            fuse_unk: read.fuse_unk,
            byte_fallback: read.byte_fallback,
            ignore_merges: read.ignore_merges,
        })
    }

    /// The model of `tokenizers`.
    pub fn whole(&self) -> BPE {
        built(self.with_entries(|_| true))
    }

    /// The model of `tokenizers` to compare with: without a cache, because `tokenizers` keeps the
    /// words that a model has written until the thread ends, also when the model is gone. That was
    /// 100 kB for every tokenizer loaded.
    pub fn whole_uncached(&self) -> BPE {
        built(self.with_entries(|_| true).cache_capacity(0))
    }

    /// [`Self::whole_uncached`] without entries that no part of `text` spells. It writes each part of
    /// `text` as the whole model does, because every token that merges there spells a part of `text`.
    /// Unknown tokens and bytes do not, so they are kept with all entries that hold them. Only where
    /// the model drops characters, because it has neither them nor a substitute, other characters may
    /// meet. Of 150,000 entries a page of text spells some thousands.
    pub fn narrowed(&self, text: &str) -> BPE {
        let runs = Runs::of(text);
        let unknown = self.unk_token.as_deref();
        let builder = self.with_entries(|entry| {
            runs.may_hold(entry)
                || (self.byte_fallback && entry.contains("<0x"))
                || unknown.is_some_and(|unknown| entry.contains(unknown))
        });
        built(builder.cache_capacity(0))
    }

    fn with_entries(&self, keep: impl Fn(&str) -> bool) -> BpeBuilder {
        let kept = self.entries.iter().filter(|(text, _)| keep(text));
        let vocab: HfVocab = kept.map(|(text, id)| (text.to_owned(), id)).collect();
        let text = |id: u32| self.entries.text_of(id).expect("merges are of entries");
        // Whose halves are kept need not be kept itself.
        let is_kept = |merge: &&MergeRule| {
            [merge.whole, merge.left, merge.right].iter().all(|id| vocab.contains_key(text(*id)))
        };
        let merges = self.merges.iter().filter(is_kept);
        let merges =
            merges.map(|merge| (text(merge.left).to_owned(), text(merge.right).to_owned()));
        let merges = merges.collect();
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(vocab, merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(token) = &self.unk_token {
            builder = builder.unk_token(token.clone());
        }
        if let Some(suffix) = &self.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix.clone());
        }
        builder
    }
}

fn built(builder: BpeBuilder) -> BPE {
    builder.build().expect("merges are of entries")
}

/// `None` where an entry stands twice or a merge is of something that is no entry.
fn parts(vocab: &Vocab<'_>, merges: &WrittenMerges<'_>) -> Option<(Entries, Vec<MergeRule>)> {
    let entries = Entries::new(&vocab.0)?;
    let mut found: Vec<MergeRule> = Vec::with_capacity(merges.0.len());
    let mut joined = String::new();
    for (left, right) in &merges.0 {
        // In most vocabularies the results of merges have ids in the order of the merges.
        let next = found.last().map_or(0, |merge| merge.whole.wrapping_add(1));
        let whole = match entries.text_of(next) {
            Some(text) if is_joined(text, left, right) => next,
            _ => {
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                entries.id_of(&joined)?
            }
        };
        found.push(MergeRule { left: entries.id_of(left)?, right: entries.id_of(right)?, whole });
    }
    Some((entries, found))
}

fn is_joined(whole: &str, left: &str, right: &str) -> bool {
    whole.len() == left.len() + right.len() && whole.starts_with(left) && whole.ends_with(right)
}

/// The runs of four bytes of a text, by their hashes.
struct Runs(Box<[u64]>);

impl Runs {
    const LEN: usize = 4;
    const BITS: u32 = 16;

    fn of(text: &str) -> Self {
        let mut runs = Self(vec![0; 1 << (Self::BITS - u64::BITS.ilog2())].into_boxed_slice());
        for run in text.as_bytes().windows(Self::LEN) {
            let (word, bit) = Self::bit_of(run);
            runs.0[word] |= bit;
        }
        runs
    }

    /// True if the text may hold an entry: each run of the entry is also one of the text.
    fn may_hold(&self, entry: &str) -> bool {
        entry.as_bytes().windows(Self::LEN).all(|run| {
            let (word, bit) = Self::bit_of(run);
            self.0[word] & bit != 0
        })
    }

    fn bit_of(run: &[u8]) -> (usize, u64) {
        let run = u32::from_le_bytes(run.try_into().expect("four bytes"));
        let hash = spread(run.into()) >> (u64::BITS - Self::BITS);
        let word = usize::try_from(hash / u64::from(u64::BITS)).expect("ten bits");
        (word, 1 << (hash % u64::from(u64::BITS)))
    }
}

#[cfg(test)]
mod tests;
