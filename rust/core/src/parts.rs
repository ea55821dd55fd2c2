//! Text that remembers its author: the chat template (scaffold) or anybody else (content).

use std::borrow::Cow;
use std::ops::Range;

/// The author of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    /// The chat template: may become control tokens.
    Scaffold,
    /// Anybody else: never becomes a control token.
    Content,
}

/// A piece of text and its author.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part<'a> {
    /// The author.
    pub kind: PartKind,
    /// The text.
    pub text: &'a str,
}

impl<'a> Part<'a> {
    /// A part that the template wrote.
    #[must_use]
    pub fn scaffold(text: &'a str) -> Self {
        Self { kind: PartKind::Scaffold, text }
    }

    /// A part that anybody else wrote.
    #[must_use]
    pub fn content(text: &'a str) -> Self {
        Self { kind: PartKind::Content, text }
    }
}

/// Parts joined to one text, with the byte ranges of its maximal scaffold runs, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Joined<'a> {
    /// Borrowed where there is one part.
    pub text: Cow<'a, str>,
    pub scaffold: Vec<Range<usize>>,
    /// True if the encoder has to say which bytes each token came from, because there is more than one
    /// part.
    pub with_spans: bool,
}

impl<'a> Joined<'a> {
    pub fn new(parts: impl IntoIterator<Item = Part<'a>>) -> Self {
        let mut joined = Self::default();
        for part in parts {
            joined.push(part);
        }
        joined
    }

    pub fn push(&mut self, part: Part<'a>) {
        if part.text.is_empty() {
            return;
        }
        let start = self.text.len();
        if start == 0 {
            self.text = Cow::Borrowed(part.text);
        } else {
            self.with_spans = true;
            self.text.to_mut().push_str(part.text);
        }
        if part.kind == PartKind::Scaffold {
            match self.scaffold.last_mut() {
                Some(run) if run.end == start => run.end = self.text.len(),
                _ => self.scaffold.push(start..self.text.len()),
            }
        }
    }

    /// The text before byte `end`.
    pub fn before(&self, end: usize) -> Joined<'_> {
        let runs = self.scaffold.iter().filter(|run| run.start < end);
        Joined {
            text: Cow::Borrowed(&self.text[..end]),
            scaffold: runs.map(|run| run.start..run.end.min(end)).collect(),
            with_spans: self.with_spans,
        }
    }

    /// The text from byte `start` on.
    pub fn after(&self, start: usize) -> Joined<'_> {
        let runs = self.scaffold.iter().filter(|run| run.end > start);
        Joined {
            text: Cow::Borrowed(&self.text[start..]),
            scaffold: runs.map(|run| run.start.max(start) - start..run.end - start).collect(),
            with_spans: self.with_spans,
        }
    }

    /// Both texts; runs of scaffold that meet are one.
    pub fn followed_by(mut self, next: &'a Joined<'_>) -> Self {
        let mut at = 0;
        for run in &next.scaffold {
            self.push(Part::content(&next.text[at..run.start]));
            self.push(Part::scaffold(&next.text[run.clone()]));
            at = run.end;
        }
        self.push(Part::content(&next.text[at..]));
        self
    }

    /// The same text, owned.
    pub fn into_owned(self) -> Joined<'static> {
        let Self { text, scaffold, with_spans } = self;
        Joined { text: Cow::Owned(text.into_owned()), scaffold, with_spans }
    }

    pub fn any_scaffold(&self) -> bool {
        !self.scaffold.is_empty()
    }

    /// The scaffold run that holds all of `range`, if one does.
    pub fn run_around(&self, range: &Range<usize>) -> Option<&Range<usize>> {
        let i = self.scaffold.partition_point(|run| run.end < range.end);
        self.scaffold.get(i).filter(|run| run.start <= range.start)
    }
}
