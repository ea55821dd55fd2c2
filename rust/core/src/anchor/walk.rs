//! The state of a pre-tokenizer in a text that may still grow.
//!
//! Invariant: a [`Walk`] over a text knows every offset where a piece of it may still end, whatever
//! follows. All text before its first open attempt is cut for good. Each later attempt begins where
//! the one before it ends if no later text makes that one longer. So if two walks are in the same
//! state, the same pieces follow.

use super::pieces::{Behavior, By, Pieces, Stage};
use super::program::{Attempt, Program};

/// A walk gives up when more attempts than this are open at once. No known model's pattern needs as
/// many, and each of them is stepped for every character.
const MOST_ATTEMPTS: usize = 6;

/// The stages of a pre-tokenizer up to its last cut, which an expression makes.
#[derive(Debug)]
pub(super) struct Path {
    followers: Vec<Follower>,
    last: Program,
}

/// A stage that can be followed one character at a time.
#[derive(Debug)]
enum Follower {
    /// A space becomes this character.
    Space(char),
    /// Cuts beside single characters.
    Single(By, Behavior),
    Pattern(Program),
}

/// The state of a stage before the last one.
#[derive(Debug, Clone)]
enum StageState {
    /// The text of this stage begins here.
    Fresh,
    /// The last character is in no match.
    Between,
    /// The text up to here is a match, which may go on.
    Matching(Attempt),
    /// The stage cuts beside single characters; true if the last character is one of them.
    Beside(bool),
}

/// An attempt of the last stage that later text may still make longer, or that comes behind one.
#[derive(Debug, Clone)]
struct OpenAttempt {
    attempt: Attempt,
    /// The offset where it began.
    start: usize,
    /// The offset of its second character: an attempt that matches nothing skips one character.
    second: usize,
    /// The byte of the original text that `start` came from, where that is known.
    origin: Option<usize>,
}

impl OpenAttempt {
    /// The offset where the next attempt begins if this one matches no further.
    fn next(&self) -> usize {
        self.attempt.end.unwrap_or(self.second)
    }
}

/// The state of a [`Path`] in a text. Offsets count the bytes of the text as the walk sees it, which
/// is normalized.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    at: usize,
    states: Vec<StageState>,
    attempts: Vec<OpenAttempt>,
}

/// Shows that a walk from an offset inside a text continues as the walk over the whole text does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// The open attempt of the whole walk that the offset lies in. The attempts before it have to
    /// end where they end now, which [`Path::keeps`] checks.
    attempt: usize,
    /// The number of bytes of its piece that stand before the offset.
    pub before: usize,
}

impl Alignment {
    /// True if all text before its attempt is cut for good.
    pub fn is_in_first(self) -> bool {
        self.attempt == 0
    }
}

impl Path {
    /// `None` where no expression makes the last cut, or a stage needs more than the characters.
    pub fn new(pieces: &Pieces) -> Option<Self> {
        let stages = pieces.stages();
        let cuts = |stage: &Stage| matches!(stage, Stage::Split { .. });
        let (before, after) = stages.split_at(stages.iter().rposition(cuts)? + 1);
        // The stages after the last cut see each piece alone and cut none. A prefix that one of them
        // writes before a piece would also be written before a piece that restarts in its middle.
        if after.iter().any(|stage| matches!(stage, Stage::Prefix(_))) {
            return None;
        }
        let follower = |stage: &Stage| match stage {
            Stage::Space(c) => Some(Follower::Space(*c)),
            Stage::Split { by: By::Pattern(pattern), behavior: Behavior::Apart } => {
                Program::new(pattern.expression()).map(Follower::Pattern)
            }
            Stage::Split { by: By::Pattern(_), .. } | Stage::Bytes(_) | Stage::Prefix(_) => None,
            Stage::Split { by, behavior } => Some(Follower::Single(by.clone(), *behavior)),
        };
        let mut followers = before.iter().map(follower).collect::<Option<Vec<_>>>()?;
        let Follower::Pattern(last) = followers.pop()? else { return None };
        Some(Self { followers, last })
    }

    /// A walk at the beginning of a text.
    pub fn begin(&self) -> Walk {
        let states = self.followers.iter().map(|_| StageState::Fresh).collect();
        Walk { at: 0, states, attempts: Vec::new() }
    }

    /// Steps over a character, which came from byte `origin`. Returns `false` if the state can no
    /// longer be known, because later text decides or too many attempts are open.
    pub fn step(&self, walk: &mut Walk, mut c: char, origin: Option<usize>) -> bool {
        let offsets = [walk.at, walk.at + c.len_utf8()];
        walk.at = offsets[1];
        for (index, follower) in self.followers.iter().enumerate() {
            let state = &mut walk.states[index];
            let cuts = match follower {
                Follower::Space(to) => {
                    c = if c == ' ' { *to } else { c };
                    continue;
                }
                Follower::Single(by, behavior) => by.cuts_before(*behavior, state, c),
                Follower::Pattern(program) => state.take(program, c, offsets),
            };
            match cuts {
                None => return false,
                Some(false) => {}
                Some(true) => {
                    // The later stages see each piece of this one alone.
                    walk.states[index + 1..].fill(StageState::Fresh);
                    walk.attempts.clear();
                }
            }
        }
        self.step_last(walk, c, offsets, origin)
    }

