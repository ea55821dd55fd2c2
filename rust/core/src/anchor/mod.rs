//! Anchors: places where a text can be taken up again without what stands before it.
//!
//! Invariant: at an anchor `p` of a text `x`, for every text `y` that may follow and whatever stood
//! before `x`: the tokens before `p` are the same with and without `y`, and those from `p` on are
//! the tokens of `x[p..]·y` encoded with [`Edge::Interior`](crate::Edge::Interior). Whether a place
//! is an anchor depends on the characters around it alone, so it is found from either end of a text
//! without reading the rest.
//!
//! It holds because each stage of the pipeline comes apart there: no added token can reach over
//! it, the normalizer works on both sides apart, every pre-tokenizer goes on as on a new text, and
//! either one of them cuts there, or no piece of the vocabulary holds the two characters.

mod normal;
mod pattern;
mod pieces;
mod vocabulary;

use rustc_hash::FxHashSet;
use tokenizers::models::ModelWrapper;

use crate::tokenizer::{AddedToken, Loaded};
use normal::Normal;
use pieces::{Pieces, Place};
use vocabulary::Vocabulary;

/// What decides whether a place is an anchor.
#[derive(Debug)]
pub(crate) struct Anchors {
    raw: Reach,
    normal: Normal,
    normalized: Reach,
    pieces: Pieces,
    vocabulary: Option<Vocabulary>,
}

impl Anchors {
    /// `Err` names the stage that has no anchors.
    pub fn new(loaded: &Loaded, raw: Reach, normalized: Reach) -> Result<Self, String> {
        let normal = Normal::new(&loaded.normalizer)?;
        let pieces = Pieces::new(&loaded.pre_tokenizer)?;
        // The bytes of a byte-level vocabulary stand beside each other in nearly every way.
        let vocabulary = if pieces.are_bytes() {
            None
        } else {
            Vocabulary::new(&loaded.pipeline.model, &loaded.settings)
        };
        if vocabulary.is_none() && !pieces.can_cut() {
            return Err("no pre-tokenizer".to_owned());
        }
        Ok(Self { raw, normal, normalized, pieces, vocabulary })
    }

    /// The last anchor inside `text`, in bytes.
    pub fn last_in(&self, text: &str, model: &ModelWrapper) -> Option<usize> {
        let mut chars = text.char_indices().rev();
        let (mut at, mut right) = chars.next()?;
        let mut next = None;
        for (before, left) in chars {
            if self.holds(left, right, next, model) {
                return Some(at);
            }
            (at, right, next) = (before, left, Some(right));
        }
        None
    }

    /// The first anchor inside `text`, in bytes, and where the character after it ends.
    pub fn first_in(&self, text: &str, model: &ModelWrapper) -> Option<(usize, usize)> {
        let mut chars = text.char_indices().peekable();
        let (_, mut left) = chars.next()?;
        while let Some((at, right)) = chars.next() {
            let next = chars.peek().map(|(_, c)| *c);
            if self.holds(left, right, next, model) {
                return Some((at, at + right.len_utf8()));
            }
            left = right;
        }
        None
    }

    /// Whether text can be taken up again at byte `at`, but for what the model merges across it.
    pub fn can_restart(&self, text: &str, at: usize) -> bool {
        let mut after = text[at..].chars();
        let (left, right) = (text[..at].chars().next_back(), after.next());
        left.zip(right).is_some_and(|(l, r)| self.place(l, r, after.next()).is_some())
    }

    /// Whether two tokens that the model does not merge when they meet are sure to stay.
    pub fn certify(&self) -> bool {
        self.vocabulary.as_ref().is_some_and(Vocabulary::merges)
    }

    /// What happens at a place where every stage before the model comes apart.
    fn place(&self, left: char, right: char, next: Option<char>) -> Option<Place> {
        if !self.raw.parts(left, right) {
            return None;
        }
        let begins = self.raw.begins(right, next);
        let after = self.normal.after(right, next);
        let (left, right) = self.normal.around(left, right, next)?;
        if !self.normalized.parts(left, right) {
            return None;
        }
        let may_end = begins || self.normalized.begins(right, after);
        self.pieces.between(left, right, may_end)
    }

    fn holds(&self, left: char, right: char, next: Option<char>, model: &ModelWrapper) -> bool {
        let Some(place) = self.place(left, right, next) else { return false };
        let parted = |vocabulary: &Vocabulary| vocabulary.parts(model, place.left, place.right);
        place.cut || self.vocabulary.as_ref().is_some_and(parted)
    }
}

/// The characters at which added tokens could reach over a place, end at it or begin at it.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    pairs: FxHashSet<(char, char)>,
    ends: FxHashSet<char>,
    begins: FxHashSet<char>,
    /// What tokens begin with, where they are longer than one character.
    openings: FxHashSet<(char, char)>,
    singles: FxHashSet<char>,
    /// What tokens begin with that stand only between characters that are no words.
    single_words: FxHashSet<char>,
    strips: bool,
}

impl Reach {
    /// For tokens that match as `patterns`.
    pub fn new(tokens: &[AddedToken], patterns: &[String]) -> Self {
        let mut reach = Self::default();
        for (token, pattern) in tokens.iter().zip(patterns) {
            let mut chars = pattern.chars();
            let Some(first) = chars.next() else { continue };
            reach.begins.insert(first);
            match chars.next() {
                Some(second) => reach.openings.insert((first, second)),
                None => reach.singles.insert(first),
            };
            reach.pairs.extend(pattern.chars().zip(pattern.chars().skip(1)));
            reach.ends.extend(pattern.chars().next_back());
            if token.single_word {
                reach.single_words.insert(first);
            }
            reach.strips |= token.lstrip || token.rstrip;
        }
        reach
    }

    /// Whether no token reaches over the place between the two, or ends there.
    fn parts(&self, left: char, right: char) -> bool {
        let reached = self.pairs.contains(&(left, right));
        let ended = self.ends.contains(&left) || (self.strips && left.is_whitespace());
        !(reached || ended || self.single_words.contains(&right))
    }

    /// Whether a token begins before `right`, or may do so when more follows than `next`.
    fn begins(&self, right: char, next: Option<char>) -> bool {
        self.singles.contains(&right)
            || next
                .map_or(self.begins.contains(&right), |next| self.openings.contains(&(right, next)))
    }
}
