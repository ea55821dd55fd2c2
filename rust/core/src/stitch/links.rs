//! The links between calls, found before any chain is written.

use super::call::{Call, is_any_negative};
use super::cause::Difference;
use super::on_drift::OnDrift;
use super::rewritten::Beginnings;
use super::tree::{Ancestry, Tree};
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// The link from one call to the call or calls before it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Link {
    /// No recorded sample shares its history.
    Root,
    /// It extends this call.
    Extends(usize),
    /// It leaves this call at this token.
    Leaves(usize, usize),
    /// It extends several calls with the same tokens, as many as this.
    ExtendsSeveral(usize),
    /// It leaves several calls at this token.
    LeavesSeveral(usize),
    /// It repeats a turn of this call behind a history that differs at this token.
    Rewritten(usize, usize),
}

/// The links between all calls.
pub(super) struct Links<'a> {
    pub calls: &'a [Call<'a>],
    /// Calls with a sample, as recorded.
    pub kept: Vec<usize>,
    /// The same by the length of their prompts, so that parents come before their children.
    pub order: Vec<usize>,
    /// By call: the first recorded one with the same prompt.
    pub head: Vec<usize>,
    /// By call: its link, which siblings share.
    pub link: Vec<Link>,
    /// By call: the one that goes on with its chain.
    pub next: Vec<Option<usize>>,
    /// True if any call has an id below zero. Then that call is malformed, and the links mean nothing.
    pub any_negative: bool,
    pub work: usize,
}

