//! A trajectory of its own, from what stood at a place of another.
//!
//! Invariant: a fork is the trajectory that the calls up to its place make from scratch. So its
//! place is one at which a call ended: inside a text, the tokens up to a place are mostly not those
//! of the text up to there.

use std::fmt;

use super::Trajectory;
use crate::error::{Error, Result};

/// What a place is. Where it is several of these, the first counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Beginning,
    StartOf(usize),
    Length,
    EndOf(usize),
}

impl fmt::Display for Place {
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
    /// What stood here when there were `at` tokens, as a trajectory of its own: the two share
    /// nothing that changes, and each goes on as if it had been built alone.
    ///
    /// The fork has the turns that start before `at`. The first of these that `at` is decides what
    /// it may do next:
    ///
    /// 1. 0: it is empty, as [`Trajectory::new`] makes it.
    /// 2. The start of a turn: it is requested, so that another sample of that request may follow
    ///    at once. That a turn ends there too, or sampled nothing there, changes nothing: after a
    ///    request all is possible that is possible after a sample.
    /// 3. The length: it is as this one is. A request without an answer may be answered in both,
    ///    and text that is still open stays open: what is appended may change its last tokens.
    /// 4. The end of a turn: it is as [`Trajectory::append_sampled`] left this one.
    ///
    /// Costs a copy of what stands before `at`.
    ///
    /// # Errors
    /// [`Error::ForkPlace`] at any other place.
    pub fn fork(&self, at: usize) -> Result<Self> {
        let no_place = || self.no_place(i64::try_from(at).unwrap_or(i64::MAX));
        let (turns, barrier, requested) = match self.place(at).ok_or_else(no_place)? {
            Place::Beginning => return Ok(Self::new(self.tokenizer.clone())),
            Place::StartOf(turn) => (turn, self.barriers[turn][0], true),
            Place::Length => return Ok(self.clone()),
            Place::EndOf(turn) => (turn + 1, self.barriers[turn][1], false),
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

    /// The error of [`Trajectory::fork`] at a place that is none, such as a negative one.
    #[must_use]
    pub fn no_place(&self, at: i64) -> Error {
        let turns = self.turns.iter().flat_map(|turn| [turn.start, turn.end]);
        let places = || turns.clone().chain([0, self.ids.len()]);
        let is_before = |place: &usize| i64::try_from(*place).is_ok_and(|place| place < at);
        let before = places().filter(is_before).max();
        let after = places().filter(|place| !is_before(place)).min();
        let named = |place: usize| self.place(place).map(|what| format!("{place} ({what})"));
        let named: Vec<String> = before.into_iter().chain(after).filter_map(named).collect();
        let are = if named.len() == 1 { "place is" } else { "places are" };
        let nearest = format!("{are} {}", named.join(" and "));
        Error::ForkPlace { at, tokens: self.ids.len(), nearest }
    }

    fn place(&self, at: usize) -> Option<Place> {
        let before = self.turns.partition_point(|turn| turn.start < at);
        if at == 0 {
            Some(Place::Beginning)
        } else if self.turns.get(before).is_some_and(|turn| turn.start == at) {
            Some(Place::StartOf(before))
        } else if at == self.ids.len() {
            Some(Place::Length)
        } else {
            let ended = before.checked_sub(1)?;
            (self.turns[ended].end == at).then_some(Place::EndOf(ended))
        }
    }
}
