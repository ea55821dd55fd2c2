//! Forking a trajectory: a new one that begins with the first tokens of another.
//!
//! Invariant: a fork equals the trajectory that the calls up to its fork point make from scratch. So a
//! fork point is an offset at which a call ended: inside a text, the tokens up to some offset are
//! mostly not those of the text up to there.

use std::fmt;

use super::Trajectory;
use crate::error::{Error, Result};

/// An offset at which a trajectory can be forked. If an offset is several of these, the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForkPoint {
    Beginning,
    StartOf(usize),
    Length,
    EndOf(usize),
}

impl fmt::Display for ForkPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Beginning => write!(f, "the beginning"),
            Self::StartOf(turn) => write!(f, "the start of turn {turn}"),
            Self::Length => write!(f, "the length"),
            Self::EndOf(turn) => write!(f, "the end of turn {turn}"),
        }
    }
}

impl Trajectory {
    /// This trajectory as it was when it had `at` tokens. The two share nothing that changes, and each
    /// goes on as if it had been built alone.
    ///
    /// The fork has the turns that start before `at`. The first of these that `at` is decides what
    /// it may do next:
    ///
    /// 1. 0: it is empty, as [`Trajectory::new`] makes it.
    /// 2. The start of a turn: it is requested, so that another sample of that request may follow
    ///    at once. A turn may end there too, or have sampled nothing there; that makes no difference,
    ///    because everything that is possible after a sample is possible after a request.
    /// 3. The length: it is as this one is. A request without an answer may be answered in both,
    ///    and open text stays open: text that is appended may change its last tokens.
    /// 4. The end of a turn: it is as [`Trajectory::append_sampled`] left this one.
    ///
    /// Costs a copy of the tokens before `at`.
    ///
    /// # Errors
    /// [`Error::ForkPoint`] at any other offset.
    pub fn fork(&self, at: usize) -> Result<Self> {
        let refused = || self.no_fork_point(i64::try_from(at).unwrap_or(i64::MAX));
        let (turns, barrier, requested) = match self.fork_point(at).ok_or_else(refused)? {
            ForkPoint::Beginning => return Ok(Self::new(self.tokenizer.clone())),
            ForkPoint::StartOf(turn) => (turn, self.barriers[turn][0], true),
            ForkPoint::Length => return Ok(self.clone()),
            ForkPoint::EndOf(turn) => (turn + 1, self.barriers[turn][1], false),
        };
        let mut fork = Self {
            ids: self.ids[..at].to_vec(),
            logprobs: self.logprobs[..at].to_vec(),
            provenance: self.provenance[..at].to_vec(),
            turns: self.turns[..turns].to_vec(),
            barriers: self.barriers[..turns].to_vec(),
            barrier,
            requested,
            ..Self::new(self.tokenizer.clone())
        };
        fork.freeze();
        Ok(fork)
    }

    /// The error of [`Trajectory::fork`] at an offset that is not a fork point. It takes negative
    /// offsets too, which Python can pass.
    #[must_use]
    pub fn no_fork_point(&self, at: i64) -> Error {
        let turns = self.turns.iter().flat_map(|turn| [turn.start, turn.end]);
        let points = || turns.clone().chain([0, self.ids.len()]);
        let is_before = |point: &usize| i64::try_from(*point).is_ok_and(|point| point < at);
        let before = points().filter(is_before).max();
        let after = points().filter(|point| !is_before(point)).min();
        let named = |at: usize| self.fork_point(at).map(|point| format!("{at} ({point})"));
        let named: Vec<String> = before.into_iter().chain(after).filter_map(named).collect();
        let are = if named.len() == 1 { "place is" } else { "places are" };
        let nearest = format!("{are} {}", named.join(" and "));
        Error::ForkPoint { at, tokens: self.ids.len(), nearest }
    }

    fn fork_point(&self, at: usize) -> Option<ForkPoint> {
        let before = self.turns.partition_point(|turn| turn.start < at);
        if at == 0 {
            Some(ForkPoint::Beginning)
        } else if self.turns.get(before).is_some_and(|turn| turn.start == at) {
            Some(ForkPoint::StartOf(before))
        } else if at == self.ids.len() {
            Some(ForkPoint::Length)
        } else {
            let ended = before.checked_sub(1)?;
            (self.turns[ended].end == at).then_some(ForkPoint::EndOf(ended))
        }
    }
}
