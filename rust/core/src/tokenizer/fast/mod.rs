//! The encoder for the shapes that most models have: byte-level BPE behind a pattern that is known.
//!
//! Invariant: what it writes is what the general encoder would write. It says where it does not
//! know, segment by segment, and is compared with the general encoder when a tokenizer is loaded.

mod byte_level;
mod class;
mod merges;
mod model_file;
mod nfc;
mod scan;
#[cfg(test)]
mod tests;
mod words;

use std::ops::Range;

use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::ModelWrapper;

use super::Encoded;
use super::edge::{kind, stages};
use super::hf::Segment;
use byte_level::ByteLevel;
use scan::Pattern;
use words::{Pool, Scratch};

/// What encoders are compared with each other on: every script, class of character and case that
/// a pattern is about.
const PROBE: &str = include_str!("probe.txt");

/// An encoder of our own.
#[derive(Debug)]
pub(crate) struct Fast {
    composes: bool,
    pattern: Pattern,
    model: ByteLevel,
    pool: Pool,
}

impl Fast {
    /// `None` where the tokenizer has another shape.
    pub fn new(
        normalizer: &Value,
        pre_tokenizer: &Value,
        model: &ModelWrapper,
        file: &RawValue,
    ) -> Option<Self> {
        let composes = match normalizer {
            Value::Null => false,
            one if kind(one) == Some("NFC") => true,
            _ => return None,
        };
        let ModelWrapper::BPE(bpe) = model else { return None };
        let marked = |mark: &Option<String>| mark.as_ref().is_some_and(|mark| !mark.is_empty());
        if marked(&bpe.continuing_subword_prefix) || marked(&bpe.end_of_word_suffix) {
            return None;
        }
        let pattern = pattern_of(pre_tokenizer)?;
        let model = ByteLevel::new(file, bpe.ignore_merges)?;
        Some(Self { composes, pattern, model, pool: Pool::default() })
    }

    /// Writes the tokens of a segment that holds no added token with `normalized=false`. Where it
    /// is `false` nothing was written, and the general encoder has to.
    pub fn encode(&self, segment: &Segment<'_>, out: &mut Encoded) -> bool {
        let composed = if self.composes { nfc::composed(segment.text) } else { None };
        if composed.is_some() && segment.normalized.is_some() {
            return false;
        }
        let text = composed.as_ref().map_or(segment.text, |composed| &composed.text);
        let before = out.ids.len();
        self.pool.with(|scratch| {
            let mut from = 0;
            for (cut, id) in segment.cuts_of_unchanged() {
                self.encode_slice(text, from..cut.start, segment.offset, scratch, out);
                out.push(id, segment.offset + cut.start..segment.offset + cut.end);
                from = cut.end;
            }
            self.encode_slice(text, from..text.len(), segment.offset, scratch, out);
        });
        if let Some(composed) = composed.filter(|_| out.with_spans) {
            for span in &mut out.spans[before..] {
                let own = span.start - segment.offset..span.end - segment.offset;
                let original = composed.original(&own);
                *span = segment.offset + original.start..segment.offset + original.end;
            }
        }
        // The general encoder knows how to keep the model from writing a control token.
        let mints = |id: &u32| segment.mintable.contains_key(id);
        if !segment.mintable.is_empty() && out.ids[before..].iter().any(mints) {
            out.truncate(before);
            return false;
        }
        true
    }

    fn encode_slice(
        &self,
        text: &str,
        range: Range<usize>,
        offset: usize,
        scratch: &mut Scratch,
        out: &mut Encoded,
    ) {
        let slice = &text[range.clone()];
        let bytes = slice.as_bytes();
        self.pattern.words(slice, |start, end| {
            let from = out.ids.len();
            self.model.encode(bytes, start, end, scratch, &mut out.ids);
            if out.with_spans {
                let mut at = start;
                for &id in &out.ids[from..] {
                    let end = at + self.model.len_of(id);
                    let span = whole_characters(slice, at..end);
                    let base = offset + range.start;
                    out.spans.push(base + span.start..base + span.end);
                    at = end;
                }
            }
        });
    }

    /// Text to compare encoders on: the probe, and some of the vocabulary.
    pub fn probe(&self) -> String {
        PROBE.to_owned() + &self.model.sample()
    }
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

/// The known pattern of a pre-tokenizer that cuts by expressions and then spells bytes.
fn pattern_of(pre_tokenizer: &Value) -> Option<Pattern> {
    let stages = stages(pre_tokenizer, "pretokenizers");
    let (last, splits) = stages.split_last()?;
    let flag = |name: &str| last.get(name).and_then(Value::as_bool);
    if kind(last) != Some("ByteLevel") || flag("add_prefix_space") != Some(false) {
        return None;
    }
    if splits.is_empty() {
        return (flag("use_regex") != Some(false)).then_some(Pattern::Gpt2);
    }
    if flag("use_regex") != Some(false) {
        return None;
    }
    Pattern::of(&splits.iter().map(|stage| expression(stage)).collect::<Option<Vec<_>>>()?)
}

/// The expression of a stage that cuts at its matches and keeps all of the text.
fn expression(stage: &Value) -> Option<&str> {
    let isolates = stage.get("behavior").and_then(Value::as_str) == Some("Isolated")
        && stage.get("invert").and_then(Value::as_bool) == Some(false);
    let expression = stage.pointer("/pattern/Regex").and_then(Value::as_str);
    expression.filter(|_| kind(stage) == Some("Split") && isolates)
}
