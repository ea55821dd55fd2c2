//! Faults of a vocabulary that are found before a model is made of it.
//!
//! Invariant: **tables by id take memory in proportion to the file**, and an id stands for one text.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::model_file::{Text, Vocab};

/// Ids below this may have any holes: a table of them has 8 MiB.
const ANY_ID: usize = 1 << 20;
/// Others are less than as many times the size of the vocabulary. No known one has ids above its
/// size and that of its added tokens.
const MOST_HOLES: usize = 8;
/// Bytes of a piece of a Unigram model; SentencePiece takes 16 characters unless told otherwise.
/// `tokenizers` drops its tree of pieces by recursion, so that a long one overflows the stack.
const LONGEST_PIECE: usize = 4096;

/// The fault of a vocabulary and the hint about it, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Check(pub Option<(String, &'static str)>);

/// Ids of a vocabulary of this size are below it.
pub(super) fn id_limit(entries: usize) -> usize {
    ANY_ID.max(MOST_HOLES * entries)
}

impl Vocab<'_> {
    fn fault(&self) -> Option<(String, &'static str)> {
        let limit = id_limit(self.0.len());
        if let Some((token, id)) = self.0.iter().find(|(_, id)| *id as usize >= limit) {
            let count = self.0.len();
            return Some((
                format!("the token {:?} has id {id}, in a vocabulary of {count}", shown(token)),
                "number the tokens from 0: tables that are indexed by id have room for all ids up to \
                 the highest",
            ));
        }
        let mut first = vec![usize::MAX; self.0.iter().map(|(_, id)| *id as usize + 1).max()?];
        for (index, (token, id)) in self.0.iter().enumerate() {
            let before = std::mem::replace(&mut first[*id as usize], index);
            if let Some((other, _)) = self.0.get(before).filter(|(other, _)| other != token) {
                return Some((
                    format!(
                        "the tokens {:?} and {:?} both have id {id}",
                        shown(other),
                        shown(token)
                    ),
                    "give each token a different id: a sampled id must mean one text",
                ));
            }
        }
        None
    }
}

/// The beginning of a token, which may be long.
fn shown(token: &str) -> String {
    token.chars().take(40).collect()
}

impl<'de> Deserialize<'de> for Check {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CheckVisitor;
        impl<'de> Visitor<'de> for CheckVisitor {
            type Value = Check;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a map from token to id, or a list of pieces and scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Check, A::Error> {
                let map = serde::de::value::MapAccessDeserializer::new(map);
                Ok(Check(Vocab::deserialize(map)?.fault()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pieces: A) -> Result<Check, A::Error> {
                let mut found = None;
                let mut index = 0;
                while let Some((Text(piece), IgnoredAny)) = pieces.next_element()? {
                    if piece.len() > LONGEST_PIECE && found.is_none() {
                        let (bytes, piece) = (piece.len(), shown(&piece));
                        found = Some((
                            format!("piece {index} of the model has {bytes} bytes: {piece:?}…"),
                            "SentencePiece models do not have such pieces; check whether the file is damaged",
                        ));
                    }
                    index += 1;
                }
                Ok(Check(found))
            }
        }
        deserializer.deserialize_any(CheckVisitor)
    }
}
