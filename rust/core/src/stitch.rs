//! Recorded engine calls to chains: each sampled token is trained at most once, in the context in
//! which it was sampled.
//!
//! Invariant: **the tokens of a chain are the prompt and the sample of its last call, and each
//! prompt in it extends the prompt and sample before it, up to a realigned tail that is context.**
//!
//! A call *extends* another one whose prompt and sample its own prompt begins with, and *leaves*
//! it where the two part inside the sample. The longest shared history decides; where it is equally
//! long, extending does. Calls with the same prompt are siblings: the first in recorded order takes
//! the place, each other begins a chain. Of several prompts that extend one call, that of the call
//! recorded first goes on with it and the others differ in context. What extends a dropped or
//! quarantined call shares its fate. Nothing else depends on the order of the calls.
//!
//! Time and memory are linear in the tokens given.

mod call;
mod cause;
mod rewritten;
mod tree;

use crate::columns::Columns;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
pub use call::Call;
use call::is_any_negative;
pub use cause::Cause;
use cause::Difference;
use rewritten::Beginnings;
use tree::{Place, Tree};

/// What to do with a prompt that differs from what stood there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDrift {
    /// Refuse the recording.
    Error,
    /// The chain ends before the call, which is dropped with what extends it.
    Truncate,
    /// The call begins a chain.
    Split,
    /// Where the difference lies in a sample, its tail becomes context; else as `Split`.
    Realign,
}

/// The verdict on one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransitionKind {
    /// It extends its parent exactly, or is the first call with a prompt that has no parent.
    Clean,
    /// It goes on with its parent, of whose sample the tail is context now.
    Realigned,
    /// It does not go on with its parent's chain: it begins one, or was dropped.
    Forked,
    /// It has more than one possible parent, or extends such a call: it is in no chain.
    Quarantined,
}

impl TransitionKind {
    /// The name that users see.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Realigned => "realigned",
            Self::Forked => "forked",
            Self::Quarantined => "quarantined",
        }
    }
}

/// How one call follows another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transition {
    /// Index of the call, as recorded.
    pub call: usize,
    /// The call that it extends, leaves or repeats.
    pub parent: Option<usize>,
    /// Index of its chain.
    pub chain: Option<usize>,
    /// The verdict.
    pub kind: TransitionKind,
    /// The first token that differs from what stood there.
    pub token: Option<usize>,
    /// A guess at the reason, where tokens differ.
    pub cause: Option<Cause>,
    /// With a tokenizer: the text around `token` in what stood there, and in the prompt.
    pub texts: Option<(String, String)>,
}

/// How many calls are in no chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dropped {
    /// Nothing was sampled.
    pub empty: usize,
    /// Cut off by [`OnDrift::Truncate`].
    pub truncated: usize,
    /// More than one possible parent.
    pub quarantined: usize,
}

/// Recorded calls, joined.
#[derive(Debug, Clone, PartialEq)]
pub struct Stitched {
    /// One row each, in the order in which their first calls were recorded.
    pub chains: Vec<Columns>,
    /// One for each call with a sample, as recorded.
    pub transitions: Vec<Transition>,
    /// The calls in no chain.
    pub dropped: Dropped,
    /// Tokens compared and nodes visited: linear in the tokens given.
    pub work: usize,
}

/// What was found out about one call.
#[derive(Debug, Clone, Copy)]
enum Link {
    Root,
    Extends(usize),
    Leaves(usize, usize),
    Ambiguous { depth: usize, extends: bool },
    Rewritten(usize, usize),
}

/// A call in a chain; `end` is behind its last trained token.
struct Member {
    call: usize,
    end: usize,
}

/// Joins recorded calls.
///
/// # Errors
/// A malformed call ([`Error::EmptyPrompt`], [`Error::NegativeId`], [`Error::LogprobCount`],
/// [`Error::Logprob`]); with [`OnDrift::Error`] also [`Error::Drift`] and
/// [`Error::AmbiguousParent`], for the first such call.
pub fn stitch(
    calls: &[Call<'_>],
    on_drift: OnDrift,
    tokenizer: Option<&Tokenizer>,
) -> Result<Stitched> {
    if !calls.iter().all(Call::is_aligned) {
        check(calls)?;
    }
    let links = Links::new(calls, on_drift);
    if links.any_negative {
        check(calls)?;
    }
    if on_drift == OnDrift::Error {
        links.refuse_drift(tokenizer)?;
    }
    Ok(links.join(on_drift, tokenizer))
}

/// Refuses the first malformed call.
fn check(calls: &[Call<'_>]) -> Result<()> {
    calls.iter().enumerate().try_for_each(|(index, call)| call.check(index))
}

/// Who follows whom.
struct Links<'a> {
    calls: &'a [Call<'a>],
    /// Calls with a sample: as recorded, and by the length of their prompts, parents first.
    kept: Vec<usize>,
    order: Vec<usize>,
    /// By call: the first recorded one with the same prompt, and what was found out about it.
    head: Vec<usize>,
    link: Vec<Link>,
    /// By call: the one that goes on with its chain.
    next: Vec<Option<usize>>,
    /// Whether any call has an id below zero: then it is malformed, and this means nothing.
    any_negative: bool,
    work: usize,
}

