//! Byte-pair merges by rank.
//!
//! Invariant: of all neighbours that can merge, the pair of the lowest rank does, the leftmost of several,
//! until none is left. `tokenizers` does the same with the same table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::hashing::spread;

/// In words of at most this many symbols, all pairs are searched for the next merge. It is less than the
/// bits of a number.
const SHORT: usize = 48;
const NONE: u64 = u64::MAX;

/// A token of a word, so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    pub id: u32,
    /// Its end in the word, in bytes.
    pub end: usize,
}

/// The order of a merge: lower ones come first.
pub(super) type Rank = u32;

/// The merges of a model: for two neighbours, the rank of their merge and the token that they become.
#[derive(Debug)]
pub(super) struct Merges {
    /// Pairs by hash, a power of two, at most three quarters full: looked up far more often than
    /// all else, so it has to be small.
    table: Vec<(u64, u64)>,
    /// The merges of pairs in the alphabet, with which every word begins.
    first: Box<[u64]>,
    /// The lowest id of the alphabet: 0 in most vocabularies, but Tekken's bytes begin at 1000.
    alphabet: u32,
    /// One bit for each pair, by the lower part of its hash. Most neighbours do not merge, and this
    /// says so from a cache that the table does not fit into.
    maybe: Box<[u64]>,
}

/// The number of ids, from the alphabet's lowest on, whose merges have a table of their own.
const ALPHABET: u32 = 256;

/// Room to merge in, used again and again.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    symbols: Vec<Symbol>,
    /// For each symbol but the last: the merge with the next one.
    ranked: Vec<u64>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    links: Vec<Adjacent>,
}

impl Workspace {
    /// Makes room for the next word. Memory for a word of a megabyte is not kept.
    pub fn clear(&mut self) {
        const KEPT: usize = 1 << 12;
        if self.symbols.capacity() > KEPT {
            *self = Self::default();
        }
        self.symbols.clear();
    }
}

/// The neighbours of a symbol among those that are left.
#[derive(Debug, Clone, Copy)]
struct Adjacent {
    before: usize,
    after: usize,
}

impl Merges {
    /// Room for as many merges. `alphabet`: the lowest id of those that words begin with.
    pub fn new(most: usize, alphabet: u32) -> Self {
        Self {
            table: vec![(NONE, NONE); (most + most / 3 + 1).next_power_of_two()],
            first: vec![NONE; (ALPHABET * ALPHABET) as usize].into_boxed_slice(),
            alphabet,
            // Eight bits or more for each pair: about one in ten of the others is looked up.
            maybe: vec![0; most.next_power_of_two().div_ceil(8)].into_boxed_slice(),
        }
    }

    /// A later merge of the same pair replaces an earlier one.
    pub fn insert(&mut self, pair: (u32, u32), rank: Rank, id: u32) {
        let merge = pair_key(rank, id);
        if let Some(index) = self.first_index(pair.0, pair.1) {
            self.first[index] = merge;
            return;
        }
        let key = pair_key(pair.0, pair.1);
        let (word, bit) = self.bit_in_maybe(key);
        self.maybe[word] |= bit;
        let slot = self.slot(key);
        self.table[slot] = (key, merge);
    }

    /// The merge of two neighbours; [`NONE`] sorts behind all others.
    #[inline]
    fn of(&self, left: u32, right: u32) -> u64 {
        if let Some(index) = self.first_index(left, right) {
            return self.first[index];
        }
        let key = pair_key(left, right);
        let (word, bit) = self.bit_in_maybe(key);
        if self.maybe[word] & bit == 0 { NONE } else { self.table[self.slot(key)].1 }
    }

    /// The rank of the merge of two neighbours, and its token.
    pub fn rank_and_id(&self, left: u32, right: u32) -> Option<(Rank, u32)> {
        let merge = self.of(left, right);
        (merge != NONE).then(|| (rank_of(merge), id_of(merge)))
    }

    /// The word and the bit of a pair.
    #[inline]
    fn bit_in_maybe(&self, key: u64) -> (usize, u64) {
        let hash = hash(key);
        (half_of(hash >> 6) & (self.maybe.len() - 1), 1 << (hash & 63))
    }

