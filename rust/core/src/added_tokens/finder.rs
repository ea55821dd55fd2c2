//! The search for added tokens in a text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind, StartKind};
use rustc_hash::FxHashSet;

/// Finds the matches of tokens: leftmost-longest, as `tokenizers` does it.
///
/// It is built in time and memory that are linear in the patterns.
#[derive(Debug)]
pub(super) struct Finder {
    automaton: AhoCorasick,
    /// The first token of each pattern.
    tokens: Vec<usize>,
    /// The number of patterns before those of the tokens.
    fillers: usize,
}

/// The most bytes of patterns of which a DFA is made; it takes up to a kilobyte for each byte.
const MOST_BYTES_OF_DFA: usize = 1 << 14;
/// The number of patterns from which on a filler saves time.
const MANY_PATTERNS: usize = 1 << 12;
/// A byte that no UTF-8 text holds.
const NOT_UTF8: u8 = 0xFF;

impl Finder {
    /// A finder for these tokens, which match as `patterns`; `None` where there are none.
    pub fn new(patterns: &[String], tokens: impl Iterator<Item = usize>) -> Option<Self> {
        let mut found = FxHashSet::default();
        let tokens: Vec<usize> = tokens.filter(|&token| found.insert(&patterns[token])).collect();
        if tokens.is_empty() {
            return None;
        }
        // `aho-corasick` 1.1 moves states that match before all others by swaps, and follows the swaps
        // of each state step by step. If nearly all states match, as for `x0` to `x99999`, the swaps
        // form one ring of all states, which took 40 s. A first pattern whose states do not match
        // breaks that ring into many short ones.
        let filler = (tokens.len() >= MANY_PATTERNS).then(|| vec![NOT_UTF8; tokens.len() / 64]);
        let bytes: usize = tokens.iter().map(|&token| patterns[token].len()).sum();
        let kind = (bytes > MOST_BYTES_OF_DFA).then_some(AhoCorasickKind::ContiguousNFA);
        let own = tokens.iter().map(|&token| patterns[token].as_bytes());
        let automaton = AhoCorasick::builder()
            .kind(kind)
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Unanchored)
            .build(filler.as_deref().into_iter().chain(own))
            .expect("added tokens are far fewer than an automaton can hold");
        Some(Self { automaton, tokens, fillers: usize::from(filler.is_some()) })
    }

    /// The first match from byte `at` on, and of several that begin there the longest.
    pub fn find(&self, text: &str, at: usize) -> Option<(usize, Range<usize>)> {
        let found = self.automaton.find(Input::new(text).span(at..text.len()))?;
        Some((self.tokens[found.pattern().as_usize() - self.fillers], found.range()))
    }
}
