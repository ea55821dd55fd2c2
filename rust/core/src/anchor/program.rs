//! A regular expression that is matched one character at a time.
//!
//! Invariant: an [`Attempt`] holds all that a backtracking engine could still try from the offset
//! where it began, in the order in which the engine would try it, and the match that stands if all of
//! that fails. So two attempts with the same threads and the same match end at the same offset,
//! whatever follows, and an attempt without threads has ended.
//!
//! This is Thompson's construction with the threads in order of priority, as Pike runs it.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Repetition};

use super::pattern::{NOT_SPACE_AHEAD, are_disjoint, greedy, has, parsed};

/// Stands for `(?!\S)` while an expression is read. No text has it.
const AHEAD: char = '\u{10FFFE}';
/// The most operations of a program, so that one byte names an operation and a set of them is four
/// numbers.
const MOST_OPS: usize = 256;
/// The most threads of an attempt. With the count and the flag they fill 64 bytes, which are copied
/// for each character; no known model's pattern has as many at once.
const MOST_THREADS: usize = 62;
/// Case-insensitive groups that are read in the same way everywhere: nothing that they hold folds
/// to several characters.
const FOLDED: [&str; 2] = ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)"];

/// An expression without look-around but `(?!\S)`, which never matches nothing.
#[derive(Debug)]
pub(super) struct Program {
    code: Vec<Op>,
    sets: Vec<CharSet>,
    /// Before the first character.
    begin: Threads,
    /// For each `Ahead` the threads behind it, and true if it comes to a match at once.
    behind: Vec<(Threads, bool)>,
    spaces: CharSet,
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
struct CharSet {
    ascii: u128,
    class: ClassUnicode,
}

/// Operations that wait for a character, the one that would be tried first before the others.
#[derive(Debug, Clone, Copy)]
struct Threads {
    count: u8,
    /// True if there were too many.
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

/// All that the engine could still do from the offset where it began.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    threads: Threads,
    /// The offset where the match ends that stands if all threads fail.
    pub end: Option<usize>,
}

impl Attempt {
    /// True if no later text can change its end.
    pub fn has_ended(&self) -> bool {
        self.threads.count == 0
    }

