//! The pairs of characters that can stand side by side inside one match of a regular expression.
//!
//! Invariant: [`Pattern::joins`] is true wherever any attempt of the engine, also one that fails in
//! the end, steps from the first character to the second. So where it is false every match that
//! begins on the left ends on the left, and the search goes on at the right as on a new text.
//!
//! The pairs are the *follow* relation of the expression's positions (Glushkov's construction).
//! It is the relation of a language that is at least as large as the expression's: the
//! look-ahead `(?!\S)` and a `$` at the end count as nothing, possessive quantifiers as greedy ones,
//! and repetitions with a bound as unbounded ones.

use regex_syntax::ast::parse::Parser as AstParser;
use regex_syntax::hir::translate::Translator;
use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind};

/// One bit for each position of an expression.
type Positions = u128;

pub(super) const NOT_SPACE_AHEAD: &str = r"(?!\S)";
const NOTHING: &str = r"[^\s\S]";

/// An expression, asked which characters a match can hold side by side.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    expression: String,
    /// Pairs that any attempt may step over, also one that fails in the end.
    attempts: Relation,
    looks_ahead: bool,
    /// Characters that surely match: the relation without the branches that look ahead, which may
    /// fail.
    sure: Relation,
}

impl Pattern {
    /// Reads an expression of the `onig` or `regex` engine. `None` where the expression has no such
    /// relation (look-around, back references, anchors), or where the engines read it differently.
    pub fn new(expression: &str) -> Option<Self> {
        // Oniguruma reads these as characters; `regex-syntax` as set operations.
        if expression.contains("--") || expression.contains("~~") {
            return None;
        }
        // `(?!\S)` and a final `$` may fail, so `sure` replaces them by a class that matches nothing.
        let (rest, at_end) = match expression.strip_suffix('$') {
            Some(rest) if !rest.ends_with('\\') => (rest, true),
            _ => (expression, false),
        };
        let without =
            |ahead: &str| rest.replace(NOT_SPACE_AHEAD, ahead) + if at_end { ahead } else { "" };
        Some(Self {
            expression: expression.to_owned(),
            looks_ahead: at_end || expression.contains(NOT_SPACE_AHEAD),
            attempts: Relation::new(&greedy(&without("")))?,
            sure: Relation::new(&without(NOTHING))?,
        })
    }

    /// As it stands in the file.
    pub(super) fn expression(&self) -> &str {
        &self.expression
    }

    /// True if the text behind a match can undo it.
    pub fn looks_ahead(&self) -> bool {
        self.looks_ahead
    }

    /// True if some attempt to match can step from `left` to `right`.
    pub fn joins(&self, left: char, right: char) -> bool {
        let right = self.attempts.at(right);
        ones(self.attempts.at(left)).any(|position| self.attempts.follow[position] & right != 0)
    }

    /// True if some match can hold this character.
    pub fn may_match(&self, c: char) -> bool {
        self.attempts.at(c) != 0
    }

    /// True if this character is part of a match wherever it stands.
    pub fn always_matches(&self, c: char) -> bool {
        self.sure.at(c) & self.sure.alone != 0
    }
}

/// The expression with greedy quantifiers for possessive ones, which match less. `regex-syntax` reads
/// `a++` as `(a+)+`, so the second `+` has to go before it reads the expression.
pub(super) fn greedy(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len());
    let (mut depth, mut escaped, mut quantified) = (0, false, false);
    let mut before = ' ';
    for c in expression.chars() {
        let plain = !escaped && depth == 0;
        if plain && quantified && c == '+' {
            quantified = false;
            continue;
        }
        quantified = plain && matches!(c, '?' | '*' | '+') && before != '(';
        match c {
            _ if escaped => {}
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        escaped = !escaped && c == '\\';
        before = c;
        out.push(c);
    }
    out
}

/// The positions of one expression, and which may follow which.
#[derive(Debug, Clone)]
struct Relation {
    classes: Vec<ClassUnicode>,
    follow: Vec<Positions>,
    /// Positions that are a match on their own, whatever comes after.
    alone: Positions,
    /// The positions that each ASCII character can have.
    ascii: Box<[Positions; 128]>,
}

impl Relation {
    fn new(expression: &str) -> Option<Self> {
        let mut positions = Builder::default();
        let whole = positions.add(&parsed(expression)?)?;
        let Builder { classes, follow } = positions;
        let ascii = std::array::from_fn(|code| {
            positions_of(&classes, char::from(u8::try_from(code).expect("below 128")))
        });
        Some(Self { ascii: Box::new(ascii), classes, follow, alone: whole.alone })
    }

    fn at(&self, c: char) -> Positions {
        match self.ascii.get(c as usize) {
            Some(positions) => *positions,
            None => positions_of(&self.classes, c),
        }
    }
}

fn ones(mut bits: Positions) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            position
        })
    })
}

fn positions_of(classes: &[ClassUnicode], c: char) -> Positions {
    let at = classes.iter().enumerate().filter(|(_, class)| has(class, c));
    at.fold(0, |bits, (position, _)| bits | 1 << position)
}

#[derive(Default)]
struct Builder {
    classes: Vec<ClassUnicode>,
    follow: Vec<Positions>,
}

