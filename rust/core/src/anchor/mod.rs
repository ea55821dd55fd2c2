//! Anchors: offsets at which a text can be encoded again without the text before them.
//!
//! Invariant: at an anchor `p` of a text `x`, for every text `y` that may follow and whatever stood
//! before `x`: the tokens before `p` are the same with and without `y`, and those from `p` on are
//! the tokens of `x[p..]·y` encoded with [`Edge::Interior`](crate::Edge::Interior). Only the
//! characters around an offset decide whether it is an anchor, so the search can begin at either end
//! of a text and need not read the rest.
//!
//! An anchor needs all four of these rules. A test shows each of them:
//!
//! 1. No added token can reach over the offset, end at it, or swallow whitespace at it.
//! 2. The normalizer works on both sides separately.
//! 3. Every pre-tokenizer goes on from there as on a new text.
//! 4. Either a pre-tokenizer cuts there, or no piece of the vocabulary holds the two characters side
//!    by side.

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
use pieces::{Junction, Pieces};
use vocabulary::Vocabulary;
pub(crate) use walk::Walk;
pub(crate) use word::{Restart, WordRestarts};

/// The rules that decide whether an offset is an anchor, one field for each stage of the pipeline.
#[derive(Debug)]
pub(crate) struct Anchors {
    /// Added tokens that match the text as it is written.
    raw: Reach,
    normal: Normal,
    /// Added tokens that match the normalized text.
    normalized: Reach,
    pieces: Pieces,
    /// `None` where only a cut of the pre-tokenizer makes an anchor.
    vocabulary: Option<Vocabulary>,
    word_restarts: Option<WordRestarts>,
}

impl Anchors {
    /// `Err` names the stage that has no anchors.
    pub fn new(loaded: &Loaded, raw: Reach, normalized: Reach) -> Result<Self, String> {
        let normal = Normal::new(&loaded.normalizer)?;
        let pieces = Pieces::new(&loaded.pre_tokenizer)?;
        // A byte-level vocabulary holds nearly every pair of bytes side by side, so the table of pairs
        // would find almost no anchor and only cost the time to build it.
        let vocabulary = if pieces.are_bytes() {
            None
        } else {
            Vocabulary::new(&loaded.model, &loaded.settings)
        };
        if vocabulary.is_none() && !pieces.can_cut() {
            let reason = "no pre-tokenizer that cuts, and a model without anchors inside a word";
            return Err(reason.to_owned());
        }
        let word_restarts = WordRestarts::new(loaded, &pieces);
        Ok(Self { raw, normal, normalized, pieces, vocabulary, word_restarts })
    }

    /// The last anchor inside `text`, in bytes.
    pub fn last_in(&self, text: &str, model: &Model) -> Option<usize> {
        let offsets = text.char_indices().rev().map(|(at, _)| at);
        offsets.take_while(|at| *at > 0).find(|at| self.holds(text, *at, model))
    }

    /// The first anchor inside `text`, in bytes, and where the character after it ends.
    pub fn first_in(&self, text: &str, model: &Model) -> Option<(usize, usize)> {
        let offsets = text.char_indices().skip(1);
        let mut anchors = offsets.filter(|(at, _)| self.holds(text, *at, model));
        anchors.next().map(|(at, c)| (at, at + c.len_utf8()))
    }

    /// True if every stage before the model allows encoding to restart at byte `at`, which no added
    /// token touches. The caller still has to rule out that the model merges across `at`.
    pub fn can_restart(&self, text: &str, at: usize) -> bool {
        // An added token that comes later may swallow the whitespace on the left.
        let swallows = |left: char| self.raw.strips && left.is_whitespace();
        !text[..at].chars().next_back().is_none_or(swallows)
            && self.untouched_junction(text, at).is_some()
    }

    /// True if two tokens that the model does not merge when they meet are sure to stay.
    pub fn certify(&self) -> bool {
        self.vocabulary.as_ref().is_some_and(Vocabulary::merges)
    }

