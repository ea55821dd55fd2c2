//! A regular expression taken up one character at a time.
//!
//! Invariant: an [`Attempt`] holds what a backtracking engine could still do from the place where it
//! began, in the order in which the engine would try it, and the match that stands if all of that
//! fails. So two attempts with the same threads and the same match end at the same place, whatever
//! follows, and one without threads has ended.
//!
//! This is Thompson's construction with the threads in order of priority, as Pike runs it.

use regex_syntax::ast::parse::Parser as AstParser;
use regex_syntax::hir::translate::Translator;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition};

use super::pattern::{NOT_SPACE_AHEAD, greedy};

/// Stands for `(?!\S)` while an expression is read. No text has it.
const AHEAD: char = '\u{10FFFE}';
/// Programs are at most as long, so that a set of operations is a few words.
const MOST: usize = 256;
/// More threads at once than any pattern of a model has.
const MOST_THREADS: usize = 62;
/// Case-insensitive groups that are read in the same way everywhere: nothing that they hold folds
/// to several characters.
const FOLDED: [&str; 2] = ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)"];

/// An expression without look-around but `(?!\S)`, which never matches nothing.
#[derive(Debug)]
pub(super) struct Program {
    code: Vec<Op>,
    sets: Vec<Set>,
    /// Before the first character.
    begin: Threads,
    /// What goes on behind each `Ahead`, and whether that is a match.
    behind: Vec<(Threads, bool)>,
    spaces: Set,
}

#[derive(Debug, Clone, Copy)]
enum Op {
    /// Takes a character of this set.
    Take {
        set: usize,
        next: usize,
    },
    /// Goes on where whitespace or nothing follows.
    Ahead(usize),
    /// Tries the first before the second.
    Split(usize, usize),
    Match,
}

/// A set of characters.
#[derive(Debug)]
struct Set {
    ascii: u128,
    class: ClassUnicode,
}

/// Operations that wait for a character, the one that would be tried first before the others.
#[derive(Debug, Clone, Copy)]
struct Threads {
    count: u8,
    /// Whether there were too many.
    overflows: bool,
    ops: [u8; MOST_THREADS],
}

impl Threads {
    const NONE: Self = Self { count: 0, overflows: false, ops: [0; MOST_THREADS] };

    fn push(&mut self, op: usize) {
        match self.ops.get_mut(usize::from(self.count)) {
            Some(free) => {
                *free = u8::try_from(op).expect("programs are short");
                self.count += 1;
            }
            None => self.overflows = true,
        }
    }

    fn ops(&self) -> impl Iterator<Item = usize> + '_ {
        self.ops[..usize::from(self.count)].iter().map(|&op| usize::from(op))
    }
}

/// What the engine could do from one place on.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    threads: Threads,
    /// Where the match ends that stands if all threads fail.
    pub end: Option<usize>,
}

impl Attempt {
    /// Whether nothing that follows can change its end.
    pub fn has_ended(&self) -> bool {
        self.threads.count == 0
    }

    /// Whether both go on in the same way.
    pub fn goes_on_as(&self, other: &Self) -> bool {
        self.threads.ops().eq(other.threads.ops())
    }
}

/// Operations that were reached.
#[derive(Default)]
struct Seen([u64; MOST / 64]);

impl Seen {
    /// Whether it is new.
    fn insert(&mut self, op: usize) -> bool {
        let bit = 1 << (op % 64);
        let is_new = self.0[op / 64] & bit == 0;
        self.0[op / 64] |= bit;
        is_new
    }
}

/// The threads after a character.
struct Next {
    threads: Threads,
    seen: Seen,
    end: Option<usize>,
}

impl Program {
    /// `None` where the expression could be read in another way, or is too long.
    pub fn new(expression: &str) -> Option<Self> {
        let ends_in_anchor = expression.ends_with('$') && !expression.ends_with("\\$");
        let plain =
            FOLDED.iter().fold(expression.to_owned(), |text, known| text.replace(known, ""));
        let doubtful = ["--", "~~", "(?i", "(?x", "{0,1}+", "{0,}+", "{1,}+"];
        if ends_in_anchor
            || expression.contains(AHEAD)
            || doubtful.iter().any(|mark| plain.contains(mark))
        {
            return None;
        }
        let marked = expression.replace(NOT_SPACE_AHEAD, &AHEAD.to_string());
        let parse = |text: &str| {
            let ast = AstParser::new().parse(text).ok()?;
            Translator::new().translate(text, &ast).ok()
        };
        let mut compiler =
            Compiler { possessive: greedy(&marked) != marked, ..Compiler::default() };
        let end = compiler.push(Op::Match)?;
        let start = compiler.emit(&parse(&marked)?, end)?;
        let Compiler { code, sets, kept, aheads, .. } = compiler;
        let HirKind::Class(Class::Unicode(spaces)) = parse(r"\s")?.into_kind() else {
            return None;
        };
        let spaces = Set::new(spaces);
        let mut program = Self { code, sets, begin: Threads::NONE, behind: Vec::new(), spaces };
        program.behind = aheads.into_iter().map(|next| program.reached(next)).collect();
        // A match of nothing is a rule of its own in every engine.
        let (begin, is_empty) = program.reached(start);
        let is_ahead = |op: usize| matches!(program.code[op], Op::Ahead(_));
        let waits = begin.ops().any(is_ahead);
        let is_sound = kept.iter().all(|&(set, next)| program.never_gives_back(set, next));
        program.begin = begin;
        (!is_empty && !waits && is_sound && !begin.overflows).then_some(program)
    }

