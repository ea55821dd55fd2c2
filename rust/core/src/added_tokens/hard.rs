//! Hard tokens: the added tokens that no text around them can change.

use rustc_hash::FxHashMap;

use crate::file::AddedToken;

/// For each of `tokens` (all with `normalized=false`), true if it is *hard*: wherever such a token
/// stands, it is cut out, and no text around it can change that.
///
/// The rules and their fuzz: a token is hard when it has no lstrip, rstrip or `single_word`, and
/// for every other token S: S does not start with it; no proper suffix of S (its own included) is
/// a prefix of it or starts with it; if S has rstrip it does not begin with whitespace; if S has
/// `single_word` its first and last characters are not word characters.
///
/// Time is linear in the bytes of all tokens together.
pub(crate) fn hard_tokens(tokens: &[AddedToken]) -> Vec<bool> {
    let mut trie = Trie::default();
    let ends: Vec<usize> = tokens.iter().map(|token| trie.add(token.content.as_bytes())).collect();
    let met = trie.met(&ends);
    let any_rstrip = tokens.iter().any(|token| token.rstrip);
    let any_single_word = tokens.iter().any(|token| token.single_word);
    tokens
        .iter()
        .zip(ends)
        .map(|(token, end)| {
            let text = token.content.as_str();
            let (first, last) = (text.chars().next(), text.chars().next_back());
            let swallowed = any_rstrip && first.is_some_and(char::is_whitespace);
            let discarded =
                any_single_word && (first.is_some_and(is_word) || last.is_some_and(is_word));
            let plain = !(token.lstrip || token.rstrip || token.single_word);
            plain && !(met[end] || swallowed || discarded)
        })
        .collect()
}

/// `\w` as `tokenizers` means it: that of the `regex` crate.
pub(super) fn is_word(c: char) -> bool {
    regex_syntax::is_word_character(c)
}

/// The beginnings of all tokens: a state each, parents before their children. Bytes do as well as
/// characters: a part of one text that is the beginning of another begins with a whole character.
struct Trie {
    children: FxHashMap<(usize, u8), usize>,
    states: Vec<State>,
}

struct State {
    parent: usize,
    byte: u8,
    depth: usize,
    is_leaf: bool,
}

const ROOT: usize = 0;

impl Default for Trie {
    fn default() -> Self {
        let root = State { parent: ROOT, byte: 0, depth: 0, is_leaf: true };
        Self { children: FxHashMap::default(), states: vec![root] }
    }
}

impl Trie {
    /// The state at which the text ends.
    fn add(&mut self, text: &[u8]) -> usize {
        let mut state = ROOT;
        for &byte in text {
            let next = self.states.len();
            let child = *self.children.entry((state, byte)).or_insert(next);
            if child == next {
                let depth = self.states[state].depth + 1;
                self.states[state].is_leaf = false;
                self.states.push(State { parent: state, byte, depth, is_leaf: true });
            }
            state = child;
        }
        state
    }

    /// For each state, true if a token that ends there begins another one, stands inside one, or begins
    /// with the end of one. `ends` are the states at which tokens end.
    fn met(&self, ends: &[usize]) -> Vec<bool> {
        let mut by_depth: Vec<usize> = (1..self.states.len()).collect();
        by_depth.sort_by_key(|&state| self.states[state].depth);
        let rest = self.longest_ends(&by_depth);
        // The end of a token's beginning stands inside that token.
        let mut inside = vec![false; self.states.len()];
        for &state in &rest {
            inside[state] = true;
        }
        let mut overlapped = vec![false; self.states.len()];
        for &end in ends {
            let mut state = rest[end];
            while state != ROOT && !overlapped[state] {
                overlapped[state] = true;
                state = rest[state];
            }
        }
        for state in by_depth {
            overlapped[state] |= overlapped[self.states[state].parent];
        }
        let met = |state: usize| !self.states[state].is_leaf || inside[state] || overlapped[state];
        (0..self.states.len()).map(met).collect()
    }

    /// For each state the longest proper end of its text that is the beginning of a token: the links
    /// of Aho and Corasick.
    fn longest_ends(&self, by_depth: &[usize]) -> Vec<usize> {
        let mut rest = vec![ROOT; self.states.len()];
        for &state in by_depth {
            let State { parent, byte, .. } = self.states[state];
            let mut from = parent;
            while from != ROOT {
                from = rest[from];
                if let Some(&found) = self.children.get(&(from, byte)) {
                    rest[state] = found;
                    break;
                }
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(content: &str) -> AddedToken {
        AddedToken {
            id: 0,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
            control: true,
        }
    }

    /// The rule of [`hard_tokens`] for tokens without flags, word for word.
    fn is_hard(text: &str, all: &[&str]) -> bool {
        all.iter().all(|other| {
            let mut suffixes = other.char_indices().skip(1).map(|(at, _)| &other[at..]);
            let extends = *other != text && other.starts_with(text);
            !extends && suffixes.all(|s| !(text.starts_with(s) || s.starts_with(text)))
        })
    }

    #[test]
    fn tokens_that_meet_no_other_are_hard() {
        let words: Vec<String> = (2..64_u32)
            .map(|bits| {
                let letter = |at: u32| if bits >> at & 1 == 1 { 'é' } else { 'ê' };
                (0..bits.ilog2()).map(letter).collect()
            })
            .collect();
        let mut found = [0, 0];
        for (first, second) in words.iter().flat_map(|a| words.iter().map(move |b| (a, b))) {
            for third in ["ê", "éé", "ééêé", "xé", "êx", "x"] {
                let texts = [first.as_str(), second, third];
                let expected = texts.map(|text| is_hard(text, &texts));
                assert_eq!(hard_tokens(&texts.map(token)), expected, "{texts:?}");
                for hard in expected {
                    found[usize::from(hard)] += 1;
                }
            }
        }
        assert!(found[0] > 500 && found[1] > 500, "{found:?}");
    }
}
