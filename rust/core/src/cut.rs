//! Cutting text by added tokens, and the static analysis of which cuts can never move.
//!
//! Invariant: the cuts are those of `tokenizers` for text that is all scaffold; for mixed parts a
//! control token is cut only where its whole span lies inside one run of scaffold. One difference
//! to `tokenizers`, where it duplicates text or panics: a match that begins inside the whitespace
//! that an rstrip token has already swallowed is ignored.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind, StartKind};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::file::AddedToken;
use crate::parts::Joined;

/// One place where an added token was cut out. `range` includes what lstrip and rstrip swallow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    pub range: Range<usize>,
    /// Index into the cutter's tokens.
    pub token: usize,
}

/// Finds added tokens in text: leftmost-longest, as `tokenizers` does it.
#[derive(Debug)]
pub(crate) struct Cutter {
    tokens: Vec<AddedToken>,
    /// The lengths of what they match, in bytes.
    lens: Vec<usize>,
    all: Option<AhoCorasick>,
    /// Of the textual ones alone, and their indices: where there is no scaffold no control token is
    /// cut out, so the search need not stop at those that the text spells.
    textual: Option<(AhoCorasick, Vec<usize>)>,
    /// For each token, those that match as it or as a prefix of it, longest first: the next best
    /// match at the same place when it is not admissible itself.
    alternatives: Vec<Vec<usize>>,
}

impl Cutter {
    /// A cutter for tokens that match as `patterns` (their content, normalized or not).
    pub fn new(tokens: Vec<AddedToken>, patterns: &[String]) -> Self {
        let mut by_pattern: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
        for (index, pattern) in patterns.iter().enumerate() {
            by_pattern.entry(pattern).or_default().push(index);
        }
        let alternatives = patterns
            .iter()
            .enumerate()
            .map(|(index, long)| {
                let ends = long.char_indices().map(|(end, _)| end).skip(1).chain([long.len()]);
                let mut shorter: Vec<usize> = ends
                    .filter_map(|end| by_pattern.get(&long[..end]))
                    .flatten()
                    .copied()
                    .filter(|&other| other != index)
                    .collect();
                shorter.sort_by_key(|&other| (std::cmp::Reverse(patterns[other].len()), other));
                shorter
            })
            .collect();
        let textual_ids: Vec<usize> = (0..tokens.len()).filter(|&i| !tokens[i].control).collect();
        let textual_patterns: Vec<&String> = textual_ids.iter().map(|&i| &patterns[i]).collect();
        Self {
            all: automaton(&patterns.iter().collect::<Vec<_>>()),
            textual: automaton(&textual_patterns).map(|automaton| (automaton, textual_ids)),
            lens: patterns.iter().map(String::len).collect(),
            tokens,
            alternatives,
        }
    }

    pub fn token(&self, index: usize) -> &AddedToken {
        &self.tokens[index]
    }

    /// Cuts `text`. `run_around(range)` gives the scaffold run that holds the range, if any;
    /// `any_scaffold` is false where it never does, which is the cheap and usual case for content.
    pub fn cut(
        &self,
        text: &str,
        any_scaffold: bool,
        run_around: impl Fn(&Range<usize>) -> Option<Range<usize>>,
    ) -> Vec<Cut> {
        let mut cuts: Vec<Cut> = Vec::new();
        let mut free = 0; // everything before is taken by an earlier cut
        let mut at = 0;
        loop {
            let found = if any_scaffold {
                self.all.as_ref().and_then(|a| {
                    a.find(Input::new(text).span(at..text.len()))
                        .map(|m| (m.pattern().as_usize(), m.range()))
                })
            } else {
                self.textual.as_ref().and_then(|(a, ids)| {
                    a.find(Input::new(text).span(at..text.len()))
                        .map(|m| (ids[m.pattern().as_usize()], m.range()))
                })
            };
            let Some((longest, span)) = found else { break };
            let admissible = std::iter::once(longest)
                .chain(self.alternatives[longest].iter().copied())
                .find_map(|token| {
                    let span = span.start..span.start + self.lens[token];
                    if self.tokens[token].control {
                        run_around(&span).map(|run| (token, span, run))
                    } else {
                        Some((token, span, 0..text.len()))
                    }
                });
            let Some((token, span, bounds)) = admissible else {
                at = next_char(text, span.start);
                continue;
            };
            at = span.end;
            let flags = &self.tokens[token];
            if flags.single_word
                && (ends_with_word(text, span.start) || starts_with_word(text, span.end))
            {
                continue;
            }
            if span.start < free {
                continue;
            }
            let mut range = span;
            if flags.lstrip {
                let from = free.max(bounds.start);
                range.start = from + text[from..range.start].trim_end().len();
            }
            if flags.rstrip {
                let rest = &text[range.end..bounds.end];
                range.end += rest.len() - rest.trim_start().len();
            }
            free = range.end;
            cuts.push(Cut { range, token });
        }
        cuts
    }
}

