//! Cutting text into words as the patterns of well-known tokenizers do, without a regex engine.
//!
//! Invariant: the words are those that `tokenizers` cuts with the same pattern; together they are
//! the whole text.

use super::blocks::{self, Block, Contractions, Rules, by_rules, words};
use super::class::{LETTER, MARK, classes};
use super::deepseek::deepseek_v3;
use super::memo::AT_ONCE;
use super::word_ends::{cl100k, gpt2, o200k};

/// Cuts text by a pattern that it knows by its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scanner {
    /// GPT-2 and models of its time.
    Gpt2,
    /// GPT-4, Llama 3, GLM-4, Qwen: an optional sign before letters, numbers in groups.
    Cl100k { digits: usize, marks_are_letters: bool, long_s: bool },
    /// GPT-4o, gpt-oss, Llama 4, Tekken: words end where the case changes.
    O200k { digits: usize, contractions: bool },
    /// `DeepSeek` V3, R1: numbers, then Han and kana, then the rest, one after the other.
    DeepSeekV3,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const CONTRACTIONS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";
/// The letters of both cases, spelled out: the long s is none of them.
const CONTRACTIONS_ASCII: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const SPACES: &str = r"\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];

impl Scanner {
    /// The scanner for these expressions, one after the other; `None` where they are not known.
    pub fn of(expressions: &[&str]) -> Option<Self> {
        match expressions {
            [one] => Self::of_one(one),
            three if *three == DEEPSEEK_V3 => Some(Self::DeepSeekV3),
            _ => None,
        }
    }

    fn of_one(expression: &str) -> Option<Self> {
        if expression == GPT2 {
            return Some(Self::Gpt2);
        }
        let numbers = [(r"\p{N}", 1), (r"\p{N}{1,3}", 3), (r"\p{N}+", usize::MAX)];
        for (number, digits) in numbers {
            for marks_are_letters in [false, true] {
                let (letters, mark) =
                    if marks_are_letters { (r"[\p{L}\p{M}]+", r"\p{M}") } else { (r"\p{L}+", "") };
                let rest = format!(
                    r"|[^\r\n\p{{L}}\p{{N}}]?{letters}|{number}| ?[^\s\p{{L}}{mark}\p{{N}}]+[\r\n]*|{SPACES}"
                );
                let before = expression.strip_suffix(&rest);
                for (contractions, long_s) in [(CONTRACTIONS, true), (CONTRACTIONS_ASCII, false)] {
                    if before == Some(contractions) {
                        return Some(Self::Cl100k { digits, marks_are_letters, long_s });
                    }
                }
            }
            for contractions in [true, false] {
                let after = if contractions { format!("{CONTRACTIONS}?") } else { String::new() };
                let (upper, lower) =
                    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
                let sign = r"[^\r\n\p{L}\p{N}]?";
                let whole = format!(
                    r"{sign}{upper}*{lower}+{after}|{sign}{upper}+{lower}*{after}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
                );
                if expression == whole {
                    return Some(Self::O200k { digits, contractions });
                }
            }
        }
        None
    }

    /// Calls `each` with many words of the text at once: the start of the first one, and the end of
    /// each.
    pub fn words(self, text: &str, each: &mut dyn FnMut(usize, &[usize])) {
        self.cut(text, true, each);
    }

    /// As [`Self::words`], with blocks or without.
    pub(super) fn cut(self, text: &str, by_blocks: bool, each: &mut dyn FnMut(usize, &[usize])) {
        let classes = classes();
        let blocks =
            |rules| move |block: &Block| by_blocks.then(|| by_rules(classes, block, rules));
        match self {
            Self::Gpt2 => {
                let blocks = |block: &Block| by_blocks.then(|| blocks::gpt2(classes, block));
                words(text, each, blocks, |at| gpt2(classes, text, at));
            }
            Self::Cl100k { digits, marks_are_letters, long_s } => {
                let contractions = Contractions::Before;
                let rules = blocks(Rules { digits, contractions, cased: false });
                if marks_are_letters {
                    words(text, each, rules, |at| {
                        cl100k::<{ LETTER | MARK }>(classes, text, at, digits, long_s)
                    });
                } else {
                    words(text, each, rules, |at| {
                        cl100k::<LETTER>(classes, text, at, digits, long_s)
                    });
                }
            }
            Self::O200k { digits, contractions } => {
                let behind = if contractions { Contractions::Behind } else { Contractions::None };
                let rules = blocks(Rules { digits, contractions: behind, cased: true });
                words(text, each, rules, |at| o200k(classes, text, at, digits, contractions));
            }
            Self::DeepSeekV3 => {
                let (mut start, mut ends, mut count) = (0, [0; AT_ONCE], 0);
                deepseek_v3(classes, text, |end| {
                    ends[count] = end;
                    count += 1;
                    if count == AT_ONCE {
                        each(start, &ends);
                        (start, count) = (end, 0);
                    }
                });
                if count > 0 {
                    each(start, &ends[..count]);
                }
            }
        }
    }
}