impl<'a> Links<'a> {
    fn new(calls: &'a [Call<'a>], on_drift: OnDrift) -> Self {
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
                if head[call] == call { Link::from(tree.place(node)) } else { link[head[call]] };
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

    /// Looks for turns of other calls in prompts that share no history.
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

    /// Who goes on with whose chain: the first recorded that extends it, else, with `Realign`, the
    /// first recorded that leaves it.
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

    /// Where the prompt of `call` differs from what stood there, if it does.
    fn difference(&self, call: usize) -> Option<Difference<'a>> {
        let (other, token, rewritten) = match self.link[call] {
            Link::Root | Link::Ambiguous { .. } => return None,
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

    fn refuse_drift(&self, tokenizer: Option<&Tokenizer>) -> Result<()> {
        for &call in &self.kept {
            if let Link::Ambiguous { depth, extends } = self.link[call] {
                let (first, second) = self.two_parents(call, depth, extends);
                return Err(Error::AmbiguousParent { call, first, second, token: depth });
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

    fn parent(&self, call: usize) -> Option<usize> {
        match self.link[call] {
            Link::Root | Link::Ambiguous { .. } => None,
            Link::Extends(parent) | Link::Leaves(parent, _) | Link::Rewritten(parent, _) => {
                Some(parent)
            }
        }
    }

    /// Writes the chains.
    fn join(mut self, on_drift: OnDrift, tokenizer: Option<&Tokenizer>) -> Stitched {
        let mut chains: Vec<Vec<Member>> = Vec::new();
        let mut verdicts: Vec<Option<(TransitionKind, Option<usize>)>> =
            vec![None; self.calls.len()];
        for &call in &self.order {
            let member = Member { call, end: self.calls[call].len() };
            let lost = match self.link[call] {
                Link::Extends(parent) | Link::Leaves(parent, _) => {
                    verdicts[parent].filter(|(_, chain)| chain.is_none()).map(|(kind, _)| kind)
                }
                Link::Ambiguous { .. } => Some(TransitionKind::Quarantined),
                Link::Root | Link::Rewritten(..) => None,
            };
            let goes_on = self
                .parent(call)
                .filter(|&parent| self.next[parent] == Some(call))
                .and_then(|parent| verdicts[parent]?.1);
            verdicts[call] = Some(if let Some(kind) = lost {
                let quarantined = kind == TransitionKind::Quarantined;
                (if quarantined { kind } else { TransitionKind::Forked }, None)
            } else if let Some(chain) = goes_on {
                let mut kind = TransitionKind::Clean;
                if let (Link::Leaves(_, token), Some(last)) =
                    (self.link[call], chains[chain].last_mut())
                {
                    last.end = token;
                    kind = TransitionKind::Realigned;
                }
                chains[chain].push(member);
                (kind, Some(chain))
            } else if on_drift == OnDrift::Truncate && self.difference(call).is_some() {
                (TransitionKind::Forked, None)
            } else {
                chains.push(vec![member]);
                let is_root = matches!(self.link[call], Link::Root) && self.head[call] == call;
                let kind = if is_root { TransitionKind::Clean } else { TransitionKind::Forked };
                (kind, Some(chains.len() - 1))
            });
        }

        let mut by_first: Vec<usize> = (0..chains.len()).collect();
        by_first.sort_by_key(|&chain| chains[chain][0].call);
        let mut renamed = vec![0; chains.len()];
        by_first.iter().enumerate().for_each(|(new, &old)| renamed[old] = new);

        let mut dropped =
            Dropped { empty: self.calls.len() - self.kept.len(), ..Dropped::default() };
        let mut transitions = Vec::with_capacity(self.kept.len());
        for &call in &self.kept {
            let Some((kind, chain)) = verdicts[call] else { continue };
            match (chain, kind) {
                (Some(_), _) => {}
                (None, TransitionKind::Quarantined) => dropped.quarantined += 1,
                (None, _) => dropped.truncated += 1,
            }
            let difference = self.difference(call);
            self.work += difference.as_ref().map_or(0, |difference| difference.token);
            transitions.push(Transition {
                call,
                parent: self.parent(call),
                chain: chain.map(|chain| renamed[chain]),
                kind,
                token: difference.as_ref().map(|difference| difference.token),
                cause: difference.as_ref().map(|difference| difference.cause(tokenizer)),
                texts: difference.zip(tokenizer).map(|(d, tokenizer)| d.texts(tokenizer)),
            });
        }
        let chains = by_first.iter().map(|&chain| columns(self.calls, &chains[chain])).collect();
        Stitched { chains, transitions, dropped, work: self.work }
    }
}

impl From<Place> for Link {
    fn from(place: Place) -> Self {
        match place {
            Place::Root => Self::Root,
            Place::Extends(calls, depth) => {
                calls.only().map_or(Self::Ambiguous { depth, extends: true }, Self::Extends)
            }
            Place::Leaves(calls, depth) => {
                calls.only().map_or(Self::Ambiguous { depth, extends: false }, |call| {
                    Self::Leaves(call, depth)
                })
            }
        }
    }
}

/// The row of one chain, from its first trained token on.
fn columns(calls: &[Call<'_>], members: &[Member]) -> Columns {
    let last = &calls[members[members.len() - 1].call];
    let trained = |member: &&Member| calls[member.call].prompt_ids.len() < member.end;
    let first = members.iter().find(trained).expect("the last sample is whole");
    let start = calls[first.call].prompt_ids.len();
    let len = last.len() - start;
    let mut row = Columns {
        prompt_ids: last.prompt_ids[..start].to_vec(),
        completion_ids: last.tokens(start..last.len()).collect(),
        logprobs: vec![0.0; len],
        env_mask: vec![0; len],
    };
    for Member { call, end } in members.iter().filter(trained) {
        let begin = calls[*call].prompt_ids.len();
        let sampled = &calls[*call].logprobs[..end - begin];
        row.logprobs[begin - start..end - start].copy_from_slice(sampled);
        row.env_mask[begin - start..end - start].fill(1);
    }
    row
}
