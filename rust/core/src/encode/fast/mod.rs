//! The encoders for the shapes that most models have: byte-level BPE behind a pattern that is known,
//! and BPE over whole text, as SentencePiece does it.
//!
//! Invariant: the tokens are those that the general encoder would write. For a segment that it cannot
//! be sure of, [`Fast::encode_segment`] returns `false`. When a tokenizer is loaded, the two encoders
//! are compared.

mod ascii;
mod blocks;
mod byte_level;
mod char_level;
mod characters;
mod class;
mod deepseek;
mod long_words;
mod memo;
mod merges;
mod neighbours;
mod nfc;
mod pool;
mod scanner;
mod shape;
mod short_words;
mod word_ends;

use std::ops::Range;

use super::edge::Edge;
use super::encoded::Encoded;
use super::segment::Segment;
use crate::file::Loaded;
use byte_level::ByteLevel;
use char_level::CharLevel;
use memo::Scratch;
use pool::Pool;
pub use pool::look_first_at;
use scanner::Scanner;
use shape::{Prefix, Shape};

/// The text on which the two encoders are compared: every script, class of character and case that a
/// pattern tells apart.
const PROBE: &str = include_str!("probe.txt");

/// The bytes of text for each token, rather too few, to make room for all tokens at once.
const BYTES_PER_TOKEN: usize = 2;

/// A fast encoder.
#[derive(Debug)]
pub(crate) struct Fast {
    encoder: Encoder,
    pool: Pool<Scratch>,
}

/// One for each [`Shape`].
#[derive(Debug)]
enum Encoder {
    Words { composes: bool, scanner: Scanner, model: ByteLevel },
    Whole { prefix: Prefix, model: CharLevel },
}

