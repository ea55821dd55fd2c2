//! Vocabulary and merges of a BPE model, borrowed from its file: `tokenizers` reads them as well,
//! but does not hand out the merges.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Tokens and their ids, as they stand in the file, and the merges by rank.
pub(crate) struct ModelFile<'a> {
    pub vocab: Vec<(Cow<'a, str>, u32)>,
    pub merges: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> ModelFile<'a> {
    pub fn new(model: &'a RawValue) -> serde_json::Result<Self> {
        let Fields { vocab, merges } = serde_json::from_str(model.get())?;
        let pair = |(Text(left), Text(right))| (left, right);
        if let Ok(pairs) = serde_json::from_str::<Vec<_>>(merges.get()) {
            return Ok(Self { vocab: vocab.0, merges: pairs.into_iter().map(pair).collect() });
        }
        // The older way: one string with a space between the two.
        let lines: Vec<Text<'a>> = serde_json::from_str(merges.get())?;
        let split = |Text(line): Text<'a>| match line {
            Cow::Borrowed(line) => {
                line.split_once(' ').map(|(a, b)| (Cow::Borrowed(a), Cow::Borrowed(b)))
            }
            Cow::Owned(line) => line
                .split_once(' ')
                .map(|(a, b)| (Cow::Owned(a.to_owned()), Cow::Owned(b.to_owned()))),
        };
        let merges = lines.into_iter().filter(|Text(line)| !line.starts_with("#version"));
        Ok(Self { vocab: vocab.0, merges: merges.filter_map(split).collect() })
    }
}

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    vocab: Vocab<'a>,
    #[serde(borrow)]
    merges: &'a RawValue,
}

/// A string of the file, borrowed where it has no escapes.
#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// Tokens and their ids, as they stand in the file.
pub(super) struct Vocab<'a>(pub Vec<(Cow<'a, str>, u32)>);

impl<'de: 'a, 'a> Deserialize<'de> for Vocab<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
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
        let Vocab(entries): Vocab<'de> = deserializer.deserialize_map(Entries)?;
        Ok(Vocab(entries))
    }
}
