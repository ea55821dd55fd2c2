//! Cutting added tokens out of text, and finding those tokens whose cuts can never move.
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
use hard::is_word;

/// An added token that was cut out of a text. `range` includes whitespace that lstrip and rstrip
/// swallow.
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
    /// The lengths of the patterns, in bytes.
    lens: Vec<usize>,
    all: Option<Finder>,
    /// Finds textual tokens alone. Without scaffold no control token is cut out, so the search need not
    /// stop at control tokens that the text spells.
    textual: Option<Finder>,
    /// For each token, the next best match at the same offset if it is not admissible itself: a token
    /// with the same pattern, else the one with the longest pattern that is a prefix of it.
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

    /// True if a match would hold, end or begin at this byte, were all of them cut out. Looks at
    /// [`Cutter::longest`] bytes on both sides.
    pub fn touches(&self, text: &str, at: usize) -> bool {
        let Some(finder) = &self.all else { return false };
        let longest = self.longest();
        let is_edge = |byte: &usize| text.is_char_boundary(*byte);
        let from = (0..=at.saturating_sub(longest)).rfind(is_edge).unwrap_or(0);
        let to = (at + longest..text.len()).find(is_edge).unwrap_or(text.len());
        let near = &text[..to];
        let mut next = from;
        // The finder returns the longest of several that begin at one byte, so one is enough for each.
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

    /// The added tokens in `text`. `run_around(range)` returns the scaffold run that holds the range, if
    /// any. With `any_scaffold=false` it never would, which is the cheap and usual case for content.
    pub fn cut(
        &self,
        text: &str,
        any_scaffold: bool,
        run_around: impl Fn(&Range<usize>) -> Option<Range<usize>>,
    ) -> Vec<Cut> {
        let finder = if any_scaffold { self.all.as_ref() } else { self.textual.as_ref() };
        let mut cuts: Vec<Cut> = Vec::new();
        let mut free = 0; // an earlier cut has taken the text before this
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

/// For each pattern the next one in this order: equal ones, then prefixes, the longest first.
fn next_best(patterns: &[String]) -> Vec<Option<usize>> {
    let mut sorted: Vec<usize> = (0..patterns.len()).collect();
    sorted.sort_by_key(|&token| &patterns[token]);
    let mut next_best = vec![None; patterns.len()];
    // The patterns that are prefixes of the current one and of each other, by their first tokens.
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

/// The added tokens in a whole joined text, whose parts say where its scaffold is.
pub(crate) fn cut_joined(cutter: &Cutter, joined: &Joined<'_>) -> Vec<Cut> {
    cutter.cut(&joined.text, joined.any_scaffold(), |range| joined.run_around(range).cloned())
}