    /// The rules for restarting inside a word; `None` where no such restart is safe.
    pub fn word_restarts(&self) -> Option<&WordRestarts> {
        self.word_restarts.as_ref()
    }

    /// True if the normalizer works on both sides of byte `at` separately, whatever follows.
    pub fn part_normalized(&self, text: &str, at: usize) -> bool {
        let (before, mut after) = (&text[..at], text[at..].chars());
        after.next().is_some_and(|right| {
            self.normal.around(before, right, after.next(), |c| self.raw.ends(c)).is_some()
        })
    }

    /// The characters that meet at byte `at`, if every stage before the model treats both sides
    /// separately.
    fn junction(&self, text: &str, at: usize) -> Option<Junction> {
        let (left, right) = (text[..at].chars().next_back()?, text[at..].chars().next()?);
        if self.raw.parts(left, right) { self.untouched_junction(text, at) } else { None }
    }

    /// As [`Self::junction`], for an offset that no added token reaches over or ends at.
    fn untouched_junction(&self, text: &str, at: usize) -> Option<Junction> {
        let (before, mut after) = (&text[..at], text[at..].chars());
        let (right, next) = (after.next()?, after.next());
        let begins = self.raw.begins(right, next);
        let after = self.normal.after(right, next);
        let (left, right) = self.normal.around(before, right, next, |c| self.raw.ends(c))?;
        if !self.normalized.parts(left, right) {
            return None;
        }
        // A look-ahead sees the end of its segment where an added token begins.
        let may_end = begins || self.normalized.begins(right, after);
        self.pieces.between(left, right, may_end)
    }

    fn holds(&self, text: &str, at: usize, model: &Model) -> bool {
        let Some(Junction { cut, left, right }) = self.junction(text, at) else { return false };
        let parted = |vocabulary: &Vocabulary| vocabulary.parts(model, left, right);
        cut || self.vocabulary.as_ref().is_some_and(parted)
    }
}

/// The characters at which an added token could reach over an offset, end at it or begin at it.
///
/// Only single characters and pairs are kept, not whole tokens: a token may still be half written, so
/// an offset is refused wherever two neighbouring characters of any token meet.
#[derive(Debug, Default)]
pub(crate) struct Reach {
    /// Neighbours inside a token.
    pairs: FxHashSet<(char, char)>,
    /// Last characters.
    ends: FxHashSet<char>,
    /// First characters.
    begins: FxHashSet<char>,
    /// First two characters of tokens that have more than one.
    openings: FxHashSet<(char, char)>,
    /// Tokens of one character.
    singles: FxHashSet<char>,
    /// First characters of tokens with `single_word`: the character on their left decides whether
    /// they match.
    single_words: FxHashSet<char>,
    /// True if some token swallows whitespace beside it.
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

    /// True if no token reaches over the offset between the two characters, or ends there.
    fn parts(&self, left: char, right: char) -> bool {
        let reached = self.pairs.contains(&(left, right));
        !(reached || self.ends(left) || self.single_words.contains(&right))
    }

    /// True if a token may end with this character, or swallow it at its end.
    fn ends(&self, c: char) -> bool {
        self.ends.contains(&c) || (self.strips && c.is_whitespace())
    }

