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
mod program;
mod vocabulary;
mod walk;
mod word;

use rustc_hash::FxHashSet;

use crate::file::{AddedToken, Loaded, Model};
use normal::Normal;
use pieces::{Pieces, Place};
use vocabulary::Vocabulary;
pub(crate) use walk::Walk;
pub(crate) use word::{Restart, Words};

/// What decides whether a place is an anchor.
#[derive(Debug)]
pub(crate) struct Anchors {
    raw: Reach,
    normal: Normal,
    normalized: Reach,
    pieces: Pieces,
    vocabulary: Option<Vocabulary>,
    words: Option<Words>,
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
            Vocabulary::new(&loaded.model, &loaded.settings)
        };
        if vocabulary.is_none() && !pieces.can_cut() {
            let words = "no pre-tokenizer that cuts, and a model without anchors inside a word";
            return Err(words.to_owned());
        }
        let words = Words::new(loaded, &pieces);
        Ok(Self { raw, normal, normalized, pieces, vocabulary, words })
    }

    /// The last anchor inside `text`, in bytes.
    pub fn last_in(&self, text: &str, model: &Model) -> Option<usize> {
        let places = text.char_indices().rev().map(|(at, _)| at);
        places.take_while(|at| *at > 0).find(|at| self.holds(text, *at, model))
    }

    /// The first anchor inside `text`, in bytes, and where the character after it ends.
    pub fn first_in(&self, text: &str, model: &Model) -> Option<(usize, usize)> {
        let places = text.char_indices().skip(1);
        let mut anchors = places.filter(|(at, _)| self.holds(text, *at, model));
        anchors.next().map(|(at, c)| (at, at + c.len_utf8()))
    }

    /// Whether text can be taken up again at byte `at`, which no added token touches, but for what
    /// the model merges across it.
    pub fn can_restart(&self, text: &str, at: usize) -> bool {
        // One further on may swallow the whitespace on the left.
        let swallows = |left: char| self.raw.strips && left.is_whitespace();
        !text[..at].chars().next_back().is_none_or(swallows)
            && self.untouched_place(text, at).is_some()
    }

    /// Whether two tokens that the model does not merge when they meet are sure to stay.
    pub fn certify(&self) -> bool {
        self.vocabulary.as_ref().is_some_and(Vocabulary::merges)
    }

    /// What is known of places inside a word.
    pub fn words(&self) -> Option<&Words> {
        self.words.as_ref()
    }

    /// Whether the normalizer works on both sides of byte `at` apart, whatever follows.
    pub fn part_normalized(&self, text: &str, at: usize) -> bool {
        let (before, mut after) = (&text[..at], text[at..].chars());
        after.next().is_some_and(|right| {
            self.normal.around(before, right, after.next(), |c| self.raw.ends(c)).is_some()
        })
    }

    /// What happens at a place where every stage before the model comes apart.
    fn place(&self, text: &str, at: usize) -> Option<Place> {
        let (left, right) = (text[..at].chars().next_back()?, text[at..].chars().next()?);
        if self.raw.parts(left, right) { self.untouched_place(text, at) } else { None }
    }

    /// The same where no added token reaches over the place or ends at it.
    fn untouched_place(&self, text: &str, at: usize) -> Option<Place> {
        let (before, mut after) = (&text[..at], text[at..].chars());
        let (right, next) = (after.next()?, after.next());
        let begins = self.raw.begins(right, next);
        let after = self.normal.after(right, next);
        let (left, right) = self.normal.around(before, right, next, |c| self.raw.ends(c))?;
        if !self.normalized.parts(left, right) {
            return None;
        }
        // What looks ahead sees the end of its segment before an added token.
        let may_end = begins || self.normalized.begins(right, after);
        self.pieces.between(left, right, may_end)
    }

    fn holds(&self, text: &str, at: usize, model: &Model) -> bool {
        let Some(place) = self.place(text, at) else { return false };
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
        !(reached || self.ends(left) || self.single_words.contains(&right))
    }

    /// Whether a token may end with this character, or swallow it at its end.
    fn ends(&self, c: char) -> bool {
        self.ends.contains(&c) || (self.strips && c.is_whitespace())
    }

    /// Whether a token begins before `right`, or may do so when more follows than `next`.
    fn begins(&self, right: char, next: Option<char>) -> bool {
        self.singles.contains(&right)
            || next
                .map_or(self.begins.contains(&right), |next| self.openings.contains(&(right, next)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::{Overrides, Tokenizer};

    /// A tokenizer that normalizes and splits, with a token for nothing.
    fn tokenizer(pattern: &str) -> Tokenizer {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
            "invert": false});
        let json = json!({"version": "1.0", "normalizer": {"type": "NFC"}, "pre_tokenizer": split,
            "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}});
        Tokenizer::from_json(&json.to_string(), &Overrides::default()).expect("a tokenizer")
    }

    #[test]
    fn running_text_has_an_anchor_at_its_last_word() {
        let patterns = [
            // Qwen2
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            // DeepSeek V3: `*+` in a class is no quantifier
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
            // cl100k as tiktoken writes it, with possessive quantifiers
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s",
        ];
        let texts = [
            "the quick brown fox jumps over it",
            "foo(bar)\n    return x1[2]",
            "कल वे घर आए थे। और",
            "Բարև աշխարհ և խաղաղություն",
            "🤖 🧠 🥳",
            "안녕하세요 세계",
            "cafe\u{301} noir",
        ];
        for pattern in patterns {
            let tokenizer = tokenizer(pattern);
            for text in texts {
                let anchor = tokenizer.last_anchor(text);
                let last_word = text.rfind(' ').expect("there are words");
                assert!(anchor >= Some(last_word), "{pattern} {text:?} {anchor:?}");
            }
        }
    }

    #[test]
    fn a_pattern_that_could_leave_nothing_is_not_sure_to_match() {
        // `1?+` takes the digit that `[12]` needs, so a "1" alone is no match; a "2" always is.
        assert_eq!(tokenizer("1?+[12]").last_anchor("c1"), None);
        assert_eq!(tokenizer("1?+2").last_anchor("c2"), Some(1));
    }
}