fn automaton(patterns: &[&String]) -> Option<AhoCorasick> {
    (!patterns.is_empty()).then(|| {
        AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Unanchored)
            .build(patterns)
            .expect("added tokens are far fewer than an automaton can hold")
    })
}

fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

fn ends_with_word(text: &str, end: usize) -> bool {
    text[..end].chars().next_back().is_some_and(is_word)
}

fn starts_with_word(text: &str, start: usize) -> bool {
    text[start..].chars().next().is_some_and(is_word)
}

/// `\w` as `tokenizers` means it: that of the `regex` crate.
pub(crate) fn is_word(c: char) -> bool {
    regex_syntax::is_word_character(c)
}

/// Cutting a whole joined text: scaffold runs from the parts.
pub(crate) fn cut_joined(cutter: &Cutter, joined: &Joined) -> Vec<Cut> {
    cutter.cut(&joined.text, joined.any_scaffold(), |range| joined.run_around(range).cloned())
}

/// Which of `tokens` (all with `normalized=false`) are *hard*: wherever such a token stands, it is
/// cut out, and no text around it can change that.
///
/// The rules and their fuzz: a token is hard when it has no lstrip, rstrip or `single_word`, and
/// for every other token S: S does not start with it; no proper suffix of S (its own included) is
/// a prefix of it or starts with it; if S has rstrip it does not begin with whitespace; if S has
/// `single_word` its first and last characters are not word characters.
pub(crate) fn hard_tokens(tokens: &[AddedToken]) -> Vec<bool> {
    let mut contents: Vec<&str> = tokens.iter().map(|token| token.content.as_str()).collect();
    contents.sort_unstable();
    contents.dedup();
    let mut suffixes: Vec<&str> = contents
        .iter()
        .flat_map(|text| text.char_indices().skip(1).map(|(i, _)| &text[i..]))
        .collect();
    suffixes.sort_unstable();
    let suffix_set: FxHashSet<&str> = suffixes.iter().copied().collect();
    let any_rstrip = tokens.iter().any(|token| token.rstrip);
    let any_single_word = tokens.iter().any(|token| token.single_word);
    let starts_one = |sorted: &[&str], text: &str, from: usize| {
        sorted.get(from).is_some_and(|other| other.starts_with(text))
    };
    tokens
        .iter()
        .map(|token| {
            let text = token.content.as_str();
            let (first, last) = (text.chars().next(), text.chars().next_back());
            let extended = starts_one(&contents, text, contents.partition_point(|&c| c <= text));
            let ends = text.char_indices().map(|(end, _)| end).skip(1).chain([text.len()]);
            let overlapped = ends.into_iter().any(|end| suffix_set.contains(&text[..end]))
                || starts_one(&suffixes, text, suffixes.partition_point(|&s| s < text));
            let swallowed = any_rstrip && first.is_some_and(char::is_whitespace);
            let discarded =
                any_single_word && (first.is_some_and(is_word) || last.is_some_and(is_word));
            let plain = !(token.lstrip || token.rstrip || token.single_word);
            plain && !(extended || overlapped || swallowed || discarded)
        })
        .collect()
}
