//! A BPE model as it stands in its file: read in one pass, and borrowed from it.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// A model with no fields but these. `tokenizers` reads each such file in the same way: anything that it
/// would refuse or read differently is an error here.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BpeFile<'a> {
    #[serde(rename = "type")]
    _kind: Kind,
    pub dropout: Option<f32>,
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub fuse_unk: bool,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    #[serde(borrow)]
    pub vocab: Vocab<'a>,
    #[serde(borrow)]
    pub merges: WrittenMerges<'a>,
}

#[derive(Deserialize)]
enum Kind {
    #[serde(rename = "BPE")]
    Bpe,
}

/// The two large fields alone, of a model that may have others.
#[derive(Deserialize)]
pub(super) struct ModelFile<'a> {
    #[serde(borrow)]
    pub vocab: Vocab<'a>,
    #[serde(borrow)]
    pub merges: WrittenMerges<'a>,
}

/// A string of the file, borrowed where it has no escapes.
#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Tokens and their ids, as they stand in the file.
pub(super) struct Vocab<'a>(pub Vec<(Cow<'a, str>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = Vocab<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map from token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(token), id)) = map.next_entry()? {
                    entries.push((token, id));
                }
                Ok(Vocab(entries))
            }
        }
        let Vocab(entries): Vocab<'de> = deserializer.deserialize_map(VocabVisitor)?;
        Ok(Vocab(entries))
    }
}

/// The merges by rank, each with its two halves.
pub(super) struct WrittenMerges<'a>(pub Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for WrittenMerges<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergesVisitor;
        impl<'de> Visitor<'de> for MergesVisitor {
            type Value = WrittenMerges<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                let mut all_are_lines = None;
                while let Some(merge) = list.next_element()? {
                    let is_line = matches!(merge, WrittenMerge::Line(_));
                    if *all_are_lines.get_or_insert(is_line) != is_line {
                        return Err(A::Error::custom("merges of two kinds"));
                    }
                    match merge {
                        WrittenMerge::Pair(left, right) => pairs.push((left, right)),
                        WrittenMerge::Line(line) if line.starts_with("#version") => {}
                        WrittenMerge::Line(line) => pairs.push(halves(line).ok_or_else(|| {
                            A::Error::custom("a merge is two tokens with a space between them")
                        })?),
                    }
                }
                Ok(WrittenMerges(pairs))
            }
        }
        let WrittenMerges(pairs): WrittenMerges<'de> =
            deserializer.deserialize_seq(MergesVisitor)?;
        Ok(WrittenMerges(pairs))
    }
}

/// One merge, in either way of writing it.
enum WrittenMerge<'a> {
    Pair(Cow<'a, str>, Cow<'a, str>),
    /// The older way: one string with a space between the two.
    Line(Cow<'a, str>),
}

impl<'de: 'a, 'a> Deserialize<'de> for WrittenMerge<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = WrittenMerge<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a merge")
            }

            fn visit_borrowed_str<E: Error>(self, line: &'de str) -> Result<Self::Value, E> {
                Ok(WrittenMerge::Line(Cow::Borrowed(line)))
            }

            fn visit_str<E: Error>(self, line: &str) -> Result<Self::Value, E> {
                Ok(WrittenMerge::Line(Cow::Owned(line.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Self::Value, A::Error> {
                let short = || A::Error::custom("a merge has two halves");
                let Text(left) = pair.next_element()?.ok_or_else(short)?;
                let Text(right) = pair.next_element()?.ok_or_else(short)?;
                Ok(WrittenMerge::Pair(left, right))
            }
        }
        let merge: WrittenMerge<'de> = deserializer.deserialize_any(MergeVisitor)?;
        Ok(merge)
    }
}

/// The two halves of a line that has one space.
fn halves(line: Cow<'_, str>) -> Option<(Cow<'_, str>, Cow<'_, str>)> {
    let split = |line: &str| {
        let at = line.find(' ')?;
        (!line[at + 1..].contains(' ')).then_some(at)
    };
    let at = split(&line)?;
    Some(match line {
        Cow::Borrowed(line) => (Cow::Borrowed(&line[..at]), Cow::Borrowed(&line[at + 1..])),
        Cow::Owned(line) => {
            (Cow::Owned(line[..at].to_owned()), Cow::Owned(line[at + 1..].to_owned()))
        }
    })
}