    /// True if both continue in the same way, whatever follows.
    pub fn goes_on_as(&self, other: &Self) -> bool {
        self.threads.ops().eq(other.threads.ops())
    }
}

/// The operations that were reached.
#[derive(Default)]
struct Reached([u64; MOST_OPS / 64]);

impl Reached {
    /// Returns true if the operation is new.
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
    reached: Reached,
    end: Option<usize>,
}

impl Program {
    /// `None` where Oniguruma and `regex-syntax` could read the expression differently, or it is too
    /// long.
    pub fn new(expression: &str) -> Option<Self> {
        let ends_in_anchor = expression.ends_with('$') && !expression.ends_with("\\$");
        let plain =
            FOLDED.iter().fold(expression.to_owned(), |text, known| text.replace(known, ""));
        // `--` and `~~` are set operations to `regex-syntax` alone. `(?i` may fold one character to
        // several, and `(?x` drops spaces. `regex-syntax` cannot tell `{0,1}+`, which is a repeated
        // quantifier to Oniguruma, from the possessive `?+`.
        let doubtful = ["--", "~~", "(?i", "(?x", "{0,1}+", "{0,}+", "{1,}+"];
        if ends_in_anchor
            || expression.contains(AHEAD)
            || doubtful.iter().any(|mark| plain.contains(mark))
        {
            return None;
        }
        let marked = expression.replace(NOT_SPACE_AHEAD, &AHEAD.to_string());
        let mut compiler =
            Compiler { possessive: greedy(&marked) != marked, ..Compiler::default() };
        let end = compiler.push(Op::Match)?;
        let start = compiler.emit(&parsed(&marked)?, end)?;
        let Compiler { code, sets, kept, aheads, .. } = compiler;
        let HirKind::Class(Class::Unicode(spaces)) = parsed(r"\s")?.into_kind() else {
            return None;
        };
        let spaces = CharSet::new(spaces);
        let mut program = Self { code, sets, begin: Threads::NONE, behind: Vec::new(), spaces };
        program.behind = aheads.into_iter().map(|next| program.reached(next)).collect();
        // Each engine has a rule of its own for a match of nothing.
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

    /// Takes the character between two offsets. Returns `false` if there are too many threads.
    pub fn step(&self, attempt: &mut Attempt, c: char, offsets: [usize; 2]) -> bool {
        if attempt.has_ended() {
            return true;
        }
        let mut next =
            Next { threads: Threads::NONE, reached: Reached::default(), end: attempt.end };
        let is_space = self.spaces.has(c);
        // A match ends all that would be tried after it.
        let _ = attempt.threads.ops().any(|op| self.take(op, c, is_space, offsets, &mut next));
        *attempt = Attempt { threads: next.threads, end: next.end };
        !next.threads.overflows
    }

    /// Where it ends if the text ends here, at `at`.
    pub fn end_at_end_of_text(&self, attempt: &Attempt, at: usize) -> Option<usize> {
        let matches = attempt.threads.ops().any(|op| self.matches_nothing(op));
        if matches { Some(at) } else { attempt.end }
    }

    /// Steps one thread over a character. Returns `true` if it finds a match.
    fn take(
        &self,
        op: usize,
        c: char,
        is_space: bool,
        offsets: [usize; 2],
        next: &mut Next,
    ) -> bool {
        match self.code[op] {
            Op::Take { set, next: after } if self.sets[set].has(c) => {
                let found = self.reach(after, &mut next.threads, &mut next.reached);
                if found {
                    next.end = Some(offsets[1]);
                }
                found
            }
            Op::Ahead(behind) if is_space => {
                let (threads, matches) = &self.behind[behind];
                let found = threads.ops().any(|op| self.take(op, c, is_space, offsets, next));
                if *matches && !found {
                    next.end = Some(offsets[0]);
                }
                *matches || found
            }
            _ => false,
        }
    }

    /// The operations that wait for a character, from one on, and whether it comes to a match.
    fn reached(&self, op: usize) -> (Threads, bool) {
        let mut threads = Threads::NONE;
        let matches = self.reach(op, &mut threads, &mut Reached::default());
        (threads, matches)
    }

    /// Adds the operations that wait for a character, from one on; `true` where it comes to a match,
    /// which ends all that would be tried after it.
    fn reach(&self, op: usize, threads: &mut Threads, reached: &mut Reached) -> bool {
        if !reached.insert(op) {
            return false;
        }
        match self.code[op] {
            Op::Take { .. } | Op::Ahead(_) => {
                threads.push(op);
                false
            }
            Op::Split(first, second) => {
                self.reach(first, threads, reached) || self.reach(second, threads, reached)
            }
            Op::Match => true,
        }
    }

    /// True if an operation comes to a match at the end of the text.
    fn matches_nothing(&self, op: usize) -> bool {
        let Op::Ahead(behind) = self.code[op] else { return false };
        let (threads, matches) = &self.behind[behind];
        *matches || threads.ops().any(|op| self.matches_nothing(op))
    }

    /// True if a repetition of `set` followed by `next` never gives a character back, because nothing
    /// that comes after could take it. Only then is a possessive quantifier the same as a greedy one.
    fn never_gives_back(&self, set: usize, next: usize) -> bool {
        self.reached(next).0.ops().all(|op| match self.code[op] {
            Op::Take { set: other, .. } => {
                are_disjoint(&self.sets[set].class, &self.sets[other].class)
            }
            _ => false,
        })
    }
}

impl CharSet {
    fn new(class: ClassUnicode) -> Self {
        let ascii = ('\0'..='\x7f').filter(|&c| has(&class, c));
        Self { ascii: ascii.fold(0, |bits, c| bits | 1 << u32::from(c)), class }
    }

    fn has(&self, c: char) -> bool {
        if c.is_ascii() { self.ascii >> (c as u32) & 1 == 1 } else { has(&self.class, c) }
    }
}

#[derive(Default)]
struct Compiler {
    code: Vec<Op>,
    sets: Vec<CharSet>,
    /// True if one of the quantifiers is possessive.
    possessive: bool,
    /// The sets that possessive quantifiers repeat, and the operation after each.
    kept: Vec<(usize, usize)>,
    /// The operation after each `(?!\S)`.
    aheads: Vec<usize>,
}

impl Compiler {
    fn push(&mut self, op: Op) -> Option<usize> {
        self.code.push(op);
        (self.code.len() <= MOST_OPS).then(|| self.code.len() - 1)
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
        self.sets.push(CharSet::new(class));
        self.push(Op::Take { set: self.sets.len() - 1, next })
    }

    fn repeat(&mut self, repetition: &Repetition, next: usize) -> Option<usize> {
        let Repetition { min, max, greedy, ref sub } = *repetition;
        let is_possessive = self.is_possessive(repetition);
        // Each engine has a rule of its own for repeating a match of nothing.
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

    /// True if a quantifier is `?+`, `*+` or `++`, which is read as one repetition of another.
    fn is_possessive(&self, outer: &Repetition) -> bool {
        let HirKind::Repetition(inner) = outer.sub.kind() else { return false };
        self.possessive
            && (outer.min, outer.max, outer.greedy) == (1, None, true)
            && matches!((inner.min, inner.max), (0, Some(1)) | (0 | 1, None))
    }
}

/// True if `(?!\S)` stands in an expression.
fn looks_ahead(hir: &Hir) -> bool {
    let mut bytes = [0; 4];
    let mark = AHEAD.encode_utf8(&mut bytes).as_bytes();
    let holds = |text: &[u8]| text.windows(mark.len()).any(|part| part == mark);
    matches!(hir.kind(), HirKind::Literal(literal) if holds(&literal.0))
        || hir.kind().subs().iter().any(looks_ahead)
}