impl Fast {
    /// `None` where the tokenizer has another shape.
    pub fn new(loaded: &Loaded) -> Option<Self> {
        let bpe = loaded.model.parts()?;
        if bpe.end_of_word_suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return None;
        }
        let normalizes_added = loaded.added.iter().any(|token| token.normalized);
        let encoder = match Shape::of(&loaded.normalizer, &loaded.pre_tokenizer)? {
            Shape::Words { composes, scanner } => {
                Encoder::Words { composes, scanner, model: ByteLevel::new(bpe)? }
            }
            // Only the general encoder knows where an added token stands in text with `▁` for spaces.
            Shape::Whole { is_normalizer: true, .. } if normalizes_added => return None,
            Shape::Whole { prefix, .. } => Encoder::Whole { prefix, model: CharLevel::new(bpe)? },
        };
        Some(Self { encoder, pool: Pool::default() })
    }

    /// Writes the tokens of a segment that holds no added token with `normalized=false`. Returns
    /// `false` if it wrote nothing, because only the general encoder can write this segment.
    pub fn encode_segment(&self, segment: &Segment<'_>, out: &mut Encoded) -> bool {
        let composed = match self.encoder {
            Encoder::Words { composes: true, .. } => nfc::composed(segment.text),
            _ => None,
        };
        // `cuts_of_unchanged` below looks for added tokens in text that the normalizer leaves alone.
        if composed.is_some() && segment.normalized.is_some() {
            return false;
        }
        let text = composed.as_ref().map_or(segment.text, |composed| &composed.text);
        let (before, cuts_before) = (out.ids.len(), out.added.len());
        self.with_scratch(|scratch| {
            let mut from = 0;
            for (cut, id) in segment.cuts_of_unchanged() {
                self.encode_slice(text, from..cut.start, segment, scratch, out);
                let range = segment.offset + cut.start..segment.offset + cut.end;
                out.added.push(range.clone());
                out.push(id, range);
                from = cut.end;
            }
            self.encode_slice(text, from..text.len(), segment, scratch, out);
            scratch.workspace.clear();
        });
        if let Some(composed) = composed.filter(|_| out.with_spans) {
            for span in &mut out.spans[before..] {
                let own = span.start - segment.offset..span.end - segment.offset;
                let original = composed.original(&own);
                *span = segment.offset + original.start..segment.offset + original.end;
            }
        }
        // The general encoder knows how to keep the model from writing a control token.
        if segment.mintable.is_any_of(&out.ids[before..]) {
            out.truncate(before);
            out.added.truncate(cuts_before);
            return false;
        }
        true
    }

    fn with_scratch<R>(&self, work: impl FnOnce(&mut Scratch) -> R) -> R {
        let make = || match &self.encoder {
            Encoder::Words { model, .. } => model.scratch(),
            Encoder::Whole { .. } => Scratch::new(),
        };
        self.pool.with(make, work)
    }

    fn encode_slice(
        &self,
        text: &str,
        range: Range<usize>,
        segment: &Segment<'_>,
        scratch: &mut Scratch,
        out: &mut Encoded,
    ) {
        let base = segment.offset + range.start;
        // A later slice stands behind an added token.
        let edge = if range.start == 0 { segment.edge } else { Edge::Segment };
        let slice = &text[range];
        out.reserve(slice.len() / BYTES_PER_TOKEN);
        match &self.encoder {
            Encoder::Words { scanner, model, .. } => {
                encode_text_in_words(*scanner, model, slice, base, scratch, out);
            }
            Encoder::Whole { .. } if slice.is_empty() => {}
            Encoder::Whole { prefix, model } if prefix.precedes(slice, edge) => {
                // The prefix came from no character, so the span of its token is that of the first one.
                let prefixed = format!(" {slice}");
                model.encode_text(&prefixed, scratch, out, |range| {
                    let range = whole_characters(&prefixed, range.start.max(1)..range.end.max(2));
                    base + range.start - 1..base + range.end - 1
                });
            }
            Encoder::Whole { model, .. } => model.encode_text(slice, scratch, out, |range| {
                let range = whole_characters(slice, range);
                base + range.start..base + range.end
            }),
        }
    }

    /// True if the model leaves two tokens of one word as they are when they meet; `None` where this
    /// encoder does not write one of them.
    pub fn stay_apart(&self, left: u32, right: u32) -> Option<bool> {
        self.with_scratch(|scratch| match &self.encoder {
            Encoder::Words { model, .. } => model.stay_apart(left, right, &mut scratch.workspace),
            Encoder::Whole { model, .. } => model.stay_apart(left, right, &mut scratch.workspace),
        })
    }

    /// Text to compare encoders on: the probe, and some of the vocabulary.
    pub fn probe(&self) -> String {
        let sample = match &self.encoder {
            Encoder::Words { model, .. } => model.sample(),
            Encoder::Whole { model, .. } => model.sample(),
        };
        PROBE.to_owned() + &sample
    }
}

/// Writes the tokens of a text that begins at byte `base` of the whole.
fn encode_text_in_words(
    scanner: Scanner,
    model: &ByteLevel,
    text: &str,
    base: usize,
    scratch: &mut Scratch,
    out: &mut Encoded,
) {
    let Encoded { ids, spans, with_spans, .. } = out;
    if *with_spans {
        scanner.words(text, &mut |start, ends| {
            model.encode_words(text, start, ends, scratch, ids, |word, ids| {
                spans_of_word(model, text, word, base, ids, spans);
            });
        });
    } else {
        scanner.words(text, &mut |start, ends| {
            model.encode_words(text, start, ends, scratch, ids, |_, _| ());
        });
    }
}

/// Writes the spans of the tokens of a word.
fn spans_of_word(
    model: &ByteLevel,
    text: &str,
    word: Range<usize>,
    base: usize,
    ids: &[u32],
    spans: &mut Vec<Range<usize>>,
) {
    // A word begins and ends with whole characters, and most are one token.
    let mut at = word.start;
    for &id in &ids[..ids.len() - 1] {
        let next = at + model.len_of(id);
        let span = whole_characters(text, at..next);
        spans.push(base + span.start..base + span.end);
        at = next;
    }
    let last = if at == word.start { at } else { whole_characters(text, at..word.end).start };
    spans.push(base + last..base + word.end);
}

/// The characters that a range of bytes touches: a token for some bytes of a character stands for
/// all of it.
fn whole_characters(text: &str, range: Range<usize>) -> Range<usize> {
    let (mut start, mut end) = (range.start, range.end);
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    while !text.is_char_boundary(end) {
        end += 1;
    }
    start..end
}
