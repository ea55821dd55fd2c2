//! The shapes that the fast encoders know, by the normalizer and the pre-tokenizer of the file.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use super::char_level::SPACE_MARK;
use super::scanner::Scanner;
use crate::encode::edge::Edge;
use crate::file::{kind, stages};

/// The work of normalizer and pre-tokenizer, where it is one that the fast encoders know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text is cut into words by a known pattern and spelled in bytes; with `composes` NFC comes first.
    Words { composes: bool, scanner: Scanner },
    /// Text stays whole, with `▁` for spaces.
    Whole { prefix: Prefix, is_normalizer: bool },
}

/// The segments before which one more `▁` is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prefix {
    Nowhere,
    /// Before the segment that begins the conversation, unless it begins with one.
    Start,
    /// Before each segment, unless it begins with one.
    Segments,
    /// Before each segment, also one that begins with one.
    SegmentsWithSpace,
}

impl Shape {
    /// `None` for any other shape.
    pub fn of(normalizer: &Value, pre_tokenizer: &Value) -> Option<Self> {
        let normalizers = stages(normalizer, "normalizers");
        let pre_tokenizers = stages(pre_tokenizer, "pretokenizers");
        if let Some(scanner) = scanner_of(&pre_tokenizers) {
            return match normalizers[..] {
                [] => Some(Self::Words { composes: false, scanner }),
                [one] if kind(one) == Some("NFC") => Some(Self::Words { composes: true, scanner }),
                _ => None,
            };
        }
        let (prefix, is_normalizer) = match (&normalizers[..], &pre_tokenizers[..]) {
            ([], [metaspace]) => (prefix_of(metaspace)?, false),
            (normalizers, rest) if rest.iter().all(|stage| cuts_at_spaces(stage)) => {
                let prefix = match normalizers {
                    [spaces] if marks_spaces(spaces) => Prefix::Nowhere,
                    [one, other] | [other, one] if is_prepend(one) && marks_spaces(other) => {
                        Prefix::SegmentsWithSpace
                    }
                    _ => return None,
                };
                (prefix, true)
            }
            _ => return None,
        };
        Some(Self::Whole { prefix, is_normalizer })
    }
}

impl Prefix {
    /// True if it is written before this text.
    pub fn precedes(self, text: &str, edge: Edge) -> bool {
        let begins_with_space = text.starts_with([' ', SPACE_MARK]);
        match (self, edge) {
            (Self::Nowhere, _)
            | (_, Edge::Continue | Edge::Interior)
            | (Self::Start, Edge::Segment) => false,
            (Self::Start | Self::Segments, _) => !begins_with_space,
            (Self::SegmentsWithSpace, _) => true,
        }
    }
}

/// The scanner for stages that cut by expressions and then spell bytes.
fn scanner_of(stages: &[&Value]) -> Option<Scanner> {
    let (last, splits) = stages.split_last()?;
    let flag = |name: &str| last.get(name).and_then(Value::as_bool);
    if kind(last) != Some("ByteLevel") || flag("add_prefix_space") != Some(false) {
        return None;
    }
    if splits.is_empty() {
        return (flag("use_regex") != Some(false)).then_some(Scanner::Gpt2);
    }
    if flag("use_regex") != Some(false) {
        return None;
    }
    Scanner::of(&splits.iter().map(|stage| expression(stage)).collect::<Option<Vec<_>>>()?)
}

/// The expression of a stage that cuts at its matches and keeps all of the text.
fn expression(stage: &Value) -> Option<&str> {
    let isolates = stage.get("behavior").and_then(Value::as_str) == Some("Isolated")
        && stage.get("invert").and_then(Value::as_bool) == Some(false);
    let expression = stage.pointer("/pattern/Regex").and_then(Value::as_str);
    expression.filter(|_| kind(stage) == Some("Split") && isolates)
}

fn prefix_of(stage: &Value) -> Option<Prefix> {
    let stage: Metaspace = Metaspace::deserialize(stage).ok()?;
    let is_whole = stage.get_replacement() == SPACE_MARK && !stage.get_split();
    is_whole.then(|| match stage.get_prepend_scheme() {
        PrependScheme::Never => Prefix::Nowhere,
        PrependScheme::First => Prefix::Start,
        PrependScheme::Always => Prefix::Segments,
    })
}

fn is_prepend(stage: &Value) -> bool {
    let text = stage.get("prepend").and_then(Value::as_str);
    kind(stage) == Some("Prepend") && text == Some("▁")
}

fn marks_spaces(stage: &Value) -> bool {
    let text = |pointer| stage.pointer(pointer).and_then(Value::as_str);
    kind(stage) == Some("Replace")
        && (text("/pattern/String"), text("/content")) == (Some(" "), Some("▁"))
}

/// True if the stage cuts at spaces only, so nowhere in text with `▁` for spaces.
fn cuts_at_spaces(stage: &Value) -> bool {
    kind(stage) == Some("Split")
        && stage.pointer("/pattern/String").and_then(Value::as_str) == Some(" ")
        && stage.get("invert").and_then(Value::as_bool) == Some(false)
}
