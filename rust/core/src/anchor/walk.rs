//! How far a pre-tokenizer is in a text of which more may come.
//!
//! Invariant: a [`Walk`] that took up a text knows every place where a piece of it may still end,
//! whatever follows: what stands before its first attempt is cut for good, and each attempt but the
//! first begins where the one before it ends if nothing that it still could match follows. So where
//! two walks are in the same state, the same pieces follow.

use super::pieces::{Behavior, By, Pieces, Stage as Config};
use super::program::{Attempt, Program};

/// More attempts at once than any pattern of a model has.
const MOST_ATTEMPTS: usize = 6;

/// The stages of a pre-tokenizer up to its last cut, which an expression makes.
#[derive(Debug)]
pub(super) struct Path {
    stages: Vec<Stage>,
    last: Program,
}

#[derive(Debug)]
enum Stage {
    /// A space becomes this character.
    Space(char),
    /// Cuts beside single characters.
    Single(By, Behavior),
    Pattern(Program),
}

/// What a stage before the last one is doing.
#[derive(Debug, Clone)]
enum Doing {
    /// Nothing yet: its text begins here.
    Fresh,
    /// The last character is in no match.
    Between,
    /// The text up to here is a match, which may go on.
    Matching(Attempt),
    /// Whether the last character is one that it cuts beside.
    Beside(bool),
}

/// An attempt of the last stage.
#[derive(Debug, Clone)]
struct Begun {
    attempt: Attempt,
    /// Where it began, and the next character.
    start: usize,
    second: usize,
    /// The byte of the text that this place came from, where that is known.
    origin: Option<usize>,
}

impl Begun {
    /// Where the next attempt begins if this one comes no further.
    fn next(&self) -> usize {
        self.attempt.end.unwrap_or(self.second)
    }
}

/// The state of a [`Path`] in a text. Places count its bytes.
#[derive(Debug, Clone)]
pub(crate) struct Walk {
    at: usize,
    doing: Vec<Doing>,
    attempts: Vec<Begun>,
}

/// How a walk from a place inside a text meets the walk over all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meeting {
    /// Which attempt the place lies in; of the others before it the ends must stay.
    attempt: usize,
    /// How many bytes of its piece stand before the place.
    pub before: usize,
}

impl Meeting {
    /// Whether all before its attempt is cut for good.
    pub fn is_in_first(self) -> bool {
        self.attempt == 0
    }
}

impl Path {
    /// `None` where no expression makes the last cut, or a stage needs more than the characters.
    pub fn new(pieces: &Pieces) -> Option<Self> {
        let stages = pieces.stages();
        let cuts = |stage: &Config| matches!(stage, Config::Split { .. });
        let (before, after) = stages.split_at(stages.iter().rposition(cuts)? + 1);
        // The last stages see each piece alone, and cut none. What they may write before a piece is
        // in the way of taking up the text inside one.
        if after.iter().any(|stage| matches!(stage, Config::Prefix(_))) {
            return None;
        }
        let stage = |stage: &Config| match stage {
            Config::Space(c) => Some(Stage::Space(*c)),
            Config::Split { by: By::Pattern(pattern), behavior: Behavior::Apart } => {
                Program::new(pattern.expression()).map(Stage::Pattern)
            }
            Config::Split { by: By::Pattern(_), .. } | Config::Bytes(_) | Config::Prefix(_) => None,
            Config::Split { by, behavior } => Some(Stage::Single(by.clone(), *behavior)),
        };
        let mut stages = before.iter().map(stage).collect::<Option<Vec<_>>>()?;
        let Stage::Pattern(last) = stages.pop()? else { return None };
        Some(Self { stages, last })
    }

    /// At the beginning of a text.
    pub fn begin(&self) -> Walk {
        let doing = self.stages.iter().map(|_| Doing::Fresh).collect();
        Walk { at: 0, doing, attempts: Vec::new() }
    }

