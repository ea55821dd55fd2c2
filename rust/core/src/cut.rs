//! Cutting text by added tokens, and the static analysis of which cuts can never move.
//!
//! Invariant: the cuts are those of `tokenizers` for text that is all scaffold; for mixed parts a
//! control token is cut only where its whole span lies inside one run of scaffold. One difference
//! to `tokenizers`, where it duplicates text or panics: a match that begins inside the whitespace
//! that an rstrip token has already swallowed is ignored.

mod finder;
mod hard;

use std::ops::Range;

use crate::file::AddedToken;
use crate::parts::Joined;
use finder::Finder;
pub(crate) use hard::hard_tokens;

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
    all: Option<Finder>,
    /// Of the textual ones alone: where there is no scaffold no control token is cut out, so the
    /// search need not stop at those that the text spells.
    textual: Option<Finder>,
    /// For each token, the next best match at the same place when it is not admissible itself: one
    /// that matches as it does, else one that matches as the longest prefix of it.
    next_best: Vec<Option<usize>>,
}

impl Cutter {
    /// A cutter for tokens that match as `patterns` (their content, normalized or not).
    pub fn new(tokens: Vec<AddedToken>, patterns: &[String]) -> Self {
        Self {
            all: Finder::new(patterns, 0..tokens.len()),
            textual: Finder::new(patterns, (0..tokens.len()).filter(|&i| !tokens[i].control)),
            lens: patterns.iter().map(String::len).collect(),
            next_best: next_best(patterns),
            tokens,
        }
    }

    /// The bytes of the longest match.
    pub fn longest(&self) -> usize {
        self.lens.iter().copied().max().unwrap_or(0)
    }

    /// Whether a match holds, ends or begins at this byte, were all of them cut out. Looks at
    /// [`Cutter::longest`] bytes on both sides.
    pub fn touches(&self, text: &str, at: usize) -> bool {
        let Some(finder) = &self.all else { return false };
        let longest = self.longest();
        let is_edge = |place: &usize| text.is_char_boundary(*place);
        let from = (0..=at.saturating_sub(longest)).rfind(is_edge).unwrap_or(0);
        let to = (at + longest..text.len()).find(is_edge).unwrap_or(text.len());
        let near = &text[..to];
        let mut next = from;
        // Of those that begin at one place the longest is found.
        while let Some((_, span)) = finder.find(near, next).filter(|(_, span)| span.start <= at) {
            if span.end >= at {
                return true;
            }
            next = next_char(text, span.start);
        }
        false
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
        let finder = if any_scaffold { self.all.as_ref() } else { self.textual.as_ref() };
        let mut cuts: Vec<Cut> = Vec::new();
        let mut free = 0; // everything before is taken by an earlier cut
        let mut at = 0;
        loop {
            let found = finder.and_then(|finder| finder.find(text, at));
            let Some((longest, span)) = found else { break };
            let mut best = std::iter::successors(Some(longest), |&token| self.next_best[token]);
            let admissible = best.find_map(|token| {
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

/// Of each pattern the next one in this order: equal ones, then prefixes, the longest first.
fn next_best(patterns: &[String]) -> Vec<Option<usize>> {
    let mut sorted: Vec<usize> = (0..patterns.len()).collect();
    sorted.sort_by_key(|&token| &patterns[token]);
    let mut next_best = vec![None; patterns.len()];
    // The first tokens of those patterns that are prefixes of each other, up to where we are.
    let mut prefixes: Vec<usize> = Vec::new();
    for equal in sorted.chunk_by(|&a, &b| patterns[a] == patterns[b]) {
        let pattern = &patterns[equal[0]];
        while prefixes.last().is_some_and(|&prefix| !pattern.starts_with(&patterns[prefix])) {
            prefixes.pop();
        }
        equal.windows(2).for_each(|pair| next_best[pair[0]] = Some(pair[1]));
        next_best[equal[equal.len() - 1]] = prefixes.last().copied();
        prefixes.push(equal[0]);
    }
    next_best
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
pub(crate) fn cut_joined(cutter: &Cutter, joined: &Joined<'_>) -> Vec<Cut> {
    cutter.cut(&joined.text, joined.any_scaffold(), |range| joined.run_around(range).cloned())
}
