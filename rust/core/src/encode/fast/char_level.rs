//! Byte-pair encoding over characters: SentencePiece's way of writing a vocabulary.
//!
//! Invariant: a run's tokens depend on nothing but its characters. Spaces are written as `▁`; here
//! it is the other way round, so that text need not be changed: `▁` counts as a space.

use std::ops::Range;

use rustc_hash::FxHashSet;

use super::memo::AT_ONCE;
use super::memo::Scratch;
use super::merges::{Merges, Symbol, Workspace};
use super::neighbours::Neighbours;
use crate::by_bytes::{Key, Word, Words};
use crate::encode::encoded::Encoded;
use crate::file::Bpe;

pub(super) const SPACE_MARK: char = '▁';

/// A model whose smallest tokens are characters.
#[derive(Debug)]
pub(super) struct CharLevel {
    entries: Words,
    merges: Merges,
    neighbours: Neighbours,
    unknown: Unknown,
    /// True if an unknown character becomes the same tokens whatever stands beside it.
    unknown_stands_apart: bool,
}

/// The tokens of a character that the vocabulary lacks.
#[derive(Debug)]
enum Unknown {
    /// A token for each of its bytes.
    Bytes(Box<[u32; 256]>),
    /// One token; `fused`: the same for all of several in a row.
    Token { id: u32, fused: bool },
}

impl CharLevel {
    /// `None` where a whole text can be one token without merges, where unknown characters are dropped or
    /// an error, where `▁` is an unknown character, or where the vocabulary contradicts itself.
    pub fn new(bpe: &Bpe) -> Option<Self> {
        if bpe.ignore_merges {
            return None;
        }
        let mut entries = Words::new(bpe.entries.len());
        for (entry, id) in bpe.entries.iter() {
            // Text never spells an entry with a space: it becomes `▁`.
            let is_spelled = !entry.contains(' ');
            let spelled = with_spaces(entry);
            if is_spelled && (spelled.is_empty() || !entries.insert(spelled.as_bytes(), id)) {
                return None;
            }
        }
        entries.finish();
        // Without a token for `▁` a space would become the bytes of `▁`, which are not its own.
        entries.id_of(Word::new(b" "))?;
        let unknown = Unknown::new(&entries, bpe)?;
        let letters = (b'a'..=b'z').chain([b' ']);
        let letters = letters.filter_map(|letter| entries.id_of(Word::new(&[letter])));
        let lowest = letters.min().unwrap_or_default();
        let mut merges = Merges::new(bpe.merges.len(), lowest);
        let mut pairs = FxHashSet::default();
        let written: FxHashSet<u32> = unknown.tokens().iter().copied().collect();
        let mut unknown_stands_apart = matches!(unknown, Unknown::Bytes(_));
        for (rank, merge) in (0..).zip(&bpe.merges) {
            let entry = |id: u32| bpe.entries.text_of(id).filter(|entry| !entry.contains(' '));
            let (Some(left), Some(right)) = (entry(merge.left), entry(merge.right)) else {
                continue;
            };
            let pair = (merge.left, merge.right);
            unknown_stands_apart &= !written.contains(&pair.0) && !written.contains(&pair.1);
            pairs.insert((as_space(left.chars().next_back()?), as_space(right.chars().next()?)));
            merges.insert(pair, rank, merge.whole);
        }
        let pairs: Vec<_> = pairs.into_iter().collect();
        let neighbours = Neighbours::new(&pairs);
        Some(Self { entries, merges, neighbours, unknown, unknown_stands_apart })
    }

    /// True if the model leaves two tokens of one word as they are when they meet; `None` where text
    /// never spells one of them.
    pub fn stay_apart(&self, left: u32, right: u32, workspace: &mut Workspace) -> Option<bool> {
        let word = [self.entries.bytes_of(left)?, self.entries.bytes_of(right)?].concat();
        let word = std::str::from_utf8(&word).expect("two texts");
        let tokens = self.tokens(word, workspace);
        Some(tokens.iter().map(|token| token.id).eq([left, right]))
    }

    /// Writes the tokens of a text. `span` turns the bytes that a token came from into those of the
    /// whole text.
    pub fn encode_text(
        &self,
        text: &str,
        scratch: &mut Scratch,
        out: &mut Encoded,
        span: impl Fn(Range<usize>) -> Range<usize>,
    ) {
        if out.with_spans {
            return self.runs(text, |start, ends| {
                let mut start = start;
                for &end in ends {
                    self.encode_run(text, start..end, scratch, out, &span);
                    start = end;
                }
            });
        }
        self.runs(text, |start, ends| {
            let encode = |run: &str, _, workspace: &mut Workspace, ids: &mut Vec<u32>| {
                ids.extend(self.tokens(run, workspace).iter().map(|token| token.id));
            };
            scratch.write_all(text, start, ends, &mut out.ids, encode, |_, _| ());
        });
    }

