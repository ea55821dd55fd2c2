//! Writing the chains from the links between calls, and the verdict on each call.

use serde::{Deserialize, Serialize};

use super::call::Call;
use super::links::{Link, Links};
use super::on_drift::OnDrift;
use super::transition::{Transition, TransitionKind};
use crate::columns::Columns;
use crate::tokenizer::Tokenizer;

/// The numbers of calls that are in no chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Dropped {
    /// Nothing was sampled.
    pub empty: usize,
    /// Cut off by [`OnDrift::Truncate`].
    pub truncated: usize,
    /// They extend more than one call, or a quarantined one.
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

/// A call in a chain; `end` is the end of its trained tokens. That is before the end of its sample if
/// the next call was realigned.
struct Member {
    call: usize,
    end: usize,
}

impl Links<'_> {
    /// Writes the chains.
    pub fn join(mut self, on_drift: OnDrift, tokenizer: Option<&Tokenizer>) -> Stitched {
        let mut chains: Vec<Vec<Member>> = Vec::new();
        let mut verdicts: Vec<Option<(TransitionKind, Option<usize>)>> =
            vec![None; self.calls.len()];
        for &call in &self.order {
            let member = Member { call, end: self.calls[call].len() };
            // A call that extends a lost one is lost with it, because its prompt holds a sample whose
            // logprobs are in no chain. A call that leaves another one can always begin a chain.
            let lost = match self.link[call] {
                Link::Extends(parent) => {
                    verdicts[parent].filter(|(_, chain)| chain.is_none()).map(|(kind, _)| kind)
                }
                Link::ExtendsSeveral(_) => Some(TransitionKind::Quarantined),
                _ => None,
            };
            let goes_on = self
                .parent(call)
                .filter(|&parent| self.next[parent] == Some(call))
                .and_then(|parent| verdicts[parent]?.1);
            verdicts[call] = Some(if let Some(kind) = lost {
                (kind, None)
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
            } else if on_drift == OnDrift::Truncate && self.is_drift(call) {
                (TransitionKind::Forked, None)
            } else {
                chains.push(vec![member]);
                let is_root = matches!(self.link[call], Link::Root) && self.head[call] == call;
                let kind = if is_root { TransitionKind::Clean } else { TransitionKind::Forked };
                (kind, Some(chains.len() - 1))
            });
        }

        // Chains were begun in the order of prompt lengths; they are numbered as recorded.
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
            let token = match self.link[call] {
                Link::LeavesSeveral(token) => Some(token),
                _ => difference.as_ref().map(|difference| difference.token),
            };
            transitions.push(Transition {
                call,
                parent: self.parent(call),
                chain: chain.map(|chain| renamed[chain]),
                kind,
                token,
                cause: difference.as_ref().map(|difference| difference.cause(tokenizer)),
                texts: difference.zip(tokenizer).map(|(d, tokenizer)| d.texts(tokenizer)),
            });
        }
        let chains = by_first.iter().map(|&chain| columns(self.calls, &chains[chain])).collect();
        Stitched { chains, transitions, dropped, work: self.work }
    }
}

/// The row of one chain, from its first trained token on.
fn columns(calls: &[Call<'_>], members: &[Member]) -> Columns {
    let last = &calls[members[members.len() - 1].call];
    // A realigned member whose sample differs at its first token has nothing left to train.
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