    /// True if a token begins with `right`, or may do so once more text follows `next`.
    fn begins(&self, right: char, next: Option<char>) -> bool {
        self.singles.contains(&right)
            || next
                .map_or(self.begins.contains(&right), |next| self.openings.contains(&(right, next)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Anchors, Reach};
    use crate::encode::Edge;
    use crate::file::load;
    use crate::parts::{Joined, Part};
    use crate::{Overrides, Tokenizer};

    /// The offsets of `text` that are anchors, and those at which its tokens are the tokens of the text
    /// before it and the tokens of the text behind it.
    fn anchors_and_splits(config: &Value, text: &str) -> [Vec<usize>; 2] {
        let (json, overrides) = (config.to_string(), Overrides::default());
        let loaded = load(&json, &overrides).expect("a file");
        let patterns: Vec<String> = loaded.added.iter().map(|t| t.content.clone()).collect();
        let raw = Reach::new(&loaded.added, &patterns);
        let anchors = Anchors::new(&loaded, raw, Reach::default()).expect("anchors");
        let tokenizer = Tokenizer::from_json(&json, &overrides).expect("a tokenizer");
        let encode = |text, edge| {
            let joined = Joined::new([Part::scaffold(text)]);
            tokenizer.encode_joined(&joined, edge).expect("it can be written").ids
        };
        let whole = encode(text, Edge::Start);
        let splits = |at: &usize| {
            let (left, right) = text.split_at(*at);
            [encode(left, Edge::Start), encode(right, Edge::Interior)].concat() == whole
        };
        let offsets = || text.char_indices().map(|(at, _)| at).skip(1);
        [
            offsets().filter(|&at| anchors.holds(text, at, &loaded.model)).collect(),
            offsets().filter(splits).collect(),
        ]
    }

    /// BPE over some letters, `a` and `b` of which merge; every character is a word of its own if
    /// `is_split`.
    fn config(is_split: bool) -> Value {
        let split = json!({"type": "Split", "pattern": {"Regex": r"\s|\S"}, "behavior": "Isolated",
            "invert": false});
        json!({"version": "1.0", "pre_tokenizer": if is_split { split } else { Value::Null },
            "model": {"type": "BPE", "unk_token": "?", "merges": [["a", "b"]],
                "vocab": {"?": 0, "a": 1, "b": 2, "c": 3, "ab": 4, " ": 5, "e": 6, "é": 7}}})
    }

    #[test]
    fn every_offset_between_words_is_an_anchor() {
        assert_eq!(anchors_and_splits(&config(true), "abcab"), [[1, 2, 3, 4], [1, 2, 3, 4]]);
    }

    #[test]
    fn rule_1_no_anchor_where_an_added_token_can_reach() {
        let mut config = config(true);
        config["added_tokens"] = json!([{"id": 8, "content": "bca"}]);
        // Behind the end of the token this text splits, but there a token could also end inside another.
        let [anchors, splits] = anchors_and_splits(&config, "ebcab");
        assert_eq!((anchors, splits), (vec![1], vec![1, 4]));
        config["added_tokens"] = json!([{"id": 8, "content": "c", "rstrip": true}]);
        let [anchors, splits] = anchors_and_splits(&config, "ac b");
        assert_eq!((anchors, splits), (vec![1], vec![1, 3]));
    }

    #[test]
    fn rule_2_no_anchor_where_the_normalizer_composes() {
        let mut config = config(true);
        config["normalizer"] = json!({"type": "NFC"});
        let [anchors, splits] = anchors_and_splits(&config, "ae\u{301} b");
        // `e` and the mark become one character, so the text before `e` has no anchor until something
        // other than a mark follows. A mark may still follow `b`.
        assert_eq!((anchors, splits), (vec![4], vec![1, 4, 5]));
        assert_eq!(anchors_and_splits(&config, "ae b")[0], [1, 2]);
    }

    #[test]
    fn rule_3_no_anchor_inside_a_match_of_the_pre_tokenizer() {
        let mut config = config(true);
        config["pre_tokenizer"]["pattern"]["Regex"] = json!(r"[ab]+|c");
        let [anchors, splits] = anchors_and_splits(&config, "babc");
        // Between `b` and `a` the tokens stay, but only the pattern knows that a word goes on there.
        assert_eq!((anchors, splits), (vec![3], vec![1, 3]));
    }

    #[test]
    fn rule_4_without_a_cut_an_anchor_needs_two_characters_that_no_piece_holds() {
        let [anchors, splits] = anchors_and_splits(&config(false), "babc");
        assert_eq!((anchors, splits), (vec![1, 3], vec![1, 3]));
        // An unknown character is no evidence: neighbours may become one unknown token.
        assert_eq!(anchors_and_splits(&config(false), "bxc")[0], Vec::<usize>::new());
    }

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