    /// An attempt that has taken nothing.
    pub fn begin(&self) -> Attempt {
        Attempt { threads: self.begin, end: None }
    }

    /// Takes the character between two places; `false` where there is too much to follow.
    pub fn step(&self, attempt: &mut Attempt, c: char, places: [usize; 2]) -> bool {
        if attempt.has_ended() {
            return true;
        }
        let mut next = Next { threads: Threads::NONE, seen: Seen::default(), end: attempt.end };
        let is_space = self.spaces.has(c);
        // A match ends all that would be tried after it.
        let _ = attempt.threads.ops().any(|op| self.take(op, c, is_space, places, &mut next));
        *attempt = Attempt { threads: next.threads, end: next.end };
        !next.threads.overflows
    }

    /// Where it ends if the text ends here, at `at`.
    pub fn end_at_end_of_text(&self, attempt: &Attempt, at: usize) -> Option<usize> {
        let matches = attempt.threads.ops().any(|op| self.matches_nothing(op));
        if matches { Some(at) } else { attempt.end }
    }

    /// What one thread does with a character; `true` where it finds a match.
    fn take(
        &self,
        op: usize,
        c: char,
        is_space: bool,
        places: [usize; 2],
        next: &mut Next,
    ) -> bool {
        match self.code[op] {
            Op::Take { set, next: after } if self.sets[set].has(c) => {
                let found = self.reach(after, &mut next.threads, &mut next.seen);
                if found {
                    next.end = Some(places[1]);
                }
                found
            }
            Op::Ahead(behind) if is_space => {
                let (threads, matches) = &self.behind[behind];
                let found = threads.ops().any(|op| self.take(op, c, is_space, places, next));
                if *matches && !found {
                    next.end = Some(places[0]);
                }
                *matches || found
            }
            _ => false,
        }
    }

    /// The operations that wait for a character, from one on, and whether it comes to a match.
    fn reached(&self, op: usize) -> (Threads, bool) {
        let mut threads = Threads::NONE;
        let matches = self.reach(op, &mut threads, &mut Seen::default());
        (threads, matches)
    }

    /// Adds the operations that wait for a character, from one on; `true` where it comes to a match,
    /// which ends all that would be tried after it.
    fn reach(&self, op: usize, threads: &mut Threads, seen: &mut Seen) -> bool {
        if !seen.insert(op) {
            return false;
        }
        match self.code[op] {
            Op::Take { .. } | Op::Ahead(_) => {
                threads.push(op);
                false
            }
            Op::Split(first, second) => {
                self.reach(first, threads, seen) || self.reach(second, threads, seen)
            }
            Op::Match => true,
        }
    }

    /// Whether an operation comes to a match where nothing follows.
    fn matches_nothing(&self, op: usize) -> bool {
        let Op::Ahead(behind) = self.code[op] else { return false };
        let (threads, matches) = &self.behind[behind];
        *matches || threads.ops().any(|op| self.matches_nothing(op))
    }

    /// Whether a repetition of `set` that `next` follows always keeps all that it took: nothing that
    /// comes after could take any of it.
    fn never_gives_back(&self, set: usize, next: usize) -> bool {
        self.reached(next).0.ops().all(|op| match self.code[op] {
            Op::Take { set: other, .. } => {
                let mut both = self.sets[set].class.clone();
                both.intersect(&self.sets[other].class);
                both.ranges().is_empty()
            }
            _ => false,
        })
    }
}

impl Set {
    fn new(class: ClassUnicode) -> Self {
        let has = |code: u32| {
            let ranges = class.ranges().iter();
            ranges.clone().any(|range| (range.start() as u32..=range.end() as u32).contains(&code))
        };
        let ascii = (0..128).filter(|&code| has(code)).fold(0, |bits, code| bits | 1 << code);
        Self { ascii, class }
    }

