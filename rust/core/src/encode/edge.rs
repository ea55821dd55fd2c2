//! The left edge of a piece of text, and its effect on the pipeline: prefixes are written and
//! whitespace is stripped at the left edge of a segment, and only there.

use serde_json::Value;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{NormalizedString, PreTokenizedString, PreTokenizer};

use crate::error::Result;
use crate::file::{check_charsmaps, guarded, kind, stages};

/// The kind of text to the left of a piece of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Nothing: it begins the conversation.
    Start,
    /// An added token: a new segment, but not the first.
    Segment,
    /// Tokens of the same segment that must not change: the word at the edge gets no prefix.
    Continue,
    /// Text of the same segment that ends at an anchor or another safe restart: every word, also the
    /// first, is encoded as it is inside a segment.
    Interior,
}

impl Edge {
    pub(crate) const ALL: [Self; 4] = [Self::Start, Self::Segment, Self::Continue, Self::Interior];

    /// True if a segment begins behind it.
    pub(crate) fn is_left_edge(self) -> bool {
        matches!(self, Self::Start | Self::Segment)
    }
}

/// The normalizer at each edge, in the order of [`Edge::ALL`].
pub(crate) fn normalizers(config: &Value) -> Result<[Option<NormalizerWrapper>; 4]> {
    check_charsmaps(config)?;
    guarded("normalizer", || {
        by_edge(|edge| normalizer_at(config, edge).map(serde_json::from_value).transpose())
    })
}

/// The pre-tokenizer at each edge, in the order of [`Edge::ALL`].
pub(crate) fn pre_tokenizers(config: &Value) -> Result<[EdgePreTokenizer; 4]> {
    guarded("pre_tokenizer", || by_edge(|edge| EdgePreTokenizer::new(config, edge)))
}

/// One for each edge.
fn by_edge<T>(load: impl Fn(Edge) -> serde_json::Result<T>) -> serde_json::Result<[T; 4]> {
    let [start, segment, goes_on, interior] = Edge::ALL;
    Ok([load(start)?, load(segment)?, load(goes_on)?, load(interior)?])
}

/// The normalizer for text at this edge.
fn normalizer_at(config: &Value, edge: Edge) -> Option<Value> {
    if edge.is_left_edge() {
        return Some(config.clone()).filter(|value| !value.is_null());
    }
    let inner = stages(config, "normalizers").into_iter().filter_map(|stage| match kind(stage) {
        Some("Prepend") => None,
        Some("Strip") => {
            let mut stage = stage.clone();
            stage["strip_left"] = false.into();
            Some(stage)
        }
        _ => Some(stage.clone()),
    });
    sequence("normalizers", inner.collect())
}

/// The pre-tokenizer for one edge.
#[derive(Debug)]
pub(crate) enum EdgePreTokenizer {
    None,
    Whole(Box<PreTokenizerWrapper>),
    /// For [`Edge::Continue`] where a later stage writes a prefix before each word. The word at the left
    /// edge continues a word that is already written, so it goes through a version of the remaining
    /// stages that writes no prefix; the other words go through the usual one.
    Words {
        before: Box<PreTokenizerWrapper>,
        at_edge: Box<PreTokenizerWrapper>,
        others: Box<PreTokenizerWrapper>,
    },
}

impl EdgePreTokenizer {
    fn new(config: &Value, edge: Edge) -> serde_json::Result<Self> {
        let stages = stages(config, "pretokenizers");
        let load = |stages: Vec<Value>| {
            let value = sequence("pretokenizers", stages);
            value.map(serde_json::from_value::<PreTokenizerWrapper>).transpose()
        };
        let part = |from: usize, to: usize, edge: Edge| {
            let adapted = stages[from..to].iter().enumerate();
            load(adapted.map(|(index, stage)| without_prefix(stage, edge, from + index)).collect())
        };
        let all = stages.len();
        let later = (1..all).find(|&index| is_prefixed(stages[index]));
        if let (Edge::Continue, Some(later)) = (edge, later) {
            let present = "the range is not empty";
            return Ok(Self::Words {
                before: Box::new(part(0, later, edge)?.expect(present)),
                at_edge: Box::new(part(later, all, edge)?.expect(present)),
                others: Box::new(part(later, all, Edge::Interior)?.expect(present)),
            });
        }
        Ok(part(0, all, edge)?.map_or(Self::None, |whole| Self::Whole(Box::new(whole))))
    }

    /// Calls `each` with the pre-tokens and their alignment, in order.
    pub fn split(
        &self,
        text: NormalizedString,
        each: &mut dyn FnMut(NormalizedString),
    ) -> tokenizers::Result<()> {
        let mut pieces = PreTokenizedString::from(text);
        match self {
            Self::None => {}
            Self::Whole(whole) => whole.pre_tokenize(&mut pieces)?,
            Self::Words { before, at_edge, others } => {
                before.pre_tokenize(&mut pieces)?;
                let mut words = Vec::new();
                hand_out(pieces, &mut |word| words.push(word))?;
                for word in words {
                    let rest = if word.offsets_original().0 == 0 { at_edge } else { others };
                    let mut pieces = PreTokenizedString::from(word);
                    rest.pre_tokenize(&mut pieces)?;
                    hand_out(pieces, each)?;
                }
                return Ok(());
            }
        }
        hand_out(pieces, each)
    }
}

/// Calls `each` with the pieces and their alignment. `PreTokenizedString::split` is the only method of
/// `tokenizers` that hands out pieces with their alignment. Here it splits nothing and returns nothing.
fn hand_out(
    mut pieces: PreTokenizedString,
    each: &mut dyn FnMut(NormalizedString),
) -> tokenizers::Result<()> {
    pieces.split(|_, piece| {
        each(piece);
        Ok(Vec::<NormalizedString>::new())
    })
}

fn sequence(list: &str, mut stages: Vec<Value>) -> Option<Value> {
    match stages.len() {
        0 => None,
        1 => stages.pop(),
        _ => Some(serde_json::json!({"type": "Sequence", list: stages})),
    }
}

/// True if the stage writes a prefix before each of its pieces.
fn is_prefixed(stage: &Value) -> bool {
    match kind(stage) {
        Some("Metaspace") => scheme(stage) != Some("never"),
        Some("ByteLevel") => stage.get("add_prefix_space").and_then(Value::as_bool) != Some(false),
        _ => false,
    }
}

fn scheme(stage: &Value) -> Option<&str> {
    stage.get("prepend_scheme").and_then(Value::as_str)
}

/// A stage as it acts at this edge. The first one sees the whole segment, a later one words.
fn without_prefix(stage: &Value, edge: Edge, index: usize) -> Value {
    let mut stage = stage.clone();
    let writes_nothing = match edge {
        Edge::Start => false,
        // With the scheme "first" only the first word of the conversation gets the prefix.
        Edge::Segment => scheme(&stage) == Some("first"),
        // The first stage would write before the whole text, which is inside a segment here. A later
        // one writes before each word, and an anchor may be the beginning of one.
        Edge::Interior => index == 0 || scheme(&stage) == Some("first"),
        Edge::Continue => true,
    };
    match kind(&stage) {
        Some("Metaspace") if writes_nothing => {
            stage["prepend_scheme"] = "never".into();
            // The flag's older name, which must not contradict the newer one.
            if let Some(map) = stage.as_object_mut() {
                map.remove("add_prefix_space");
            }
        }
        Some("ByteLevel") if writes_nothing => stage["add_prefix_space"] = false.into(),
        _ => {}
    }
    stage
}