    /// Writes the tokens of a run and their spans. The memory of words holds no spans, so it can answer
    /// only for a run that is one token.
    fn encode_run(
        &self,
        text: &str,
        run: Range<usize>,
        scratch: &mut Scratch,
        out: &mut Encoded,
        span: impl Fn(Range<usize>) -> Range<usize>,
    ) {
        let key = Key::of(text.as_bytes(), run.start, run.end);
        let word = &text[run.clone()];
        if let Some(&[id]) = scratch.recall(key, word.as_bytes()) {
            return out.push(id, span(run));
        }
        let tokens = self.tokens(word, &mut scratch.workspace);
        let mut at = run.start;
        for token in tokens {
            let end = run.start + token.end;
            out.push(token.id, span(at..end));
            at = end;
        }
        if let &[Symbol { id, .. }] = tokens {
            scratch.remember(key, word.as_bytes(), &[id]);
        }
    }

    fn tokens<'workspace>(
        &self,
        run: &str,
        workspace: &'workspace mut Workspace,
    ) -> &'workspace [Symbol] {
        self.merges.tokens(workspace, |symbols| self.lay_out(run, symbols))
    }

    /// Calls `each` with many runs of the text at once: the start of the first one, and the end of each.
    fn runs(&self, text: &str, mut each: impl FnMut(usize, &[usize])) {
        // One is left for the end of the text.
        const MOST: usize = AT_ONCE - 1;
        let Some(first) = text.chars().next() else { return };
        let (mut left, mut at) = (as_space(first), first.len_utf8());
        let (mut start, mut ends, mut count) = (0, [0; AT_ONCE], 0);
        while at < text.len() {
            // Written for every character, and counted only where a run ends: the processor would often
            // guess a branch wrong.
            for right in self.ascii_from(text, left, at, MOST - count) {
                ends[count] = at;
                count += usize::from(!self.neighbours.ascii_meet(left, right));
                (left, at) = (char::from(right), at + 1);
            }
            if count < MOST {
                let Some(c) = text[at..].chars().next() else { break };
                ends[count] = at;
                count += usize::from(self.part(left, as_space(c)));
                (left, at) = (as_space(c), at + c.len_utf8());
            }
            if count == MOST {
                each(start, &ends[..count]);
                (start, count) = (ends[count - 1], 0);
            }
        }
        ends[count] = text.len();
        each(start, &ends[..=count]);
    }

    /// The ASCII characters from byte `at` on, `most` or less, if the table of ASCII pairs is enough to
    /// decide about them and the character before. Reading them as characters took a third of the time of
    /// text that is remembered.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each character")]
    fn ascii_from<'text>(
        &self,
        text: &'text str,
        left: char,
        at: usize,
        most: usize,
    ) -> impl Iterator<Item = u8> + use<'text> {
        let most = if self.unknown_stands_apart && left.is_ascii() { most } else { 0 };
        let bytes = text.as_bytes()[at..].iter().take(most).copied();
        bytes.take_while(u8::is_ascii)
    }

    /// True if no token holds two characters that stand side by side.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "called for each character")]
    fn part(&self, left: char, right: char) -> bool {
        let knows = |c: char| self.id_of(c.encode_utf8(&mut [0; 4])).is_some();
        !self.neighbours.meet(left, right)
            && (self.unknown_stands_apart || (knows(left) && knows(right)))
    }

    /// The token of one character.
    fn id_of(&self, c: &str) -> Option<u32> {
        self.entries.id_of(Word::new(c.as_bytes()))
    }

    /// The tokens of a run before any merge.
    fn lay_out(&self, run: &str, symbols: &mut Vec<Symbol>) {
        let mut is_unknown = false;
        for (start, c) in run.char_indices() {
            let end = start + c.len_utf8();
            let was_unknown = is_unknown;
            let known = self.id_of(if c == SPACE_MARK { " " } else { &run[start..end] });
            is_unknown = known.is_none();
            match (known, &self.unknown) {
                (Some(id), _) => symbols.push(Symbol { id, end }),
                (None, Unknown::Bytes(ids)) => {
                    let bytes = run[start..end].bytes().zip(start + 1..);
                    symbols.extend(
                        bytes.map(|(byte, end)| Symbol { id: ids[usize::from(byte)], end }),
                    );
                }
                (None, Unknown::Token { id, fused }) => {
                    if *fused && was_unknown {
                        symbols.pop();
                    }
                    symbols.push(Symbol { id: *id, end });
                }
            }
        }
    }

    /// The text of every so many entries.
    pub fn sample(&self) -> String {
        self.entries.sample()
    }
}

impl Unknown {
    fn new(entries: &Words, bpe: &Bpe) -> Option<Self> {
        if !bpe.byte_fallback {
            let token = bpe.unk_token.as_ref().filter(|token| !token.contains(' '))?;
            let id = entries.id_of(Word::new(with_spaces(token).as_bytes()))?;
            return Some(Self::Token { id, fused: bpe.fuse_unk });
        }
        let mut ids = Box::new([0; 256]);
        for (byte, id) in ids.iter_mut().enumerate() {
            *id = entries.id_of(Word::new(format!("<0x{byte:02X}>").as_bytes()))?;
        }
        Some(Self::Bytes(ids))
    }

    fn tokens(&self) -> &[u32] {
        match self {
            Self::Bytes(ids) => &ids[..],
            Self::Token { id, .. } => std::slice::from_ref(id),
        }
    }
}

fn with_spaces(entry: &str) -> String {
    entry.replace(SPACE_MARK, " ")
}

fn as_space(c: char) -> char {
    if c == SPACE_MARK { ' ' } else { c }
}