    fn has(&self, c: char) -> bool {
        if c.is_ascii() {
            return self.ascii >> (c as u32) & 1 == 1;
        }
        let ranges = self.class.ranges();
        let next = ranges.partition_point(|range| range.end() < c);
        ranges.get(next).is_some_and(|range| range.start() <= c)
    }
}

#[derive(Default)]
struct Compiler {
    code: Vec<Op>,
    sets: Vec<Set>,
    /// Whether one of the quantifiers is possessive.
    possessive: bool,
    /// The sets that possessive quantifiers repeat, and what comes after them.
    kept: Vec<(usize, usize)>,
    /// What comes after each `(?!\S)`.
    aheads: Vec<usize>,
}

impl Compiler {
    fn push(&mut self, op: Op) -> Option<usize> {
        self.code.push(op);
        (self.code.len() <= MOST).then(|| self.code.len() - 1)
    }

    /// The operation that an expression begins with, when `next` follows it.
    fn emit(&mut self, hir: &Hir, next: usize) -> Option<usize> {
        match hir.kind() {
            HirKind::Empty => Some(next),
            HirKind::Look(_) => None,
            HirKind::Capture(capture) => self.emit(&capture.sub, next),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).ok()?;
                text.chars().rev().try_fold(next, |next, c| {
                    if c == AHEAD {
                        self.aheads.push(next);
                        return self.push(Op::Ahead(self.aheads.len() - 1));
                    }
                    let only = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
                    self.take(only, next)
                })
            }
            HirKind::Class(class) => {
                let class = match class {
                    Class::Unicode(class) => class.clone(),
                    Class::Bytes(class) => class.to_unicode_class()?,
                };
                // `(?!\S)` beside other characters, which was read as one of them.
                let hides = class.ranges().iter().any(|range| range.start() == AHEAD);
                if hides { None } else { self.take(class, next) }
            }
            HirKind::Repetition(repetition) => self.repeat(repetition, next),
            HirKind::Concat(parts) => {
                parts.iter().rev().try_fold(next, |next, part| self.emit(part, next))
            }
            HirKind::Alternation(parts) => {
                let (last, others) = parts.split_last()?;
                let last = self.emit(last, next)?;
                others.iter().rev().try_fold(last, |second, part| {
                    let first = self.emit(part, next)?;
                    self.push(Op::Split(first, second))
                })
            }
        }
    }

    fn take(&mut self, class: ClassUnicode, next: usize) -> Option<usize> {
        self.sets.push(Set::new(class));
        self.push(Op::Take { set: self.sets.len() - 1, next })
    }

    fn repeat(&mut self, repetition: &Repetition, next: usize) -> Option<usize> {
        let Repetition { min, max, greedy, ref sub } = *repetition;
        let is_possessive = self.is_possessive(repetition);
        // What may match nothing again and again is a rule of its own in every engine.
        let may_be_empty = sub.properties().minimum_len() == Some(0) && !is_possessive;
        if may_be_empty || looks_ahead(sub) {
            return None;
        }
        if is_possessive {
            let HirKind::Repetition(inner) = sub.kind() else { return None };
            if !matches!(inner.sub.kind(), HirKind::Class(_)) || !inner.greedy {
                return None;
            }
            let start = self.repeat(inner, next)?;
            self.kept.push((self.sets.len() - 1, next));
            return Some(start);
        }
        let either = |first, second| {
            if greedy { Op::Split(first, second) } else { Op::Split(second, first) }
        };
        let (mut at, mut copies) = (next, min);
        if let Some(max) = max {
            for _ in min..max {
                let once = self.emit(sub, at)?;
                at = self.push(either(once, next))?;
            }
        } else {
            let split = self.push(Op::Match)?;
            let once = self.emit(sub, split)?;
            self.code[split] = either(once, next);
            // The first of those that there have to be is in the loop.
            (at, copies) = if min == 0 { (split, 0) } else { (once, min - 1) };
        }
        (0..copies).try_fold(at, |at, _| self.emit(sub, at))
    }

    /// Whether a quantifier is `?+`, `*+` or `++`, which is read as one repetition of another.
    fn is_possessive(&self, outer: &Repetition) -> bool {
        let HirKind::Repetition(inner) = outer.sub.kind() else { return false };
        self.possessive
            && (outer.min, outer.max, outer.greedy) == (1, None, true)
            && matches!((inner.min, inner.max), (0, Some(1)) | (0 | 1, None))
    }
}

/// Whether `(?!\S)` stands in an expression.
fn looks_ahead(hir: &Hir) -> bool {
    let mut bytes = [0; 4];
    let mark = AHEAD.encode_utf8(&mut bytes).as_bytes();
    let holds = |text: &[u8]| text.windows(mark.len()).any(|part| part == mark);
    matches!(hir.kind(), HirKind::Literal(literal) if holds(&literal.0))
        || hir.kind().subs().iter().any(looks_ahead)
}
