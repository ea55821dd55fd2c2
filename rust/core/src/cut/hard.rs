//! Which added tokens no text around them can change.

use rustc_hash::FxHashMap;

use super::is_word;
use crate::file::AddedToken;

/// Which of `tokens` (all with `normalized=false`) are *hard*: wherever such a token stands, it is
/// cut out, and no text around it can change that.
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

/// The beginnings of all tokens: a node each, parents before their children. Bytes do as well as
/// characters: a part of one text that is the beginning of another begins with a whole character.
struct Trie {
    children: FxHashMap<(usize, u8), usize>,
    nodes: Vec<Node>,
}

struct Node {
    parent: usize,
    byte: u8,
    depth: usize,
    is_leaf: bool,
}

const ROOT: usize = 0;

impl Default for Trie {
    fn default() -> Self {
        let root = Node { parent: ROOT, byte: 0, depth: 0, is_leaf: true };
        Self { children: FxHashMap::default(), nodes: vec![root] }
    }
}

impl Trie {
    /// The node at which the text ends.
    fn add(&mut self, text: &[u8]) -> usize {
        let mut node = ROOT;
        for &byte in text {
            let next = self.nodes.len();
            let child = *self.children.entry((node, byte)).or_insert(next);
            if child == next {
                let depth = self.nodes[node].depth + 1;
                self.nodes[node].is_leaf = false;
                self.nodes.push(Node { parent: node, byte, depth, is_leaf: true });
            }
            node = child;
        }
        node
    }

    /// For each node: whether a token that ends there begins another one, stands inside one, or
    /// begins with what one ends with. `ends` are the nodes at which tokens end.
    fn met(&self, ends: &[usize]) -> Vec<bool> {
        let mut by_depth: Vec<usize> = (1..self.nodes.len()).collect();
        by_depth.sort_by_key(|&node| self.nodes[node].depth);
        let rest = self.longest_ends(&by_depth);
        // What a beginning of a token ends with stands inside that token.
        let mut inside = vec![false; self.nodes.len()];
        for &node in &rest {
            inside[node] = true;
        }
        let mut overlapped = vec![false; self.nodes.len()];
        for &end in ends {
            let mut node = rest[end];
            while node != ROOT && !overlapped[node] {
                overlapped[node] = true;
                node = rest[node];
            }
        }
        for node in by_depth {
            overlapped[node] |= overlapped[self.nodes[node].parent];
        }
        let met = |node: usize| !self.nodes[node].is_leaf || inside[node] || overlapped[node];
        (0..self.nodes.len()).map(met).collect()
    }

    /// For each node the longest proper end of its text that is the beginning of a token: the links
    /// of Aho and Corasick.
    fn longest_ends(&self, by_depth: &[usize]) -> Vec<usize> {
        let mut rest = vec![ROOT; self.nodes.len()];
        for &node in by_depth {
            let Node { parent, byte, .. } = self.nodes[node];
            let mut from = parent;
            while from != ROOT {
                from = rest[from];
                if let Some(&found) = self.children.get(&(from, byte)) {
                    rest[node] = found;
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

    /// The rule of [`hard_tokens`] for tokens without flags, read aloud.
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
