//! All recorded calls in one radix tree, which shows the calls that a prompt extends, or leaves inside a
//! sample.
//!
//! Invariant: **the prompt and the whole of each call each end at a node**, and nodes never move: an edge
//! is split by a new node above its end. Edges borrow their tokens from the calls, so building costs one
//! comparison for each token given.

use rustc_hash::FxHashMap;

use super::call::{Call, is_any_negative};

/// A set of calls that can tell its size, and its member if it has only one.
///
/// A list of the calls at each node would take memory for each pair of node and call. A count and a sum
/// of indices are enough: sums subtract, and the sum of one call is that call.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub count: usize,
    sum: usize,
}

impl Tally {
    fn add(&mut self, call: usize) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(call);
    }

    fn without(self, other: Self) -> Self {
        Self { count: self.count - other.count, sum: self.sum.wrapping_sub(other.sum) }
    }

    pub fn only(self) -> Option<usize> {
        (self.count == 1).then_some(self.sum)
    }
}

/// The edge into a node is `whole[parent.depth..depth]` of `call`.
#[derive(Debug)]
struct Node {
    parent: usize,
    call: usize,
    depth: usize,
    /// Calls whose prompt ends here.
    starts: Tally,
    /// Calls whose sample ends here.
    ends: Tally,
    /// Calls whose sample covers the edge into this node.
    through: Tally,
    /// Calls whose sample covers an edge out of this node.
    below: Tally,
}

/// The recorded samples that a prompt goes on from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ancestry {
    /// No recorded sample shares its history.
    Root,
    /// It extends these calls, which are the same tokens; the longest ones where several nest.
    Extends(Tally, usize),
    /// It leaves these samples at this token.
    Leaves(Tally, usize),
}

pub(super) struct Tree<'a> {
    calls: &'a [Call<'a>],
    nodes: Vec<Node>,
    children: FxHashMap<(usize, i64), usize>,
    /// Tokens compared and nodes visited.
    pub work: usize,
}

const ROOT: usize = 0;

impl<'a> Tree<'a> {
    /// The tree of the calls in `kept`; with each, the node at which its prompt ends.
    pub fn new(calls: &'a [Call<'a>], kept: &[usize]) -> (Self, Vec<usize>) {
        let mut tree = Self { calls, nodes: Vec::new(), children: FxHashMap::default(), work: 0 };
        tree.push(ROOT, 0, 0);
        let mut prompt_ends = Vec::with_capacity(kept.len());
        let mut ends = Vec::with_capacity(kept.len());
        for &call in kept {
            let prompt_end = tree.descend(call, ROOT, calls[call].prompt_ids.len());
            prompt_ends.push(prompt_end);
            ends.push(tree.descend(call, prompt_end, calls[call].len()));
        }
        for ((&call, &start), &end) in kept.iter().zip(&prompt_ends).zip(&ends) {
            tree.nodes[start].starts.add(call);
            tree.nodes[end].ends.add(call);
            let mut node = end;
            while node != start {
                tree.work += 1;
                let parent = tree.nodes[node].parent;
                tree.nodes[node].through.add(call);
                tree.nodes[parent].below.add(call);
                node = parent;
            }
        }
        (tree, prompt_ends)
    }

    /// True if any token is below zero. Each token given is the same as one of an edge.
    pub fn is_any_negative(&self) -> bool {
        self.nodes[ROOT + 1..].iter().any(|node| {
            let edge = self.nodes[node.parent].depth..node.depth;
            self.calls[node.call].slices(edge).into_iter().any(is_any_negative)
        })
    }

    /// The ancestry of the prompt that ends at node `prompt`, from the deepest node above it at which a
    /// sample ends or goes elsewhere. Where both happen at once, the call that it extends counts.
    pub fn ancestry(&mut self, prompt: usize) -> Ancestry {
        let mut node = prompt;
        // The samples that go on along the prompt: those that begin where it ends, then those that cover
        // the edge that was climbed. All others in `below` leave it.
        let mut on_path = self.nodes[prompt].starts;
        loop {
            self.work += 1;
            let Node { parent, depth, ends, through, below, .. } = self.nodes[node];
            let elsewhere = below.without(on_path);
            if ends.count > 0 {
                return Ancestry::Extends(ends, depth);
            }
            if elsewhere.count > 0 {
                return Ancestry::Leaves(elsewhere, depth);
            }
            if node == ROOT {
                return Ancestry::Root;
            }
            on_path = through;
            node = parent;
        }
    }

    /// Goes from `node` along the tokens of `call` to depth `until`, and makes the nodes that are missing.
    fn descend(&mut self, call: usize, mut node: usize, until: usize) -> usize {
        loop {
            self.work += 1;
            let depth = self.nodes[node].depth;
            if depth == until {
                return node;
            }
            let first = self.calls[call].token(depth);
            let Some(&child) = self.children.get(&(node, first)) else {
                let leaf = self.push(node, call, until);
                self.children.insert((node, first), leaf);
                return leaf;
            };
            let end = self.nodes[child].depth.min(until);
            let edge = &self.calls[self.nodes[child].call];
            let shared = self.calls[call].shared(edge, depth, end);
            self.work += shared - depth;
            node = if shared == self.nodes[child].depth {
                child
            } else {
                self.split_edge(node, child, first, shared)
            };
        }
    }

    /// A new node at `depth` between `parent` and `child`.
    fn split_edge(&mut self, parent: usize, child: usize, first: i64, depth: usize) -> usize {
        let call = self.nodes[child].call;
        let middle = self.push(parent, call, depth);
        self.nodes[child].parent = middle;
        self.children.insert((parent, first), middle);
        self.children.insert((middle, self.calls[call].token(depth)), child);
        middle
    }

    fn push(&mut self, parent: usize, call: usize, depth: usize) -> usize {
        let none = Tally::default();
        self.nodes.push(Node {
            parent,
            call,
            depth,
            starts: none,
            ends: none,
            through: none,
            below: none,
        });
        self.nodes.len() - 1
    }
}