    /// The slot of a pair, or the free one that it would get.
    #[inline]
    fn slot(&self, key: u64) -> usize {
        let mask = self.table.len() - 1;
        let mut slot = half_of(hash(key) >> 32) & mask;
        while self.table[slot].0 != key && self.table[slot].0 != NONE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// The index of the merge of two tokens of the alphabet.
    #[inline]
    fn first_index(&self, left: u32, right: u32) -> Option<usize> {
        let (left, right) = (left.wrapping_sub(self.alphabet), right.wrapping_sub(self.alphabet));
        (left < ALPHABET && right < ALPHABET).then(|| (left * ALPHABET + right) as usize)
    }

    /// The tokens of a word, left in the workspace. `lay_out` writes the tokens before any merge.
    pub fn tokens<'workspace>(
        &self,
        workspace: &'workspace mut Workspace,
        lay_out: impl FnOnce(&mut Vec<Symbol>),
    ) -> &'workspace [Symbol] {
        workspace.clear();
        lay_out(&mut workspace.symbols);
        self.apply(workspace);
        &workspace.symbols
    }

    /// Merges the symbols in the workspace until nothing merges any more.
    fn apply(&self, workspace: &mut Workspace) {
        if workspace.symbols.len() <= SHORT {
            self.apply_short(workspace);
        } else {
            self.apply_long(workspace);
        }
    }

    /// All symbols keep their positions, and the bits of a number show which are left: closing gaps would
    /// cost more than skipping them.
    fn apply_short(&self, workspace: &mut Workspace) {
        let symbols = &mut workspace.symbols[..];
        let count = symbols.len();
        let mut ranked = [NONE; SHORT];
        for (at, pair) in symbols.windows(2).enumerate() {
            ranked[at] = self.of(pair[0].id, pair[1].id);
        }
        let mut left = (1 << count) - 1_u64;
        loop {
            let (mut at, mut merge) = (0, NONE);
            for (other, &ranked) in ranked[..count].iter().enumerate() {
                if ranked < merge {
                    (at, merge) = (other, ranked);
                }
            }
            if merge == NONE {
                break;
            }
            let gone = first_bit(left & (u64::MAX << (at + 1)));
            symbols[at] = Symbol { id: id_of(merge), end: symbols[gone].end };
            left &= !(1 << gone);
            ranked[gone] = NONE;
            let (before, after) = (left & !(u64::MAX << at), left & (u64::MAX << gone));
            ranked[at] = match after {
                0 => NONE,
                _ => self.of(symbols[at].id, symbols[first_bit(after)].id),
            };
            if before != 0 {
                let before = last_bit(before);
                ranked[before] = self.of(symbols[before].id, symbols[at].id);
            }
        }
        let mut at = 0;
        workspace.symbols.retain(|_| {
            at += 1;
            left >> (at - 1) & 1 != 0
        });
    }

    /// As [`Self::apply_short`], with a queue: time grows as `n log n`.
    fn apply_long(&self, workspace: &mut Workspace) {
        let Workspace { symbols, ranked, queue, links } = workspace;
        let count = symbols.len();
        links.clear();
        links.extend((0..count).map(|at| Adjacent { before: at.wrapping_sub(1), after: at + 1 }));
        ranked.clear();
        ranked.extend(symbols.windows(2).map(|pair| self.of(pair[0].id, pair[1].id)));
        ranked.push(NONE);
        queue.clear();
        let known = ranked.iter().enumerate().filter(|(_, merge)| **merge != NONE);
        queue.extend(known.map(|(at, merge)| Reverse((*merge, at))));
        while let Some(Reverse((merge, at))) = queue.pop() {
            // An entry whose neighbours have changed since.
            if ranked[at] != merge {
                continue;
            }
            let gone = links[at].after;
            symbols[at] = Symbol { id: id_of(merge), end: symbols[gone].end };
            let Adjacent { before, .. } = links[at];
            let after = links[gone].after;
            links[at].after = after;
            ranked[gone] = NONE;
            // A removed symbol is marked by a link to itself.
            links[gone].after = gone;
            ranked[at] = if after < count {
                links[after].before = at;
                self.of(symbols[at].id, symbols[after].id)
            } else {
                NONE
            };
            let mut renew = |at: usize, merge: u64| {
                if merge != NONE {
                    queue.push(Reverse((merge, at)));
                }
            };
            renew(at, ranked[at]);
            if before < count {
                ranked[before] = self.of(symbols[before].id, symbols[at].id);
                renew(before, ranked[before]);
            }
        }
        let mut at = 0;
        symbols.retain(|_| {
            at += 1;
            links[at - 1].after != at - 1
        });
    }
}

fn first_bit(bits: u64) -> usize {
    bits.trailing_zeros() as usize
}

fn last_bit(bits: u64) -> usize {
    bits.ilog2() as usize
}

#[inline]
fn hash(key: u64) -> u64 {
    let mixed = spread(key ^ (key >> 32));
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// The lower half of a hash.
#[inline]
fn half_of(hash: u64) -> usize {
    usize::try_from(hash & u64::from(u32::MAX)).expect("half of the bits")
}

/// Two halves: of a pair its left and right, of a merge its rank and token.
#[inline]
fn pair_key(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn rank_of(merge: u64) -> Rank {
    u32::try_from(merge >> 32).expect("the upper half")
}

/// The token of a merge.
fn id_of(merge: u64) -> u32 {
    u32::try_from(merge & u64::from(u32::MAX)).expect("the lower half")
}