    /// Takes a character, which came from byte `origin`; `false` where the walk is lost.
    pub fn step(&self, walk: &mut Walk, mut c: char, origin: Option<usize>) -> bool {
        let places = [walk.at, walk.at + c.len_utf8()];
        walk.at = places[1];
        for (index, stage) in self.stages.iter().enumerate() {
            let cuts = match stage {
                Stage::Space(to) => {
                    c = if c == ' ' { *to } else { c };
                    continue;
                }
                Stage::Single(by, behavior) => by.cuts_before(*behavior, &mut walk.doing[index], c),
                Stage::Pattern(program) => {
                    let doing = &mut walk.doing[index];
                    doing.take(program, c, places)
                }
            };
            match cuts {
                None => return false,
                Some(false) => {}
                Some(true) => {
                    walk.doing[index + 1..].fill(Doing::Fresh);
                    walk.attempts.clear();
                }
            }
        }
        self.step_last(walk, c, places, origin)
    }

    fn step_last(
        &self,
        walk: &mut Walk,
        c: char,
        places: [usize; 2],
        origin: Option<usize>,
    ) -> bool {
        let attempts = &mut walk.attempts;
        let mut index = 0;
        loop {
            if index == attempts.len() {
                let start =
                    index.checked_sub(1).map_or(places[0], |before| attempts[before].next());
                if start != places[0] {
                    break;
                }
                if index == MOST_ATTEMPTS {
                    return false;
                }
                let attempt = self.last.begin();
                attempts.push(Begun { attempt, start, second: places[1], origin });
            }
            if !self.last.step(&mut attempts[index].attempt, c, places) {
                return false;
            }
            let next = attempts[index].next();
            if attempts.get(index + 1).is_some_and(|behind| behind.start != next) {
                attempts.truncate(index + 1);
            }
            index += 1;
        }
        let ended = attempts.iter().take_while(|begun| begun.attempt.has_ended()).count();
        attempts.drain(..ended);
        true
    }

    /// Whether all attempts before that of a meeting end where they do now, wherever in `text`,
    /// which follows, the text may end.
    pub fn keeps(&self, whole: &Walk, meeting: Meeting, text: &str) -> bool {
        let mut walk = whole.clone();
        let start = walk.attempts[meeting.attempt].start;
        let ends_there = |walk: &Walk| {
            let Some(index) = walk.attempts.iter().position(|begun| begun.start == start) else {
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
    /// Where a walk from a place inside the text, up to the same place, goes on as this one: both
    /// are in one attempt, which will end at the same place, and what follows is the same.
    pub fn meet(&self, from_place: &Self) -> Option<Meeting> {
        let place = self.at.checked_sub(from_place.at)?;
        // The piece at the place is still the first one.
        let first = from_place.attempts.first().filter(|first| first.start == 0)?;
        let end = first.attempt.end? + place;
        let attempt = self.attempts.iter().position(|begun| {
            begun.start <= place
                && begun.attempt.end == Some(end)
                && begun.attempt.goes_on_as(&first.attempt)
        })?;
        let mut stages = self.doing.iter().zip(&from_place.doing);
        let same = stages.all(|(whole, from_place)| whole.goes_on_as(from_place));
        same.then(|| Meeting { attempt, before: place - self.attempts[attempt].start })
    }

    /// The byte where the first piece that is not cut for good begins, and may go on.
    pub fn origin(&self) -> Option<usize> {
        self.attempts.first()?.origin
    }

    /// Counts origins from a later byte on.
    pub fn forget(&mut self, bytes: usize) {
        for begun in &mut self.attempts {
            begun.origin = begun.origin.and_then(|origin| origin.checked_sub(bytes));
        }
    }
}

impl Doing {
    /// Whether a match of a stage before the last one is cut before this character; `None` where
    /// that depends on what follows.
    fn take(&mut self, program: &Program, c: char, places: [usize; 2]) -> Option<bool> {
        if let Self::Matching(attempt) = self {
            if !program.step(attempt, c, places) {
                return None;
            }
            if attempt.end == Some(places[1]) {
                return Some(false);
            }
            if !attempt.has_ended() || attempt.end != Some(places[0]) {
                return None;
            }
        }
        let mut attempt = program.begin();
        if !program.step(&mut attempt, c, places) {
            return None;
        }
        let (cuts, now) = if attempt.end == Some(places[1]) {
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
    fn cuts_before(&self, behavior: Behavior, doing: &mut Doing, c: char) -> Option<bool> {
        let right = self.matches(c)?;
        let before = std::mem::replace(doing, Doing::Beside(right));
        let Doing::Beside(left) = before else { return Some(false) };
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