impl<'a> Links<'a> {
    pub fn new(calls: &'a [Call<'a>], on_drift: OnDrift) -> Self {
        let has_sample = |&call: &usize| !calls[call].completion_ids.is_empty();
        let kept: Vec<usize> = (0..calls.len()).filter(has_sample).collect();
        let mut order = kept.clone();
        order.sort_by_key(|&call| calls[call].prompt_ids.len());
        let (mut tree, prompt_ends) = Tree::new(calls, &kept);

        let mut head: Vec<usize> = (0..calls.len()).collect();
        let mut link = vec![Link::Root; calls.len()];
        let mut first_at = rustc_hash::FxHashMap::default();
        for (&call, &node) in kept.iter().zip(&prompt_ends) {
            head[call] = *first_at.entry(node).or_insert(call);
            link[call] =
                if head[call] == call { Link::from(tree.ancestry(node)) } else { link[head[call]] };
        }
        let work = tree.work;
        let mut not_in_tree = calls.iter().filter(|call| call.completion_ids.is_empty());
        let any_negative =
            tree.is_any_negative() || not_in_tree.any(|call| is_any_negative(call.prompt_ids));
        let next = vec![None; calls.len()];
        let mut links = Self { calls, kept, order, head, link, next, any_negative, work };
        links.find_rewritten();
        links.choose_next(on_drift);
        links
    }

    /// Looks for turns of other calls in prompts that share no history. A sub-agent's prompt has none
    /// either, so a prompt alone at the root is the usual case and is not searched.
    fn find_rewritten(&mut self) {
        let is_root = |&&call: &&usize| matches!(self.link[call], Link::Root);
        let is_head = |&&call: &&usize| self.head[call] == call;
        let roots: Vec<usize> = self.kept.iter().filter(is_root).filter(is_head).copied().collect();
        if roots.len() < 2 {
            return;
        }
        let beginnings = Beginnings::new(self.calls, &self.order);
        for root in roots {
            let Some(other) = beginnings.find(root, &mut self.work) else { continue };
            let token = self.differ(root, other);
            self.link[root] = Link::Rewritten(other, token);
        }
        for &call in &self.kept {
            self.link[call] = self.link[self.head[call]];
        }
    }

    /// Chooses the call that goes on with each chain: the first recorded that extends it, else, with
    /// `Realign`, the first recorded that leaves it.
    fn choose_next(&mut self, on_drift: OnDrift) {
        for &call in self.kept.iter().filter(|&&call| self.head[call] == call) {
            if let Link::Extends(parent) = self.link[call] {
                self.next[parent].get_or_insert(call);
            }
        }
        if on_drift == OnDrift::Realign {
            for &call in self.kept.iter().filter(|&&call| self.head[call] == call) {
                if let Link::Leaves(parent, _) = self.link[call] {
                    self.next[parent].get_or_insert(call);
                }
            }
        }
    }

    /// The first token at which the prompt of `call` differs from the whole of `other`.
    fn differ(&self, call: usize, other: usize) -> usize {
        let (new, old) = (&self.calls[call], &self.calls[other]);
        new.shared(old, 0, new.prompt_ids.len().min(old.len()))
    }

    /// The difference between the prompt of `call` and the tokens that stood there; `None` where nothing
    /// differs, or where it leaves several calls.
    pub fn difference(&self, call: usize) -> Option<Difference<'a>> {
        let (other, token, rewritten) = match self.link[call] {
            Link::Root | Link::ExtendsSeveral(_) | Link::LeavesSeveral(_) => return None,
            Link::Leaves(parent, token) => (parent, token, false),
            Link::Rewritten(other, token) => (other, token, true),
            Link::Extends(parent) => {
                let next = self.next[parent].filter(|&next| next != self.head[call])?;
                (next, self.differ(call, next), false)
            }
        };
        let (old, new) = (&self.calls[other], &self.calls[call]);
        Some(Difference { old, other, new, token, rewritten })
    }

    /// True if the prompt of `call` differs from all tokens that stood there.
    pub fn is_drift(&self, call: usize) -> bool {
        matches!(self.link[call], Link::LeavesSeveral(_)) || self.difference(call).is_some()
    }

    pub fn refuse_drift(&self, tokenizer: Option<&Tokenizer>) -> Result<()> {
        for &call in &self.kept {
            let several = match self.link[call] {
                Link::ExtendsSeveral(token) => Some((token, true, "leaves the call out")),
                Link::LeavesSeveral(token) => Some((token, false, "begins a chain with the call")),
                _ => None,
            };
            if let Some((token, extends, split)) = several {
                let (first, second) = self.two_parents(call, token, extends);
                return Err(Error::AmbiguousParent { call, first, second, token, split });
            }
            let (Some(difference), Some(parent)) = (self.difference(call), self.parent(call))
            else {
                continue;
            };
            return Err(difference.error(call, parent, tokenizer));
        }
        Ok(())
    }

    /// The first two of the parents that `call` may have.
    fn two_parents(&self, call: usize, depth: usize, extends: bool) -> (usize, usize) {
        let fits = |&&other: &&usize| {
            let old = &self.calls[other];
            let begun = old.prompt_ids.len() <= depth && self.head[other] != self.head[call];
            begun && (old.len() == depth) == extends && self.differ(call, other) == depth
        };
        let mut parents = self.kept.iter().filter(fits).copied();
        let mut next = || parents.next().expect("the tree counted two calls");
        (next(), next())
    }

    pub fn parent(&self, call: usize) -> Option<usize> {
        match self.link[call] {
            Link::Root | Link::ExtendsSeveral(_) | Link::LeavesSeveral(_) => None,
            Link::Extends(parent) | Link::Leaves(parent, _) | Link::Rewritten(parent, _) => {
                Some(parent)
            }
        }
    }
}

impl From<Ancestry> for Link {
    fn from(ancestry: Ancestry) -> Self {
        match ancestry {
            Ancestry::Root => Self::Root,
            Ancestry::Extends(calls, depth) => {
                calls.only().map_or(Self::ExtendsSeveral(depth), Self::Extends)
            }
            Ancestry::Leaves(calls, depth) => {
                calls.only().map_or(Self::LeavesSeveral(depth), |call| Self::Leaves(call, depth))
            }
        }
    }
}