    /// Steps all open attempts of the last stage, and begins one more where the last of them ends.
    fn step_last(
        &self,
        walk: &mut Walk,
        c: char,
        offsets: [usize; 2],
        origin: Option<usize>,
    ) -> bool {
        let attempts = &mut walk.attempts;
        let mut index = 0;
        loop {
            if index == attempts.len() {
                let start =
                    index.checked_sub(1).map_or(offsets[0], |before| attempts[before].next());
                if start != offsets[0] {
                    break;
                }
                if index == MOST_ATTEMPTS {
                    return false;
                }
                let attempt = self.last.begin();
                attempts.push(OpenAttempt { attempt, start, second: offsets[1], origin });
            }
            if !self.last.step(&mut attempts[index].attempt, c, offsets) {
                return false;
            }
            let next = attempts[index].next();
            // The attempt came to a later end, so those that began at its earlier end are void.
            if attempts.get(index + 1).is_some_and(|behind| behind.start != next) {
                attempts.truncate(index + 1);
            }
            index += 1;
        }
        // Only the leading ones are certain: a later attempt goes if one before it becomes longer.
        let ended = attempts.iter().take_while(|open| open.attempt.has_ended()).count();
        attempts.drain(..ended);
        true
    }

    /// True if all attempts before that of the alignment end where they end now, wherever in the
    /// following `text` the whole text may end.
    ///
    /// The end of a text has to be tried after every character, because `(?!\S)` matches there and
    /// may give an attempt another end than the next character would.
    pub fn keeps(&self, whole: &Walk, alignment: Alignment, text: &str) -> bool {
        let mut walk = whole.clone();
        let start = walk.attempts[alignment.attempt].start;
        let ends_there = |walk: &Walk| {
            let Some(index) = walk.attempts.iter().position(|open| open.start == start) else {
                return false;
            };
            let mut pairs = walk.attempts[..=index].windows(2);
            pairs.all(|pair| {
                let end = self.last.end_at_end_of_text(&pair[0].attempt, walk.at);
                end == Some(pair[1].start) && pair[0].attempt.end == end
            })
        };
        let is_first = |walk: &Walk| walk.attempts.first().is_some_and(|f| f.start == start);
        let mut chars = text.chars();
        loop {
            if !ends_there(&walk) {
                return false;
            }
            if is_first(&walk) {
                return true;
            }
            let Some(c) = chars.next() else { return true };
            if !self.step(&mut walk, c, None) {
                return false;
            }
        }
    }
}

impl Walk {
    /// Compares this walk with one over the last part of the same text. They align if both are in an
    /// attempt that will end at the same offset, and every stage is in the same state, so that all
    /// pieces after that offset are the same.
    pub fn align(&self, tail: &Self) -> Option<Alignment> {
        let offset = self.at.checked_sub(tail.at)?;
        // Only while the tail's first piece is open. Once it is cut for good its attempt is gone, and
        // nothing shows any more that a piece of the whole text ends at the same offset.
        let first = tail.attempts.first().filter(|first| first.start == 0)?;
        let end = first.attempt.end? + offset;
        let attempt = self.attempts.iter().position(|open| {
            open.start <= offset
                && open.attempt.end == Some(end)
                && open.attempt.goes_on_as(&first.attempt)
        })?;
        let mut states = self.states.iter().zip(&tail.states);
        let same = states.all(|(whole, tail)| whole.goes_on_as(tail));
        same.then(|| Alignment { attempt, before: offset - self.attempts[attempt].start })
    }

    /// The byte of the original text at which the first piece begins that is not cut for good.
    pub fn origin(&self) -> Option<usize> {
        self.attempts.first()?.origin
    }

    /// Counts origins from a later byte on, because the text before it was dropped.
    pub fn forget(&mut self, bytes: usize) {
        for open in &mut self.attempts {
            open.origin = open.origin.and_then(|origin| origin.checked_sub(bytes));
        }
    }
}

impl StageState {
    /// True if a stage before the last one cuts before this character; `None` where later text
    /// decides.
    ///
    /// A stage before the last one is followed only while its match grows with each character, as
    /// `\p{N}{1,3}` does. The stages after it need to know at once where a piece ends.
    fn take(&mut self, program: &Program, c: char, offsets: [usize; 2]) -> Option<bool> {
        if let Self::Matching(attempt) = self {
            if !program.step(attempt, c, offsets) {
                return None;
            }
            if attempt.end == Some(offsets[1]) {
                return Some(false);
            }
            if !attempt.has_ended() || attempt.end != Some(offsets[0]) {
                return None;
            }
        }
        let mut attempt = program.begin();
        if !program.step(&mut attempt, c, offsets) {
            return None;
        }
        let (cuts, now) = if attempt.end == Some(offsets[1]) {
            (!matches!(self, Self::Fresh), Self::Matching(attempt))
        } else if attempt.has_ended() && attempt.end.is_none() {
            (matches!(self, Self::Matching(_)), Self::Between)
        } else {
            return None;
        };
        *self = now;
        Some(cuts)
    }

    fn goes_on_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fresh, Self::Fresh) | (Self::Between, Self::Between) => true,
            (Self::Matching(one), Self::Matching(other)) => one.goes_on_as(other),
            (Self::Beside(one), Self::Beside(other)) => one == other,
            _ => false,
        }
    }
}

impl By {
    fn cuts_before(&self, behavior: Behavior, state: &mut StageState, c: char) -> Option<bool> {
        let right = self.matches(c)?;
        let before = std::mem::replace(state, StageState::Beside(right));
        let StageState::Beside(left) = before else { return Some(false) };
        Some(match behavior {
            Behavior::Apart => left || right,
            Behavior::WithPrevious => left,
            Behavior::WithNext => right,
            Behavior::Contiguous => left != right,
        })
    }
}

#[cfg(test)]
mod tests;
