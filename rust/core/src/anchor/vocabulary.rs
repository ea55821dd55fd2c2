//! The pairs of characters that no piece of a vocabulary holds side by side.
//!
//! Invariant: where [`Vocabulary::parts`] is true no token of the model crosses the two, and the
//! tokens of each side are those that it has alone.

use std::borrow::Cow;

use once_cell::race::OnceBox;
use rustc_hash::FxHashSet;

use crate::file::{Model, ModelSettings};

/// The pairs that stand side by side somewhere in the vocabulary.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    /// Made when first asked for: it takes a pass over the vocabulary, and a tokenizer that only
    /// encodes never needs it.
    table: OnceBox<Option<Table>>,
    /// True if tokens are made by merges.
    merges: bool,
    /// The text of the token for characters that the model does not have. Several in a row may become
    /// one token.
    unk: Option<String>,
    /// True if characters that the vocabulary lacks may become bytes.
    byte_fallback: bool,
}

#[derive(Debug)]
struct Table {
    pairs: FxHashSet<(char, char)>,
    singles: FxHashSet<char>,
    all_bytes: bool,
}

impl Vocabulary {
    /// `None` where a token depends on more than its own text: whole words that skip the merges,
    /// marks at the edges of words, scores whose sums are rounded.
    pub fn new(model: &Model, settings: &ModelSettings) -> Option<Self> {
        let marked = |mark: &Option<String>| mark.as_ref().is_some_and(|mark| !mark.is_empty());
        let ignores_merges = model.ignores_merges();
        let sound = match (ignores_merges, model.unigram()) {
            (Some(ignores_merges), _) => {
                !ignores_merges
                    && !marked(&settings.continuing_subword_prefix)
                    && !marked(&settings.end_of_word_suffix)
            }
            (None, Some(unigram)) => unigram.iter().all(|(_, score)| sums_exactly(*score)),
            (None, None) => false,
        };
        sound.then(|| Self {
            table: OnceBox::new(),
            merges: ignores_merges.is_some(),
            unk: unk_piece(model, settings),
            byte_fallback: settings.byte_fallback,
        })
    }

    /// True if tokens are made by merges.
    pub fn merges(&self) -> bool {
        self.merges
    }

    /// True if no token can hold both characters side by side.
    pub fn parts(&self, model: &Model, left: char, right: char) -> bool {
        let table = self.table.get_or_init(|| Box::new(Table::new(model)));
        let Some(table) = table else { return false };
        !table.pairs.contains(&(left, right)) && self.knows(table, left) && self.knows(table, right)
    }

    /// True if the model has the character, or bytes for it. Unknown neighbours may be fused to one
    /// token, and the unknown token may take part in merges, so an unknown character is no anchor.
    fn knows(&self, table: &Table, c: char) -> bool {
        (self.byte_fallback && table.all_bytes)
            || (table.singles.contains(&c) && !self.unk.as_ref().is_some_and(|unk| unk.contains(c)))
    }
}

impl Table {
    /// `None` where byte tokens take part in merges: then two characters without a token of their own
    /// may merge by their bytes.
    fn new(model: &Model) -> Option<Self> {
        let mut table = Self {
            pairs: FxHashSet::default(),
            singles: FxHashSet::default(),
            all_bytes: (0..=255u8)
                .all(|byte| model.token_to_id(&format!("<0x{byte:02X}>")).is_some()),
        };
        for (piece, _) in model.entries() {
            // A byte token alone, `<0x0A>`, has six bytes.
            if piece.len() > 6 && holds_byte(&piece) {
                return None;
            }
            let mut chars = piece.chars();
            let Some(mut left) = chars.next() else { continue };
            if piece.len() == left.len_utf8() {
                table.singles.insert(left);
            }
            for right in chars {
                table.pairs.insert((left, right));
                left = right;
            }
        }
        Some(table)
    }
}

fn holds_byte(piece: &str) -> bool {
    piece.match_indices("<0x").any(|(at, _)| {
        let rest = &piece.as_bytes()[at + 3..];
        rest.len() >= 3 && rest[..2].iter().all(u8::is_ascii_hexdigit) && rest[2] == b'>'
    })
}

/// The text of the unknown token.
fn unk_piece(model: &Model, settings: &ModelSettings) -> Option<String> {
    let by_id = || settings.unk_id.and_then(|id| model.id_to_token(id).map(Cow::into_owned));
    settings.unk_token.clone().or_else(by_id)
}

/// True if sums of very many such scores are exact in any order, so that the score of a path does not
/// depend on the text before it. The scores of a SentencePiece model are `f32`, but some come out one
/// bit off when they are read from a file. Such a model has anchors at its words only.
fn sums_exactly(score: f64) -> bool {
    const STEPS: f64 = 67_108_864.0; // 2^26 in one
    score.abs() < 4096.0 && (score * STEPS).fract().abs() < f64::MIN_POSITIVE
}
