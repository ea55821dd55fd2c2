//! Ids to bytes by a table, never by decoding slices: a token can end inside a UTF-8 character.

use serde_json::Value;

use crate::by_bytes::BytesById;
use crate::byte_chars::{CharToByte, byte_chars};
use crate::file::{AddedToken, Model, ModelSettings};

/// The way in which the vocabulary spells bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// GPT-2's table: one character for each byte.
    ByteLevel,
    /// `▁` for a space, `<0xHH>` for a byte that the vocabulary lacks.
    SentencePiece,
    /// Plain text, with markers at the start or end of words.
    Words { continuing: Option<String>, end: Option<String> },
}

impl Spelling {
    pub fn detect(settings: &ModelSettings, parts: [&Value; 3]) -> Self {
        let mentions = |kind: &str| parts.iter().any(|value| has_type(value, kind));
        let metaspace = parts.iter().any(|value| value.to_string().contains('▁'));
        if mentions("ByteLevel") {
            Self::ByteLevel
        } else if mentions("Metaspace") || metaspace || settings.byte_fallback {
            Self::SentencePiece
        } else {
            Self::Words {
                continuing: settings.continuing_subword_prefix.clone().filter(|s| !s.is_empty()),
                end: settings.end_of_word_suffix.clone().filter(|s| !s.is_empty()),
            }
        }
    }

    /// A text as the vocabulary spells it, at the beginning of a word.
    pub fn spelled(&self, text: &str) -> String {
        match self {
            Self::ByteLevel => {
                let chars = byte_chars();
                text.bytes().map(|byte| chars[usize::from(byte)]).collect()
            }
            Self::SentencePiece => format!("▁{}", text.replace(' ', "▁")),
            Self::Words { .. } => text.to_owned(),
        }
    }

    fn bytes(&self, token: &str, chars: &CharToByte) -> Vec<u8> {
        match self {
            Self::ByteLevel => token
                .chars()
                .map(|c| chars.byte(c))
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec()),
            Self::SentencePiece => fallback_byte(token)
                .map_or_else(|| token.replace('▁', " ").into_bytes(), |byte| vec![byte]),
            Self::Words { continuing, end } => {
                let stem = end.as_deref().and_then(|end| token.strip_suffix(end));
                if let Some(stem) = stem {
                    return format!("{stem} ").into_bytes();
                }
                match continuing.as_deref() {
                    None => token.as_bytes().to_vec(),
                    Some(prefix) => token.strip_prefix(prefix).map_or_else(
                        || format!(" {token}").into_bytes(),
                        |rest| rest.as_bytes().to_vec(),
                    ),
                }
            }
        }
    }
}

/// The bytes of every id of a tokenizer.
pub(crate) fn bytes_by_id(spelling: &Spelling, model: &Model, added: &[AddedToken]) -> BytesById {
    let chars = CharToByte::new();
    let mut table = BytesById::default();
    for (token, id) in model.entries() {
        table.put(id, &spelling.bytes(&token, &chars));
    }
    // Runs of `▁` that the model itself makes of spaces are spelled as the model spells them.
    for token in added.iter().filter(|token| !is_own(token, model)) {
        table.put(token.id, token.content.as_bytes());
    }
    table
}

/// True if a textual added token stands in the model's vocabulary under the same id, so that text
/// may become it either way.
pub(crate) fn is_own(token: &AddedToken, model: &Model) -> bool {
    !token.control && model.token_to_id(&token.content) == Some(token.id)
}

fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

fn has_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Object(map) => {
            map.get("type").and_then(Value::as_str) == Some(kind)
                || map.values().any(|inner| has_type(inner, kind))
        }
        Value::Array(list) => list.iter().any(|inner| has_type(inner, kind)),
        _ => false,
    }
}
