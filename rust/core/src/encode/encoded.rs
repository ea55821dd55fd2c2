//! The result of encoding a text.

use std::ops::Range;

/// Tokens with the facts that a trajectory needs about them.
#[derive(Debug, Default)]
pub(crate) struct Encoded {
    pub ids: Vec<u32>,
    /// True if the caller needs `spans`. To find them costs time for each token.
    pub with_spans: bool,
    /// The bytes of the joined text that each token came from; empty without `with_spans`.
    pub spans: Vec<Range<usize>>,
    /// The hard tokens that were cut out, in order.
    pub hard: Vec<HardCut>,
    /// The bytes of every added token that was cut out, in order.
    pub added: Vec<Range<usize>>,
}

/// A hard token in a joined text, which no text around it can change.
#[derive(Debug, Clone)]
pub(crate) struct HardCut {
    pub bytes: Range<usize>,
    /// The number of tokens of the text up to this one, inclusive.
    pub tokens_before_end: usize,
}

impl Encoded {
    pub fn push(&mut self, id: u32, span: Range<usize>) {
        self.ids.push(id);
        if self.with_spans {
            self.spans.push(span);
        }
    }

    /// Makes room for as many more tokens.
    pub fn reserve(&mut self, tokens: usize) {
        self.ids.reserve(tokens);
        if self.with_spans {
            self.spans.reserve(tokens);
        }
    }

    /// Keeps the first `tokens` tokens.
    pub fn truncate(&mut self, tokens: usize) {
        self.ids.truncate(tokens);
        self.spans.truncate(tokens);
    }

    /// Counts bytes and tokens from an earlier offset.
    pub fn shift(&mut self, bytes: usize, tokens: usize) {
        let moved = |span: &Range<usize>| span.start + bytes..span.end + bytes;
        self.spans = self.spans.iter().map(moved).collect();
        for cut in &mut self.hard {
            cut.bytes = moved(&cut.bytes);
            cut.tokens_before_end += tokens;
        }
        for cut in &mut self.added {
            *cut = moved(cut);
        }
    }

    /// True if a hard token begins at this byte.
    pub fn hard_at(&self, byte: usize) -> bool {
        self.hard.iter().any(|cut| cut.bytes.start == byte)
    }
}