/// The positions with which a part of an expression can begin and end.
#[derive(Clone, Copy, Default)]
struct Ends {
    first: Positions,
    last: Positions,
    /// Positions that are a match of this part on their own.
    alone: Positions,
    /// True if this part can match nothing.
    empty: bool,
    /// Positions of possessive quantifiers, which may take a character without needing it and never
    /// give it back: in `1?+[12]` the `1` of a text "1" is taken, and `[12]` fails.
    takes: Positions,
}

impl Builder {
    fn add(&mut self, hir: &Hir) -> Option<Ends> {
        match hir.kind() {
            HirKind::Empty => Some(Ends { empty: true, ..Ends::default() }),
            HirKind::Look(_) => None,
            HirKind::Capture(capture) => self.add(&capture.sub),
            HirKind::Literal(literal) => {
                let text = std::str::from_utf8(&literal.0).ok()?;
                let chars = text.chars().map(|c| {
                    let only = regex_syntax::hir::ClassUnicodeRange::new(c, c);
                    self.position(ClassUnicode::new([only]))
                });
                let chars = chars.collect::<Option<Vec<_>>>()?;
                Some(self.concat(chars))
            }
            HirKind::Class(Class::Unicode(class)) => self.position(class.clone()),
            HirKind::Class(Class::Bytes(class)) => self.position(class.to_unicode_class()?),
            HirKind::Repetition(repetition) => {
                let sub = self.add(&repetition.sub)?;
                if repetition.max != Some(1) {
                    self.connect(sub.last, sub.first);
                }
                let once = repetition.min <= 1 && repetition.max != Some(0);
                let empty = sub.empty || repetition.min == 0;
                // `regex-syntax` reads a possessive quantifier as one repetition of another.
                let possessive = matches!(repetition.sub.kind(), HirKind::Repetition(_));
                Some(Ends {
                    alone: if once || sub.empty { sub.alone } else { 0 },
                    empty,
                    takes: if possessive && empty { sub.first } else { sub.takes },
                    ..sub
                })
            }
            HirKind::Concat(parts) => {
                let parts = parts.iter().map(|part| self.add(part)).collect::<Option<Vec<_>>>()?;
                Some(self.concat(parts))
            }
            HirKind::Alternation(parts) => {
                let mut ends = Ends::default();
                for part in parts {
                    let part = self.add(part)?;
                    ends.first |= part.first;
                    ends.last |= part.last;
                    ends.alone |= part.alone;
                    ends.empty |= part.empty;
                    ends.takes |= part.takes;
                }
                Some(ends)
            }
        }
    }

    /// `None` where there are more positions than bits.
    fn position(&mut self, class: ClassUnicode) -> Option<Ends> {
        let position = self.classes.len();
        let here = 1u128.checked_shl(u32::try_from(position).ok()?)?;
        // A class without characters matches nothing.
        let here = if class.ranges().is_empty() { 0 } else { here };
        self.classes.push(class);
        self.follow.push(0);
        Some(Ends { first: here, last: here, alone: here, ..Ends::default() })
    }

    fn concat(&mut self, parts: Vec<Ends>) -> Ends {
        let mut whole = Ends { empty: true, ..Ends::default() };
        for part in parts {
            self.connect(whole.last, part.first);
            let alone = self.without_taken(part.alone, whole.takes);
            let part = Ends { alone, ..part };
            whole = Ends {
                takes: whole.takes | part.takes,
                first: whole.first | if whole.empty { part.first } else { 0 },
                last: part.last | if part.empty { whole.last } else { 0 },
                alone: (if whole.empty { part.alone } else { 0 })
                    | if part.empty { whole.alone } else { 0 },
                empty: whole.empty && part.empty,
            };
        }
        whole
    }

    /// The positions whose characters none of `taken` can take.
    fn without_taken(&self, positions: Positions, taken: Positions) -> Positions {
        let free = |position: &usize| {
            ones(taken).all(|other| are_disjoint(&self.classes[*position], &self.classes[other]))
        };
        ones(positions).filter(free).fold(0, |bits, position| bits | 1 << position)
    }

    fn connect(&mut self, from: Positions, to: Positions) {
        for position in ones(from) {
            self.follow[position] |= to;
        }
    }
}

/// An expression as `regex-syntax` reads it; `None` where it cannot.
pub(super) fn parsed(expression: &str) -> Option<Hir> {
    let ast = AstParser::new().parse(expression).ok()?;
    Translator::new().translate(expression, &ast).ok()
}

/// True if the class holds the character.
pub(super) fn has(class: &ClassUnicode, c: char) -> bool {
    let ranges = class.ranges();
    let next = ranges.partition_point(|range| range.end() < c);
    ranges.get(next).is_some_and(|range| range.start() <= c)
}

/// True if no character is in both classes.
pub(super) fn are_disjoint(one: &ClassUnicode, other: &ClassUnicode) -> bool {
    let mut both = one.clone();
    both.intersect(other);
    both.ranges().is_empty()
}

/// The characters that Unicode 13 knew.
pub(super) fn assigned_before_14() -> ClassUnicode {
    let hir = regex_syntax::parse(r"\p{Age=13.0}").expect("the table is compiled in");
    match hir.into_kind() {
        HirKind::Class(Class::Unicode(class)) => class,
        _ => unreachable!("a property is a class"),
    }
}
